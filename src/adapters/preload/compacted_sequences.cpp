#include "compacted_sequences.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <set>
#include <vector>

namespace kvpolicy::preload {
namespace {

/// Tokens that a step of speculative decoding may verify.
constexpr std::ptrdiff_t most_drafted = 64;

std::set<llama_seq_id> sequences_of(batch_tokens const& batch) { return {batch.sequences.begin(), batch.sequences.end()}; }

}  // namespace

bool compacted_sequences::is_step(llama_seq_id of, batch_tokens const& batch) const noexcept {
  auto const found = sequences_.find(of);
  if (found == sequences_.end() || !found->second.answering) return false;
  std::ptrdiff_t count = 0;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    if (batch.sequences[i] != of) continue;
    if (!batch.has_output(i)) return false;
    ++count;
  }
  return count <= most_drafted;
}

void compacted_sequences::before(llama_context* context, batch_tokens const& batch) {
  std::exception_ptr failure;
  std::vector<llama_seq_id> at_rest;
  for (llama_seq_id const of : sequences_of(batch)) {
    auto const found = sequences_.find(of);
    if (found == sequences_.end()) continue;
    progress& p = found->second;
    llama_pos const last = p.waits ? llama_memory_seq_pos_max(llama_get_memory(context), of) : -1;
    if (p.waits && last >= p.prompt_end + after_) {
      p.waits = false;
      try {
        auto const begun = std::chrono::steady_clock::now();
        llama::compaction const made = frees(p, last) ? compactor_.compact(context, of) : llama::compaction{};
        if (made.kept < made.tokens) p.compacted = last;
        p.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
      } catch (llama::sequence_lost const&) {
        failure = std::current_exception();
        reset(of, {});
        continue;
      } catch (std::exception const&) {
        failure = std::current_exception();
      }
    }
    if (is_step(of, batch) && !p.waits) at_rest.push_back(of);
  }
  compactor_.set_batch(batch.sequences, at_rest);
  if (failure) std::rethrow_exception(failure);
}

void compacted_sequences::after(llama_context* context, batch_tokens const& batch) {
  for (llama_seq_id const of : sequences_of(batch)) {
    if (is_step(of, batch)) continue;
    std::size_t last = batch.sequences.size() - 1;
    while (batch.sequences[last] != of) --last;
    progress& p = sequences_[of];
    p.answering = p.waits = batch.has_output(last);
    if (p.answering) p.prompt_end = llama_memory_seq_pos_max(llama_get_memory(context), of);
    if (!batch.others.empty()) p.shared = p.prompt_end + 1;
  }
}

llama::step_statistics compacted_sequences::last_step(llama_memory_t memory, llama_seq_id of) {
  llama_pos const end = llama_memory_seq_pos_max(memory, of) + 1;
  return {.tokens = end,
          .tokens_read = static_cast<double>(end - llama_memory_seq_pos_min(memory, of)),
          .choose_seconds = std::exchange(sequences_[of].seconds, 0)};
}

llama_pos compacted_sequences::compacted(llama_seq_id of) const noexcept {
  auto const found = sequences_.find(of);
  return found == sequences_.end() ? -1 : found->second.compacted;
}

bool compacted_sequences::can_cut(llama_seq_id of, llama_pos from, llama_pos to) const noexcept {
  llama_pos const until = compacted(of);
  return until < 0 || from > until || (from <= 0 && to < 0);
}

bool compacted_sequences::cut(llama_seq_id of, llama_pos from, llama_pos to) {
  std::vector<llama_seq_id> all;
  for (auto const& [one, p] : sequences_) {
    if (of >= 0 && one != of) continue;
    if (!can_cut(one, from, to)) return false;
    all.push_back(one);
  }
  for (llama_seq_id const one : all) {
    progress& p = sequences_[one];
    if (from <= 0 && to < 0) {
      reset(one, {});
      continue;
    }
    if (from <= p.prompt_end) p.answering = p.waits = false;
    if (to < 0) p.shared = std::min(p.shared, from);
  }
  return true;
}

void compacted_sequences::reset(llama_seq_id of, progress const& to) {
  sequences_[of] = to;
  compactor_.forget(of);
}

void compacted_sequences::keep(llama_seq_id of) {
  for (auto const& [one, p] : sequences_) {
    if (one != of) reset(one, {});
  }
}

void compacted_sequences::copy(llama_memory_t memory, llama_seq_id from, llama_seq_id to) {
  if (from == to) return;
  progress& source = sequences_[from];
  source.shared = llama_memory_seq_pos_max(memory, from) + 1;
  reset(to, progress(source));
}

void compacted_sequences::restored(llama_memory_t memory, llama_seq_id of) {
  // Without a compaction cells begin at position 0. Where a compacted prompt ended nothing says: its whole text is one.
  bool const compacted = llama_memory_seq_pos_min(memory, of) > 0;
  reset(of, {.compacted = compacted ? llama_memory_seq_pos_max(memory, of) : -1});
}

}  // namespace kvpolicy::preload
