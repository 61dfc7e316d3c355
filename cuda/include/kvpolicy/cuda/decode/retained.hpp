// What retains left, of every sequence of a batch, as lists on the device.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "kvpolicy/cuda/decode/batch.hpp"
#include "kvpolicy/cuda/kernel/lists.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/score/recency.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/trigger/prefill.hpp"

namespace kvpolicy::cuda {

/// A retain's part of a decoder: one specialisation for each kind of act. `stays`: what it keeps of a prompt is there for good.
/// Requires: `sequence.prefill(view, layer, prompt, exec)`, `plan(act, sequence, prompt, tokens)`, `upload(device)`,
/// `choose(act, layer, keys, queries, scale, lengths, device)`, which enqueues a step's work, `kept(sequence, layer)`, what a
/// prompt's end left where that is not everything, and `lists(act, layer, lengths)`, what is there for it. Where lengths alone
/// decide how many tokens a planned step's list names, `listed(act, layer, sequence, head, tokens)` says it on the host.
template <class Act, owning_device D>
class decode_retain;

/// Everything.
template <owning_device D>
class decode_retain<keep_all, D> {
 public:
  static constexpr bool stays = true;

  decode_retain(keep_all const&, cache_shape const&, std::int64_t, D&) {}
  template <class View, class Exec>
  void prefill(keep_all const&, std::int64_t, View const&, layer_id, prompt_signals const&, Exec&) {}
  void plan(keep_all const&, std::int64_t, std::int64_t, std::int64_t) noexcept {}
  void upload(D&) const {}
  std::span<range_list const> kept(std::int64_t, layer_id) const noexcept { return {}; }
  void choose(keep_all const&, layer_id, batch_rows const&, vector_rows const&, float, per_sequence const&, D&) const noexcept {
  }
  std::int64_t listed(keep_all const&, layer_id, std::int64_t, head_id, std::int64_t tokens) const noexcept { return tokens; }
  token_lists lists(keep_all const&, layer_id, per_sequence const& lengths) const noexcept {
    token_lists made{};
    made.tail.all = 0;
    made.tokens = lengths;
    return made;
  }
};

/// Lists of a sequence's tokens, the first of them in row `first` of ids `[rows, stride]`.
template <owning_device D>
void upload_lists(D& device, std::span<range_list const> lists, buffer<std::int32_t> ids, buffer<std::int32_t> named,
                  std::int64_t first, std::int64_t stride) {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> counts;
  for (std::size_t l = 0; l < lists.size(); ++l) {
    tokens.clear();
    for (token_range const& range : lists[l]) {
      for (std::int32_t t = range.begin; t < range.end; ++t) tokens.push_back(t);
    }
    counts.push_back(static_cast<std::int32_t>(tokens.size()));
    std::int64_t const at = (first + static_cast<std::int64_t>(l)) * stride;
    device.upload(buffer<std::int32_t>{ids.data + at, stride}, tokens.data(), std::ssize(tokens));
  }
  device.upload(buffer<std::int32_t>{named.data + first, std::ssize(counts)}, counts.data(), std::ssize(counts));
}

/// The host's states of each sequence's prompt, where acts are decided by the four verbs' own parts.
template <class Policy>
class host_prompts {
 public:
  explicit host_prompts(std::int64_t sequences)
      : states_(static_cast<std::size_t>(sequences)), known_(static_cast<std::size_t>(sequences)) {}

  /// The verb of that name, on a fresh state where a prompt begins. Throws invalid_value where none has begun.
  template <class View, class Exec>
  request_of<Policy>& prefill(Policy const& policy, cache_shape const& shape, std::int64_t sequence, View const& view,
                              layer_id layer, prompt_signals const& prompt, Exec& exec) {
    auto& state = states_[static_cast<std::size_t>(sequence)];
    if (layer.value == 0 && prompt.first == 0) state.emplace(start(policy, shape));
    if (!state) {
      throw invalid_value("sequence " + std::to_string(sequence) + " has no prompt yet; begin it with layer 0 and first = 0");
    }
    prompt_signals all = prompt;  // tokens of the steps since are new to the host's request
    if (layer.value == 0) known_[static_cast<std::size_t>(sequence)] = std::min(prompt.first, state->tokens());
    all.first = known_[static_cast<std::size_t>(sequence)];
    state->prefill(view, layer, all, exec);
    return *state;
  }
  request_of<Policy> const& operator[](std::int64_t sequence) const noexcept {
    return *states_[static_cast<std::size_t>(sequence)];
  }

