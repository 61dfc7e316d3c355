// Blocks by the keys of their representatives (InfLLM), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/gpu/pages/step.hpp"
#include "kvpolicy/gpu/step/host_prompts.hpp"
#include "kvpolicy/gpu/step/rope_table.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/scorers/representatives.hpp"

namespace kvpolicy::gpu {

/// A prompt's representatives are found on the host, as the verb does: its queries must be readable there.
template <class Rule, owning_device D>
  requires pools_and_scores<Rule, pools::none, scorers::representatives>
class unit_scores<Rule, D> {
 public:
  static constexpr bool by_index = false;

  unit_scores(decode_context<Rule, D> const& context, std::int64_t units)
      : context_(context),
        units_(units),
        prompts_({keep_all{}, context.rule}, context.shape, context.sequences),
        given_(static_cast<std::size_t>(context.sequences)),
        vectors_(context.template by_layer<std::byte>(context.heads() * units * context.shape.head_dim *
                                                      size_of(context.shape.type))),
        queries_(context.template by_layer<float>(context.heads() * context.rule.score.block * context.shape.head_dim)),
        current_(context.template array<float>(context.heads() * context.shape.head_dim)),
        rope_(context.shape, context.rule.score.pre_rope, *context.device) {
    constexpr std::int64_t longest = detail::represent_body<element_type::f32>::longest_block;
    KVPOLICY_EXPECTS(context.rule.score.block <= longest, "blocks of " + std::to_string(context.rule.score.block) +
                                                              " tokens have no kernel; the longest are of " +
                                                              std::to_string(longest));
    expect_row("represent", context.shape.head_dim);
  }

  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    std::int64_t& given = given_[static_cast<std::size_t>(piece.sequence)];
    if (piece.layer.value == 0) {
      if (context_.rule.score.pre_rope) rope_.take(piece.prompt.rope, *context_.device);
      KVPOLICY_EXPECTS(piece.prompt.first <= given || piece.prompt.first == 0,
                       "a piece from token " + std::to_string(piece.prompt.first) +
                           " on, behind decoded tokens: their queries are "
                           "kept on the device alone, after " +
                           std::to_string(given) + " tokens of the prompt; begin the sequence anew with first = 0");
      given = piece.view.tokens();
    }
    auto& memory = prompts_.prefill(piece, exec).retrieve().memory();
    std::int64_t const dim = context_.shape.head_dim;
    std::int64_t const open = context_.rule.score.block * dim;
    for (std::int64_t h = 0; h < context_.shape.kv_heads; ++h) {
      std::int64_t const row = piece.sequence * context_.shape.kv_heads + h;
      std::int64_t const done = memory.done_of(piece.layer, h) * dim;
      std::int64_t const size = size_of(context_.shape.type);
      std::span const vectors(memory.vector(piece.layer, h, 0), static_cast<std::size_t>(done));
      auto const stored = stored_as(context_.shape.type, vectors);
      context_.device->upload(part_of(vectors_.of(piece.layer), row * units_ * dim * size, done * size), stored.data(),
                              std::ssize(stored));
      context_.device->upload(part_of(queries_.of(piece.layer), row * open, open), memory.query(piece.layer, h, 0), open);
    }
  }

  void score(decode_step const& step, unit_candidates const& among, buffer<float> scores) {
    cache_shape const& shape = context_.shape;
    scorers::representatives const& by = context_.rule.score;
    auto const heads = static_cast<std::int32_t>(shape.kv_heads);
    auto const dim = static_cast<std::int32_t>(shape.head_dim);
    buffer<float> const of_block = queries_.of(step.layer);
    context_.device->template launch<detail::block_queries_body>(
        {heads, context_.sequences, 1},
        {step.queries, static_cast<std::int32_t>(shape.group()), heads, dim, by.block, step.lengths, of_block, current_.get(),
         rope_.get(), std::min<std::int64_t>(by.local, shape.max_tokens - 1)});
    with_type(step.keys.type, [&]<element_type E>() {
      context_.device->template launch<detail::represent_body<E>>(
          {heads, context_.sequences, 1}, {step.keys, of_block, by.block, by.count, by.local, step.lengths,
                                           elements_of<E>(vectors_.of(step.layer)), units_, rope_.get()});
    });
    detail::list_weights w{};
    w.queries = vectors_of_floats(current_.get(), heads, dim);
    w.keys = summary_rows(vectors_.of(step.layer), heads, units_, dim, shape.type);
    w.lists = all_of(among.end);
    w.sequences = context_.sequences;
    w.most_tokens = units_;
    detail::launch_list_logits(*context_.device, w, scores);
  }

 private:
  decode_context<Rule, D> context_;
  std::int64_t units_;
  detail::host_prompts<policy<keep_all, Rule>> prompts_;
  std::vector<std::int64_t> given_;    ///< tokens of each prompt
  layer_array<D, std::byte> vectors_;  ///< `[sequences, kv_heads, units, head_dim]` of the cache's type
  layer_array<D, float> queries_;      ///< `[sequences, kv_heads, block, head_dim]`, of the open block
  array_of<D, float> current_;         ///< `[sequences, kv_heads, head_dim]`
  detail::device_rope_table<D> rope_;
};

}  // namespace kvpolicy::gpu
