#include "kvpolicy/interop/llama/repetition.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "engine.hpp"

namespace kvpolicy::llama {
namespace {

constexpr std::int64_t echo = 8;  ///< tokens before a piece that its instruction names

/// None where the model has no vocabulary: then a piece is the text alone.
std::vector<llama_token> tokens_of(llama_vocab const* vocab, std::string const& text) {
  if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) return {};
  std::vector<llama_token> made(text.size() + 8);
  std::int32_t const count = llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()), made.data(),
                                            static_cast<std::int32_t>(made.size()), false, true);
  made.resize(static_cast<std::size_t>(std::max(count, 0)));
  return made;
}

/// What stands between a user's words and the answer in the model's chat template.
std::string answer_begins(llama_model const* model) {
  static constexpr char const* user = "kvpolicy";
  char const* const form = llama_model_chat_template(model, nullptr);
  if (form == nullptr) return "\n";
  llama_chat_message const message{"user", user};
  std::string text(4096, '\0');
  std::int32_t const size =
      llama_chat_apply_template(form, &message, 1, true, text.data(), static_cast<std::int32_t>(text.size()));
  if (size < 0 || static_cast<std::size_t>(size) > text.size()) return "\n";
  text.resize(static_cast<std::size_t>(size));
  std::size_t const at = text.rfind(user);
  return at == std::string::npos ? "\n" : text.substr(at + std::string(user).size());
}

/// Tokens that stand behind the first `begin` ones of a sequence, without outputs.
class batch_of {
 public:
  batch_of(std::vector<llama_token> tokens, std::int64_t begin, llama_seq_id sequence)
      : tokens_(std::move(tokens)),
        counts_(tokens_.size(), 1),
        id_(sequence),
        ids_(tokens_.size(), &id_),
        outputs_(tokens_.size()) {
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      positions_.push_back(static_cast<llama_pos>(begin) + static_cast<llama_pos>(i));
  }
  llama_batch piece(std::int64_t first, std::int64_t count) {
    return {static_cast<std::int32_t>(count), tokens_.data() + first, nullptr,
            positions_.data() + first,        counts_.data() + first, ids_.data() + first,
            outputs_.data() + first};
  }

 private:
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<std::int32_t> counts_;
  llama_seq_id id_;
  std::vector<llama_seq_id*> ids_;
  std::vector<std::int8_t> outputs_;
};

}  // namespace