 private:
  std::vector<std::optional<request_of<Policy>>> states_;
  std::vector<std::int64_t> known_;  ///< first token that is new to each
};

/// Chosen at the prompt's end: the prompt's tokens that were kept, then every token since. No kernel runs at a step.
template <class Segment, class Pool, class Score, class Budget, class Select, class Window, owning_device D>
class decode_retain<keep<Segment, Pool, Score, Budget, Select, Window, trigger::prefill>, D> {
  using act_type = keep<Segment, Pool, Score, Budget, Select, Window, trigger::prefill>;
  using host_policy = policy<act_type, keep_all>;

 public:
  static constexpr bool stays = true;

  decode_retain(act_type const&, cache_shape const& shape, std::int64_t sequences, D& device)
      : shape_(shape),
        sequences_(sequences),
        lists_(act_type::granularity == scope::head ? shape.kv_heads : 1),
        prompts_(sequences),
        tails_(device, shape.layers, sequences),
        device_(&device),
        ids_(device.template allocate<std::int32_t>(shape.layers * sequences * lists_ * shape.max_tokens)),
        named_(device.template allocate<std::int32_t>(shape.layers * sequences * lists_)) {
    std::vector<std::int32_t> const none(static_cast<std::size_t>(shape.layers * sequences * lists_));
    device.upload(named_.get(), none.data(), std::ssize(none));
  }

  /// Decides by the four verbs' own parts, on the host, with the device's primitives.
  template <class View, class Exec>
  void prefill(act_type const& act, std::int64_t sequence, View const& view, layer_id layer, prompt_signals const& prompt,
               Exec& exec) {
    auto& state = prompts_.prefill(host_policy{act, keep_all{}}, shape_, sequence, view, layer, prompt, exec);
    bool const dense = act.layers.dense(layer);
    tails_.set(layer.value, sequence, dense ? 0 : view.tokens());
    std::span<range_list const> lists = state.retain().lists(layer);
    std::vector<range_list> const none(lists.size());
    if (dense) lists = none;
    upload_lists(*device_, lists, ids_.get(), named_.get(), (layer.value * sequences_ + sequence) * lists_, shape_.max_tokens);
  }

  void plan(act_type const&, std::int64_t sequence, std::int64_t, std::int64_t tokens) {
    for (std::int64_t l = 0; tokens == 0 && l < shape_.layers; ++l) tails_.set(l, sequence, 0);
  }
  void upload(D& device) const { tails_.upload(device); }
  std::span<range_list const> kept(std::int64_t sequence, layer_id layer) const noexcept {
    return prompts_[sequence].retain().lists(layer);
  }
  void choose(act_type const&, layer_id, batch_rows const&, vector_rows const&, float, per_sequence const&, D&) const noexcept {
  }

  std::int64_t listed(act_type const& act, layer_id layer, std::int64_t sequence, head_id head, std::int64_t tokens) const {
    if (tokens == 0 || act.layers.dense(layer)) return tokens;
    std::span const lists = kept(sequence, layer);
    std::int64_t const since = tokens - tails_.get(act_type::granularity == scope::request ? 0 : layer.value, sequence);
    return token_count(lists[lists.size() == 1 ? 0 : static_cast<std::size_t>(head.value)]) + since;
  }

  token_lists lists(act_type const& act, layer_id layer, per_sequence const& lengths) const noexcept {
    std::int64_t const first = act_type::granularity == scope::request ? 0 : layer.value * sequences_ * lists_;
    std::int64_t const all = sequences_ * lists_;
    token_lists made{};
    made.units = {ids_.get().data + first * shape_.max_tokens, all * shape_.max_tokens};
    made.stride = shape_.max_tokens;
    made.named = {named_.get().data + first, all};
    made.tail = tails_.of(act_type::granularity == scope::request ? 0 : layer.value);
    made.tokens = lengths;
    made.lists = static_cast<std::int32_t>(lists_);
    // Every token since the prompt comes on top: a thousand are reckoned with.
    if (!act.layers.dense(layer)) made.about = act.budget.most_tokens(shape_) + 1024;
    return made;
  }

