// A whole decode step of every policy that a decoder serves, all 32 layers' choice and attention in one graph, against this
// library's attention over everything in the same run. One JSON line a case; options: gpu.hpp. A step's time has no matrix
// product of the model in it.
#include <cmath>
#include <memory>

#include "kvpolicy/kvpolicy.hpp"
#include "step.hpp"

namespace kvpolicy::bench {
namespace {

using namespace llama_8b;

/// Tokens that lists name, those of a layer's KV heads and all sequences together.
std::int64_t tokens_of(measured_gpu& on, situation const& at, gpu::token_lists const& lists) {
  std::int64_t const tail = lists.tail.all;
  std::int64_t const all = at.batch * lists.lists;
  std::int64_t const of_tail = lists.lists / lists.tails;  // lists that share one
  std::vector<std::int32_t> tails(static_cast<std::size_t>(all / of_tail), static_cast<std::int32_t>(tail));
  std::vector<std::int32_t> named(static_cast<std::size_t>(all));
  if (lists.tail.values.data != nullptr) tails = on.on_host({lists.tail.values.data, std::ssize(tails)});
  if (lists.named.data != nullptr) named = on.on_host({lists.named.data, all});
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < all; ++i) {
    sum += named[static_cast<std::size_t>(i)] +
           std::max<std::int64_t>(0, at.context - tails[static_cast<std::size_t>(i / of_tail)]);
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
    timing const time = on.time([&](int) { enqueue_step(at, *decoder, lists, [](std::int64_t) {}); }, 1);
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

  presets::twilight twilight{.tokens = few};
  twilight.metadata = pools::bounds::kind::range;
  twilight.page = 16;
  step(on, at, "twilight " + budget, twilight, tokens, bounds(at.batch, at.context) * layers + keys(at.batch, tokens) * layers,
       {}, "the pages of quest's row, of whose tokens it reads those with .85 of the weight");
  step(on, at, "rocketkv " + budget, presets::rocketkv{.tokens = few, .kept = 2 * few, .after = 0}, tokens,
       4 * bounds(at.batch, 2 * tokens) * layers, {}, "bounds of pages of 4 of the tokens that it kept");

  presets::omnikv omnikv{.tokens = few};
  omnikv.layers.dense_first = 0;
  double leaders = 0;
  for (std::int64_t l = 0; l < layers; ++l)
    leaders += !omnikv.layers.dense({l}) && omnikv.layers.leader({l}) == layer_id{l} ? 1 : 0;
  step(on, at, "omnikv " + budget, omnikv, tokens, keys(at.batch, at.context) * leaders, {},
       "every sixth layer reads everything and chooses for those behind it; no dense layer");

  presets::duoattention duoattention{.tokens = few};
  std::vector<float> retrieval;
  for (std::int64_t head = 0; head < layers * kv_heads; ++head) retrieval.push_back(static_cast<float>(head % 7));
  duoattention.retrieval = retrieval;
  if (few >= duoattention.sinks + duoattention.recent)
    step(on, at, "duoattention " + budget, duoattention, tokens, 0, {},
         "a few heads read everything, the others sinks and recent tokens");

  presets::chess chess = presets::chess::of_paper({.tokens = few});
  chess.entropy = chess.varentropy = 0;  // any page is unsure
  chess.both = false;                    // replays of one step do not vary
  auto const share =
      static_cast<double>(std::max<std::int64_t>(tokens - (chess.sink_pages + chess.recent_pages) * chess_page, 0)) /
      static_cast<double>(at.context - 1);
  double const kept = std::pow(share, 1.0 / chess.depth);
  step(on, at, "chess " + budget, chess, tokens, 0, {}, "between choices");
  step(on, at, "chess that chooses " + budget, chess, tokens, descent(at.batch, at.context, kept, kept), {.fires = true},
       "a choice in this step");

  presets::sentencekv sentencekv = presets::sentencekv::code();
  sentencekv.sinks = 4;
  sentencekv.all_after_boundary = false;  // this step is behind a boundary
  sentencekv.tokens = few;
  sentencekv.sentences.boundary = boundaries();
  sentencekv.sentences.shortest = shortest_sentence;
  step(on, at, "sentencekv " + budget, sentencekv, tokens, llama_8b::sentences(at.batch, at.context) * layers, {},
       "the setting of the authors' code, with 4 sinks; sentences of 28 tokens on average, 16 at least");

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
    timing const time = on.time([&](int) { dense(*at, device, [](std::int64_t) {}); }, 1);
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
