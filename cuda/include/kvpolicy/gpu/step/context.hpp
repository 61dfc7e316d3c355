// What a decoder's parts are made from, and what they are given of a prompt and of a step.
#pragma once

#include <span>
#include <vector>

#include "kvpolicy/budgets/by_head.hpp"
#include "kvpolicy/gpu/base/batch.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/step/arrays.hpp"
#include "kvpolicy/policy.hpp"

namespace kvpolicy::gpu {

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
  batch_rows keys;   ///< the same
  layer_id layer{};
  prompt_signals const& prompt;
  std::span<range_list const> retained{};  ///< what the retain left, where it is not everything
  token_lists lists{};                     ///< the same on the device, of this sequence alone
  std::int64_t later = 0;                  ///< last tokens of these that a step takes in
};

/// What the parts are given of one layer of a step.
struct decode_step {
  layer_id layer{};
  batch_rows keys;
  vector_rows queries;  ///< `[sequences, q_heads, head_dim]`
  float scale = 1;
  per_sequence lengths;            ///< tokens of each sequence, the current one included
  buffer<std::int32_t const> ids;  ///< the current tokens' ids, where the policy needs them
  row_map id_rows{};
  token_lists retained{};  ///< what is there; a retrieve's alone
};

/// What a retrieve is told of a sequence when a step is planned.
struct planned_turn {
  std::int64_t sequence = 0;
  std::int64_t prompt = 0;  ///< tokens when its choice was made: those of the prompt, or some of the answer's with them
  std::int64_t tokens = 0;  ///< 0: the sequence has none at this step
  bool waits = false;       ///< everything is read
};

/// What every part is made from. The rule is the same for good.
template <class Rule, owning_device D>
struct decode_context {
  Rule rule;
  cache_shape shape;
  std::int64_t sequences;
  D* device;
  step_turns const* turns;
  std::int64_t retained_lists = 0;  ///< of a layer, that a retrieve goes by; 0: everything is there
  bool waits = false;               ///< whether a retrieve's choice waits for tokens of the answer

