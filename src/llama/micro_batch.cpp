#include "micro_batch.hpp"

#include <algorithm>
#include <string>

#include "kvpolicy/error.hpp"

namespace kvpolicy::llama {

void announced_batch::announce(llama_batch const& batch) {
  tokens_.clear();
  next_ = 0;
  for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
    bool const named = batch.seq_id != nullptr && batch.n_seq_id != nullptr && batch.n_seq_id[i] > 0;
    tokens_.push_back({batch.token != nullptr ? batch.token[i] : -1, named ? batch.seq_id[i][0] : 0});
  }
}

void announced_batch::owners(graph_tokens const& graph, bool unified, std::vector<llama_seq_id>& of) {
  std::size_t const count = graph.written.size();
  of.assign(count, 0);
  if (next_ == tokens_.size()) drop();
  bool const announced = !tokens_.empty();
  if (announced && tokens_.size() - next_ < count) {
    throw unsupported("llama_decode got more tokens than the " + std::to_string(tokens_.size()) + " that were announced");
  }
  for (std::size_t i = 0; i < count; ++i) {
    auto const place = static_cast<std::int32_t>(i);
    if (!unified) {
      of[i] = static_cast<llama_seq_id>(graph.stream(place));
      continue;
    }
    if (!announced) continue;
    token const& said = tokens_[next_ + i];
    if (said.id >= 0 && graph.id(place) >= 0 && said.id != graph.id(place)) {
      throw unsupported("llama_decode's token " + std::to_string(next_ + i) + " is " + std::to_string(graph.id(place)) +
                        ", announced was " + std::to_string(said.id) + "; announce each batch before its llama_decode");
    }
    of[i] = said.sequence;
  }
  next_ += announced ? count : 0;
}

std::int64_t announced_batch::brings(llama_seq_id sequence) const noexcept {
  return std::ranges::count(tokens_, sequence, &token::sequence);
}

}  // namespace kvpolicy::llama
