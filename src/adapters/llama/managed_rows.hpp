// Rows of a managed cache: what a graph writes is taken in, and rows that a policy drops are freed.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "kvpolicy/store/resident_rows.hpp"
#include "kvpolicy/store/row_store.hpp"
#include "storage.hpp"

namespace kvpolicy::llama {

/// Rows that the library keeps, and frees where a policy drops them; a part of them may be in a tier.
class managed_rows final : public row_source {
 public:
  managed_rows(llama_seq_id id, cell_table& table, managed_cache const& options, std::unique_ptr<block_arena> const& arena)
      : row_source(id, table), options_(options), arena_(arena), id_(id) {}

  void begin(cache_shape const& shape, element_type values) override {
    shape_ = shape;
    store_.emplace(*arena_, shape, values);
    tiers::resident_options own = options_.resident;
    own.request += static_cast<std::uint64_t>(id_);
    if (options_.tier != nullptr) resident_.emplace(*options_.tier, *store_, own);
    lists_.resize(static_cast<std::size_t>(shape.kv_heads));
    stay_.resize(static_cast<std::size_t>(shape.kv_heads));
    keys_.resize(static_cast<std::size_t>(shape.layers));
    values_.resize(static_cast<std::size_t>(shape.layers));
  }

  /// A token comes behind as many as its position says; the few cells that the engine still has tell whose they are.
  std::optional<std::int64_t> follow(seen_cells const& now) override {
    if (!cells_.continues(now)) return std::nullopt;
    cells_.cut(now.position, now.stream);
    if (resident_) resident_->truncate(now.position);
    store_->truncate(now.position);
    return now.position;
  }
  /// Whether the tokens that are seen now, and all before them, are here.
  bool has(seen_cells const& now) const noexcept { return store_ && !now.visible.empty() && cells_.continues(now); }
  void see(std::int64_t layer, rows const& keys, rows const& values) noexcept override {
    keys_[static_cast<std::size_t>(layer)] = cells_.fresh(keys);
    values_[static_cast<std::size_t>(layer)] = cells_.fresh(values);
  }
  layer_table_view view(std::int64_t tokens) const noexcept override { return store_->view(tokens); }
  selection resident(layer_id layer, std::int64_t tokens) override {
    if (whole()) {
      lists_.front().assign(1, {0, static_cast<std::int32_t>(tokens)});
      return {scope::request, std::span(lists_).first(1), shape_.kv_heads};
    }
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) store_->list(layer, h, tokens, lists_[static_cast<std::size_t>(h)]);
    return {scope::head, lists_, shape_.kv_heads};
  }
  managed_rows* managed() noexcept override { return this; }

  /// Whether all tokens' rows are there.
  bool whole() const noexcept { return store_->whole(); }
  /// Whether a part of them is in a tier.
  bool in_tier() const noexcept { return resident_.has_value(); }

  /// A prompt's attention reads all rows of a layer between these.
  void begin_prompt(layer_id layer) {
    take(layer);
    if (resident_) resident_->bring(layer);
  }
  void end_prompt(layer_id layer) {
    if (resident_) resident_->shed(layer);
  }
  /// A step comes to a layer; `unit`: the most tokens of a unit of its policy.
  void begin_step(layer_id layer, std::int64_t unit) {
    take(layer);
    if (!resident_ || !resident_->was_cut()) return;
    // Units that a cut has opened again are read in every layer.
    bring(0, shape_.layers);
    resident_->mend_cut(unit);
  }
  /// All rows of layers [first, last) are wanted.
  void bring(std::int64_t first, std::int64_t last) {
    for (layer_id layer{static_cast<std::int32_t>(first)}; resident_ && layer.value < last; ++layer.value)
      resident_->bring(layer);
  }
  /// What was chosen of a layer's first `tokens`, where it is to be read; decided: the retain made its choice just now.
  selection fetch(layer_id layer, selection const& kept, host_request const& by, bool decided, std::int64_t tokens) {
    if (!resident_) return kept;
    if (decided && tokens > 0) put_away(layer, tokens, by);
    return resident_->ready(layer, kept);
  }
  /// Begins to fetch what the layer's next step reads, where that is known.
  void prefetch(layer_id layer, host_request const& by) {
    if (resident_) resident_->prefetch(layer, by.ahead(layer));
  }
  /// Of the first tokens, those that the request does not retain go. Called when all layers were read.
  void drop(host_request const& by, std::int64_t tokens) {
    for (layer_id layer{0}; layer.value < shape_.layers && tokens > 0; ++layer.value) {
      store_->retain(layer, by.retained(layer), tokens);
    }
    // The text that was seen ends before the step's token; its last token may come once more.
    if (!whole()) goes_on_from_ = std::max<std::int64_t>(cells_.tokens() - 2, 0);
  }

