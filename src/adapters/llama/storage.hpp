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

/// The rows of one sequence's tokens. Only the engine's leading thread calls it while a graph runs, and the session's caller
/// between graphs.
class sequence_rows {
 public:
  sequence_rows(llama_seq_id id, cell_table& table) : cells_(id, table) {}
  virtual ~sequence_rows() = default;

  /// Which of the engine's cells hold the tokens.
  sequence_cells& cells() noexcept { return cells_; }
  sequence_cells const& cells() const noexcept { return cells_; }
  /// Tokens whose graphs ended well.
  std::int64_t sealed() const noexcept { return std::ssize(cells_.known()); }

  virtual void begin(cache_shape const& shape, element_type values) = 0;

  /// A graph begins. Returns how many of the first known tokens are still there, none where the rows of those that are seen now
  /// are not here. Throws unsupported where it is not certain which tokens they are.
  virtual std::optional<std::int64_t> follow(seen_cells const& now) = 0;
  /// Whether the tokens that are seen now, and all before them, are here.
  virtual bool has(seen_cells const&) const noexcept { return false; }
  /// Where a layer's rows of the engine's whole cache are.
  virtual void see(std::int64_t layer, rows const& keys, rows const& values) noexcept = 0;

  virtual layer_table_view view(std::int64_t tokens) const noexcept = 0;
  /// What a layer has of the first tokens; holds until the next call.
  virtual selection resident(layer_id layer, std::int64_t tokens) = 0;
  /// Whether all tokens' rows are there.
  virtual bool whole() const noexcept { return true; }
  /// Whether a step may bring several tokens; else they are a prompt's.
  virtual bool takes_several() const noexcept { return true; }
  /// Whether a part of them is in a tier.
  virtual bool in_tier() const noexcept { return false; }

  // The engine's cells have all rows in place, and nothing of this to do.
  /// A prompt's attention reads all rows of a layer between these.
  virtual void begin_prompt(layer_id) {}
  virtual void end_prompt(layer_id) {}
  /// A step comes to a layer; `unit`: the most tokens of a unit of its policy.
  virtual void begin_step(layer_id, std::int64_t /*unit*/) {}
  /// All rows of layers [first, last) are wanted.
  virtual void bring(std::int64_t /*first*/, std::int64_t /*last*/) {}
  /// What was chosen of a layer's first `tokens`, where it is to be read; decided: the retain made its choice just now.
  virtual selection fetch(layer_id, selection const& kept, host_request const&, bool /*decided*/, std::int64_t /*tokens*/) {
    return kept;
  }
  /// Of the first tokens, those that the request does not retain may go. Called when all layers were read.
  virtual void drop(host_request const&, std::int64_t /*tokens*/) {}

  virtual std::int64_t owned() const noexcept { return 0; }
  virtual std::int64_t goes_on_from() const noexcept { return 0; }
  virtual memory_statistics memory() const noexcept { return {}; }
  virtual tiers::resident_statistics tier_statistics() const noexcept { return {}; }
  /// No tokens any more, or no more than so many.
  virtual void clear() noexcept {}
  virtual void truncate(std::int64_t) {}
  /// Becomes a copy of the first tokens of another sequence's, rows shared. `stream` is its cells', -1: see follow().
  virtual void take_over(sequence_rows const&, std::int64_t, std::int64_t) {}
  virtual void save(state_writer&) {}
  /// `decided`: what is retained may go to the tier.
  virtual void load(state_reader&, std::int64_t, host_request const&, bool) {}

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
  virtual std::unique_ptr<sequence_rows> rows_of(llama_seq_id id, cell_table& table) = 0;
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
