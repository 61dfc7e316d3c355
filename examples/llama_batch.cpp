// A small server: requests arrive over time, are prompted piece by piece among the others' steps, and leave. The same day is
// played by llama.cpp's dense settings and by policies, which are fed the dense run's tokens.
//
//   llama_batch MODEL.gguf [--slots 4] [--new 64] [--every 16] [--tokens 3500] PROMPT_FILE...
#include <kvpolicy/interop/llama.hpp>
#include <kvpolicy/kvpolicy.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace kv = kvpolicy;

namespace {

using tokens = std::vector<llama_token>;
constexpr std::size_t piece = 512;  // of a prompt, in one batch

struct request {
  std::string name;
  tokens prompt;
  tokens answer;  // dense decoding's
};

struct plan {
  int slots = 4;            // sequences at once
  int fresh = 64;           // tokens of an answer
  int every = 16;           // batches between two arrivals; 0: all come at once
  std::size_t most = 3500;  // tokens of a prompt
};

struct outcome {
  double seconds = 0;             // of all batches
  std::vector<double> per_token;  // seconds, of each batch that was steps alone
  std::vector<double> agreement;
  double read = 0;  // mean of the requests' last steps
};

struct context_free {
  void operator()(llama_context* c) const noexcept { llama_free(c); }
};

/// A sequence's request, and how far it is.
struct slot {
  int request = -1;
  std::size_t prompted = 0;
  tokens answer{};
  int agreed = 0;
};

/// Plays the day in one context. Without a session it is dense decoding, and the first of those writes the answers.
outcome play(llama_model* model, llama_context_params params, kv::llama::session* session, plan const& p,
             std::vector<request>& requests) {
  if (session != nullptr) session->attach(params, model);
  std::unique_ptr<llama_context, context_free> const context(llama_init_from_model(model, params));
  if (context == nullptr) throw kv::error("llama.cpp made no context");
  llama_memory_t const memory = llama_get_memory(context.get());
  int const vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  llama_batch batch = llama_batch_init(static_cast<int>(piece) * p.slots, 0, 1);
  std::unique_ptr<llama_batch, void (*)(llama_batch*)> const owner(&batch, [](llama_batch* b) { llama_batch_free(*b); });

  outcome result;
  result.agreement.resize(requests.size());
  std::vector<slot> slots(static_cast<std::size_t>(p.slots));
  std::size_t arrived = 0;
  std::size_t done = 0;
  for (std::int64_t tick = 0; done < requests.size(); ++tick) {
    batch.n_tokens = 0;
    std::vector<int> row(slots.size(), -1);  // of the logits
    bool only_steps = true;
    for (std::size_t s = 0; s < slots.size(); ++s) {
      slot& at = slots[s];
      if (at.request < 0 && arrived < requests.size() && static_cast<std::int64_t>(arrived) * p.every <= tick) {
        at.request = static_cast<int>(arrived++);
      }
      if (at.request < 0) continue;
      request const& r = requests[static_cast<std::size_t>(at.request)];
      std::size_t const known = at.prompted + at.answer.size();
      bool const prompting = at.prompted < r.prompt.size();
      std::size_t const count = prompting ? std::min(piece, r.prompt.size() - at.prompted) : 1;
      for (std::size_t i = 0; i < count; ++i) {
        int const b = batch.n_tokens++;
        batch.token[b] = prompting ? r.prompt[at.prompted + i] : at.answer.back();
        batch.pos[b] = static_cast<llama_pos>(prompting ? at.prompted + i : known - 1);
        batch.n_seq_id[b] = 1;
        batch.seq_id[b][0] = static_cast<llama_seq_id>(s);
        batch.logits[b] = i + 1 == count;
      }
      if (prompting) at.prompted += count;
      if (at.prompted == r.prompt.size()) row[s] = batch.n_tokens - 1;
      only_steps = only_steps && !prompting;
    }
    if (batch.n_tokens == 0) continue;  // the next request is yet to come

    auto const start = std::chrono::steady_clock::now();
    if (session != nullptr) session->set_batch(batch);
    if (llama_decode(context.get(), batch) != 0) {
      if (session != nullptr) session->check();
      throw kv::error("llama_decode failed");
    }
    llama_synchronize(context.get());
    double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    result.seconds += seconds;
    if (only_steps) result.per_token.push_back(seconds / batch.n_tokens);

    for (std::size_t s = 0; s < slots.size(); ++s) {
      if (row[s] < 0) continue;
      slot& at = slots[s];
      request& r = requests[static_cast<std::size_t>(at.request)];
      float const* const logits = llama_get_logits_ith(context.get(), row[s]);
      auto const likeliest = static_cast<llama_token>(std::max_element(logits, logits + vocabulary) - logits);
      bool const follows = std::ssize(r.answer) == p.fresh;  // the dense run's tokens are there
      at.agreed += !follows || likeliest == r.answer[at.answer.size()] ? 1 : 0;
      at.answer.push_back(follows ? r.answer[at.answer.size()] : likeliest);
      if (std::ssize(at.answer) < p.fresh) continue;
      r.answer = at.answer;
      result.agreement[static_cast<std::size_t>(at.request)] = static_cast<double>(at.agreed) / p.fresh;
      auto const id = static_cast<llama_seq_id>(s);
      if (session != nullptr) result.read += session->last_step(id).tokens_read / static_cast<double>(requests.size());
      llama_memory_seq_rm(memory, id, -1, -1);
      at = {};
      ++done;
    }
  }
  return result;
}

/// Tokens a second of the median step.
double rate_of(outcome o) {
  if (o.per_token.empty()) return 0;
  auto const middle = o.per_token.begin() + std::ssize(o.per_token) / 2;
  std::nth_element(o.per_token.begin(), middle, o.per_token.end());
  return 1 / *middle;
}

void print(std::string const& name, bool unified, outcome const& o, double best) {
  double const rate = rate_of(o);
  std::string const read = o.read > 0 ? std::to_string(static_cast<int>(o.read)) : "all";
  std::printf("| %-26s | %-7s | %6s | %7.1f | %5.2fx | %6.1f |", name.c_str(), unified ? "unified" : "streams", read.c_str(),
              rate, best > 0 ? rate / best : 1.0, o.seconds);
  for (double const share : o.agreement) std::printf(" %3.0f", 100 * share);
  std::puts(" |");
  std::fflush(stdout);
}

tokens tokens_of(llama_model const* model, std::string const& text, std::size_t most) {
  tokens made(text.size() + 8);
  int const count = llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int>(text.size()), made.data(),
                                   static_cast<int>(made.size()), true, true);
  made.resize(std::min(most, static_cast<std::size_t>(std::max(count, 0))));
  return made;
}

