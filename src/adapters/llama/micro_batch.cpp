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
  for (std::size_t i = 0; i < sequences.size(); ++i)
    tokens_.push_back({-1, -1, checked(sequences[i]), outputs.empty() || outputs[i] != 0});
}

void caller_batch::owners(graph_tokens const& graph, bool unified, std::vector<llama_seq_id>& of) {
  std::size_t const count = graph.written.size();
  of.assign(count, 0);
  if (!unified) {
    for (std::size_t i = 0; i < count; ++i) of[i] = static_cast<llama_seq_id>(graph.stream(static_cast<std::int32_t>(i)));
    if (!take(graph, of)) drop();
    return;
  }
  if (std::ranges::all_of(tokens_, &token::came)) drop();
  if (tokens_.empty()) return;
  expect(graph);
  for (std::size_t i = 0; i < count; ++i) {
    token& said = tokens_[due_[i]];
    said.came = true;
    of[i] = said.sequence;
  }
}

bool caller_batch::take(graph_tokens const& graph, std::vector<llama_seq_id> const& of) {
  left_.assign(static_cast<std::size_t>(*std::ranges::max_element(of)) + 1, 0);
  for (llama_seq_id const sequence : of) ++left_[static_cast<std::size_t>(sequence)];
  bool first_came = false;
  for (token& said : tokens_) {
    auto const sequence = static_cast<std::size_t>(said.sequence);
    if (said.came || sequence >= left_.size() || left_[sequence] == 0) continue;
    if (said.sequence == of[0] && !first_came) {
      if (!said.is(graph, 0)) return false;
      first_came = true;
    }
    said.came = true;
    --left_[sequence];
  }
  return first_came;
}

/// due_ are the graph's tokens.
void caller_batch::expect(graph_tokens const& graph) {
  std::size_t const count = graph.written.size();
  auto const differs = [&] {
    std::size_t i = 0;
    while (i < count && tokens_[due_[i]].is(graph, static_cast<std::int32_t>(i))) ++i;
    return i;
  };
  std::size_t left = 0;
  next_sequences_.clear();
  for (token const& said : tokens_) {
    if (said.came) continue;
    ++left;
    if (std::ranges::find(next_sequences_, said.sequence) == next_sequences_.end()) next_sequences_.push_back(said.sequence);
  }
  if (left < count) {
    throw unsupported("llama_decode got more tokens than the " + std::to_string(tokens_.size()) +
                      " of set_batch(), which wants each batch before its decode");
  }
  // Fewer sequences than have tokens come where the engine keeps the tail of a prompt in one piece (n_rs_seq).
  std::size_t found = 0;
  for (std::size_t some = next_sequences_.size(); by_sequences_ && some > 0; --some) {
    if (!cuts(count, some) || differs() != count) continue;
    if (found > 0) {
      throw unsupported("llama_decode's " + std::to_string(count) + " tokens may be of " + std::to_string(some) + " or of " +
                        std::to_string(found) + " sequences of set_batch(); decode one sequence at a time");
    }
    found = some;
  }
  if (found > 0) {
    cuts(count, found);
    return;
  }
  due_.clear();
  for (std::size_t i = 0; due_.size() < count; ++i)
    if (!tokens_[i].came) due_.push_back(i);
  std::size_t const i = differs();
  if (i == count) return;
  token const& said = tokens_[due_[i]];
  auto const batch_index = static_cast<std::int32_t>(i);
  throw unsupported("llama_decode's token " + std::to_string(due_[i]) + " is " + std::to_string(graph.id(batch_index)) +
                    " at position " + std::to_string(graph.position(batch_index)) + ", that of set_batch() is " +
                    std::to_string(said.id) + " at " + std::to_string(said.position) +
                    "; it wants each batch before its decode");
}

bool caller_batch::cuts(std::size_t count, std::size_t sequences) {
  if (count % sequences != 0) return false;
  due_.clear();
  for (std::size_t s = 0; s < sequences; ++s) {
    std::size_t left = count / sequences;
    for (std::size_t i = 0; i < tokens_.size() && left > 0; ++i) {
      if (tokens_[i].came || tokens_[i].sequence != next_sequences_[s]) continue;
      due_.push_back(i);
      --left;
    }
  }
  return due_.size() == count;
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
