// Blocks by their representatives, one list for a layer, chosen at every step (InfLLM), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "kvpolicy/cuda/decode/pages.hpp"
#include "kvpolicy/cuda/decode/turns.hpp"
#include "kvpolicy/cuda/kernel/representatives.hpp"
#include "kvpolicy/cuda/launch/attend.hpp"
#include "kvpolicy/score/representatives.hpp"

namespace kvpolicy::cuda {

/// A prompt's representatives are found on the host, as the verb does: its queries must be readable there.
template <class Budget, class Window, owning_device D>
class decode_retrieve<
    keep<segment::pages, pool::none, score::representatives, Budget, select::top_of_layer, Window, trigger::every_step>, D> {
  using act_type =
      keep<segment::pages, pool::none, score::representatives, Budget, select::top_of_layer, Window, trigger::every_step>;
  using host_policy = policy<keep_all, act_type>;
  /// Rows of each layer's numbers.
  enum number { first, count, taken, tail, known, rows };

 public:
  static constexpr bool by_index = false;

  decode_retrieve(act_type const& act, cache_shape const& shape, std::int64_t sequences, D& device)
      : shape_(shape),
        sequences_(sequences),
        heads_(sequences * shape.kv_heads),
        blocks_(shape.max_tokens / act.score.block + 1),
        prompts_(sequences),
        given_(static_cast<std::size_t>(sequences)),
        numbers_(device, shape.layers * rows, sequences),
        vectors_(device.template allocate<float>(shape.layers * heads_ * blocks_ * shape.head_dim)),
        queries_(device.template allocate<float>(shape.layers * heads_ * act.score.block * shape.head_dim)),
        current_(device.template allocate<float>(heads_ * shape.head_dim)),
        turns_(shape, act.score.unrotated, device),
        scores_(device.template allocate<float>(heads_ * blocks_)),
        summed_(device.template allocate<float>(sequences * blocks_)),
        chosen_(device.template allocate<std::int32_t>(shape.layers * sequences * blocks_)),
        named_(device.template allocate<std::int32_t>(shape.layers * sequences)) {
    KVPOLICY_EXPECTS(act.score.block <= represent_body<element_type::f32>::longest_block,
                     "blocks of " + std::to_string(act.score.block) + " tokens have no kernel; the longest are of " +
                         std::to_string(represent_body<element_type::f32>::longest_block));
  }

  template <class View, class Exec>
  void prefill(act_type const& act, prompt_piece<View> const& piece, Exec& exec, D& device) {
    std::int64_t& given = given_[static_cast<std::size_t>(piece.sequence)];
    if (piece.layer.value == 0) {
      if (act.score.unrotated) turns_.take(piece.prompt.rope, device);
      KVPOLICY_EXPECTS(piece.prompt.first <= given || piece.prompt.first == 0,
                       "a piece from token " + std::to_string(piece.prompt.first) +
                           " on, behind decoded tokens: their queries are "
                           "kept on the device alone, after " +
                           std::to_string(given) + " tokens of the prompt; begin the sequence anew with first = 0");
      given = piece.view.tokens();
    }
    auto& state =
        prompts_.prefill(host_policy{keep_all{}, act}, shape_, piece.sequence, piece.view, piece.layer, piece.prompt, exec);
    auto& memory = state.retrieve().memory();
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      std::int64_t const row = piece.sequence * shape_.kv_heads + h;
      upload(of_layer(vectors_.get(), piece.layer, heads_ * blocks_ * shape_.head_dim), row * blocks_ * shape_.head_dim,
             memory.vector(piece.layer, h, 0), memory.done_of(piece.layer, h) * shape_.head_dim, device);
      upload(of_layer(queries_.get(), piece.layer, heads_ * act.score.block * shape_.head_dim),
             row * act.score.block * shape_.head_dim, memory.query(piece.layer, h, 0), act.score.block * shape_.head_dim,
             device);
    }
  }