/// Arguments; numbers that are not positive are refused.
struct command {
  plan day;
  std::vector<std::string> files;

  command(int argc, char** argv) {
    for (int i = 2; i < argc; ++i) {
      std::string const word = argv[i];
      if (!word.starts_with("--")) {
        files.push_back(word);
        continue;
      }
      char* end = nullptr;
      long const value = i + 1 < argc ? std::strtol(argv[++i], &end, 10) : -1;
      if (value < (word == "--every" ? 0 : 1) || value > 1 << 20 || *end != '\0') {
        throw kv::invalid_value(word + " needs a whole number from " + (word == "--every" ? "0" : "1") + " to 1048576");
      }
      if (word == "--slots") day.slots = static_cast<int>(value);
      else if (word == "--new") day.fresh = static_cast<int>(value);
      else if (word == "--every") day.every = static_cast<int>(value);
      else if (word == "--tokens") day.most = static_cast<std::size_t>(value);
      else throw kv::invalid_value("there is no option " + word + "; there are --slots, --new, --every and --tokens");
    }
    if (files.empty()) {
      throw kv::invalid_value("usage: llama_batch MODEL.gguf [--slots N] [--new N] [--every N] [--tokens N] PROMPT_FILE...");
    }
  }
};

}  // namespace

int main(int argc, char** argv) try {
  command const asked(argc, argv);
  plan const& day = asked.day;
  llama_log_set([](ggml_log_level, char const*, void*) {}, nullptr);
  std::unique_ptr<llama_model, void (*)(llama_model*)> const model(
      llama_model_load_from_file(argv[1], llama_model_default_params()), [](llama_model* m) { llama_model_free(m); });
  if (model == nullptr) throw kv::invalid_value("can't load " + std::string(argv[1]));

  std::vector<request> requests;
  std::size_t longest = 0;
  for (std::string const& file : asked.files) {
    std::ifstream in(file, std::ios::binary);
    std::string const text{std::istreambuf_iterator<char>(in), {}};
    requests.push_back({file, tokens_of(model.get(), text, day.most), {}});
    if (!in || requests.back().prompt.empty()) throw kv::invalid_value(file + " can't be read, or is empty");
    longest = std::max(longest, requests.back().prompt.size());
  }

  llama_context_params params = llama_context_default_params();
  std::size_t const room = (longest + static_cast<std::size_t>(day.fresh) + 255) / 256 * 256;
  params.n_ctx = static_cast<std::uint32_t>(room * static_cast<std::size_t>(day.slots));
  params.n_seq_max = static_cast<std::uint32_t>(day.slots);
  params.n_batch = static_cast<std::uint32_t>(piece * static_cast<std::size_t>(day.slots));
  params.n_threads = params.n_threads_batch = 2;

  std::printf("%zu requests, up to %zu tokens, %d answered each, %d at once, one every %d batches\n\n", requests.size(),
              longest, day.fresh, day.slots, day.every);
  std::printf("| %-26s | %-7s | %6s | %7s | %6s | %6s | top-1 agreement of each request, %% |\n", "", "cache", "read", "step/s",
              "speed", "all, s");
  std::puts("|---|---|--:|--:|--:|--:|---|");
  double best = 0;
  std::vector<outcome> dense;
  for (bool const unified : {true, false}) {
    for (bool const flash : {true, false}) {
      params.kv_unified = unified;
      params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
      dense.push_back(play(model.get(), params, nullptr, day, requests));
      best = std::max(best, rate_of(dense.back()));
    }
  }
  for (std::size_t i = 0; i < dense.size(); ++i) {
    print(i % 2 == 0 ? "dense, flash attention on" : "dense, flash attention off", i < 2, dense[i], best);
  }
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  auto const with = [&](char const* name, auto const& policy) {
    for (bool const unified : {true, false}) {
      params.kv_unified = unified;
      kv::llama::session session(policy);
      print(name, unified, play(model.get(), params, &session, day, requests), best);
    }
  };
  with("full", kv::presets::full{});
  with("quest", kv::presets::quest{.tokens = 512});
  with("snapkv", kv::presets::snapkv{.tokens = 512});
} catch (std::exception const& e) {
  std::fprintf(stderr, "llama_batch: %s\n", e.what());
  return 2;
}
