// Storage: the library's managed cache. What a graph writes is taken in, and rows that a policy drops are freed.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "kvpolicy/store/resident_rows.hpp"
#include "kvpolicy/store/row_store.hpp"
#include "storage.hpp"

namespace kvpolicy::llama {
namespace {

class managed_rows final : public sequence_rows {
 public:
  managed_rows(llama_seq_id id, cell_table& table, managed_cache const& options, std::unique_ptr<block_arena> const& arena)
      : sequence_rows(id, table), options_(options), arena_(arena), id_(id) {}

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
  bool has(seen_cells const& now) const noexcept override { return store_ && !now.visible.empty() && cells_.continues(now); }
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
  bool whole() const noexcept override { return store_->whole(); }
  bool takes_several() const noexcept override {
    return false;
  }  // what is dropped for the first token, a draft's loss may need
  bool in_tier() const noexcept override { return resident_.has_value(); }

  void begin_prompt(layer_id layer) override {
    take(layer);
    if (resident_) resident_->bring(layer);
  }
  void end_prompt(layer_id layer) override {
    if (resident_) resident_->shed(layer);
  }
  void begin_step(layer_id layer, std::int64_t unit) override {
    take(layer);
    if (!resident_ || !resident_->was_cut()) return;
    // Units that a cut has opened again are read in every layer.
    bring(0, shape_.layers);
    resident_->mend_cut(unit);
  }
  void bring(std::int64_t first, std::int64_t last) override {
    for (layer_id layer{static_cast<std::int32_t>(first)}; resident_ && layer.value < last; ++layer.value)
      resident_->bring(layer);
  }
  selection fetch(layer_id layer, selection const& kept, host_request const& by, bool decided, std::int64_t tokens) override {
    if (!resident_) return kept;
    if (decided && tokens > 0) put_away(layer, tokens, by);
    return resident_->ready(layer, kept);
  }
  void drop(host_request const& by, std::int64_t tokens) override {
    for (layer_id layer{0}; layer.value < shape_.layers && tokens > 0; ++layer.value) {
      store_->retain(layer, by.retained(layer), tokens);
    }
    // The text that was seen ends before the step's token; its last token may come once more.
    if (!whole()) goes_on_from_ = std::max<std::int64_t>(cells_.tokens() - 2, 0);
  }

