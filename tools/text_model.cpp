#include "text_model.hpp"

#include <kvpolicy/error.hpp>
#include <kvpolicy/interop/llama.hpp>
#include <kvpolicy/presets/full.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "read_file.hpp"

namespace kvpolicy {
namespace {

/// The first line that llama.cpp logged as an error, which names the cause; the tools print nothing else of its log.
std::string& first_error() {
  static std::string line;
  return line;
}

void keep_errors(ggml_log_level level, char const* text, void*) {
  if (level != GGML_LOG_LEVEL_ERROR || !first_error().empty()) return;
  std::string line(text);
  while (!line.empty() && line.back() == '\n') line.pop_back();
  if (!line.empty()) first_error() = line;
}

void check_gguf(std::string const& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) throw invalid_value("model '" + path + "' does not exist");
  if (std::filesystem::is_directory(path, error)) throw invalid_value("model '" + path + "' is a folder, not a GGUF file");
  if (!std::filesystem::is_regular_file(path, error)) throw invalid_value("model '" + path + "' is a pipe or a device");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw invalid_value("model '" + path + "' can't be read: " + std::strerror(errno));
  char magic[4] = {};
  file.read(magic, sizeof magic);
  if (std::memcmp(magic, "GGUF", sizeof magic) != 0) throw invalid_value("model '" + path + "' is not a GGUF file");
}

}  // namespace

ggml_type cache_type_of(std::string const& name) {
  std::string known;
  for (ggml_type const type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                               GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL}) {
    if (name == ggml_type_name(type)) return type;
    known += known.empty() ? "" : ", ";
    known += ggml_type_name(type);
  }
  throw invalid_value("'" + name + "' is no type of a KV cache; there are " + known);
}

text_model::text_model(std::string const& path, cache_types types, int gpu_layers) : types_(types) {
  llama_log_set(keep_errors, nullptr);
  if (gpu_layers > 0) {
    ggml_backend_load_all();  // those that lie beside the program, or that GGML_BACKEND_PATH names
    KVPOLICY_EXPECTS(llama_supports_gpu_offload(),
                     "--gpu-layers " + std::to_string(gpu_layers) +
                         ", and this llama.cpp has no GPU; its backend, libggml-cuda.so, may lie beside this program");
  }
  check_gguf(path);
  llama_backend_init();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = gpu_layers;
  model_.reset(llama_model_load_from_file(path.c_str(), params));
  if (!model_) throw invalid_value("model '" + path + "' can't be loaded (truncated, or of an unknown kind): " + first_error());
  inputs_ = inputs_for(llama::sentence_ends(model_.get()));
}

std::size_t text_model::vocabulary() const noexcept {
  return static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get())));
}

std::string text_model::as_chat(std::string const& user) const {
  chat_turn const turn{"user", user};
  return as_chat(std::span(&turn, 1));
}

std::string text_model::as_chat(std::span<chat_turn const> turns) const {
  char const* const chat_template = llama_model_chat_template(model_.get(), nullptr);
  if (chat_template == nullptr) throw unsupported("the model has no chat template; take a model that was trained to chat");
  std::vector<llama_chat_message> messages;
  std::size_t size_of_all = 4096;
  for (chat_turn const& turn : turns) {
    messages.push_back({turn.role, turn.text.c_str()});
    size_of_all += turn.text.size();
  }
  std::string text(size_of_all, '\0');
  for (int tries = 0; tries < 2; ++tries) {
    std::int32_t const size = llama_chat_apply_template(chat_template, messages.data(), messages.size(), true, text.data(),
                                                        static_cast<std::int32_t>(text.size()));
    if (size < 0) {
      throw unsupported("llama.cpp does not know the model's chat template; take a model with a template that it knows");
    }
    bool const fits = static_cast<std::size_t>(size) <= text.size();
    text.resize(static_cast<std::size_t>(size));
    if (fits) break;
  }
  return text;
}

std::vector<llama_token> text_model::tokens_of(std::string const& text, bool special) const {
  llama_vocab const* const vocab = llama_model_get_vocab(model_.get());
  std::vector<llama_token> tokens(text.size() + 8);
  std::int32_t const count = llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                                            static_cast<std::int32_t>(tokens.size()), true, special);
  if (count < 0) throw invalid_value("the prompt can't be tokenised");
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

