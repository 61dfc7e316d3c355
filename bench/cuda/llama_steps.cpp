// llama_steps MODEL.gguf CONTEXT STEPS [LOGITS]: llama.cpp's steps behind so many tokens, with all layers on a GPU; under a
// policy where GGML_BACKEND_PATH names libkvpolicy-ggml.so and KVPOLICY a policy. Prints a JSON line; LOGITS gets each step's,
// f32.
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct deleter {
  void operator()(llama_model* of) const noexcept { llama_model_free(of); }
  void operator()(llama_context* of) const noexcept { llama_free(of); }
};

void expect(bool right, std::string const& what) {
  if (!right) throw std::runtime_error(what);
}

class clock {
 public:
  double ms() const { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun_).count(); }

 private:
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

/// The state of a sequence of `tokens` tokens, of which it has the rows of a shorter one's again and again: prompts of 128K
/// tokens would take the minute that there is.
std::vector<std::uint8_t> lengthened(std::vector<std::uint8_t> const& state, std::uint32_t tokens) {
  std::size_t at = 0;
  std::vector<std::uint8_t> made;
  auto const number = [&](std::size_t from) {
    std::uint32_t value = 0;
    std::memcpy(&value, &state.at(from), sizeof value);
    return value;
  };
  auto const put = [&](void const* from, std::size_t bytes) {
    auto const* const first = static_cast<std::uint8_t const*>(from);
    made.insert(made.end(), first, first + bytes);
  };
  put(&state[at], 12);  // magic number, sequence, streams
  std::uint32_t const had = number(at += 12);
  made.reserve(state.size() / had * (tokens + 1));
  put(&tokens, 4);
  at += 4;
  for (std::uint32_t i = 0; i < tokens; ++i) {  // position, sequences, which
    put(&i, 4);
    put(&state.at(at + 4), 8);
  }
  at += had * 12;
  std::uint32_t const layers = number(at + 4);
  put(&state[at], 8);
  at += 8;
  for (std::uint32_t plane = 0; plane < 2 * layers; ++plane) {
    std::uint64_t row = 0;
    std::memcpy(&row, &state.at(at + 4), sizeof row);
    put(&state[at], 12);
    at += 12;
    for (std::uint32_t i = 0; i < tokens; ++i) put(&state.at(at + (i * 37 % had) * row), row);
    at += had * row;
  }
  return made;
}

int run(char const* path, std::uint32_t context, int steps, char const* logits_file) {
  constexpr int prompt = 256;
  ggml_backend_load_all();
  llama_model_params of_model = llama_model_default_params();
  of_model.n_gpu_layers = 999;
  std::unique_ptr<llama_model, deleter> const model(llama_model_load_from_file(path, of_model));
  expect(model != nullptr, std::string("'") + path + "' can't be loaded");
  expect(context > 2 * prompt,
         "a context of " + std::to_string(context) + " tokens; it must be above " + std::to_string(2 * prompt));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = context + static_cast<std::uint32_t>(steps) + 256;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  std::unique_ptr<llama_context, deleter> const of(llama_init_from_model(model.get(), params));
  expect(of != nullptr, "no context");
  int const vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model.get()));
  std::vector<llama_token> tokens(static_cast<std::size_t>(prompt + steps));
  std::uint32_t seed = 7;
  for (llama_token& each : tokens)
    each = static_cast<llama_token>(((seed = seed * 1664525U + 1013904223U) >> 8) % static_cast<unsigned>(vocabulary));

  expect(llama_decode(of.get(), llama_batch_get_one(tokens.data(), 64)) == 0, "the first prompt failed");
  std::vector<std::uint8_t> state(llama_state_seq_get_size(of.get(), 0));
  expect(llama_state_seq_get_data(of.get(), state.data(), state.size(), 0) == state.size(), "no state");
  llama_memory_clear(llama_get_memory(of.get()), true);
  state = lengthened(state, context - prompt);
  expect(llama_state_seq_set_data(of.get(), state.data(), state.size(), 0) == state.size(), "the longer state was refused");
  expect(llama_decode(of.get(), llama_batch_get_one(tokens.data(), prompt)) == 0, "the prompt failed");

  std::ofstream logits;
  if (logits_file != nullptr) logits.open(logits_file, std::ios::binary);
  std::vector<double> took;
  for (int i = 0; i < steps; ++i) {
    clock const step;
    expect(llama_decode(of.get(), llama_batch_get_one(&tokens[static_cast<std::size_t>(prompt + i)], 1)) == 0,
           "step " + std::to_string(i) + " failed");
    float const* const made = llama_get_logits_ith(of.get(), -1);
    took.push_back(step.ms());
    if (logits) logits.write(reinterpret_cast<char const*>(made), static_cast<std::streamsize>(sizeof(float)) * vocabulary);
  }
  double const first = took.front();
  took.erase(took.begin(), took.begin() + steps / 3);  // launches before a capture, and what a policy waits for
  std::ranges::sort(took);
  char const* const policy = std::getenv("GGML_BACKEND_PATH") != nullptr ? std::getenv("KVPOLICY") : nullptr;
  std::printf(R"({"policy": "%s", "context": %u, "first_ms": %.2f, "ms": %.3f, "least": %.3f, "most": %.3f})"
              "\n",
              policy != nullptr ? policy : "none", context, first, took[took.size() / 2], took.front(), took.back());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    expect(argc == 4 || argc == 5, "llama_steps MODEL.gguf CONTEXT STEPS [LOGITS]");
    int const steps = std::atoi(argv[3]);
    expect(steps > 2, std::string("'") + argv[3] + "' steps; give 3 or more");
    return run(argv[1], static_cast<std::uint32_t>(std::atoi(argv[2])), steps, argc == 5 ? argv[4] : nullptr);
  } catch (std::exception const& why) {
    std::fprintf(stderr, "llama_steps: %s\n", why.what());
    return 2;
  }
}
