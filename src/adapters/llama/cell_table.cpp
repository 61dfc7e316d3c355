#include "cell_table.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <string>

#include "kvpolicy/error.hpp"

namespace kvpolicy::llama {
namespace {

/// Of 16 bytes at the beginning of a cell's first head, and 16 at `other`; never 0. Each step takes it of every token: four
/// products side by side.
std::uint64_t hash(rows const& keys, std::int64_t cell, std::size_t other) noexcept {
  constexpr std::size_t half = 16;
  std::array<std::uint64_t, 2 * half / 8> words{};
  std::byte const* const key = keys.address({0}, {cell});
  auto const bytes = static_cast<std::size_t>(bytes_of(keys.type, keys.head_dim));
  std::memcpy(words.data(), key, std::min(bytes, half));
  if (bytes >= other + half) std::memcpy(words.data() + words.size() / 2, key + other, half);
  std::uint64_t sum = words[0] * 0x9e3779b97f4a7c15u ^ words[1] * 0xc2b2ae3d27d4eb4fu;
  sum += (words[2] ^ 0x165667b19e3779f9u) * 0x85ebca77c2b2ae63u ^ words[3] * 0x27d4eb2f165667c5u;
  sum = (sum ^ sum >> 29) * 0xbf58476d1ce4e5b9u;
  return (sum ^ sum >> 32) | 1;
}

}  // namespace

void cell_table::begin(rows const& keys, rows const& values, std::int64_t cells_of_a_stream) {
  first_ = keys;
  std::int64_t const narrower = values.head_dim < keys.head_dim ? values.head_dim : 0;
  other_ = std::max<std::size_t>(16, static_cast<std::size_t>(bytes_of(keys.type, narrower)));
  last_ = {};
  per_stream_ = cells_of_a_stream;
  records_.assign(static_cast<std::size_t>(keys.tokens), {});
  past_.assign(static_cast<std::size_t>(keys.tokens), {});
  oldest_ = 0;
  index_.reserve(2 * records_.size());
  indexed_ = false;
}

fingerprint cell_table::read(std::int64_t cell) const noexcept {
  return {hash(first_, cell, other_), sees_history() ? hash(last_, cell, other_) : 0};
}

bool cell_table::holds(std::int64_t stream, std::int32_t cell, fingerprint const& token) const noexcept {
  if (sees_history() && token.history != 0) return hash(last_, index(stream, cell), other_) == token.history;
  return hash(first_, index(stream, cell), other_) == token.self;
}

void cell_table::write(graph_tokens const& graph) {
  for (std::int32_t i = 0; i < std::ssize(graph.written); ++i) {
    std::int64_t const cell = graph.written[static_cast<std::size_t>(i)];
    if (cell < 0 || cell >= std::ssize(records_)) {
      throw unsupported("the engine writes to cell " + std::to_string(cell) + " of " + std::to_string(records_.size()));
    }
    record& r = records_[static_cast<std::size_t>(cell)];
    retire(r);
    r = {.token = {}, .position = graph.position(i), .sealed = false};
  }
}

void cell_table::seal(std::span<std::int64_t const> written) noexcept {
  if (records_.empty()) return;  // no graph was followed yet
  for (std::int64_t const cell : written) {
    record& r = records_[static_cast<std::size_t>(cell)];
    r.token = read(cell);
    r.sealed = true;
  }
  indexed_ = false;
}

void cell_table::rotate(std::span<std::int32_t const> by) {
  if (by.size() != records_.size()) return forget();
  for (std::int64_t cell = 0; cell < std::ssize(records_); ++cell) {
    std::int32_t const from = position(cell);
    record& r = records_[static_cast<std::size_t>(cell)];
    std::int32_t const to = from == unknown ? unknown : from + by[static_cast<std::size_t>(cell)];
    retire(r);
    r = {.token = {}, .position = std::max(to, unknown), .sealed = false};
  }
}

void cell_table::rotated() noexcept {
  for (std::int64_t cell = 0; cell < std::ssize(records_); ++cell) {
    record& r = records_[static_cast<std::size_t>(cell)];
    r.token = read(cell);
    r.sealed = r.position != unknown;
  }
  indexed_ = false;
}

void cell_table::remember(fingerprint const& token, std::int32_t position) {
  retire({.token = token, .position = position, .sealed = true});
}

void cell_table::forget() noexcept {
  std::ranges::fill(records_, record{});
  std::ranges::fill(past_, record{});
  indexed_ = false;
}

void cell_table::retire(record const& old) {
  if (!old.sealed || old.position == unknown || past_.empty()) return;
  past_[oldest_] = old;
  oldest_ = (oldest_ + 1) % past_.size();
  indexed_ = false;
}

std::int32_t cell_table::position(std::int64_t cell) {
  fingerprint const now = read(cell);
  record const& r = records_[static_cast<std::size_t>(cell)];
  return r.sealed && key(r.token) == key(now) ? r.position : find(now);
}

/// By all tokens that the session knows of; unknown if they disagree.
std::int32_t cell_table::find(fingerprint const& token) {
  auto const by_key = [this](record const& r) { return key(r.token); };
  if (!indexed_) {
    index_.clear();
    auto const known = [](record const& r) { return r.sealed && r.position != unknown; };
    std::ranges::copy_if(records_, std::back_inserter(index_), known);
    std::ranges::copy_if(past_, std::back_inserter(index_), known);
    std::ranges::sort(index_, {}, by_key);
    indexed_ = true;
  }
  auto const same = std::ranges::equal_range(index_, key(token), {}, by_key);
  if (same.empty()) return unknown;
  std::int32_t const position = same.front().position;
  return std::ranges::all_of(same, [&](record const& r) { return r.position == position; }) ? position : unknown;
}

}  // namespace kvpolicy::llama
