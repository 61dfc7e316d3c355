#include "row_history.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <ranges>

namespace kvpolicy::ggml {
namespace {

/// Of the last layer's keys of a token: in a model of several layers they differ with it, its position and every token before
/// it.
std::uint64_t hash(std::span<std::byte const> row) noexcept {
  std::uint64_t sum = 0x9e3779b97f4a7c15u;
  for (; !row.empty(); row = row.subspan(std::min<std::size_t>(row.size(), sizeof sum))) {
    std::uint64_t word = 0;
    std::memcpy(&word, row.data(), std::min(row.size(), sizeof word));
    sum = (sum ^ word) * 0xbf58476d1ce4e5b9u;
    sum ^= sum >> 29;
  }
  return sum;
}

}  // namespace

void row_history::begin(attention_graph const& of) {
  for (attention const& each : of.layers)
    for (int const source : {1, 2}) {
      caches_.push_back(*llama::storage_of(each.node->src[source]));
      watch(caches_.back().buffer, *this);
    }
  order_ = write_order(last_keys().ne[1] * last_keys().ne[2]);
}

bool row_history::is_of(attention_graph const& graph) const noexcept {
  for (std::size_t l = 0; l < graph.layers.size(); ++l)
    if (2 * l >= caches_.size() || caches_[2 * l].data != llama::storage_of(graph.layers[l].node->src[1])->data) return false;
  return true;
}

write_order& row_history::order() {
  for (cell_range const& cells : std::exchange(forgotten_, {})) order_.forget(cells);
  for (auto const& [cell, number] : std::exchange(copied_, {})) order_.restore(cell, number);
  // Sequences may have had the same first tokens. Those that are brought back come before what follows them.
  std::uint64_t next = 0;
  for (auto const& [cell, hash] : std::views::reverse(std::exchange(brought_back_, {}))) {
    std::vector<std::uint64_t> const& numbers = saved_.at(hash);
    auto const behind = std::ranges::lower_bound(numbers, next);
    next = behind != numbers.begin() ? *std::prev(behind) : numbers.back();
    order_.restore(cell, next);
  }
  return order_;
}

cell_range row_history::cells_of(ggml_tensor const& cache, char const* at, std::size_t count) noexcept {
  auto const* const begin = static_cast<char const*>(cache.data);
  auto const row = static_cast<std::int64_t>(cache.nb[1]);
  if (at + count <= begin || at >= begin + ggml_nbytes(&cache)) return {};
  return {std::max<std::int64_t>(0, (at - begin) / row), (at + count - begin + row - 1) / row};
}

void row_history::each_row(char const* at, std::span<std::byte const> bytes,
                           std::function<void(std::int64_t, std::span<std::byte const>)> const& what) const {
  ggml_tensor const& keys = last_keys();
  std::int64_t const begin = at - static_cast<char const*>(keys.data);
  auto const row = static_cast<std::int64_t>(keys.nb[1]);
  auto const cells = static_cast<std::int64_t>(ggml_nbytes(&keys)) / row;
  for (std::int64_t cell = std::max<std::int64_t>(0, (begin + row - 1) / row); cell < cells; ++cell) {
    std::int64_t const from = cell * row - begin;
    if (from + row > std::ssize(bytes)) break;
    what(cell, bytes.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(row)));
  }
}

void row_history::read(char const* from, std::span<std::byte const> bytes) {
  constexpr std::size_t most = 1 << 20;  // tokens in states; those of longer ago are not known again
  if (saved_.size() > most && brought_back_.empty()) saved_.clear();
  each_row(from, bytes, [&](std::int64_t cell, std::span<std::byte const> row) {
    std::uint64_t const number = order().of(cell);
    if (!write_order::is_known(number)) return;
    std::vector<std::uint64_t>& numbers = saved_[hash(row)];
    auto const at = std::ranges::lower_bound(numbers, number);
    if (at == numbers.end() || *at != number) numbers.insert(at, number);
  });
}

void row_history::written(char const* to, std::size_t count, std::byte const* bytes) {
  for (ggml_tensor const& cache : caches_) {
    cell_range const cells = cells_of(cache, to, count);
    if (cells.begin < cells.end && (forgotten_.empty() || forgotten_.back() != cells)) forgotten_.push_back(cells);
  }
  cell_range const cells = cells_of(last_keys(), to, count);
  for (by_cell* const some : {&brought_back_, &copied_})
    std::erase_if(*some, [&](auto const& each) { return cells.begin <= each.first && each.first < cells.end; });
  if (bytes == nullptr) return;
  each_row(to, {bytes, count}, [&](std::int64_t cell, std::span<std::byte const> row) {
    if (std::uint64_t const of_row = hash(row); saved_.contains(of_row)) brought_back_.emplace_back(cell, of_row);
  });
}

void row_history::copied(char const* from, char const* to, std::size_t count) {
  cell_range const there = cells_of(last_keys(), from, count);
  cell_range const here = cells_of(last_keys(), to, count);
  std::vector<std::uint64_t> numbers;
  for (std::int64_t cell = there.begin; cell < there.end; ++cell) numbers.push_back(order().of(cell));
  written(to, count, nullptr);
  for (std::int64_t i = 0; here.end - here.begin == there.end - there.begin && i < here.end - here.begin; ++i)
    if (std::uint64_t const number = numbers[static_cast<std::size_t>(i)]; write_order::is_known(number))
      copied_.emplace_back(here.begin + i, number);
}

}  // namespace kvpolicy::ggml
