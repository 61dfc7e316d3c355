// Has a model repeat a text, for policies that keep what it attends to meanwhile (kvzip).
#pragma once

#include <llama.h>

#include <cstdint>

#include "kvpolicy/interop/llama.hpp"

namespace kvpolicy::llama {

/// How a text is repeated.
struct repeat_options {
  std::int64_t first = 0;  ///< the text's first token in the sequence; tokens before it, such as a system prompt, all stay
  /// The most tokens of the text that one piece of the repetition repeats; fewer where the context has no room for more.
  std::int32_t piece = 2048;
};

/// Tokens of a context that a repetition in pieces of the default size may need behind the text, its instruction included.
inline constexpr std::int64_t repetition_room = repeat_options{}.piece + 128;

/// Has the model repeat the text that a sequence ends with, and compresses the sequence by it.
/// Call it once, when the text was decoded and before a question follows. It does nothing if the sequence's policy needs no
/// repetition. It decodes the repetition behind the sequence's tokens in pieces, each an instruction and the text's own tokens,
/// and removes each piece again. That takes somewhat longer than the text's own prompt. The policy then chooses: later steps
/// and prompts read what it chose of the text, and all later tokens. (With session_options::prompts false, prompts read
/// everything.)
/// - While it runs, it needs `layers * tokens * q_heads * head_dim` floats for a piece's queries.
/// - Afterwards the logits of the text's last token and the queries that the session kept of the prompt are gone.
/// - With a managed cache llama.cpp holds no cell of the sequence afterwards, so it can't work out the next position. Set the
///   positions in your next batch, or call session::decode(), which sets them.
/// - The session forgets the choice after use(), after save() and load(), and after a failed decode. A copied sequence keeps it
///   (llama_memory_seq_cp, session::copy()), and so does a state of a managed cache (session::save_state()).
/// @param with  the session
/// @param context  the context that the session is attached to
/// @param options  where the text begins, and the size of pieces
/// @param of  the sequence
/// @throws invalid_value if the session is not attached, the sequence has no text, or the context has no room behind it
/// @throws unsupported if the session does not know the text's tokens, with recurrent layers, with sliding windows unless
///        swa_full is set, with a tier, or if rows are dropped between pieces of a prompt
/// @throws error if a piece could not be decoded; the sequence has its tokens as before then
void repeat(session& with, llama_context* context, repeat_options const& options = {}, llama_seq_id of = 0);

}  // namespace kvpolicy::llama
