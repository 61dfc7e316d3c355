// A llama.cpp model as tools use it: load, tokenise, decode, detokenise; every failure an exception with one clear line.
#pragma once

#include <llama.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "chat_turn.hpp"
#include "published.hpp"

namespace kvpolicy {

struct free_model {
  void operator()(llama_model* m) const noexcept { llama_model_free(m); }
};
struct free_context {
  void operator()(llama_context* c) const noexcept { llama_free(c); }
};
using context_ptr = std::unique_ptr<llama_context, free_context>;

/// What keys and values are stored as.
struct cache_types {
  ggml_type keys = GGML_TYPE_F16;
  ggml_type values = GGML_TYPE_F16;
};
/// "q8_0"; throws invalid_value for a name that no cache has.
ggml_type cache_type_of(std::string const& name);

class text_model {
 public:
  /// Throws invalid_value for what is missing, unreadable, not a GGUF file, truncated or refused by llama.cpp.
  /// @param path,types,gpu_layers  the file, its cache, and how many layers llama.cpp offloads
  explicit text_model(std::string const& path, cache_types types = {}, int gpu_layers = 0);

  llama_model* get() const noexcept { return model_.get(); }
  std::int64_t trained_context() const noexcept { return llama_model_n_ctx_train(model_.get()); }
  std::size_t vocabulary() const noexcept;

  /// The model's own chat template around these turns, or one of a user, up to where the answer begins; throws unsupported
  /// where it has none.
  std::string as_chat(std::span<chat_turn const> turns) const;
  std::string as_chat(std::string const& user) const;
  std::vector<llama_token> tokens_of(std::string const& text, bool special) const;
  std::string text_of(llama_token token) const;
  bool ends(llama_token token) const noexcept;
  /// Whether it is what sequences begin with.
  bool begins(llama_token token) const noexcept;
  /// The cache of a context of so many tokens, as far as policies act on it. Throws what session::attach throws.
  cache_shape cache(std::int64_t tokens) const;
  /// Of a token's key and value in such a cache, of one head.
  std::int64_t row_bytes(cache_shape const& of) const noexcept;
  /// Whether rows of keys and values have one type.
  bool values_as_keys() const noexcept;
  /// What policies read of the model beside its cache.
  policy_inputs const& inputs() const noexcept { return inputs_; }

  /// Parameters for one sequence of up to `tokens` tokens.
  llama_context_params parameters(std::int64_t tokens, int threads, bool flash_attention) const noexcept;
  context_ptr context(llama_context_params const& params) const;

 private:
  std::unique_ptr<llama_model, free_model> model_;
  cache_types types_;
  policy_inputs inputs_;
};

/// Texts to calibrate on, as tokens.
struct calibration_prompts {
  std::vector<std::vector<llama_token>> tokens;
  std::int64_t context = 0;  ///< tokens of a context that the longest fits with its steps
  std::size_t total = 0;     ///< tokens and steps of all
};
/// Reads files, each for `steps` tokens more. Throws invalid_value for a text of fewer than 2 tokens, and where the model's own
/// context is too short.
calibration_prompts read_prompts(text_model const& model, std::vector<std::string> const& paths, bool chat, int steps);

/// llama_decode, or a session's.
using decode_function = std::function<std::int32_t(llama_context*, llama_batch)>;
/// In batches; `failed` is asked for the reason when `decode` does not return 0. progress(done) after each batch.
void decode_prompt(llama_context* context, std::span<llama_token const> tokens,
                   std::function<void(std::size_t)> const& progress, std::function<void()> const& failed,
                   decode_function const& decode = llama_decode);
/// One token.
void decode_token(llama_context* context, llama_token token, std::function<void()> const& failed,
                  decode_function const& decode = llama_decode);

/// The likeliest next token of the last decode; the smallest of equals.
llama_token likeliest(std::span<float const> logits) noexcept;
std::span<float const> last_logits(llama_context* context, text_model const& model);

}  // namespace kvpolicy
