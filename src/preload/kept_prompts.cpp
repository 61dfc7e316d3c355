#include "kept_prompts.hpp"

#include <kvpolicy/archive.hpp>
#include <kvpolicy/version.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string_view>
#include <vector>

namespace kvpolicy::preload {
namespace {

constexpr std::string_view format = "kvpolicy " KVPOLICY_VERSION ", prompt 1\n";

std::string_view text_of(std::span<std::byte const> bytes) noexcept {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}
std::size_t hash_of(std::span<std::byte const> bytes) noexcept { return std::hash<std::string_view>{}(text_of(bytes)); }
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
  bytes.resize(sizeof(std::size_t));
  state_writer a(bytes);
  archive(a, prompt);
  std::size_t const hash = hash_of(std::span(bytes).subspan(sizeof hash));
  std::memcpy(bytes.data(), &hash, sizeof hash);
  std::string const draft = beside(path) + ".part";
  {
    std::ofstream out(draft, std::ios::binary | std::ios::trunc);
    out << format;
    out.write(reinterpret_cast<char const*>(bytes.data()), std::ssize(bytes));
    if (!out.flush()) throw error("'" + draft + "' can't be written");
  }
  std::filesystem::rename(draft, beside(path));
}

std::optional<llama::saved_prompt> read_beside(std::string const& path) {
  std::ifstream in(beside(path), std::ios::binary);
  std::string const all(std::istreambuf_iterator<char>(in), {});
  std::size_t hash = 0;
  if (!all.starts_with(format) || all.size() < format.size() + sizeof hash) return std::nullopt;
  std::memcpy(&hash, all.data() + format.size(), sizeof hash);
  std::span const bytes = std::as_bytes(std::span(all).subspan(format.size() + sizeof hash));
  if (hash != hash_of(bytes)) return std::nullopt;
  llama::saved_prompt prompt;
  state_reader a(bytes);
  archive(a, prompt);
  return prompt;
}

}  // namespace kvpolicy::preload
