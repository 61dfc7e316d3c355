// A whole decode step of every policy that a decoder serves, all 32 layers' choice and attention in one graph, against this
// library's attention over everything in the same run. One JSON line a case; options: gpu.hpp. A step's time has no matrix
// product of the model in it.
#include <cmath>
#include <memory>
#include <optional>

#include "cache.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/gpu/gpu_exec.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy::bench {
namespace {

using namespace llama_8b;

/// A batch at one length: caches, queries of every layer, ids; and what attention over everything takes.
struct situation {
  std::int64_t batch;
  std::int64_t context;
  paged_cache cache;
  gpu::device_buffer<float> queries;  ///< `[layers, batch, q_heads, head_dim]`
  gpu::device_buffer<float> window;   ///< a prompt's last queries `[max_window, q_heads, head_dim]`
  gpu::device_buffer<float> out;
  gpu::device_buffer<std::int32_t> ids;
  double dense_us = 0;

  static constexpr std::int64_t max_window = 64;

  situation(measured_gpu& on, std::int64_t sequences, std::int64_t tokens)
      : batch(sequences),
        context(tokens),
        cache(on, sequences, tokens, pools_for(on, sequences, tokens), true),
        queries(on.floats(layers * sequences * q_heads * head_dim)),
        window(on.floats(max_window * q_heads * head_dim)),
        out(on.floats(sequences * q_heads * head_dim)),
        ids(on.numbers(std::vector<std::int32_t>(static_cast<std::size_t>(sequences), 1))) {}

  gpu::vector_rows queries_of(std::int64_t layer) const {
    gpu::vector_rows made = vectors(queries, q_heads, head_dim);
    std::int64_t const first = layer * batch * q_heads * head_dim;
    made.base = queries.get().data + first;
    made.elements -= first;
    return made;
  }
  gpu::vector_rows outputs() const { return vectors(out, q_heads, head_dim); }

  std::vector<field> described(double us) const {
    return {number("us_dense", dense_us), number("ratio_to_dense", dense_us / us),
            number("shared_layers", static_cast<double>(layers / cache.pools()))};
  }

