// Rows that the session holds itself: what is refused with them, their memory, and decoding in pieces.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include "engine.hpp"

namespace kvpolicy::llama {
namespace {

std::span<llama_seq_id const> sequences_of(llama_batch const& batch, std::int32_t token) noexcept {
  static constexpr llama_seq_id first = 0;
  std::int32_t const named = batch.seq_id != nullptr && batch.n_seq_id != nullptr ? batch.n_seq_id[token] : 0;
  return named > 0 ? std::span(batch.seq_id[token], static_cast<std::size_t>(named)) : std::span(&first, 1);
}

/// Of all tokens, each once.
void sequences_of(llama_batch const& batch, std::vector<llama_seq_id>& all) {
  all.clear();
  for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
    for (llama_seq_id const id : sequences_of(batch, i)) {
      if (std::ranges::find(all, id) == all.end()) all.push_back(id);
    }
  }
}

}  // namespace

/// Whether the options fit together.
void session::engine::check_managed_cache() const {
  if (!options_.managed_cache) {
    KVPOLICY_EXPECTS(options_.longest == 0 && options_.memory == 0 && !drops_between_pieces() && options_.rows == nullptr,
                     "longest, memory, between_pieces and a tier are of a managed cache: set session_options::managed_cache");
    return;
  }
  KVPOLICY_EXPECTS(options_.prompts, "the engine can't attend to a managed cache: leave session_options::prompts true");
  KVPOLICY_EXPECTS(options_.rows == nullptr || !drops_between_pieces(),
                   "between_pieces drops rows before a prompt ends, a tier takes them when it has; leave one of between_pieces "
                   "and rows out");
  KVPOLICY_EXPECTS(!options_.lenient,
                   "with a managed cache nothing can be left to the engine: leave session_options::lenient false");
  KVPOLICY_EXPECTS(!drops_between_pieces() || !options_.prompt_policy,
                   "a prompt that is dropped piece by piece has no pages to choose from; leave one of between_pieces and "
                   "prompt_policy out");
  KVPOLICY_EXPECTS(options_.longest >= 0 && options_.memory >= 0, "longest is " + std::to_string(options_.longest) +
                                                                      " tokens, memory " + std::to_string(options_.memory) +
                                                                      " bytes; neither can be negative");
}

/// What can't be done where a prompt's rows are gone before it ends.
void session::engine::check_pieces(host_policy const& policy) const {
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
  for (requirements const& retain : {pieces, requirements_of(policy.retain)}) {
    refuse_if(retain.observation_queries == all_queries || contains(retain.needs, signals::rotation),
              "the policy looks at every token of a prompt, and between_pieces drops some before it ends; leave it out");
  }
  requirements const retain = requirements_of(policy.retain);
  refuse_if(pieces.granularity > retain.granularity && !retain.keeps_all,
            "between_pieces keeps other tokens for each head, or layer, and the policy the same ones in all; give it one that "
            "keeps the same ones too");
  refuse_if(
      retain.layers.dense_first != 0 || retain.layers.reuse != 1,
      "the policy has layers that keep everything, or what others keep, and between_pieces drops some of it; leave it out");
  refuse_if(contains(pieces.needs, signals::token_ids),
            "between_pieces reads token ids, which it is not given; give it another");
  refuse_if(retain.keeps_all,
            "the policy keeps every token of a prompt, and between_pieces drops some; leave it out, or put a retain before it");
}

/// A managed cache has no cells to run out of.
void session::engine::see_length(std::int64_t tokens) {
  if (!options_.managed_cache) return;
  if (tokens > shape_.max_tokens) {
    throw error("sequence of " + std::to_string(tokens) + " tokens; the managed cache is for " +
                std::to_string(shape_.max_tokens) + " at most: raise session_options::longest");
  }
  beyond_trained_ = beyond_trained_ || tokens > trained_;
}