 private:
  cache_shape shape_;
  std::int64_t sequences_;
  std::int64_t lists_;
  host_prompts<host_policy> prompts_;
  step_numbers<D> tails_;
  D* device_;
  array_of<D, std::int32_t> ids_;    ///< `[layers, sequences, lists, max_tokens]`
  array_of<D, std::int32_t> named_;  ///< `[layers, sequences, lists]`
};

/// The first tokens and the last ones (StreamingLLM). What has left the window does not come back.
template <class Budget, class Window, owning_device D>
class decode_retain<keep<segment::tokens, pool::none, score::recency, Budget, select::top, Window, trigger::every_step>, D> {
  using act_type = keep<segment::tokens, pool::none, score::recency, Budget, select::top, Window, trigger::every_step>;

 public:
  static constexpr bool stays = false;

  decode_retain(act_type const&, cache_shape const& shape, std::int64_t sequences, D& device)
      : shape_(shape),
        numbers_(device, 2, sequences),
        kept_(static_cast<std::size_t>(sequences)),
        ids_(device.template allocate<std::int32_t>(shape.max_tokens)) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(shape.max_tokens));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    device.upload(ids_.get(), all.data(), std::ssize(all));
  }

  template <class View, class Exec>
  void prefill(act_type const& act, std::int64_t sequence, View const& view, layer_id layer, prompt_signals const&, Exec&) {
    if (layer.value != 0) return;
    kept_[static_cast<std::size_t>(sequence)] = {};  // a prompt's end decides among all tokens, as for any retain
    slide(act, sequence, view.tokens());
  }
  void plan(act_type const& act, std::int64_t sequence, std::int64_t, std::int64_t tokens) {
    if (tokens == 0) kept_[static_cast<std::size_t>(sequence)] = {};
    else slide(act, sequence, tokens);
    window const& mine = kept_[static_cast<std::size_t>(sequence)];
    numbers_.set(0, sequence, mine.begin);
    numbers_.set(1, sequence, std::min(mine.sinks, mine.begin));
  }
  void upload(D& device) const { numbers_.upload(device); }
  std::span<range_list const> kept(std::int64_t, layer_id) const noexcept { return {}; }  // no retrieve goes with it
  void choose(act_type const&, layer_id, batch_rows const&, vector_rows const&, float, per_sequence const&, D&) const noexcept {
  }

  std::int64_t listed(act_type const&, layer_id, std::int64_t sequence, head_id, std::int64_t tokens) const noexcept {
    return numbers_.get(1, sequence) + tokens - numbers_.get(0, sequence);
  }

  token_lists lists(act_type const& act, layer_id, per_sequence const& lengths) const noexcept {
    token_lists made{};
    made.about = act.budget.most_tokens(shape_);
    made.units = ids_.get();
    made.named = numbers_.of(1).values;
    made.tail = numbers_.of(0);
    made.tokens = lengths;
    return made;
  }

 private:
  struct window {
    std::int64_t sinks = INT32_MAX;  ///< first tokens that are still there
    std::int64_t begin = 0;          ///< of the last ones
  };

  void slide(act_type const& act, std::int64_t sequence, std::int64_t tokens) {
    std::int64_t const most =
        act.budget.of({.shape = shape_, .heads = {0, shape_.kv_heads}, .tokens = tokens, .prompt = tokens});
    if (tokens <= most) return;
    window& mine = kept_[static_cast<std::size_t>(sequence)];
    mine.sinks = std::min({mine.sinks, static_cast<std::int64_t>(act.window.sinks), most});
    mine.begin = std::max(mine.begin, tokens - (most - mine.sinks));
  }

  cache_shape shape_;
  step_numbers<D> numbers_;  ///< first token of the tail; tokens before it that stay
  std::vector<window> kept_;
  array_of<D, std::int32_t> ids_;  ///< 0, 1, 2, ...
};

}  // namespace kvpolicy::cuda
