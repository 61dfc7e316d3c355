// Tokens evicted at every step by the attention that they got (H2O, TOVA), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <vector>

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/cuda/decode/retained.hpp"
#include "kvpolicy/cuda/kernel/evict.hpp"
#include "kvpolicy/cuda/launch/attend.hpp"
#include "kvpolicy/score/accumulated_attention.hpp"
#include "kvpolicy/score/last_attention.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::cuda {

/// A step's attention is over what the last one left and the step's own token; its weights decide what is left for the next.
template <evicting_scorer Score, class Budget, class Select, class Window, owning_device D>
requires Score::after_attention class decode_retain<
    keep<segment::tokens, pool::none, Score, Budget, Select, Window, trigger::every_step>, D> {
  using act_type = keep<segment::tokens, pool::none, Score, Budget, Select, Window, trigger::every_step>;
  using host_policy = policy<act_type, keep_all>;
  static constexpr bool sums = std::same_as<Score, score::accumulated_attention>;
  static_assert(sums || std::same_as<Score, score::last_attention>, "no kernel evicts by this score");
  /// Rows of each layer's numbers.
  enum number { last_tokens, most, sink_end, recent_begin, first_query, tail, rows };

 public:
  static constexpr bool stays = false;

  decode_retain(act_type const&, cache_shape const& shape, std::int64_t sequences, D& device)
      : shape_(shape),
        sequences_(sequences),
        lists_(act_type::granularity == scope::head ? shape.kv_heads : 1),
        prompts_(sequences),
        stepped_(static_cast<std::size_t>(sequences)),
        numbers_(device, shape.layers * rows, sequences),
        device_(&device),
        ids_(device.template allocate<std::int32_t>(shape.layers * sequences * lists_ * shape.max_tokens)),
        named_(device.template allocate<std::int32_t>(shape.layers * sequences * lists_)),
        weights_(device.template allocate<float>(shape.layers * sequences * shape.kv_heads * shape.max_tokens)),
        sums_(device.template allocate<float>(sums ? shape.layers * sequences * shape.kv_heads * shape.max_tokens : 0)) {
    std::vector<std::int32_t> const none(static_cast<std::size_t>(shape.layers * sequences * lists_));
    device.upload(named_.get(), none.data(), std::ssize(none));
  }

  template <class View, class Exec>
  void prefill(act_type const& act, std::int64_t sequence, View const& view, layer_id layer, prompt_signals const& prompt,
               Exec& exec) {
    auto& state = prompts_.prefill(host_policy{act, keep_all{}}, shape_, sequence, view, layer, prompt, exec);
    stepped_[static_cast<std::size_t>(sequence)] = 0;
    if (act.layers.dense(layer)) return;
    std::int64_t const first = (layer.value * sequences_ + sequence) * lists_;
    upload_lists(*device_, state.retain().lists(layer), ids_.get(), named_.get(), first, shape_.max_tokens);
    if constexpr (sums) {
      auto& memory = state.retain().memory();
      numbers_.set(layer.value * rows + first_query, sequence, memory.first_query);
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        buffer<float> to = sums_.get();
        to.data += (first + h) * shape_.max_tokens;
        device_->upload(to, memory.row(layer, h), view.tokens());
      }
      // Tokens to come begin at nothing.
      std::vector<float> const none(static_cast<std::size_t>(shape_.max_tokens - view.tokens()));
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        buffer<float> to = sums_.get();
        to.data += (first + h) * shape_.max_tokens + view.tokens();
        device_->upload(to, none.data(), std::ssize(none));
      }
    }
  }

  /// What the last step evicts is decided at this one, with the last one's numbers.
  void plan(act_type const& act, std::int64_t sequence, std::int64_t, std::int64_t tokens) {
    std::int64_t& last = stepped_[static_cast<std::size_t>(sequence)];
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      bool const dense = act.layers.dense({l});
      auto const set = [&](number row, std::int64_t value) { numbers_.set(l * rows + row, sequence, value); };
      set(tail, tokens == 0 || dense ? 0 : tokens - 1);
      set(last_tokens, tokens == 0 || dense ? 0 : last);
      if (tokens == 0 || last == 0) continue;
      budget_request request{.shape = shape_, .layer = {l}, .heads = {0, shape_.kv_heads}, .tokens = last, .prompt = last};
      request.recent = act.window.at(last, last, act.budget.of(request)).recent;
      std::int64_t const kept = act.budget.of(request);
      protected_tokens const safe = clipped(act.window.at(last, last, kept), last, kept);
      set(most, kept);
      set(sink_end, safe.sink_end);
      set(recent_begin, safe.recent_begin);
    }
    last = tokens;
  }
  void upload(D& device) const { numbers_.upload(device); }
  std::span<range_list const> kept(std::int64_t, layer_id) const noexcept { return {}; }  // no retrieve goes with it

  void choose(act_type const& act, layer_id layer, batch_rows const& keys, vector_rows const& queries, float scale,
              per_sequence const& lengths, D& device) {
    if (act.layers.dense(layer) || act.layers.leader(layer) != layer) return;
    buffer<float> const weights = of_layer(weights_.get(), layer, shape_.kv_heads * shape_.max_tokens);
    evict_body::arguments a{};
    a.ids = of_layer(ids_.get(), layer, lists_ * shape_.max_tokens);
    a.stride = shape_.max_tokens;
    a.named = of_layer(named_.get(), layer, lists_);
    a.lists = static_cast<std::int32_t>(lists_);
    a.tokens = number_of(layer, last_tokens);
    a.most = number_of(layer, most);
    a.sink_end = number_of(layer, sink_end);
    a.recent_begin = number_of(layer, recent_begin);
    a.first_query = number_of(layer, first_query);
    a.weights = weights;
    a.weight_stride = shape_.max_tokens;
    a.heads = static_cast<std::int32_t>(shape_.kv_heads);
    if constexpr (sums) {
      a.sums = of_layer(sums_.get(), layer, shape_.kv_heads * shape_.max_tokens);
      a.mean = act.score.mean;
    }
    device.template launch<evict_body>({lists_, sequences_, 1}, a);
    list_weights w{};
    w.queries = queries;
    w.scale = scale;
    w.group = static_cast<std::int32_t>(shape_.group());
    w.keys = keys;
    w.lists = lists(act, layer, lengths);
    w.sequences = sequences_;
    w.most_tokens = std::min(shape_.max_tokens, act.budget.most_tokens(shape_) + 1);  // with the step's own token
    w.out = weights;
    w.sequence_stride = shape_.kv_heads * shape_.max_tokens;
    w.head_stride = shape_.max_tokens;
    launch_list_weights(device, w);
  }

  token_lists lists(act_type const& act, layer_id layer, per_sequence const& lengths) const noexcept {
    token_lists made{};
    made.tail = number_of(layer, tail);
    made.tokens = lengths;
    if (act.layers.dense(layer)) return made;
    layer_id const leader = act.layers.leader(layer);
    made.units = of_layer(ids_.get(), leader, lists_ * shape_.max_tokens);
    made.stride = shape_.max_tokens;
    made.named = of_layer(named_.get(), leader, lists_);
    made.lists = static_cast<std::int32_t>(lists_);
    made.about = act.budget.most_tokens(shape_);
    return made;
  }

 private:
  per_sequence number_of(layer_id layer, number row) const noexcept { return numbers_.of(layer.value * rows + row); }
  template <class T>
  buffer<T> of_layer(buffer<T> all, layer_id layer, std::int64_t size) const noexcept {
    return {all.data + layer.value * sequences_ * size, sequences_ * size};
  }

  cache_shape shape_;
  std::int64_t sequences_;
  std::int64_t lists_;
  host_prompts<host_policy> prompts_;
  std::vector<std::int64_t> stepped_;  ///< tokens at the last step since the prompt, or 0
  step_numbers<D> numbers_;
  D* device_;
  array_of<D, std::int32_t> ids_;    ///< `[layers, sequences, lists, max_tokens]`
  array_of<D, std::int32_t> named_;  ///< `[layers, sequences, lists]`
  array_of<D, float> weights_;       ///< `[layers, sequences, kv_heads, max_tokens]` of the last step
  array_of<D, float> sums_;          ///< the same by token, where weights are accumulated
};

}  // namespace kvpolicy::cuda
