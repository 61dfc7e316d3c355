#include "row_history.hpp"

#include <algorithm>
#include <cstring>

namespace kvpolicy::ggml {
namespace {

/// Of the last layer's keys of a token: they differ with it, its position and every token before it.
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
  for (auto const& [cell, number] : std::exchange(brought_back_, {})) order_.restore(cell, number);
  return order_;
}

cell_range row_history::cells_of(ggml_tensor const& cache, char const* at, std::size_t count) noexcept {
  auto const* const begin = static_cast<char const*>(cache.data);
  auto const row = static_cast<std::int64_t>(cache.nb[1]);
  if (at + count <= begin || at >= begin + ggml_nbytes(&cache)) return {};
  return {std::max<std::int64_t>(0, (at - begin) / row), (at + count - begin + row - 1) / row};
}

void row_history::read(char const* from, std::span<std::byte const> bytes) {
  std::size_t const row = last_keys().nb[1];
  cell_range const cells = cells_of(last_keys(), from, bytes.size());
  constexpr std::size_t most = 1 << 22;  // tokens in states; those of longer ago are not known again
  if (saved_.size() > most) saved_.clear();
  for (std::int64_t cell = cells.begin; bytes.size() >= row; ++cell, bytes = bytes.subspan(row)) {
    if (cell >= cells.end) break;
    std::uint64_t const number = order().of(cell);
    if (number == 0) continue;
    auto const [at, fresh] = saved_.try_emplace(hash(bytes.first(row)), number);
    at->second = std::min(at->second, number);  // as tokens before it, which other sequences may have, too
  }
}

void row_history::written(char const* to, std::size_t count, std::byte const* bytes) {
  for (ggml_tensor const& cache : caches_) {
    cell_range const cells = cells_of(cache, to, count);
    if (cells.begin == cells.end) continue;
    if (forgotten_.empty() || forgotten_.back() != cells) forgotten_.push_back(cells);
    if (bytes == nullptr)
      std::erase_if(brought_back_, [&](auto const& each) { return cells.begin <= each.first && each.first < cells.end; });
  }
  std::size_t const row = last_keys().nb[1];
  cell_range const cells = cells_of(last_keys(), to, count);
  for (std::int64_t cell = cells.begin; bytes != nullptr && cell < cells.end; ++cell, bytes += row)
    if (auto const known = saved_.find(hash({bytes, row})); known != saved_.end())
      brought_back_.emplace_back(cell, known->second);
}

}  // namespace kvpolicy::ggml