std::string text_model::text_of(llama_token token) const {
  llama_vocab const* const vocab = llama_model_get_vocab(model_.get());
  std::string piece(64, '\0');
  std::int32_t size = llama_token_to_piece(vocab, token, piece.data(), static_cast<std::int32_t>(piece.size()), 0, false);
  if (size < 0) {
    piece.resize(static_cast<std::size_t>(-size));
    size = llama_token_to_piece(vocab, token, piece.data(), static_cast<std::int32_t>(piece.size()), 0, false);
  }
  piece.resize(static_cast<std::size_t>(std::max(size, 0)));
  return piece;
}

bool text_model::ends(llama_token token) const noexcept {
  return llama_vocab_is_eog(llama_model_get_vocab(model_.get()), token);
}

bool text_model::begins(llama_token token) const noexcept {
  return token == llama_vocab_bos(llama_model_get_vocab(model_.get()));
}

cache_shape text_model::cache(std::int64_t tokens) const {
  llama_context_params params = parameters(tokens, 1, true);
  llama::session session(presets::full{});
  session.attach(params, model_.get());
  cache_shape shape = session.shape();
  shape.max_tokens = (tokens + 255) / 256 * 256;  // as llama.cpp pads it
  return shape;
}

std::int64_t text_model::row_bytes(cache_shape const& of) const noexcept {
  return static_cast<std::int64_t>(ggml_row_size(types_.keys, of.head_dim) + ggml_row_size(types_.values, of.values_dim()));
}

bool text_model::values_as_keys() const noexcept { return types_.keys == types_.values; }

llama_context_params text_model::parameters(std::int64_t tokens, int threads, bool flash_attention) const noexcept {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(tokens);
  params.n_batch = 512;
  params.n_ubatch = 512;
  params.n_threads = threads;
  params.n_threads_batch = threads;
  params.flash_attn_type = flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = types_.keys;
  params.type_v = types_.values;
  params.no_perf = true;
  return params;
}

context_ptr text_model::context(llama_context_params const& params) const {
  context_ptr context(llama_init_from_model(model_.get(), params));
  if (!context)
    throw unsupported("llama.cpp can't make a context of " + std::to_string(params.n_ctx) + " tokens: " + first_error());
  return context;
}

calibration_prompts read_prompts(text_model const& model, std::vector<std::string> const& paths, bool chat, int steps) {
  calibration_prompts made;
  std::size_t longest = 0;
  for (std::string const& path : paths) {
    std::string const text = read_file(path);
    made.tokens.push_back(model.tokens_of(chat ? model.as_chat(text) : text, chat));
    std::size_t const size = made.tokens.back().size();
    if (size < 2) throw invalid_value("prompt '" + path + "' has fewer than 2 tokens");
    longest = std::max(longest, size);
    made.total += size + static_cast<std::size_t>(steps);
  }
  std::int64_t const needed = static_cast<std::int64_t>(longest) + steps + 1;
  if (needed > model.trained_context()) {
    throw invalid_value("the longest prompt needs " + std::to_string(needed) +
                        " tokens with its steps, the model's context has " + std::to_string(model.trained_context()));
  }
  made.context = (needed + 255) / 256 * 256;
  return made;
}

void decode_prompt(llama_context* context, std::span<llama_token const> tokens,
                   std::function<void(std::size_t)> const& progress, std::function<void()> const& failed,
                   decode_function const& decode) {
  std::size_t const batch = llama_n_batch(context);
  std::vector<llama_token> piece;
  for (std::size_t done = 0; done < tokens.size();) {
    std::size_t count = std::min(batch, tokens.size() - done);
    if (done + count + 1 == tokens.size() && count > 1) --count;  // a last batch of one token would count as a decode step
    piece.assign(tokens.begin() + static_cast<std::ptrdiff_t>(done),
                 tokens.begin() + static_cast<std::ptrdiff_t>(done + count));
    if (int const status = decode(context, llama_batch_get_one(piece.data(), static_cast<std::int32_t>(count))); status != 0) {
      failed();
      throw error("llama_decode failed with " + std::to_string(status) + ": " + first_error());
    }
    done += count;
    progress(done);
  }
}

void decode_token(llama_context* context, llama_token token, std::function<void()> const& failed,
                  decode_function const& decode) {
  if (int const status = decode(context, llama_batch_get_one(&token, 1)); status != 0) {
    failed();
    throw error("llama_decode failed with " + std::to_string(status) + ": " + first_error());
  }
}

llama_token likeliest(std::span<float const> logits) noexcept {
  return static_cast<llama_token>(std::ranges::max_element(logits) - logits.begin());
}

std::span<float const> last_logits(llama_context* context, text_model const& model) {
  return {llama_get_logits_ith(context, -1), model.vocabulary()};
}

}  // namespace kvpolicy
