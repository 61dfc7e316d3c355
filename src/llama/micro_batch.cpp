#include "micro_batch.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "kvpolicy/error.hpp"

namespace kvpolicy::llama {

std::uint64_t cache_cells::hash(std::int64_t stream, std::int32_t cell) const noexcept {
  if (last_keys.base == nullptr) return 0;
  std::uint64_t sum = 0xcbf29ce484222325u;
  std::int64_t const bytes = last_keys.head_dim * size_of(last_keys.type);
  for (std::int64_t h = 0; h < last_keys.heads; ++h) {
    std::byte const* const key = last_keys.address({h}, {index(stream, cell)});
    for (std::int64_t at = 0; at < bytes; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, key + at, static_cast<std::size_t>(std::min<std::int64_t>(8, bytes - at)));
      sum = (sum ^ word) * 0x100000001b3u;
    }
  }
  return sum;
}

void announced_batch::announce(llama_batch const& batch) {
  tokens_.clear();
  next_ = 0;
  for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
    bool const named = batch.seq_id != nullptr && batch.n_seq_id != nullptr && batch.n_seq_id[i] > 0;
    tokens_.push_back({batch.token != nullptr ? batch.token[i] : -1, batch.pos != nullptr ? batch.pos[i] : -1,
                       named ? batch.seq_id[i][0] : 0});
  }
}

void announced_batch::owners(graph_tokens const& graph, bool unified, std::vector<llama_seq_id>& of) {
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
                      " that were announced; announce each batch before its llama_decode");
  }
  for (std::size_t i = 0; i < count; ++i) {
    auto const place = static_cast<std::int32_t>(i);
    token const& said = tokens_[next_ + i];
    if (!said.is(graph, place)) {
      throw unsupported("llama_decode's token " + std::to_string(next_ + i) + " is " + std::to_string(graph.id(place)) +
                        " at position " + std::to_string(graph.position(place)) + ", announced was " + std::to_string(said.id) +
                        " at " + std::to_string(said.position) + "; announce each batch before its llama_decode");
    }
    of[i] = said.sequence;
  }
  next_ += count;
}

std::int64_t announced_batch::brings(llama_seq_id sequence) const noexcept {
  return std::ranges::count(tokens_, sequence, &token::sequence);
}

}  // namespace kvpolicy::llama
