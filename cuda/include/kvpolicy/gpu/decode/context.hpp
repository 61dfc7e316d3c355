// What a decoder's parts share: a step's inputs, numbers that plan() makes, arrays and lists of every layer.
#pragma once

#include <numeric>
#include <span>
#include <vector>

#include "kvpolicy/gpu/batch.hpp"
#include "kvpolicy/gpu/kernel/lists.hpp"
#include "kvpolicy/policy.hpp"

namespace kvpolicy::gpu {

/// Small integers of a step: rows of one for each sequence, made by plan() on the host, copied in one go.
template <owning_device D>
class step_numbers {
 public:
  step_numbers(D& device, std::int64_t rows, std::int64_t sequences)
      : sequences_(sequences),
        host_(static_cast<std::size_t>(rows * sequences)),
        device_(device.template allocate<std::int32_t>(rows * sequences)) {
    device.upload(device_.get(), host_.data(), std::ssize(host_));
  }

  void set(std::int64_t row, std::int64_t sequence, std::int64_t value) noexcept {
    host_[static_cast<std::size_t>(row * sequences_ + sequence)] = static_cast<std::int32_t>(value);
  }
  std::int64_t get(std::int64_t row, std::int64_t sequence) const noexcept {
    return host_[static_cast<std::size_t>(row * sequences_ + sequence)];
  }
  per_sequence of(std::int64_t row) const noexcept { return {{device_.get().data + row * sequences_, sequences_}, 0}; }
  void upload(D& device) const { device.upload(device_.get(), host_.data(), std::ssize(host_)); }

 private:
  std::int64_t sequences_;
  std::vector<std::int32_t> host_;
  array_of<D, std::int32_t> device_;
};

/// Elements of every layer, `[layers, size]`.
template <owning_device D, class T>
class layer_array {
 public:
  layer_array(D& device, std::int64_t layers, std::int64_t size)
      : size_(size), all_(device.template allocate<T>(layers * size)) {}

  buffer<T> of(layer_id layer) const noexcept { return {all_.get().data + layer.value * size_, size_}; }
  buffer<T> all() const noexcept { return all_.get(); }

 private:
  std::int64_t size_;
  array_of<D, T> all_;
};

/// 0, 1, 2, ..., as many as `size`.
template <owning_device D>
array_of<D, std::int32_t> counted(D& device, std::int64_t size) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  array_of<D, std::int32_t> made = device.template allocate<std::int32_t>(size);
  device.upload(made.get(), all.data(), size);
  return made;
}

/// `count` elements of a buffer, from `first` on.
template <class T>
constexpr buffer<T> part_of(buffer<T> all, std::int64_t first, std::int64_t count) noexcept {
  return {all.data + first, count};
}

/// Lists of tokens, or of units of several, for every layer: `[layers, sequences, lists, stride]`, and how many tokens each
/// names.
template <owning_device D>
class list_store {
 public:
  list_store(D& device, std::int64_t layers, std::int64_t sequences, std::int64_t lists, std::int64_t stride,
             std::int64_t unit_size = 1)
      : sequences_(sequences),
        lists_(lists),
        stride_(stride),
        unit_size_(unit_size),
        units_(device, layers, sequences * lists * stride),
        named_(device, layers, sequences * lists) {
    std::vector<std::int32_t> const none(static_cast<std::size_t>(layers * sequences * lists));
    device.upload(named_.all(), none.data(), std::ssize(none));
  }

  std::int64_t lists() const noexcept { return lists_; }
  std::int64_t stride() const noexcept { return stride_; }
  std::int64_t rows() const noexcept { return sequences_ * lists_; }
  buffer<std::int32_t> units(layer_id layer) const noexcept { return units_.of(layer); }
  buffer<std::int32_t> named(layer_id layer) const noexcept { return named_.of(layer); }