void session::engine::repeat(llama_context* context, repeat_options const& options, llama_seq_id of) {
  KVPOLICY_EXPECTS(attached_, "a repetition needs a session that is attached; call attach() first");
  bool const in_cells = storage_->engine_has_rows();
  sequence* const s = sequences_.find(of);
  KVPOLICY_EXPECTS(s != nullptr, "the session has seen no token of sequence " + std::to_string(of) + "; decode its text first");
  std::int64_t const end = in_cells ? llama_memory_seq_pos_max(llama_get_memory(context), of) + 1 : s->owned();
  KVPOLICY_EXPECTS(options.first >= 0 && options.first < end && options.piece >= 1,
                   "a repetition of tokens from " + std::to_string(options.first) + " on in pieces of " +
                       std::to_string(options.piece) + "; sequence " + std::to_string(of) + " has " + std::to_string(end) +
                       " tokens, and a piece at least 1");
  if (!contains(s->needs(), signals::repetition)) return;
  llama_model const* const model = llama_get_model(context);
  std::span const known = s->known_ids(end);
  auto const refuse_if = [](bool holds, std::string const& why) {
    if (holds) throw unsupported("the policy has the text repeated, and " + why);
  };
  refuse_if(known.empty(),
            "the session did not see all of its tokens: decode it as tokens, not embeddings, with the session attached");
  refuse_if(hybrid_, "the engine can't remove a repetition from this model's recurrent state");
  refuse_if(llama_model_n_swa(model) > 0 && !whole_windows_,
            "a repetition would take the place of the text's end in this model's sliding windows; set swa_full");
  refuse_if(
      llama_model_n_swa(model) > 0 && !storage_->engine_has_rows(),
      "with a managed cache the engine would not have the text's end in this model's sliding windows; leave the cache out");
  refuse_if(options_.cache && !requirements_of(options_.cache->between_pieces.retain).keeps_all,
            "between_pieces drops rows of it before; leave between_pieces out");
  refuse_if(options_.cache && options_.cache->tier != nullptr, "a tier has rows of it; leave the tier out");
  llama_vocab const* const vocab = llama_model_get_vocab(model);
  std::vector<llama_token> const text(known.begin(), known.end());
  std::vector<llama_token> const answer = tokens_of(vocab, answer_begins(model));
  std::vector<llama_token> const whole = tokens_of(vocab, "\n\nRepeat the previous context exactly.");
  std::vector<llama_token> const part = tokens_of(vocab, "\n\nRepeat the part of the previous context exactly, starting with ");
  std::int64_t const beside = std::max(std::ssize(whole), std::ssize(part) + echo) + std::ssize(answer);
  std::int64_t const cells = sequences_.unified() ? llama_n_ctx(context) : llama_n_ctx_seq(context);
  std::int64_t const room = (in_cells ? cells : attached_shape_.max_tokens) - end - beside;
  KVPOLICY_EXPECTS(room >= 1, "a repetition behind " + std::to_string(end) + " tokens needs " + std::to_string(beside) +
                                  " tokens for its instruction, and more for the text; there are " +
                                  std::to_string(room + beside) + ": raise n_ctx, or managed_cache::longest");
  std::int64_t const most = std::min<std::int64_t>(options.piece, room);
  for (std::int64_t begin = options.first; begin < end; begin += most) {
    token_span const piece{begin, std::min(begin + most, end)};
    std::vector<llama_token> tokens = begin == options.first ? whole : part;
    if (begin != options.first)
      tokens.insert(tokens.end(), text.begin() + std::max(options.first, begin - echo), text.begin() + begin);
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    tokens.insert(tokens.end(), text.begin() + piece.begin, text.begin() + piece.end);
    repeat_piece(context, *s, text, tokens, piece);
  }
  s->end_repetition(end);
}

/// Decodes one piece behind the text, and removes it.
void session::engine::repeat_piece(llama_context* context, sequence& s, std::vector<llama_token> const& text,
                                   std::vector<llama_token> const& tokens, token_span const& piece) {
  auto const end = std::ssize(text);
  auto const count = std::ssize(tokens);
  bool const in_cells = storage_->engine_has_rows();
  batch_of all(tokens, end, s.id());
  s.begin_repetition({piece, text, end + count});
  int status = 0;
  std::exception_ptr failed;
  try {
    std::int64_t const at_once = llama_n_batch(context);
    for (std::int64_t first = 0; first < count && status == 0; first += at_once) {
      llama_batch const batch = all.piece(first, std::min(at_once, count - first));
      set_batch(batch, batch_reading::by_policy);
      status = in_cells ? llama_decode(context, batch) : decode(context, batch);
    }
    check();
  } catch (...) {
    failed = std::current_exception();
  }
  sequences_.batch().drop();
  llama_memory_seq_rm(llama_get_memory(context), s.id(), static_cast<llama_pos>(end), -1);
  if (!in_cells) s.cut(end);
  bool const heard = s.heard_repetition();
  if (failed) std::rethrow_exception(failed);
  if (status != 0) {
    throw error("llama_decode returned " + std::to_string(status) + " for a repetition of " + std::to_string(count) +
                " tokens behind " + std::to_string(end) + "; with other sequences in a unified cache, raise n_ctx");
  }
  if (!heard) {
    throw unsupported("sequence " + std::to_string(s.id()) +
                      " has other tokens than the session knew, or is left to the engine (see report()), so its text was not "
                      "repeated; decode a token of it first");
  }
}

void repeat(session& with, llama_context* context, repeat_options const& options, llama_seq_id of) {
  with.engine_->repeat(context, options, of);
}

}  // namespace kvpolicy::llama