/// A limit has a block for each head at least.
void session::engine::check_memory(cache_shape const& shape, element_type values) const {
  std::int64_t const least = shape.layers * shape.kv_heads * row_store::block_bytes(shape, values);
  KVPOLICY_EXPECTS(options_.memory == 0 || options_.memory >= least,
                   "memory for rows of " + std::to_string(options_.memory) + " bytes; one block of " +
                       std::to_string(row_store::rows_of_block) + " rows for each layer and KV head takes " +
                       std::to_string(least));
}

/// Some models have rotary factors for short contexts and others for long ones (longrope), and llama.cpp takes them by the
/// context's cells: a managed cache must not change which.
void session::engine::check_rope_factors(llama_context_params const& params, llama_model const* model,
                                         std::int64_t longest) const {
  auto const said = [&](std::string const& key) {
    char value[64] = {};
    return llama_model_meta_val_str(model, key.c_str(), value, sizeof value) > 0 ? std::string(value) : std::string();
  };
  std::string const scaling = said("general.architecture") + ".rope.scaling.";
  std::int64_t const trained = std::strtoll(said(scaling + "original_context_length").c_str(), nullptr, 10);
  if (trained == 0 || said(scaling + "type") == "yarn" || said(scaling + "type") == "linear") return;
  std::int64_t const cells =
      params.n_ctx == 0 ? trained_ : params.n_ctx / (params.kv_unified ? 1 : std::max(params.n_seq_max, 1u));
  if ((cells > trained) == (longest > trained)) return;
  throw unsupported("the model has other rotary factors for contexts of more than " + std::to_string(trained) +
                    " tokens, and the managed cache is for " + std::to_string(longest) + " in a context of " +
                    std::to_string(cells) + "; make both longer, or none");
}

/// Address space costs nothing: by default there is room for all that the sequences can hold.
std::unique_ptr<block_arena> session::engine::make_arena(cache_shape const& shape) const {
  std::int64_t const bytes = row_store::block_bytes(shape, value_type_);
  std::int64_t const most = INT32_MAX / row_store::rows_of_block;
  std::int64_t const of_sequence = shape.layers * shape.kv_heads * (shape.max_tokens / row_store::rows_of_block + 1);
  std::int64_t const all = std::min(most, of_sequence * static_cast<std::int64_t>(llama_max_parallel_sequences()));
  return std::make_unique<block_arena>(bytes, options_.memory == 0 ? all : std::min(options_.memory / bytes, all));
}

memory_statistics session::engine::memory() const noexcept {
  if (arena_ == nullptr) return {};
  memory_statistics made{.bytes = arena_->held() * arena_->block_bytes(),
                         .most_bytes = arena_->most_held() * arena_->block_bytes(),
                         .limit = arena_->blocks() * arena_->block_bytes()};
  for (auto const& s : sequences_) made.rows += s ? s->memory().rows : 0;
  return made;
}

