// A policy of one's own, running in llama.cpp: tokens whose keys are short draw attention, so keep those (arXiv 2406.11430).
#include <kvpolicy/interop/llama.hpp>
#include <kvpolicy/kvpolicy.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace kv = kvpolicy;

struct short_keys {  // a scorer: what it needs, how fine it selects, a score for every token
  static constexpr kv::signals needs = kv::signals::keys;
  static constexpr kv::scope how_fine = kv::scope::head;
  static constexpr kv::scored of = kv::scored::tokens;
  static constexpr kv::no_memory start(kv::cache_shape const&) noexcept { return {}; }

  template <class Input, kv::executor Exec>
  void score(Input const& input, kv::table<float> out, Exec&) const {
    kv::rows const keys = input.view.keys(input.layer);
    std::vector<float> key(static_cast<std::size_t>(keys.head_dim));
    for (std::int64_t head = 0; head < keys.heads; ++head) {
      for (std::int64_t token = 0; token < out.columns; ++token) {
        keys.load({head}, {token}, key);
        float squares = 0;
        for (float const x : key) squares += x * x;
        out(head, token) = -squares;
      }
    }
  }
};

constexpr auto composed = [](std::int32_t tokens) {  // everything else is there already
  return kv::policy{kv::keep{kv::segment::tokens{}, kv::pool::none{}, short_keys{}, kv::budget::tokens{tokens},
                             kv::select::top{}, kv::window::tokens{.sinks = 4, .recent = 64}, kv::trigger::prefill{}},
                    kv::keep_all{}};
};

int main(int argc, char** argv) try {
  if (argc != 2) throw kv::invalid_value("usage: own_policy MODEL.gguf");
  llama_log_set([](ggml_log_level, char const*, void*) {}, nullptr);
  llama_model* const model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) throw kv::invalid_value("can't load " + std::string(argv[1]));
  kv::llama::session session(composed(256));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 1024;
  session.attach(params, model);
  llama_context* const context = llama_init_from_model(model, params);
  std::vector<llama_token> prompt(600, 100);  // any tokens will do to see it run
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] += static_cast<llama_token>(i * i % 977);
  if (llama_decode(context, llama_batch_get_one(prompt.data(), 600)) != 0) session.check();
  for (int step = 0; step < 4; ++step) {
    if (llama_decode(context, llama_batch_get_one(prompt.data() + step, 1)) != 0) session.check();
    std::printf("%lld tokens in the cache, %.0f read by each head\n", static_cast<long long>(session.last_step().tokens),
                session.last_step().tokens_read);
  }
  llama_free(context);
  llama_model_free(model);
} catch (std::exception const& e) {
  std::fprintf(stderr, "own_policy: %s\n", e.what());
  return 2;
}
