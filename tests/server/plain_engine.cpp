// A program on libllama that knows nothing of kvpolicy: it decodes a prompt and 8 tokens behind it again and again, each time
// after other calls that the preload library stands in front of. It prints a line for each: its name and the tokens.
#include <llama.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

[[noreturn]] void fail(std::string const& what) {
  std::fprintf(stderr, "plain_engine: %s\n", what.c_str());
  std::exit(2);
}
void check(bool holds, std::string const& what) {
  if (!holds) fail(what);
}

llama_context* context = nullptr;
llama_vocab const* vocab = nullptr;
bool by_process = false;  // llama_process in place of llama_decode

/// Tokens of a sequence from a position on; the last one has logits.
void decode(llama_token const* tokens, int count, llama_pos first, llama_seq_id of) {
  if (by_process) {
    llama_batch_ext* const batch = llama_batch_ext_init(context);
    for (int i = 0; i < count; ++i) {
      std::int32_t const at = llama_batch_ext_add_token(batch, of, tokens[i]);
      llama_pos const position = first + i;
      check(at >= 0 && llama_batch_ext_set_pos(batch, at, &position), "a token can't be added");
      check(llama_batch_ext_set_output_logits(batch, at, i + 1 == count), "an output can't be set");
    }
    check(llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch) == 0, "llama_process failed");
    llama_batch_ext_free(batch);
    return;
  }
  llama_batch batch = llama_batch_init(count, 0, 1);
  batch.n_tokens = count;
  for (int i = 0; i < count; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = first + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = of;
    batch.logits[i] = i + 1 == count;
  }
  check(llama_decode(context, batch) == 0, "llama_decode failed");
  llama_batch_free(batch);
}

void read_prompt(std::vector<llama_token> const& prompt, llama_seq_id of) {
  int const count = static_cast<int>(prompt.size()) - 1;  // the last token is the first step
  for (int i = 0; i < count; i += 256) decode(prompt.data() + i, std::min(256, count - i), i, of);
}

/// Decodes on from the prompt's last token, and forgets that again.
void answer(char const* name, std::vector<llama_token> const& prompt, llama_seq_id of) {
  auto position = static_cast<llama_pos>(prompt.size()) - 1;
  llama_memory_t const memory = llama_get_memory(context);
  check(llama_memory_seq_pos_max(memory, of) == position - 1, std::string(name) + ": the sequence ends elsewhere");
  llama_token token = prompt.back();
  std::printf("%s", name);
  for (int i = 0; i < 8; ++i) {
    decode(&token, 1, position++, of);
    float const* const logits = llama_get_logits_ith(context, -1);
    token = static_cast<llama_token>(std::max_element(logits, logits + llama_vocab_n_tokens(vocab)) - logits);
    std::printf(" %d", token);
  }
  std::printf("\n");
  check(llama_memory_seq_rm(memory, of, static_cast<llama_pos>(prompt.size()) - 1, -1), "the answer can't be removed");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) fail("usage: plain_engine MODEL TEXT FOLDER [states] [process]");
  auto const asked = [&](char const* what) { return std::find(argv + 4, argv + argc, std::string(what)) != argv + argc; };
  llama_log_set([](ggml_log_level, char const*, void*) {}, nullptr);
  llama_model* const model = llama_model_load_from_file(argv[1], llama_model_default_params());
  check(model != nullptr, "the model can't be loaded");
  vocab = llama_model_get_vocab(model);
  std::ifstream file(argv[2]);
  std::string const text(std::istreambuf_iterator<char>(file), {});
  std::vector<llama_token> prompt(text.size() + 8);
  prompt.resize(static_cast<std::size_t>(llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), prompt.data(),
                                                        static_cast<int>(prompt.size()), true, true)));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 1024;
  params.n_batch = params.n_ubatch = 256;
  params.n_seq_max = 2;
  params.kv_unified = true;
  params.n_threads = params.n_threads_batch = 2;
  context = llama_init_from_model(model, params);
  check(context != nullptr, "no context");
  check(llama_n_ctx(context) == 1024 && llama_n_ctx_seq(context) == 1024, "the context is not as long as was asked for");
  llama_memory_t const memory = llama_get_memory(context);
  std::string const state = std::string(argv[3]) + "/state.bin";

  read_prompt(prompt, 0);
  answer("first", prompt, 0);
  answer("again", prompt, 0);
  if (asked("states")) {
    std::size_t const size = llama_state_seq_get_size(context, 0);
    std::vector<std::uint8_t> kept(size);
    check(llama_state_seq_get_data(context, kept.data(), size, 0) == size, "a state is shorter than was said");
    check(llama_state_seq_save_file(context, state.c_str(), 0, prompt.data(), prompt.size() - 1) > 0, "no state file");
    check(llama_memory_seq_rm(memory, 0, -1, -1), "the sequence can't be removed");
    check(llama_memory_seq_pos_max(memory, 0) == -1, "a sequence that was removed is there");
    std::vector<llama_token> tokens(prompt.size());
    std::size_t count = 0;
    check(llama_state_seq_load_file(context, state.c_str(), 0, tokens.data(), tokens.size(), &count) > 0,
          "the file can't be loaded");
    check(count == prompt.size() - 1, "the file has other tokens");
    answer("file", prompt, 0);
    check(llama_memory_seq_rm(memory, 0, -1, -1), "the sequence can't be removed");
    check(llama_state_seq_set_data(context, kept.data(), size, 0) == size, "the state can't be set");
    answer("data", prompt, 0);
  }
  llama_memory_seq_cp(memory, 0, 1, -1, -1);
  answer("copy", prompt, 1);
  llama_memory_seq_keep(memory, 1);
  check(llama_memory_seq_pos_max(memory, 0) == -1 && llama_memory_seq_pos_max(memory, 1) >= 0, "another sequence was kept");
  answer("kept", prompt, 1);
  llama_memory_clear(memory, true);
  check(llama_memory_seq_pos_min(memory, 1) == -1, "memory that was cleared holds tokens");
  by_process = asked("process");
  read_prompt(prompt, 0);
  answer("anew", prompt, 0);
  llama_free(context);
  llama_model_free(model);
}