  /// Each list, then its sequence's tokens from `tail` on; `about`: token_lists'.
  token_lists of(layer_id layer, per_sequence const& tail, per_sequence const& lengths, std::int64_t about) const noexcept {
    return {.units = units(layer),
            .stride = stride_,
            .named = named(layer),
            .tail = tail,
            .tokens = lengths,
            .lists = static_cast<std::int32_t>(lists_),
            .unit_size = static_cast<std::int32_t>(unit_size_),
            .about = about};
  }

  /// One sequence's lists of `tokens` tokens, without a tail.
  token_lists of_sequence(layer_id layer, std::int64_t sequence, std::int64_t tokens) const noexcept {
    token_lists made = of(layer, {{}, token_lists::no_tail}, {{}, tokens}, 0);
    made.units = part_of(units(layer), sequence * lists_ * stride_, lists_ * stride_);
    made.named = part_of(named(layer), sequence * lists_, lists_);
    return made;
  }

  /// One sequence's lists of tokens, as the host has them.
  void upload(layer_id layer, std::int64_t sequence, std::span<range_list const> lists, D& device) const {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> counts;
    for (std::size_t l = 0; l < lists.size(); ++l) {
      tokens.clear();
      for (token_range const& range : lists[l]) {
        for (std::int32_t t = range.begin; t < range.end; ++t) tokens.push_back(t);
      }
      counts.push_back(static_cast<std::int32_t>(tokens.size()));
      std::int64_t const row = sequence * lists_ + static_cast<std::int64_t>(l);
      device.upload(part_of(units(layer), row * stride_, stride_), tokens.data(), std::ssize(tokens));
    }
    device.upload(part_of(named(layer), sequence * lists_, lists_), counts.data(), std::ssize(counts));
  }

 private:
  std::int64_t sequences_;
  std::int64_t lists_;  ///< of a sequence: 1, or one for each KV head
  std::int64_t stride_;
  std::int64_t unit_size_;
  layer_array<D, std::int32_t> units_;
  layer_array<D, std::int32_t> named_;
};

/// Every token of each sequence.
constexpr token_lists all_of(per_sequence const& lengths) noexcept {
  token_lists made{};
  made.tail.all = 0;
  made.tokens = lengths;
  return made;
}

/// What the parts are given of one layer of a sequence's prompt.
template <class View>
struct prompt_piece {
  std::int64_t sequence = 0;
  View const& view;  ///< of the sequence alone
  batch_rows keys;   ///< of all sequences
  layer_id layer{};
  prompt_signals const& prompt;
  std::span<range_list const> retained{};  ///< what the retain left, where it is not everything
  token_lists lists{};                     ///< the same on the device, of this sequence alone
};

/// What the parts are given of one layer of a step.
struct decode_step {
  layer_id layer{};
  batch_rows keys;
  vector_rows queries;  ///< `[sequences, q_heads, head_dim]`
  float scale = 1;
  per_sequence lengths;            ///< tokens of each sequence, the current one included
  buffer<std::int32_t const> ids;  ///< the current tokens' ids, where the policy needs them
  token_lists retained{};          ///< what is there; a retrieve's alone
};

/// What every part is made from. The rule is the same for good.
template <class Rule, owning_device D>
struct decode_context {
  Rule rule;
  cache_shape shape;
  std::int64_t sequences;
  D* device;
  std::int64_t retained_lists = 0;  ///< of a layer, that a retrieve goes by; 0: everything is there

  template <class T>
  array_of<D, T> array(std::int64_t size) const {
    return device->template allocate<T>(size);
  }
  template <class T>
  layer_array<D, T> by_layer(std::int64_t size) const {
    return {*device, shape.layers, size};
  }
  template <class T>
  void put(buffer<T> to, std::int64_t at, T value) const {
    device->upload(part_of(to, at, 1), &value, 1);
  }
  std::int64_t heads() const noexcept { return sequences * shape.kv_heads; }
};