  void plan(act_type const& act, std::int64_t sequence, std::int64_t prompt, std::int64_t tokens) {
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      unit_candidates found{};
      if (tokens > 0 && !act.layers.dense({l})) found = candidates_of(act, shape_, {l}, tokens, prompt);
      numbers_.set(l * rows + first, sequence, found.first);
      numbers_.set(l * rows + count, sequence, found.count);
      numbers_.set(l * rows + taken, sequence, found.taken);
      numbers_.set(l * rows + tail, sequence, found.tail);
      numbers_.set(l * rows + known, sequence, found.first + found.count);
    }
  }
  void upload(D& device) const { numbers_.upload(device); }

  void choose(act_type const& act, layer_id layer, batch_rows const& keys, vector_rows const& queries, float,
              per_sequence const& lengths, D& device) {
    if (act.layers.dense(layer) || act.layers.leader(layer) != layer) return;
    auto const heads = static_cast<std::int32_t>(shape_.kv_heads);
    auto const dim = static_cast<std::int32_t>(shape_.head_dim);
    buffer<float> const of_block = of_layer(queries_.get(), layer, heads_ * act.score.block * dim);
    buffer<float> const vectors = of_layer(vectors_.get(), layer, heads_ * blocks_ * dim);
    device.template launch<block_queries_body>(
        {heads, sequences_, 1},
        {queries, static_cast<std::int32_t>(shape_.group()), heads, dim, act.score.block, lengths, of_block, current_.get(),
         turns_.get(), std::min<std::int64_t>(act.score.local, shape_.max_tokens - 1)});
    with_type(keys.type, [&]<element_type E>() {
      device.template launch<represent_body<E>>(
          {heads, sequences_, 1},
          {keys, of_block, act.score.block, act.score.count, act.score.local, lengths, vectors, blocks_, turns_.get()});
    });
    list_weights w{};
    w.queries.base = current_.get().data;
    w.queries.elements = current_.get().size;
    w.queries.sequence_stride = shape_.kv_heads * dim;
    w.queries.head_stride = dim;
    w.keys.base = vectors.data;
    w.keys.elements = vectors.size;
    w.keys.type = element_type::f32;
    w.keys.heads = heads;
    w.keys.head_dim = dim;
    w.keys.sequence_stride = shape_.kv_heads * blocks_ * dim;
    w.keys.head_stride = blocks_ * dim;
    w.keys.token_stride = dim;
    w.keys = finished(w.keys);
    w.lists.tail.all = 0;
    w.lists.tokens = number_of(layer, known);
    w.sequences = sequences_;
    w.most_tokens = blocks_;
    launch_list_logits(device, w, scores_.get());
    device.template launch<sum_heads_body>({divided_up(blocks_, sum_heads_body::threads), sequences_, 1},
                                           {scores_.get(), blocks_, heads, number_of(layer, known), summed_.get()});
    top_k_body<1>::arguments top{};
    top.scores = summed_.get();
    top.score_stride = blocks_;
    top.first = number_of(layer, first);
    top.columns = number_of(layer, count);
    top.k = number_of(layer, taken);
    top.indices = of_layer(chosen_.get(), layer, sequences_ * blocks_);
    top.index_stride = blocks_;
    top.tokens = of_layer(named_.get(), layer, sequences_);
    top.unit_size = act.score.block;
    launch_top_k(device, top, sequences_, blocks_);
  }

  std::int64_t listed(act_type const& act, layer_id layer, std::int64_t sequence, head_id, std::int64_t tokens) const noexcept {
    if (tokens == 0 || act.layers.dense(layer)) return tokens;
    std::int64_t const from = act.layers.leader(layer).value * rows;
    return (numbers_.get(from + first, sequence) + numbers_.get(from + taken, sequence)) * act.score.block + tokens -
           numbers_.get(layer.value * rows + tail, sequence);
  }

  token_lists lists(act_type const& act, layer_id layer, per_sequence const& lengths) const noexcept {
    token_lists made{};
    made.tokens = lengths;
    made.tail = number_of(layer, tail);
    if (act.layers.dense(layer)) return made;
    layer_id const leader = act.layers.leader(layer);
    made.units = of_layer(chosen_.get(), leader, sequences_ * blocks_);
    made.stride = blocks_;
    made.named = of_layer(named_.get(), leader, sequences_);
    made.unit_size = act.score.block;
    made.about = act.budget.most_tokens(shape_);
    return made;
  }

 private:
  template <class T>
  static buffer<T> of_layer(buffer<T> all, layer_id layer, std::int64_t size) noexcept {
    return {all.data + layer.value * size, size};
  }
  per_sequence number_of(layer_id layer, number row) const noexcept { return numbers_.of(layer.value * rows + row); }
  static void upload(buffer<float> to, std::int64_t at, float const* from, std::int64_t size, D& device) {
    device.upload(buffer<float>{to.data + at, to.size - at}, from, size);
  }

  cache_shape shape_;
  std::int64_t sequences_;
  std::int64_t heads_;   ///< of all sequences
  std::int64_t blocks_;  ///< of a sequence, at most
  host_prompts<host_policy> prompts_;
  std::vector<std::int64_t> given_;  ///< tokens of each prompt
  step_numbers<D> numbers_;
  array_of<D, float> vectors_;  ///< `[layers, sequences, kv_heads, blocks, head_dim]`
  array_of<D, float> queries_;  ///< `[layers, sequences, kv_heads, block, head_dim]`, of the open block
  array_of<D, float> current_;  ///< `[sequences, kv_heads, head_dim]`
  device_turns<D> turns_;
  array_of<D, float> scores_;         ///< `[sequences, kv_heads, blocks]`
  array_of<D, float> summed_;         ///< `[sequences, blocks]`
  array_of<D, std::int32_t> chosen_;  ///< `[layers, sequences, blocks]`
  array_of<D, std::int32_t> named_;   ///< `[layers, sequences]`
};

}  // namespace kvpolicy::cuda
