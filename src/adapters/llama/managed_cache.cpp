// Storage: the library's managed cache. What a graph writes is taken in, and rows that a policy drops are freed.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "managed_rows.hpp"

namespace kvpolicy::llama {
namespace {

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
    if (!layers.left_besides_windows().empty())
      throw unsupported("a managed cache needs the session to serve all layers but those with sliding windows: " +
                        layers.left_besides_windows());
    window_ = layers.left().empty() ? 0 : llama_model_n_swa(model);
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
  std::unique_ptr<row_source> rows_of(llama_seq_id id, cell_table& table) override {
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
  llama_pos cells_kept() const noexcept override { return llama::cells_kept + window_; }
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
  std::int32_t window_ = 0;   ///< of layers that the engine attends for; their cells are the last tokens'
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
