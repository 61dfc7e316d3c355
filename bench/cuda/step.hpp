// A decode step of a batch at Llama-3.1-8B's shape, as benchmarks make it: caches, queries, prompts, and the step before it.
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "cache.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/gpu/gpu_exec.hpp"

namespace kvpolicy::bench {

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

/// Attention over everything; `before(layer)` as for a policy's step.
template <class Before>
void dense(situation const& at, gpu::stream_device& device, Before before) {
  for (std::int64_t l = 0; l < layers; ++l) {
    before(l);
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
inline constexpr std::int32_t shortest_sentence = 16;

inline std::vector<std::uint8_t> const& boundaries() {
  static std::vector<std::uint8_t> const made = [] {
    std::vector<std::uint8_t> marks(static_cast<std::size_t>(vocabulary));
    for (std::size_t i = 0; i < marks.size(); i += 12) marks[i] = 1;
    return marks;
  }();
  return made;
}

inline std::vector<std::int32_t> random_ids(std::int64_t count, std::uint32_t seed) {
  std::minstd_rand random{seed + 1};
  std::vector<std::int32_t> made(static_cast<std::size_t>(count));
  for (std::int32_t& id : made) id = static_cast<std::int32_t>((random() >> 8) % static_cast<std::uint32_t>(vocabulary));
  return made;
}

template <class Policy>
using decoder_of = gpu::decoder<Policy, gpu::stream_device>;

/// One step of all layers, enqueued; `before(layer)` enqueues what else a layer does.
template <class Policy, class Before>
void enqueue_step(situation const& at, decoder_of<Policy>& decoder, std::vector<gpu::token_lists>& lists, Before before) {
  for (std::int64_t l = 0; l < layers; ++l) {
    before(l);
    gpu::paged_batch const view = at.cache.layer(l);
    gpu::vector_rows const queries = at.queries_of(l);
    gpu::token_lists& mine = lists[static_cast<std::size_t>(l)];
    mine = decoder.choose(view, {l}, queries, scale, at.ids.get());
    decoder.attend(view, {l}, mine, queries, scale, at.outputs());
    decoder.renew(view, {l}, queries, scale);
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
    if (now < at.context) enqueue_step(at, *made, lists, [](std::int64_t) {});
  }
  constexpr std::int64_t few = 1024;
  auto const logits = on.floats(at.batch * few);
  if (when.fires) made->observe(vectors(logits, 1, few), few);
  exec.device().finish();  // logits go
  return made;
}

}  // namespace kvpolicy::bench
