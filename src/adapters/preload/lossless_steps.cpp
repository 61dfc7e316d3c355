#include "lossless_steps.hpp"

#include <algorithm>

namespace kvpolicy::preload {

bool lossless_steps::takes(batch_tokens const& batch) const {
  if (embeddings_ || batch.sequences.empty() || !batch.others.empty() || batch.ids.size() != batch.sequences.size())
    return false;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    llama_seq_id const of = batch.sequences[i];
    if (of < 0 || of >= sequences_) return false;
    if (batch.ids[i] < 0 || batch.ids[i] >= vocabulary_ || !batch.has_output(i)) return false;
    if (std::ranges::count(batch.sequences, of) != 1) return false;
    std::int64_t const end = steps_.tokens(of);
    if (end == 0 || (batch.positions[i] >= 0 && batch.positions[i] != end)) return false;
  }
  return true;
}

void lossless_steps::decode(batch_tokens const& batch) {
  rows_.clear();
  std::vector<llama::lossless_token> tokens;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) tokens.push_back({batch.ids[i], batch.sequences[i]});
  steps_.decode(tokens);
  rows_ = batch.sequences;
}

bool lossless_steps::changes(std::span<llama_adapter_lora* const> adapters, std::span<float const> scales) {
  if (std::ranges::equal(adapters, adapters_) && std::ranges::equal(scales, scales_)) return false;
  adapters_.assign(adapters.begin(), adapters.end());
  scales_.assign(scales.begin(), scales.end());
  return true;
}

float* lossless_steps::logits(std::int32_t index) {
  std::int64_t const at = index < 0 ? std::ssize(rows_) + index : index;
  if (at < 0 || at >= std::ssize(rows_)) return nullptr;
  // A program may write to what the engine gives it.
  return const_cast<float*>(steps_.logits(rows_[static_cast<std::size_t>(at)]).data());
}

float* lossless_steps::all_logits() {
  if (rows_.size() <= 1) return logits(0);
  all_.clear();
  for (llama_seq_id const of : rows_) {
    std::span const row = steps_.logits(of);
    all_.insert(all_.end(), row.begin(), row.end());
  }
  return all_.data();
}

}  // namespace kvpolicy::preload
