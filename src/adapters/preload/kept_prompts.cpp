#include "kept_prompts.hpp"

#include <kvpolicy/archive.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

#include "checked_file.hpp"

namespace kvpolicy::preload {
namespace {

constexpr std::string_view what = "prompt 1";

std::size_t bytes_of(llama::saved_prompt const& prompt) noexcept {
  return sizeof prompt + prompt.queries.size() * sizeof(float) + prompt.ids.size() * sizeof(std::int32_t) +
         prompt.fingerprints.size() * sizeof(llama::fingerprint);
}
std::string beside(std::string const& path) { return path + ".kvpolicy"; }

template <class Archive>
void archive(Archive& a, llama::saved_prompt& prompt) {
  a(prompt.tokens, prompt.window, prompt.queries, prompt.ids, prompt.fingerprints, prompt.first_position);
}

}  // namespace

void kept_prompts::keep(std::span<std::byte const> state, llama::saved_prompt prompt) {
  std::size_t const bytes = bytes_of(prompt);
  if (bytes > most) return;
  while (bytes_ + bytes > most) {
    bytes_ -= all_.front().bytes;
    all_.pop_front();
  }
  bytes_ += bytes;
  all_.push_back({hash_of(state), bytes, std::move(prompt)});
}

llama::saved_prompt const* kept_prompts::find(std::span<std::byte const> state) const noexcept {
  auto const found = std::ranges::find(all_.rbegin(), all_.rend(), hash_of(state), &kept::hash);  // the newest of a state
  return found == all_.rend() ? nullptr : &found->prompt;
}

void write_beside(std::string const& path, llama::saved_prompt prompt) {
  std::vector<std::byte> bytes;
  bytes.reserve(bytes_of(prompt) + 4096);
  state_writer a(bytes);
  archive(a, prompt);
  write_checked(beside(path), what, bytes);
}

std::optional<llama::saved_prompt> read_beside(std::string const& path) {
  auto const bytes = read_checked(beside(path), what);
  if (!bytes) return std::nullopt;
  llama::saved_prompt prompt;
  state_reader a(*bytes);
  archive(a, prompt);
  return prompt;
}

}  // namespace kvpolicy::preload
