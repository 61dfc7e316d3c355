#include <array>
#include <string_view>

#include "kvpolicy/interop/llama.hpp"
#include "kvpolicy/segments/sentences.hpp"

namespace kvpolicy::llama {

std::vector<std::uint8_t> sentence_ends(llama_model const* model) {
  llama_vocab const* const vocab = llama_model_get_vocab(model);
  if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) return {};  // its tokens are no text, and the engine aborts where asked
  std::vector<std::uint8_t> ends(static_cast<std::size_t>(llama_vocab_n_tokens(vocab)));
  std::array<char, 1024> piece{};  // longer ones, if any, end no sentence
  for (std::size_t id = 0; id < ends.size(); ++id) {
    std::int32_t const size = llama_token_to_piece(vocab, static_cast<llama_token>(id), piece.data(),
                                                   static_cast<std::int32_t>(piece.size()), 0, false);
    if (size > 0) ends[id] = segments::sentence_mark({piece.data(), static_cast<std::size_t>(size)});
  }
  return ends;
}

}  // namespace kvpolicy::llama