int session::engine::decode(llama_context* context, llama_batch const& batch) {
  sequences_of(batch, of_batch_);
  std::int64_t in_cache = std::ssize(of_batch_);
  for (llama_seq_id id = 0; unified_ && id < static_cast<llama_seq_id>(llama_n_seq_max(context)); ++id) {
    if (std::ranges::find(of_batch_, id) == of_batch_.end()) {
      in_cache += llama_memory_seq_pos_max(llama_get_memory(context), id) >= 0 ? 1 : 0;
    }
  }
  std::int64_t const cells = unified_ ? llama_n_ctx(context) : llama_n_ctx_seq(context);
  std::int64_t const keep = cells_kept * (unified_ ? in_cache : 1);
  std::int64_t const room = options_.managed_cache ? cells - keep : cells;
  std::int64_t const piece = std::min<std::int64_t>(llama_n_batch(context), room);
  KVPOLICY_EXPECTS(piece >= 2, "a context of " + std::to_string(cells) + " cells for " + std::to_string(in_cache) +
                                   " sequences, each of which keeps " + std::to_string(cells_kept) +
                                   "; raise n_ctx, or end a sequence");
  std::int64_t const last_piece = batch.n_tokens == 0 ? 0 : (batch.n_tokens - 1) / piece * piece;
  for (std::int64_t i = 0; batch.logits != nullptr && i < last_piece; ++i) {
    KVPOLICY_EXPECTS(batch.logits[i] == 0, "token " + std::to_string(i) + " of a batch of " + std::to_string(batch.n_tokens) +
                                               " has an output, and pieces of " + std::to_string(piece) +
                                               " keep those of the last one alone; decode it in batches of that size");
  }
  set_batch(batch);
  llama_pos* const positions = batch.pos == nullptr && follows_state(context, batch) ? positions_.data() : batch.pos;
  int status = 0;
  for (std::int64_t first = 0; first < std::max(batch.n_tokens, 1) && status == 0; first += piece) {
    auto const behind = [first](auto* array, std::int64_t of_token) {
      return array == nullptr ? nullptr : array + first * of_token;
    };
    llama_batch const some{.n_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(piece, batch.n_tokens - first)),
                           .token = behind(batch.token, 1),
                           .embd = behind(batch.embd, llama_model_n_embd_inp(llama_get_model(context))),
                           .pos = behind(positions, 1),
                           .n_seq_id = behind(batch.n_seq_id, 1),
                           .seq_id = behind(batch.seq_id, 1),
                           .logits = behind(batch.logits, 1)};
    status = llama_decode(context, some);
    if (!options_.managed_cache) continue;
    sequences_of(some, of_batch_);
    give_back(context, of_batch_);  // of what failed too: micro-batches before that one stay
  }
  batch_.drop();
  return status;
}

/// Whether a sequence of the batch comes behind a state that was loaded: the engine would count its positions from 0. They are
/// in positions_ then.
bool session::engine::follows_state(llama_context* context, llama_batch const& batch) {
  auto const loaded = [&](llama_seq_id id) { return find(id) != nullptr ? find(id)->loaded() : 0; };
  if (std::ranges::none_of(of_batch_, [&](llama_seq_id id) { return loaded(id) > 0; })) return false;
  std::map<llama_seq_id, llama_pos> next;
  for (llama_seq_id const id : of_batch_) {
    next[id] =
        loaded(id) > 0 ? static_cast<llama_pos>(loaded(id)) : llama_memory_seq_pos_max(llama_get_memory(context), id) + 1;
  }
  positions_.clear();
  for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
    std::span const of = sequences_of(batch, i);
    positions_.push_back(next[of.front()]);
    for (llama_seq_id const id : of) ++next[id];
  }
  return true;
}

void session::engine::copy(llama_seq_id from, llama_seq_id to) {
  if (!options_.managed_cache)
    throw unsupported("the engine's rows are copied by llama_memory_seq_cp alone; copy() is of a managed cache");
  sequence const* const source = find(from);
  if (source == nullptr || from == to) return;
  if (!source->pending().empty()) return sequence_of(to).load_state(source->pending());
  if (source->sealed() == 0) return;
  sequence_of(to).take_over(*source, source->sealed(), -1);
}

void session::engine::end(llama_seq_id of) noexcept {
  if (options_.managed_cache && find(of) != nullptr) sequences_[static_cast<std::size_t>(of)]->end();
}

void session::engine::cut(llama_seq_id of, std::int64_t tokens) noexcept {
  if (tokens <= 0) return end(of);
  if (options_.managed_cache && find(of) != nullptr) sequences_[static_cast<std::size_t>(of)]->cut(tokens);
}

/// The engine's cells of these sequences, but for the last few, which tell it where they are.
void session::engine::give_back(llama_context* context, std::span<llama_seq_id const> sequences) {
  llama_memory_t const memory = llama_get_memory(context);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    llama_seq_id const id = sequences[i];
    if (find(id) == nullptr || std::ranges::find(sequences.first(i), id) != sequences.first(i).end()) continue;
    llama_pos const first = llama_memory_seq_pos_max(memory, id) + 1 - cells_kept;
    if (first <= 0) continue;
    llama_memory_seq_rm(memory, id, 0, first);
    sequences_[static_cast<std::size_t>(id)]->gave_back(first);
  }
}

}  // namespace kvpolicy::llama