  step_numbers<D> numbers(std::int64_t rows, std::int64_t of_sequences) const { return {*device, rows, of_sequences, *turns}; }
  step_numbers<D> numbers(std::int64_t rows) const { return numbers(rows, sequences); }

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

/// Returns floats as elements of a type, for an upload.
inline std::vector<std::byte> stored_as(element_type type, std::span<float const> values) {
  std::vector<std::byte> made(values.size() * static_cast<std::size_t>(size_of(type)));
  for (std::size_t i = 0; i < values.size(); ++i) put_element(made.data(), static_cast<std::int64_t>(i), type, values[i]);
  return made;
}

/// Summaries `[sequences, heads, units, dim]`, as kernels read keys.
/// @tparam T  float, or std::byte of elements of another type
template <class T>
batch_rows summary_rows(buffer<T> all, std::int64_t heads, std::int64_t units, std::int64_t dim,
                        element_type type = element_type::f32) noexcept {
  batch_rows made{};
  made.base = all.data;
  made.elements = all.size * static_cast<std::int64_t>(sizeof(T)) / size_of(type);
  made.type = type;
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

/// A retrieve's pool and scorer on the device: one specialisation for each pair, a user's too. What it has beside a constructor
/// from decode_context is its selector's to ask: see pages/step.hpp for selectors::top.
template <class Rule, owning_device D>
class unit_scores;

/// A rule with these two parts, for a specialisation of unit_scores.
template <class Rule, class Pool, class Score>
concept pools_and_scores = std::same_as<typename Rule::pool_type, Pool> && std::same_as<typename Rule::score_type, Score>;

template <class Rule, class D>
concept scores_on_device = requires {
  sizeof(unit_scores<Rule, D>);
};
/// Budgets are decided on the host, when a step is planned, for all heads of a layer.
template <class Rule>
concept budgets_on_device = !Rule::budget_type::reads_scores && !std::same_as<typename Rule::budget_type, budgets::by_head>;

/// Whether lists of one length have one budget, whatever their layer: then a plan asks once.
template <class Budget>
bool alike_in_layers(Budget const& budget) noexcept {
  if constexpr (requires { budget.alike_in_layers(); }) return budget.alike_in_layers();
  else return false;
}

namespace detail {

/// A retain on the device, and a retrieve: its selector's kernels over those of its other parts.
/// Requires: a constructor from decode_context; `prefill(piece, exec)`, when a layer of a prompt is there; `plan(sequence,
/// prompt, tokens)`, which gets one new token at a time (0: the sequence has none at this step; nothing of it may change), and
/// `upload()`, before a step; `choose(step)`, which enqueues; `lists(layer, lengths)`, what is there, or what is read. Where
/// lengths alone decide how many tokens a planned step's list names, `listed(layer, sequence, head, tokens)` says it on the
/// host, of a sequence with a token. A part whose planned step may need no choice has `idle()`; where it is true,
/// lists() is right without choose(). A retain has `stays`, whether what it keeps of a prompt is there for good; then
/// `kept(sequence, layer)` and `kept_lists(sequence, layer, tokens)`, what a prompt's end left, on the host and the device, and
/// `retained_lists()` of a layer. Where a choice can wait for tokens of the answer, `can_wait` is true: `wait(piece, exec)`
/// comes in place of prefill(), which comes when the choice is due. A retrieve has `by_index`, whether it sees what is there by
/// index, and `waits_in_steps`, whether it needs nothing but plan() to wait; its plan(turn, retained) is given a planned_turn,
/// and `retained(layer, head)`, how many tokens are there. Where it needs logits it has `read(logits, vocabulary, brought)`,
/// which keeps what it needs of those behind each new token, and `observe(nth, lengths)`, what came behind the nth of them.
/// A step's numbers are those of the turn that `turns` names, when plan() sets them and when choose() enqueues.
template <class Rule, owning_device D>
class decode_retain;
template <class Rule, owning_device D>
class decode_retrieve;

/// Everything.
template <owning_device D>
class decode_retain<keep_all, D> {
 public:
  static constexpr bool stays = true;
  static constexpr bool can_wait = true;

  explicit decode_retain(decode_context<keep_all, D> const&) {}
  template <class View, class Exec>
  void prefill(prompt_piece<View> const&, Exec&) {}
  template <class View, class Exec>
  void wait(prompt_piece<View> const&, Exec&) {}
  void plan(std::int64_t, std::int64_t, std::int64_t) noexcept {}
  void upload() const {}
  std::span<range_list const> kept(std::int64_t, layer_id) const noexcept { return {}; }
  token_lists kept_lists(std::int64_t, layer_id, std::int64_t tokens) const noexcept { return all_of({{}, tokens}); }
  std::int64_t retained_lists() const noexcept { return 0; }
  static constexpr bool idle() noexcept { return true; }
  void choose(decode_step const&) const noexcept {}
  std::int64_t listed(layer_id, std::int64_t, head_id, std::int64_t tokens) const noexcept { return tokens; }
  token_lists lists(layer_id, per_sequence const& lengths) const noexcept { return all_of(lengths); }
};

template <owning_device D>
class decode_retrieve<keep_all, D> {
 public:
  static constexpr bool by_index = false;
  static constexpr bool can_wait = true;
  static constexpr bool waits_in_steps = false;

  explicit decode_retrieve(decode_context<keep_all, D> const&) {}
  template <class View, class Exec>
  void prefill(prompt_piece<View> const&, Exec&) {}
  template <class View, class Exec>
  void wait(prompt_piece<View> const&, Exec&) {}
  void plan(planned_turn const&, auto const&) noexcept {}
  void upload() const {}
  static constexpr bool idle() noexcept { return true; }
  void choose(decode_step const&) const noexcept {}
  token_lists lists(layer_id, token_lists const& retained) const noexcept { return retained; }
};

}  // namespace detail
}  // namespace kvpolicy::gpu