  std::int64_t owned() const noexcept override { return store_ ? sealed() : 0; }
  std::int64_t goes_on_from() const noexcept override { return goes_on_from_; }
  memory_statistics memory() const noexcept override {
    return store_ ? memory_statistics{.rows = store_->rows_held(), .bytes = store_->bytes_held()} : memory_statistics{};
  }
  tiers::resident_statistics tier_statistics() const noexcept override {
    return resident_ ? resident_->statistics() : tiers::resident_statistics{};
  }
  void clear() noexcept override {
    if (!store_) return;
    if (resident_) resident_->truncate(0);
    store_->clear();
    cells_.forget();
    goes_on_from_ = 0;
  }
  void truncate(std::int64_t tokens) override {
    if (resident_) resident_->truncate(tokens);
    store_->truncate(tokens);
    cells_.cut(tokens, cells_.stream());
  }
  void take_over(sequence_rows const& from, std::int64_t tokens, std::int64_t stream) override {
    auto const& other = static_cast<managed_rows const&>(from);
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
  void save(state_writer& a) override {
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
  void load(state_reader& a, std::int64_t tokens, host_request const& by, bool decided) override {
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

class managed_storage final : public storage {
 public:
  explicit managed_storage(session_options const& options) : options_(*options.cache) {
    bool const pieces = !requirements_of(options_.between_pieces.retain).keeps_all;
    KVPOLICY_EXPECTS(options.prompts, "the engine can't attend to a managed cache: leave session_options::prompts true");
    KVPOLICY_EXPECTS(!options.lenient,
                     "with a managed cache nothing can be left to the engine: leave session_options::lenient false");
    KVPOLICY_EXPECTS(options_.tier == nullptr || !pieces,
                     "between_pieces drops rows before a prompt ends, a tier takes them when it has; leave one of "
                     "between_pieces and tier out");
    KVPOLICY_EXPECTS(!pieces || !options.prompt_policy,
                     "a prompt that is dropped piece by piece has no pages to choose from; leave one of between_pieces and "
                     "prompt_policy out");
    KVPOLICY_EXPECTS(options_.longest >= 0 && options_.memory >= 0, "longest is " + std::to_string(options_.longest) +
                                                                        " tokens, memory " + std::to_string(options_.memory) +
                                                                        " bytes; neither can be negative");
  }

  bool engine_has_rows() const noexcept override { return false; }

  void fit(cache_shape& shape, llama_context_params const& params, llama_model const* model,
           served_layers const& layers) override {
    if (llama_model_is_hybrid(model))
      throw unsupported("a managed cache needs an engine's cache that can be cut, and this model has recurrent layers");
    if (!layers.left().empty())
      throw unsupported("a managed cache needs every layer to be the session's, and " + layers.left().front());
    trained_ = llama_model_n_ctx_train(model);
    longest_ = shape.max_tokens = options_.longest != 0 ? options_.longest : trained_;
    // A limit has a block for each head at least.
    std::int64_t const least = shape.layers * shape.kv_heads * row_store::block_bytes(shape, *element_of(params.type_v));
    KVPOLICY_EXPECTS(options_.memory == 0 || options_.memory >= least,
                     "memory for rows of " + std::to_string(options_.memory) + " bytes; one block of " +
                         std::to_string(row_store::rows_of_block) + " rows for each layer and KV head takes " +
                         std::to_string(least));
    check_rope_factors(params, model);
    kvpolicy::check(options_.between_pieces, shape);
  }

  void check(host_policy const& policy) const override;

  /// Address space costs nothing: by default there is room for all that the sequences can hold.
  void begin(cache_shape& shape, element_type values) override {
    shape.max_tokens = longest_;
    std::int64_t const bytes = row_store::block_bytes(shape, values);
    std::int64_t const most = INT32_MAX / row_store::rows_of_block;
    std::int64_t const of_sequence = shape.layers * shape.kv_heads * (longest_ / row_store::rows_of_block + 1);
    std::int64_t const all = std::min(most, of_sequence * static_cast<std::int64_t>(llama_max_parallel_sequences()));
    if (arena_ != nullptr) return;  // a first graph that failed
    arena_ = std::make_unique<block_arena>(bytes, options_.memory == 0 ? all : std::min(options_.memory / bytes, all));
  }
  std::unique_ptr<sequence_rows> rows_of(llama_seq_id id, cell_table& table) override {
    return std::make_unique<managed_rows>(id, table, options_, arena_);
  }
  void check(attention_node const& node) const override {
    if (node.terms.slopes != nullptr)
      throw unsupported(
          "with a managed cache, models with ALiBi are not supported: their graphs do not tell a token's position");
  }
  void check_length(std::int64_t tokens) override {
    if (tokens > longest_) {
      throw error("sequence of " + std::to_string(tokens) + " tokens; the managed cache is for " + std::to_string(longest_) +
                  " at most: raise managed_cache::longest");
    }
    beyond_trained_ = beyond_trained_ || tokens > trained_;
  }
  llama_pos cells_kept() const noexcept override { return llama::cells_kept; }
  memory_statistics memory() const noexcept override {
    if (arena_ == nullptr) return {};
    return {.bytes = arena_->held() * arena_->block_bytes(),
            .most_bytes = arena_->most_held() * arena_->block_bytes(),
            .limit = arena_->blocks() * arena_->block_bytes()};
  }
  std::string remark() const override {
    if (!beyond_trained_) return {};
    return "positions are beyond the " + std::to_string(trained_) + " tokens that the model was trained for";
  }

 private:
  void check_rope_factors(llama_context_params const& params, llama_model const* model) const;

  managed_cache const& options_;
  std::unique_ptr<block_arena> arena_;
  std::int64_t longest_ = 0;
  std::int64_t trained_ = 0;  ///< tokens that the model was trained for
  bool beyond_trained_ = false;
};

/// What can't be done where a prompt's rows are gone before it ends.
void managed_storage::check(host_policy const& policy) const {
  auto const refuse_if = [](bool refused, char const* what) {
    if (refused) throw unsupported(what);
  };
  requirements const pieces = requirements_of(options_.between_pieces.retain);
  if (pieces.keeps_all) {
    refuse_if(!requirements_of(options_.between_pieces.retrieve).keeps_all,
              "between_pieces is a policy that retains all; give it one that drops");
    return;
  }
  refuse_if(pieces.after > 0,
            "between_pieces waits for an answer's first tokens, which no piece of a prompt has; set its after to 0");
  refuse_if(pieces.relative,
            "between_pieces keeps a share of a prompt, whose length is not known while it comes in pieces; give it tokens");
  requirements const retain = requirements_of(policy.retain);
  for (requirements const& of : {pieces, retain}) {
    refuse_if(of.observation_queries == all_queries || contains(of.needs, signals::rotation),
              "the policy looks at every token of a prompt, and between_pieces drops some before it ends; leave it out");
  }
  refuse_if(pieces.granularity > retain.granularity && !retain.keeps_all,
            "between_pieces keeps other tokens for each head, or layer, and the policy the same ones in all; give it one that "
            "keeps the same ones too");
  refuse_if(
      retain.layers.dense_first != 0 || retain.layers.shares(),
      "the policy has layers that keep everything, or what others keep, and between_pieces drops some of it; leave it out");
  refuse_if(contains(pieces.needs, signals::token_ids),
            "between_pieces reads token ids, which it is not given; give it another");
  refuse_if(retain.keeps_all,
            "the policy keeps every token of a prompt, and between_pieces drops some; leave it out, or put a retain before it");
}

/// Some models have rotary factors for short contexts and others for long ones (longrope), and llama.cpp takes them by the
/// context's cells: a managed cache must not change which.
void managed_storage::check_rope_factors(llama_context_params const& params, llama_model const* model) const {
  auto const said = [&](std::string const& key) {
    char value[64] = {};
    return llama_model_meta_val_str(model, key.c_str(), value, sizeof value) > 0 ? std::string(value) : std::string();
  };
  std::string const scaling = said("general.architecture") + ".rope.scaling.";
  std::int64_t const trained = std::strtoll(said(scaling + "original_context_length").c_str(), nullptr, 10);
  if (trained == 0 || said(scaling + "type") == "yarn" || said(scaling + "type") == "linear") return;
  std::int64_t const cells =
      params.n_ctx == 0 ? trained_ : params.n_ctx / (params.kv_unified ? 1 : std::max(params.n_seq_max, 1u));
  if ((cells > trained) == (longest_ > trained)) return;
  throw unsupported("the model has other rotary factors for contexts of more than " + std::to_string(trained) +
                    " tokens, and the managed cache is for " + std::to_string(longest_) + " in a context of " +
                    std::to_string(cells) + "; make both longer, or none");
}

}  // namespace

std::unique_ptr<storage> make_managed_cache(session_options const& options) {
  return std::make_unique<managed_storage>(options);
}

}  // namespace kvpolicy::llama
