// Followers' tokens fetched anew when their leader's attention drifts (HeteroCache), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "kvpolicy/budget/by_head_role.hpp"
#include "kvpolicy/cuda/decode/pages.hpp"
#include "kvpolicy/cuda/kernel/drift.hpp"
#include "kvpolicy/cuda/launch/attend.hpp"
#include "kvpolicy/score/pivot_attention.hpp"
#include "kvpolicy/trigger/drift.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::cuda {

/// A prompt's end is decided on the host, as the verb does; from then on heads look, and fetch, on the device.
template <owning_device D>
class decode_retrieve<keep<segment::tokens, pool::none, score::pivot_attention, budget::by_head_role, select::top,
                           window::tokens, trigger::drift>,
                      D> {
  using act_type = keep<segment::tokens, pool::none, score::pivot_attention, budget::by_head_role, select::top, window::tokens,
                        trigger::drift>;
  using host_policy = policy<keep_all, act_type>;
  enum number { prompt_tokens, seen, rows };
  /// Rows of integers of each layer, `[sequences, kv_heads]`.
  enum of_layer_row { base, leader, source, length, named, layer_rows };

 public:
  static constexpr bool by_index = true;

  decode_retrieve(act_type const& act, cache_shape const& shape, std::int64_t sequences, D& device)
      : shape_(shape),
        sequences_(sequences),
        heads_(sequences * shape.kv_heads),
        window_(act.trigger.window),
        every_(act.trigger.every),
        prompts_(sequences),
        numbers_(device, rows, sequences),
        of_layers_(device.template allocate<std::int32_t>(shape.layers * layer_rows * heads_)),
        of_step_(device.template allocate<std::int32_t>(4 * heads_)),
        all_(device.template allocate<std::int32_t>(shape.max_tokens)),
        queries_(device.template allocate<float>(shape.layers * heads_ * window_ * shape.group() * shape.head_dim)),
        baseline_(device.template allocate<std::int32_t>(shape.layers * heads_ * shape.max_tokens)),
        chosen_(device.template allocate<std::int32_t>(shape.layers * heads_ * shape.max_tokens)),
        weights_(device.template allocate<float>(heads_ * window_ * shape.max_tokens)),
        smoothed_(device.template allocate<float>(heads_ * window_ * shape.max_tokens)),
        sets_(device.template allocate<std::int32_t>(heads_ * window_ * shape.max_tokens)) {
    KVPOLICY_EXPECTS(act.window.generated && act.window.sinks == 0,
                     "heads read their own tokens and what was generated; a window with sinks has no kernel");
    std::vector<std::int32_t> all(static_cast<std::size_t>(shape.max_tokens));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    device.upload(all_.get(), all.data(), std::ssize(all));
    std::vector<std::int32_t> const none(static_cast<std::size_t>(shape.layers * layer_rows * heads_));
    device.upload(of_layers_.get(), none.data(), std::ssize(none));
  }

  template <class View, class Exec>
  void prefill(act_type const& act, prompt_piece<View> const& piece, Exec& exec, D& device) {
    auto& state =
        prompts_.prefill(host_policy{keep_all{}, act}, shape_, piece.sequence, piece.view, piece.layer, piece.prompt, exec);
    std::int64_t const tokens = piece.view.tokens();
    std::int64_t const kv_heads = shape_.kv_heads;
    std::vector<std::int64_t> lengths(act.budget.heads.size());
    act.budget.lengths(tokens, lengths);
    std::vector<range_list> lists(static_cast<std::size_t>(kv_heads));
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      auto const head = static_cast<std::size_t>(piece.layer.value * kv_heads + h);
      std::int64_t const followed = act.budget.leader(head, tokens, kv_heads);
      bool const follows = followed != act.budget.nobody;
      std::vector<std::int32_t> const& set = state.retrieve().trigger().baseline[head];
      bool const looks = act.budget.watches(head, tokens);
      put(piece.layer, base, piece.sequence, h, looks ? static_cast<std::int32_t>(set.size()) : 0, device);
      put(piece.layer, leader, piece.sequence, h, static_cast<std::int32_t>(followed), device);
      put(piece.layer, source, piece.sequence, h, static_cast<std::int32_t>(act.score.own || !follows ? h : followed), device);
      put(piece.layer, length, piece.sequence, h, static_cast<std::int32_t>(lengths[head]), device);
      if (looks) {
        buffer<std::int32_t> to = of_layer(baseline_.get(), piece.layer, shape_.max_tokens);
        to.data += (piece.sequence * kv_heads + h) * shape_.max_tokens;
        device.upload(to, set.data(), std::ssize(set));
      }
      range_list& list = lists[static_cast<std::size_t>(h)];
      if (follows || piece.retained.empty()) {
        state.retrieve().each_chosen(piece.layer, static_cast<std::size_t>(h),
                                     [&](std::int64_t begin, std::int64_t end) { append(list, begin, end, reason::scored); });
        append(list, act.window.at(tokens, tokens).recent_begin, tokens, reason::recent);
      } else {
        list = piece.retained[piece.retained.size() == 1 ? 0 : static_cast<std::size_t>(h)];
      }
    }
    upload_lists(device, std::span<range_list const>(lists), of_layer(chosen_.get(), piece.layer, shape_.max_tokens),
                 row(piece.layer, named), piece.sequence * kv_heads, shape_.max_tokens);
  }

  void plan(act_type const&, std::int64_t sequence, std::int64_t prompt, std::int64_t tokens) {
    numbers_.set(prompt_tokens, sequence, prompt);
    numbers_.set(seen, sequence, tokens == 0 ? 0 : (tokens - prompt - 1) % every_ - (every_ - window_));
  }
  void upload(D& device) const { numbers_.upload(device); }

  void choose(act_type const& act, layer_id layer, batch_rows const& keys, token_lists const&, buffer<std::int32_t const>,
              vector_rows const& queries, float scale, per_sequence const& lengths, D& device) {
    auto const heads = static_cast<std::int32_t>(shape_.kv_heads);
    auto const group = static_cast<std::int32_t>(shape_.group());
    auto const dim = static_cast<std::int32_t>(shape_.head_dim);
    drift_heads const of{row(layer, base), row(layer, leader), row(layer, source), step_row(0),
                         step_row(1),      step_row(2),        step_row(3)};
    buffer<float> const kept = of_layer(queries_.get(), layer, window_ * group * dim);
    device.template launch<keep_queries_body>({heads, sequences_, 1}, {queries, of, heads, group, dim, window_, lengths,
                                                                       numbers_.of(prompt_tokens), numbers_.of(seen), kept});
    vector_rows of_window{};
    of_window.base = kept.data;
    of_window.elements = kept.size;
    of_window.sequence_stride = shape_.kv_heads * window_ * group * dim;
    of_window.head_stride = dim;
    smoothing const averaged{.how = smoothing::kind::average, .width = act.trigger.smooth};
    weigh(of_window, scale, keys, of.looks, window_, act.trigger.merged, device);
    smooth(of.looks, window_, averaged, {}, device);
    top_k_body<1>::arguments top{};
    top.scores = smoothed_.get();
    top.score_stride = shape_.max_tokens;
    top.columns.values = of.looks;
    top.k.values = of.base;
    top.rows_of_number = window_;
    top.indices = sets_.get();
    top.index_stride = shape_.max_tokens;
    top.keeps_empty = true;
    launch_top_k(device, top, heads_ * window_, shape_.max_tokens);
    device.template launch<drift_body>({heads, sequences_, 1},
                                       {of, heads, window_, sets_.get(), of_layer(baseline_.get(), layer, shape_.max_tokens),
                                        shape_.max_tokens, act.trigger.tau, act.trigger.chance_corrected});
    device.template launch<followers_due_body>({divided_up(heads_, followers_due_body::threads), 1, 1},
                                               {of, heads, heads_, numbers_.of(prompt_tokens), act.score.own});
    weigh(queries, scale, keys, of.asked, 1, act.score.merged, device);
    smooth(of.due, 1, act.score.smooth, of.source, device);
    top.columns.values = of.due;
    top.k.values = row(layer, length);
    top.rows_of_number = 1;
    top.indices = of_layer(chosen_.get(), layer, shape_.max_tokens);
    top.tokens = row(layer, named);
    launch_top_k(device, top, heads_, shape_.max_tokens);
  }

  token_lists lists(act_type const&, layer_id layer, token_lists const& retained) const noexcept {
    token_lists made{};
    made.units = of_layer(chosen_.get(), layer, shape_.max_tokens);
    made.stride = shape_.max_tokens;
    made.named = row(layer, named);
    made.tail = numbers_.of(prompt_tokens);
    made.tokens = retained.tokens;
    made.lists = static_cast<std::int32_t>(shape_.kv_heads);
    return made;
  }

 private:
  template <class T>
  buffer<T> of_layer(buffer<T> all, layer_id layer, std::int64_t stride) const noexcept {
    return {all.data + layer.value * heads_ * stride, heads_ * stride};
  }
  buffer<std::int32_t> row(layer_id layer, of_layer_row which) const noexcept {
    return {of_layers_.get().data + (layer.value * layer_rows + which) * heads_, heads_};
  }
  buffer<std::int32_t> step_row(std::int64_t nth) const noexcept { return {of_step_.get().data + nth * heads_, heads_}; }
  void put(layer_id layer, of_layer_row which, std::int64_t sequence, std::int64_t head, std::int32_t value, D& device) {
    device.upload(buffer<std::int32_t>{row(layer, which).data + sequence * shape_.kv_heads + head, 1}, &value, 1);
  }

  /// `weights_` = the attention over the first `counts` tokens: a row for each of `window` query groups of each head. Heads
  /// whose count is 0 read nothing.
  void weigh(vector_rows const& queries, float scale, batch_rows const& keys, buffer<std::int32_t> counts, std::int32_t window,
             group_merge merged, D& device) {
    list_weights a{};
    a.queries = queries;
    a.scale = scale;
    a.group = static_cast<std::int32_t>(shape_.group());
    a.keys = keys;
    a.lists.units = all_.get();  // every list is 0, 1, 2, ...: no stride
    a.lists.named = counts;
    a.lists.tokens.all = shape_.max_tokens;
    a.lists.lists = static_cast<std::int32_t>(shape_.kv_heads);
    a.sequences = sequences_;
    a.most_tokens = shape_.max_tokens;
    a.window = window;
    a.out = weights_.get();
    a.sequence_stride = shape_.kv_heads * window * shape_.max_tokens;
    a.head_stride = shape_.max_tokens;
    a.maximum = merged == group_merge::maximum;
    launch_list_weights(device, a);
  }

  /// `smoothed_` = `weights_`, smoothed: each row's own, or its source's.
  void smooth(buffer<std::int32_t> counts, std::int32_t window, smoothing how, buffer<std::int32_t const> of, D& device) {
    device.template launch<smooth_rows_body>(
        {divided_up(shape_.max_tokens, smooth_rows_body::threads), heads_ * window, 1},
        {weights_.get(), shape_.max_tokens, counts, window, static_cast<std::int32_t>(how.how),
         static_cast<std::int32_t>(how.width), smoothed_.get(), of, static_cast<std::int32_t>(shape_.kv_heads)});
  }

  cache_shape shape_;
  std::int64_t sequences_;
  std::int64_t heads_;  ///< of all sequences
  std::int32_t window_;
  std::int32_t every_;
  host_prompts<host_policy> prompts_;
  step_numbers<D> numbers_;
  array_of<D, std::int32_t> of_layers_;  ///< `[layers, layer_rows, sequences, kv_heads]`
  array_of<D, std::int32_t> of_step_;    ///< `[4, sequences, kv_heads]`: looks, fired, due, asked
  array_of<D, std::int32_t> all_;        ///< 0, 1, 2, ...
  array_of<D, float> queries_;           ///< `[layers, sequences, kv_heads, window, group, head_dim]`
  array_of<D, std::int32_t> baseline_;   ///< `[layers, sequences, kv_heads, max_tokens]`
  array_of<D, std::int32_t> chosen_;     ///< the same
  array_of<D, float> weights_;           ///< `[sequences, kv_heads, window, max_tokens]`
  array_of<D, float> smoothed_;          ///< the same
  array_of<D, std::int32_t> sets_;       ///< the same
};

}  // namespace kvpolicy::cuda