  std::int64_t owned() const noexcept { return store_ ? sealed() : 0; }
  std::int64_t goes_on_from() const noexcept { return goes_on_from_; }
  memory_statistics memory() const noexcept {
    return store_ ? memory_statistics{.rows = store_->rows_held(), .bytes = store_->bytes_held()} : memory_statistics{};
  }
  tiers::resident_statistics tier_statistics() const noexcept {
    return resident_ ? resident_->statistics() : tiers::resident_statistics{};
  }
  /// There are no tokens any more, or no more than so many.
  void clear() noexcept {
    if (!store_) return;
    if (resident_) resident_->truncate(0);
    store_->clear();
    cells_.forget();
    goes_on_from_ = 0;
  }
  void truncate(std::int64_t tokens) {
    if (resident_) resident_->truncate(tokens);
    store_->truncate(tokens);
    cells_.cut(tokens, cells_.stream());
  }
  /// Becomes a copy of the first tokens of another sequence's, rows shared. `stream` is its cells', -1: see follow().
  void take_over(managed_rows const& other, std::int64_t tokens, std::int64_t stream) {
    row_store forked = other.store_->fork(tokens);
    if (resident_) resident_->truncate(0);
    *store_ = std::move(forked);
    try {
      if (resident_) resident_->take_over(*other.resident_, tokens);
    } catch (...) {
      clear();
      throw;
    }
    goes_on_from_ = other.goes_on_from_;
    cells_.take_over(other.cells_, tokens, stream);
  }
  void save(state_writer& a) {
    std::int64_t const tokens = sealed();
    if (resident_) resident_->truncate(tokens);
    store_->truncate(tokens);  // what a graph that failed brought
    a(goes_on_from_);
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      if (resident_) resident_->bring(layer);
      store_->save(layer, a);
      if (resident_) resident_->shed(layer);
    }
  }
  /// `decided`: what is retained may go to the tier.
  void load(state_reader& a, std::int64_t tokens, host_request const& by, bool decided) {
    a(goes_on_from_);
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      store_->load(layer, a);
      if (store_->tokens(layer) != tokens) state_reader::refuse();
      if (!resident_ || !decided) continue;
      put_away(layer, tokens, by);
      resident_->shed(layer);
    }
  }

 private:
  /// What the graph wrote of a layer.
  void take(layer_id layer) {
    auto const at = static_cast<std::size_t>(layer.value);
    if (store_->tokens(layer) != cells_.tokens()) store_->append(layer, keys_[at], values_[at]);
  }
  /// What the policy retains of a prompt goes to the tier, but for what its steps read whatever is chosen.
  void put_away(layer_id layer, std::int64_t tokens, host_request const& by) {
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) stay_[static_cast<std::size_t>(h)] = by.always_read(layer, h);
    resident_->put_away(layer, by.retained(layer), tokens, stay_);
  }

  managed_cache const& options_;
  std::unique_ptr<block_arena> const& arena_;
  llama_seq_id id_;
  cache_shape shape_{};
  std::vector<rows> keys_;  ///< `[layers]`, of the tokens that the graph writes
  std::vector<rows> values_;
  std::optional<row_store> store_;
  std::optional<resident_rows> resident_;  ///< where a part of them is in a tier
  std::vector<range_list> lists_;          ///< `[kv_heads]`, scratch
  std::vector<std::int64_t> stay_;         ///< `[kv_heads]`, scratch
  std::int64_t goes_on_from_ = 0;
};

}  // namespace kvpolicy::llama