 private:
  /// As many as 45% of free memory hold, a power of two: the rest is for policies' own state.
  static std::int64_t pools_for(measured_gpu const& on, std::int64_t sequences, std::int64_t tokens) {
    std::int64_t const room = on.free_bytes() / 100 * 45;
    std::int64_t made = layers;
    while (made > 1 && made * paged_cache::bytes_of(sequences, tokens, true) > room) made /= 2;
    return made;
  }
};

void dense(situation const& at, gpu::stream_device& device) {
  for (std::int64_t l = 0; l < layers; ++l) {
    gpu::detail::decode_attention a{};
    a.queries = at.queries_of(l);
    a.scale = scale;
    a.group = q_heads / kv_heads;
    a.keys = at.cache.keys(l);
    a.values = at.cache.values(l);
    a.lists = all_tokens(at.context);
    a.sequences = at.batch;
    a.most_tokens = at.context;
    a.out = at.outputs();
    gpu::detail::launch_attend(device, a);
  }
}

/// Ids of a prompt whose sentences have 28 tokens on average, where they have 16 at least: one id of 12 ends one.
constexpr std::int32_t shortest_sentence = 16;

std::vector<std::uint8_t> const& boundaries() {
  static std::vector<std::uint8_t> const made = [] {
    std::vector<std::uint8_t> marks(static_cast<std::size_t>(vocabulary));
    for (std::size_t i = 0; i < marks.size(); i += 12) marks[i] = 1;
    return marks;
  }();
  return made;
}

std::vector<std::int32_t> random_ids(std::int64_t count, std::uint32_t seed) {
  std::minstd_rand random{seed + 1};
  std::vector<std::int32_t> made(static_cast<std::size_t>(count));
  for (std::int32_t& id : made) id = static_cast<std::int32_t>((random() >> 8) % static_cast<std::uint32_t>(vocabulary));
  return made;
}

template <class Policy>
using decoder_of = gpu::decoder<Policy, gpu::stream_device>;

/// One step of all layers, enqueued.
template <class Policy>
void enqueue_step(situation const& at, decoder_of<Policy>& decoder, std::vector<gpu::token_lists>& lists) {
  for (std::int64_t l = 0; l < layers; ++l) {
    gpu::paged_batch const view = at.cache.layer(l);
    gpu::vector_rows const queries = at.queries_of(l);
    gpu::token_lists& mine = lists[static_cast<std::size_t>(l)];
    mine = decoder.choose(view, {l}, queries, scale, at.ids.get());
    decoder.attend(view, {l}, mine, queries, scale, at.outputs());
  }
}

/// When a step is measured, and behind which prompt: after `before` others since the prompt; `fires`: the one before made the
/// trigger fire, so that every choice is made anew.
struct moment {
  int before = 0;
  bool fires = false;
  bool queries_on_host = false;  ///< a prompt's, as InfLLM wants them
};

/// A decoder whose sequences' prompts, steps before and the step that is planned have `context` tokens.
template <class Policy>
std::unique_ptr<decoder_of<Policy>> planned(measured_gpu& on, situation const& at, Policy const& policy, moment const& when,
                                            gpu::stream_device& device) {
  auto made = std::make_unique<decoder_of<Policy>>(policy, shape(at.context), at.batch, device);
  gpu_exec exec(on.on(), std::int64_t{256} << 20);
  std::int64_t const tokens = at.context - 1 - when.before;
  std::vector<float> frequency(head_dim / 2);
  for (std::size_t i = 0; i < frequency.size(); ++i)
    frequency[i] = std::pow(5e5f, -2 * static_cast<float>(i) / static_cast<float>(head_dim));
  std::int64_t const seen = std::min<std::int64_t>(observation_queries(policy), situation::max_window);
  std::vector<float> window;
  if (when.queries_on_host) {
    std::minstd_rand random;
    for (std::int64_t i = 0; i < seen * q_heads * head_dim; ++i)
      window.push_back(static_cast<float>(random()) / 1073741824.0f - 1);
  }
  for (std::int64_t s = 0; s < at.batch; ++s) {
    std::vector<std::int32_t> const prompt_ids = random_ids(tokens, static_cast<std::uint32_t>(s));
    prompt_signals prompt{};
    prompt.token_ids = prompt_ids;
    prompt.rope = {frequency.data(), head_dim / 2};
    prompt.queries = {
        when.queries_on_host ? window.data() : at.window.get().data, seen, q_heads, q_heads * head_dim, head_dim, scale};
    prompt.observed_from = std::max<std::int64_t>(0, tokens - seen);
    for (std::int64_t l = 0; l < layers; ++l) made->prefill(s, at.cache.layer(l), tokens, {l}, prompt, exec);
  }
  std::vector<gpu::token_lists> lists(static_cast<std::size_t>(layers));
  for (std::int64_t now = tokens + 1; now <= at.context; ++now) {
    made->plan(std::vector<std::int32_t>(static_cast<std::size_t>(at.batch), static_cast<std::int32_t>(now)));
    if (now < at.context) enqueue_step(at, *made, lists);
  }
  constexpr std::int64_t few = 1024;
  auto const logits = on.floats(at.batch * few);
  if (when.fires) made->observe(vectors(logits, 1, few), few);
  exec.device().finish();  // logits go
  return made;
}

/// Tokens that lists name, those of a layer's KV heads and all sequences together.
std::int64_t tokens_of(measured_gpu& on, situation const& at, gpu::token_lists const& lists) {
  std::int64_t const tail = lists.tail.all;
  std::vector<std::int32_t> tails(static_cast<std::size_t>(at.batch), static_cast<std::int32_t>(tail));
  std::int64_t const all = at.batch * lists.lists;
  std::vector<std::int32_t> named(static_cast<std::size_t>(all));
  if (lists.tail.values.data != nullptr) tails = on.on_host({lists.tail.values.data, at.batch});
  if (lists.named.data != nullptr) named = on.on_host({lists.named.data, all});
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < all; ++i) {
    sum += named[static_cast<std::size_t>(i)] +
           std::max<std::int64_t>(0, at.context - tails[static_cast<std::size_t>(i / lists.lists)]);
  }
  return sum * (kv_heads / lists.lists);
}

/// `scored`: bytes of a step's scoring, of all layers. The floor counts them, and the tokens that lists name in fact.
template <class Policy>
void step(measured_gpu& on, situation const& at, std::string const& name, Policy const& policy, std::int64_t budget,
          double scored, moment const& when = {}, std::string const& note = {}) {
  on.run("step " + name, at.batch, at.context, [&] {
    gpu::stream_device device(on.on(), std::int64_t{512} << 20);  // HeteroCache weighs every token of each head
    auto const decoder = planned(on, at, policy, when, device);
    std::vector<gpu::token_lists> lists(static_cast<std::size_t>(layers));
    timing const time = on.time([&](int) { enqueue_step(at, *decoder, lists); }, 1);
    std::int64_t rows = 0;
    for (gpu::token_lists const& of_layer : lists) rows += tokens_of(on, at, of_layer);
    outcome made{static_cast<double>(rows) * head_dim * 4 + scored, time, at.described(time.us)};
    made.more.push_back(number("budget", static_cast<double>(budget)));
    made.more.push_back(number("tokens_read", static_cast<double>(rows) / static_cast<double>(layers * at.batch * kv_heads)));
    if (!note.empty()) made.more.push_back(text("note", note));
    return made;
  });
}