/// Floats `[sequences, heads, units, dim]`, as kernels read keys.
inline batch_rows rows_of_floats(buffer<float> all, std::int64_t heads, std::int64_t units, std::int64_t dim) noexcept {
  batch_rows made{};
  made.base = all.data;
  made.elements = all.size;
  made.type = element_type::f32;
  made.heads = static_cast<std::int32_t>(heads);
  made.head_dim = static_cast<std::int32_t>(dim);
  made.sequence_stride = heads * units * dim;
  made.head_stride = units * dim;
  made.token_stride = dim;
  return finished(made);
}
/// Floats `[sequences, vectors, dim]`, as kernels read queries.
inline vector_rows vectors_of_floats(buffer<float> all, std::int64_t vectors, std::int64_t dim) noexcept {
  vector_rows made{};
  made.base = all.data;
  made.elements = all.size;
  made.sequence_stride = vectors * dim;
  made.head_stride = dim;
  return made;
}

/// A retain on the device, and a retrieve: its selector's kernels over those of its other parts.
/// Requires: a constructor from decode_context; `prefill(piece, exec)`, when a layer of a prompt is there; `plan(sequence,
/// prompt, tokens)`, which gets one new token at a time (0: the sequence has none at this step; nothing of it may change), and
/// `upload()`, before a step; `choose(step)`, which enqueues; `lists(layer, lengths)`, what is there, or what is read. Where
/// lengths alone decide how many tokens a planned step's list names, `listed(layer, sequence, head, tokens)` says it on the
/// host, of a sequence with a token. A retain has `stays`, whether what it keeps of a prompt is there for good; then
/// `kept(sequence, layer)` and `kept_lists(sequence, layer, tokens)`, what a prompt's end left, on the host and the device, and
/// `retained_lists()` of a layer. A retrieve has `by_index`, whether it sees what is there by index, and `observe(logits,
/// vocabulary, lengths)` where it needs logits; its plan() is given `retained(layer, head)`, too, how many tokens are there.
template <class Rule, owning_device D>
class decode_retain;
template <class Rule, owning_device D>
class decode_retrieve;

/// A retrieve's pool and scorer on the device: one specialisation for each pair, a user's too. What it has beside a constructor
/// from decode_context is its selector's to ask: see decode/units.hpp for selectors::top.
template <class Rule, owning_device D>
class unit_scores;

template <class Rule, class D>
concept scores_on_device = requires {
  sizeof(unit_scores<Rule, D>);
};
/// Budgets are decided on the host, when a step is planned.
template <class Rule>
concept budgets_on_device = !Rule::budget_type::reads_scores;

/// Everything.
template <owning_device D>
class decode_retain<keep_all, D> {
 public:
  static constexpr bool stays = true;

  explicit decode_retain(decode_context<keep_all, D> const&) {}
  template <class View, class Exec>
  void prefill(prompt_piece<View> const&, Exec&) {}
  void plan(std::int64_t, std::int64_t, std::int64_t) noexcept {}
  void upload() const {}
  std::span<range_list const> kept(std::int64_t, layer_id) const noexcept { return {}; }
  token_lists kept_lists(std::int64_t, layer_id, std::int64_t tokens) const noexcept { return all_of({{}, tokens}); }
  std::int64_t retained_lists() const noexcept { return 0; }
  void choose(decode_step const&) const noexcept {}
  std::int64_t listed(layer_id, std::int64_t, head_id, std::int64_t tokens) const noexcept { return tokens; }
  token_lists lists(layer_id, per_sequence const& lengths) const noexcept { return all_of(lengths); }
};

template <owning_device D>
class decode_retrieve<keep_all, D> {
 public:
  static constexpr bool by_index = false;

  explicit decode_retrieve(decode_context<keep_all, D> const&) {}
  template <class View, class Exec>
  void prefill(prompt_piece<View> const&, Exec&) {}
  void plan(std::int64_t, std::int64_t, std::int64_t, auto const&) noexcept {}
  void upload() const {}
  void choose(decode_step const&) const noexcept {}
  token_lists lists(layer_id, token_lists const& retained) const noexcept { return retained; }
};

}  // namespace kvpolicy::gpu
