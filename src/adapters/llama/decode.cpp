// Decoding in pieces, and what a caller does to a sequence of a managed cache between two decodes.
#include <algorithm>
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

int session::engine::decode(llama_context* context, llama_batch const& batch) {
  sequences_of(batch, of_batch_);
  bool const unified = sequences_.unified();
  std::int64_t in_cache = std::ssize(of_batch_);
  for (llama_seq_id id = 0; unified && id < static_cast<llama_seq_id>(llama_n_seq_max(context)); ++id) {
    if (std::ranges::find(of_batch_, id) == of_batch_.end()) {
      in_cache += llama_memory_seq_pos_max(llama_get_memory(context), id) >= 0 ? 1 : 0;
    }
  }
  std::int64_t const cells = unified ? llama_n_ctx(context) : llama_n_ctx_seq(context);
  std::int64_t const kept = storage_->cells_kept();
  std::int64_t const room = cells - kept * (unified ? in_cache : 1);
  // In one cache for all, llama.cpp forgets cells of windows while it plans a batch's later micro-batches.
  std::int64_t const most = unified && windows_ && kept > 0 ? llama_n_ubatch(context) : llama_n_batch(context);
  std::int64_t const piece = std::min(most, room);
  KVPOLICY_EXPECTS(piece >= 2, "a context of " + std::to_string(cells) + " cells for " + std::to_string(in_cache) +
                                   " sequences, each of which keeps " + std::to_string(kept) +
                                   "; raise n_ctx, or end a sequence");
  std::int64_t const last_piece = batch.n_tokens == 0 ? 0 : (batch.n_tokens - 1) / piece * piece;
  for (std::int64_t i = 0; batch.logits != nullptr && i < last_piece; ++i) {
    KVPOLICY_EXPECTS(batch.logits[i] == 0, "token " + std::to_string(i) + " of a batch of " + std::to_string(batch.n_tokens) +
                                               " has an output, and pieces of " + std::to_string(piece) +
                                               " keep those of the last one alone; decode it in batches of that size");
  }
  if (kept > 0) check_engine_goes_on(context, batch);
  set_batch(batch, batch_reading::by_policy);
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
    if (kept == 0) continue;
    sequences_of(some, of_batch_);
    give_back(context, of_batch_);  // of what failed too: micro-batches before that one stay
  }
  sequences_.batch().drop();
  return status;
}

/// What the engine has of a model itself ends where each sequence of the batch goes on: windows' cells, and recurrent states.
void session::engine::check_engine_goes_on(llama_context* context, llama_batch const& batch) const {
  if (!windows_ && !hybrid_) return;
  llama_memory_t const memory = llama_get_memory(context);
  for (llama_seq_id const id : of_batch_) {
    llama_pos const last = llama_memory_seq_pos_max(memory, id);
    llama_pos next = last + 1;
    for (std::int32_t i = batch.n_tokens; batch.pos != nullptr && i-- > 0;)
      if (std::ranges::find(sequences_of(batch, i), id) != sequences_of(batch, i).end()) next = batch.pos[i];
    llama_pos const window = windows_ ? llama_model_n_swa(llama_get_model(context)) : 0;
    bool const in_window = window == 0 || llama_memory_seq_pos_min(memory, id) <= std::max(0, next - window + 1);
    if (next == 0 || (last + 1 == next && in_window)) continue;
    throw unsupported("sequence " + std::to_string(id) + " goes on at position " + std::to_string(next) +
                      ", and of this model the engine no longer has what comes before it in sliding windows or recurrent "
                      "states; end the sequence and decode its text anew");
  }
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
  check_managed("the engine's rows are copied by llama_memory_seq_cp alone; copy() is of a managed cache");
  sequence const* const source = find(from);
  if (source == nullptr || from == to) return;
  if (!source->pending().empty()) return sequences_.of(to).load_state(source->pending());
  if (source->rows().sealed() == 0) return;
  sequences_.of(to).take_over(*source, source->rows().sealed(), -1);
}

void session::engine::end(llama_seq_id of) noexcept {
  if (sequence* const s = sequences_.find(of); s != nullptr && !storage_->engine_has_rows()) s->end();
}

void session::engine::cut(llama_seq_id of, std::int64_t tokens) noexcept {
  if (tokens <= 0) return end(of);
  if (sequence* const s = sequences_.find(of)) s->cut(tokens);
}

/// The engine's cells of these sequences, but for the last few, which tell it where they are.
void session::engine::give_back(llama_context* context, std::span<llama_seq_id const> ids) {
  check_managed("the engine's cells are the only rows here; give_back() is of a managed cache");
  llama_memory_t const memory = llama_get_memory(context);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    sequence* const s = sequences_.find(ids[i]);
    if (s == nullptr || std::ranges::find(ids.first(i), ids[i]) != ids.first(i).end()) continue;
    llama_pos const first = llama_memory_seq_pos_max(memory, ids[i]) + 1 - storage_->cells_kept();
    if (first <= 0) continue;
    llama_memory_seq_rm(memory, ids[i], 0, first);
    s->gave_back(first);
  }
}

}  // namespace kvpolicy::llama
