// When each row of a cache was written. A row that a state brings back was written when the state's was.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <functional>
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
  void copied(char const* from, char const* to, std::size_t count) override;

 private:
  static cell_range cells_of(ggml_tensor const& cache, char const* at, std::size_t count) noexcept;
  /// Rows of the last layer's keys that lie wholly in these bytes.
  void each_row(char const* at, std::span<std::byte const> bytes,
                std::function<void(std::int64_t cell, std::span<std::byte const> row)> const& what) const;
  ggml_tensor const& last_keys() const noexcept { return caches_[caches_.size() - 2]; }

  std::vector<ggml_tensor> caches_{};  ///< keys and values, in turns
  write_order order_{};
  std::vector<cell_range> forgotten_{};  ///< others wrote there since order() was asked for
  using by_cell = std::vector<std::pair<std::int64_t, std::uint64_t>>;
  by_cell brought_back_{};  ///< of those the cells of known rows, and their hashes
  by_cell copied_{};        ///< and those of rows that were elsewhere, and their numbers
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> saved_{};  ///< by a row's hash: numbers of rows in states
};

}  // namespace kvpolicy::ggml
