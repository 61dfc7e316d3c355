// Who owns a session's rows: the engine's cells, or the managed cache. A session has one storage, and each sequence its rows.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvpolicy/interop/llama.hpp"
#include "layers.hpp"
#include "nodes.hpp"
#include "sequence_cells.hpp"

namespace kvpolicy::llama {

class managed_rows;

/// The rows of one sequence's tokens. Only the engine's leading thread calls it while a graph runs, and the session's caller
/// between graphs.
class row_source {
 public:
  row_source(llama_seq_id id, cell_table& table) : cells_(id, table) {}
  virtual ~row_source() = default;

  /// Which of the engine's cells hold the tokens.
  sequence_cells& cells() noexcept { return cells_; }
  sequence_cells const& cells() const noexcept { return cells_; }
  /// Tokens whose graphs ended well.
  std::int64_t sealed() const noexcept { return std::ssize(cells_.known()); }

  virtual void begin(cache_shape const& shape, element_type values) = 0;
  /// A graph begins. Returns how many of the first known tokens are still there, none where the rows of those that are seen now
  /// are not here. Throws unsupported where it is not certain which tokens they are.
  virtual std::optional<std::int64_t> follow(seen_cells const& now) = 0;
  /// Where a layer's rows of the engine's whole cache are.
  virtual void see(std::int64_t layer, rows const& keys, rows const& values) noexcept = 0;
  virtual layer_table_view view(std::int64_t tokens) const noexcept = 0;
  /// What a layer has of the first tokens; holds until the next call.
  virtual selection resident(layer_id layer, std::int64_t tokens) = 0;
  /// The same rows where they are the library's; null where they are the engine's, which has all of them in place.
  virtual managed_rows* managed() noexcept { return nullptr; }

 protected:
  sequence_cells cells_;
};

class storage {
 public:
  virtual ~storage() = default;

  /// Whether the engine has all rows: it can go on alone, and what a failed graph read can be read again.
  virtual bool engine_has_rows() const noexcept = 0;
  /// At attach: how many tokens a sequence may have. Throws unsupported, invalid_value.
  virtual void fit(cache_shape&, llama_context_params const&, llama_model const*, served_layers const&) {}
  /// Throws unsupported for a policy that can't run on this storage.
  virtual void check(host_policy const&) const {}
  /// The first graph, of a cache of this shape.
  virtual void begin(cache_shape&, element_type) {}
  virtual std::unique_ptr<row_source> rows_of(llama_seq_id id, cell_table& table) = 0;
  /// Throws for attention, or a length, that it can't serve.
  virtual void check(attention_node const&) const {}
  virtual void check_length(std::int64_t) {}
  /// Cells of the engine that each sequence must keep when others are given back; 0: none is given back.
  virtual llama_pos cells_kept() const noexcept { return 0; }
  virtual memory_statistics memory() const noexcept { return {}; }
  /// A line for session::report, or none.
  virtual std::string remark() const { return {}; }
};

/// Rows are the engine's, read where they lie.
std::unique_ptr<storage> make_engine_cells();
/// Rows are the library's. Throws invalid_value for options that can't be; they must outlive it.
std::unique_ptr<storage> make_managed_cache(session_options const& options);

}  // namespace kvpolicy::llama
