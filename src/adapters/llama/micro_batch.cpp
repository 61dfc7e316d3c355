#include "micro_batch.hpp"

#include <algorithm>
#include <string>

#include "kvpolicy/error.hpp"

namespace kvpolicy::llama {
namespace {

llama_seq_id checked(llama_seq_id sequence) {
  auto const end = static_cast<llama_seq_id>(llama_max_parallel_sequences());
  KVPOLICY_EXPECTS(sequence >= 0 && sequence < end, "set_batch() got a token of sequence " + std::to_string(sequence) +
                                                        "; llama.cpp has 0 to " + std::to_string(end - 1));
  return sequence;
}

}  // namespace

void caller_batch::set(llama_batch const& batch, batch_reading how) {
  tokens_.clear();
  how_ = how;
  next_ = 0;
  for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
    bool const named = batch.seq_id != nullptr && batch.n_seq_id != nullptr && batch.n_seq_id[i] > 0;
    tokens_.push_back({batch.token != nullptr ? batch.token[i] : -1, batch.pos != nullptr ? batch.pos[i] : -1,
                       named ? checked(batch.seq_id[i][0]) : 0,
                       batch.logits != nullptr ? batch.logits[i] != 0 : i + 1 == batch.n_tokens});
  }
}

void caller_batch::set(std::span<llama_seq_id const> sequences, std::span<std::int8_t const> outputs, batch_reading how) {
  KVPOLICY_EXPECTS(outputs.empty() || outputs.size() == sequences.size(),
                   "set_batch() got " + std::to_string(sequences.size()) + " sequences and " + std::to_string(outputs.size()) +
                       " outputs; it wants one for each token, or none");
  tokens_.clear();
  how_ = how;
  next_ = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i)
    tokens_.push_back({-1, -1, checked(sequences[i]), outputs.empty() || outputs[i] != 0});
}

void caller_batch::owners(graph_tokens const& graph, bool unified, std::vector<llama_seq_id>& of) {
  std::size_t const count = graph.written.size();
  of.assign(count, 0);
  if (!unified) {
    for (std::size_t i = 0; i < count; ++i) of[i] = static_cast<llama_seq_id>(graph.stream(static_cast<std::int32_t>(i)));
    bool const said = std::ranges::any_of(tokens_, [&](token const& t) { return t.sequence == of[0] && t.is(graph, 0); });
    if (!said) drop();
    return;
  }
  if (next_ == tokens_.size()) drop();
  if (tokens_.empty()) return;
  if (tokens_.size() - next_ < count) {
    throw unsupported("llama_decode got more tokens than the " + std::to_string(tokens_.size()) +
                      " of set_batch(), which wants each batch before its decode");
  }
  for (std::size_t i = 0; i < count; ++i) {
    auto const batch_index = static_cast<std::int32_t>(i);
    token const& said = tokens_[next_ + i];
    if (!said.is(graph, batch_index)) {
      throw unsupported("llama_decode's token " + std::to_string(next_ + i) + " is " + std::to_string(graph.id(batch_index)) +
                        " at position " + std::to_string(graph.position(batch_index)) + ", that of set_batch() is " +
                        std::to_string(said.id) + " at " + std::to_string(said.position) +
                        "; it wants each batch before its decode");
    }
    of[i] = said.sequence;
  }
  next_ += count;
}

bool caller_batch::may_step(llama_seq_id sequence, std::int64_t tokens) const noexcept {
  std::int64_t count = 0;
  bool outputs = how_ != batch_reading::everything_as_prompt;
  for (token const& t : tokens_) {
    if (t.sequence == sequence) ++count, outputs = outputs && t.output;
  }
  return count == 0 ? tokens == 1 : count == tokens && outputs && tokens <= most_step_tokens;
}

}  // namespace kvpolicy::llama
