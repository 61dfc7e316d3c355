// What is known of a cache's rows: where they are, when each was written, and when, if a state brought it back.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph.hpp"
#include "row_watch.hpp"
#include "token_cells.hpp"

namespace kvpolicy::ggml {

/// All calls are from the thread that computes, or saves and restores states.
class row_history final : public row_observer {
 public:
  row_history() = default;
  ~row_history() { leave(*this); }
  row_history(row_history const&) = delete;
  row_history& operator=(row_history const&) = delete;

  /// Watches the cache of a context's first graph.
  void begin(attention_graph const& of);
  bool is_begun() const noexcept { return !caches_.empty(); }
  bool is_of(attention_graph const& graph) const noexcept;
  /// When each cell was written. Others' writes are in it.
  write_order& order();

  void read(char const* from, std::span<std::byte const> bytes) override;
  void written(char const* to, std::size_t count, std::byte const* bytes) override;

 private:
  static cell_range cells_of(ggml_tensor const& cache, char const* at, std::size_t count) noexcept;
  ggml_tensor const& last_keys() const noexcept { return caches_[caches_.size() - 2]; }

  std::vector<ggml_tensor> caches_{};  ///< keys and values, in turns
  write_order order_{};
  std::vector<cell_range> forgotten_{};                                 ///< others wrote there since order() was asked for
  std::vector<std::pair<std::int64_t, std::uint64_t>> brought_back_{};  ///< and what: the cell, and its row's number
  std::unordered_map<std::uint64_t, std::uint64_t> saved_{};            ///< numbers of rows that are in states, by their bytes
};

}  // namespace kvpolicy::ggml