void policies(measured_gpu& on, situation const& at, std::int64_t tokens, std::string const& budget) {
  auto const few = static_cast<std::int32_t>(tokens);
  step(on, at, "streaming_llm " + budget, presets::streaming_llm{.tokens = few}, tokens, 0);
  step(on, at, "snapkv " + budget, presets::snapkv{.tokens = few, .after = 0}, tokens, 0);

  presets::quest quest = presets::quest::paper();
  quest.tokens = few;
  quest.layers = {};
  step(on, at, "quest " + budget, quest, tokens, bounds(at.batch, at.context) * layers, {},
       "the paper's pages of 16 with minima and maxima, but no dense layer");
  quest.tokens = few / 2;
  step(on, at, "snapkv, then quest " + budget,
       policy{presets::snapkv{.tokens = few, .after = 0}.parts().retain, quest.parts().retrieve}, quest.tokens,
       bounds(at.batch, few) * layers, {}, "half of what snapkv retains is read");

  presets::chess chess = presets::chess::of_paper({.tokens = few});
  chess.entropy = chess.varentropy = 0;  // any page is unsure
  auto const share =
      static_cast<double>(std::max<std::int64_t>(tokens - (chess.sink_pages + chess.recent_pages) * chess_page, 0)) /
      static_cast<double>(at.context - 1);
  double const kept = std::pow(share, 1.0 / chess.depth);
  step(on, at, "chess " + budget, chess, tokens, 0, {}, "between choices");
  step(on, at, "chess that chooses " + budget, chess, tokens, descent(at.batch, at.context, kept, kept), {.fires = true},
       "a choice in this step");

  presets::sentencekv sentencekv = presets::sentencekv::paper();
  sentencekv.tokens = few;
  sentencekv.sentences.boundary = boundaries();
  sentencekv.sentences.shortest = shortest_sentence;
  step(on, at, "sentencekv " + budget, sentencekv, tokens, llama_8b::sentences(at.batch, at.context) * layers, {},
       "the paper's setting; sentences of 28 tokens on average, 16 at least");

  double const evicted = keys(at.batch, tokens) * layers;                                      // once more, for the weights
  step(on, at, "h2o " + budget, presets::h2o{.tokens = few}, tokens, evicted, {.before = 1});  // the second evicts
  step(on, at, "tova " + budget, presets::tova{.tokens = few}, tokens, evicted, {.before = 1});

  // One head of each layer is a pivot that the others follow.
  std::vector<head_profile> profile;
  for (std::int64_t head = 0; head < layers * kv_heads; ++head) {
    bool const pivot = head % kv_heads == 0;
    profile.push_back({.role = pivot ? head_role::pivot : head_role::satellite, .pivot = pivot ? -1 : 0, .stability = .5f});
  }
  presets::heterocache const heterocache{.heads = profile, .tokens = few, .after = 0};
  int const look = std::max(heterocache.every, heterocache.window) - 1;
  step(on, at, "heterocache " + budget, heterocache, tokens, 0, {}, "between looks");
  double const keys_of_pivot = static_cast<double>(at.batch * at.context * head_dim) * 2;
  step(on, at, "heterocache that looks " + budget, heterocache, tokens, keys_of_pivot * layers, {.before = look},
       "the pivots' attention over the whole prompt is in it; no fetch, as every replay looks at the same queries");

  // Last: its prompt takes many calls.
  presets::infllm const infllm{.tokens = few};
  step(on, at, "infllm " + budget, infllm, tokens, representatives(at.batch, at.context, infllm.block) * layers,
       {.queries_on_host = true});
}

void cell(measured_gpu& on, std::int64_t batch, std::int64_t context) {
  std::unique_ptr<situation> at;
  std::string const only = on.only({});  // the baseline of all others
  bool const there = on.run("step dense", batch, context, [&] {
    at = std::make_unique<situation>(on, batch, context);
    gpu::stream_device device(on.on());
    timing const time = on.time([&](int) { dense(*at, device); }, 1);
    at->dense_us = time.us;
    return outcome{attention(batch, context) * layers, time, at->described(time.us)};
  });
  static_cast<void>(on.only(only));
  if (!there) return;
  step(on, *at, "full", presets::full{}, context, 0);
  policies(on, *at, 1024, "1024");
  policies(on, *at, context / 100, "1%");
}

}  // namespace
}  // namespace kvpolicy::bench

int main(int count, char** arguments) {
  using namespace kvpolicy::bench;
  return main_of(count, arguments, [](measured_gpu& on) {
    on.each_cell(all_batches, {4096, 32768, 131072},
                 [&](std::int64_t batch, std::int64_t context) { cell(on, batch, context); });
  });
}
