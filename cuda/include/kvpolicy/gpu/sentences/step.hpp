// Sentences of retained tokens, filled to a token budget at every step (SentenceKV), of every sequence of a batch.
#pragma once

#include <algorithm>
#include <vector>

#include "kvpolicy/gpu/sentences/fill.hpp"
#include "kvpolicy/gpu/step/context.hpp"
#include "kvpolicy/primitive/standing_units.hpp"
#include "kvpolicy/segments/sentences.hpp"
#include "kvpolicy/selectors/fill.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::gpu::detail {

/// Whole sentences, best first, until the budget is full (SentenceKV).
template <class Rule, class D>
concept fills_with_sentences = std::same_as<typename Rule::select_type, selectors::fill> &&
    std::same_as<typename Rule::segment_type, segments::sentences> &&
    std::same_as<typename Rule::window_type, windows::tokens> &&
    std::same_as<typename Rule::trigger_type, triggers::every_step> && scores_on_device<Rule, D> && budgets_on_device<Rule>;

template <class Rule, owning_device D>
  requires fills_with_sentences<Rule, D>
class decode_retrieve<Rule, D> {
 public:
  /// Sees what is there by index, whatever the retain.
  static constexpr bool by_index = true;
  static constexpr bool can_wait = true;

  explicit decode_retrieve(decode_context<Rule, D> const& context)
      : context_(context),
        most_(context.shape.max_tokens / context.rule.segment.shortest + 1),
        unit_scores_(context, most_),
        budgets_(context.numbers(context.shape.layers + 1)),
        marks_(static_cast<std::size_t>(context.sequences)),
        boundary_size_(std::ssize(context.rule.segment.boundary)),
        boundary_(context.template array<std::uint16_t>(std::max<std::int64_t>(1, boundary_size_))),
        ends_(context.template array<std::int32_t>(context.sequences * most_)),
        state_(context.template array<std::int32_t>(4 * context.sequences)),
        scores_(context.template array<float>(context.heads() * most_)),
        standing_(context.rule.score.standing > 0),
        stands_(context.template by_layer<std::uint8_t>(standing_ ? context.heads() * most_ : 0)),
        of_prompt_(standing_ ? context.shape.max_tokens : 0, standing_ ? most_ : 0),
        lists_(*context.device, context.shape.layers, context.sequences, context.shape.kv_heads, context.shape.max_tokens) {
    KVPOLICY_EXPECTS(context.rule.window.share == 0,
                     "a window that follows the budget has no kernel; use sinks and recent or generated tokens");
    KVPOLICY_EXPECTS(!context.rule.layers.shares(), "sentences are chosen for each layer; set reuse to 1");
    std::vector<std::uint16_t> fragments;
    for (std::uint8_t const entry : context.rule.segment.boundary) fragments.push_back(segments::fragment_of_mark(entry));
    context.device->upload(boundary_.get(), fragments.data(), boundary_size_);
    std::vector<std::int32_t> const none(static_cast<std::size_t>(4 * context.sequences));
    context.device->upload(state_.get(), none.data(), std::ssize(none));
  }

  /// Room for the sentences of so many tokens: the prompt's are known, of what came behind the shortest are counted with.
  void hold(std::int64_t sequence, std::int64_t tokens) {
    segments::sentence_marks const& marks = marks_[static_cast<std::size_t>(sequence)];
    std::int64_t const behind = std::max<std::int64_t>(0, tokens - marks.tokens);
    unit_scores_.hold(sequence, tokens == 0 ? 0 : marks.units() + behind / context_.rule.segment.shortest + 1);
  }

  /// The prompt's sentences; those of a layer that were there are made anew.
  template <class View, class Exec>
  void prefill(prompt_piece<View> const& piece, Exec& exec) {
    if (piece.layer.value == 0) mark_sentences(piece.sequence, piece.prompt);
    begin_layer(piece.layer, piece.sequence);
    for (std::int64_t h = 0; standing_ && h < context_.shape.kv_heads; ++h) mark_standing(piece, h, exec);
  }

  template <class View, class Exec>
  void wait(prompt_piece<View> const& piece, Exec&) {
    if (piece.layer.value == 0) mark_sentences(piece.sequence, piece.prompt);
    // What is waited for goes on with the prompt's last sentence.
    if (piece.layer.value == 0 && context_.rule.segment.prompt_ends)
      context_.put(state().closes, piece.sequence,
                   std::int32_t{marks_[static_cast<std::size_t>(piece.sequence)].behind_prompt});
    begin_layer(piece.layer, piece.sequence);
  }
  /// A prefill on what has come since the prompt, too, whose sentences the device knows.
  template <class View, class Exec>
  void decide(prompt_piece<View> const& piece, Exec& exec) {
    if (piece.layer.value == 0) learn_sentences(piece.sequence, piece.view.tokens());
    begin_layer(piece.layer, piece.sequence);
    for (std::int64_t h = 0; standing_ && h < context_.shape.kv_heads; ++h) mark_standing(piece, h, exec);
  }

  void plan(planned_turn const& turn, auto const&) {
    cache_shape const& shape = context_.shape;
    auto const& [sequence, prompt, tokens, waits] = turn;
    budgets_.set(shape.layers, sequence, prompt);
    for (std::int64_t l = 0; l < shape.layers && tokens > 0; ++l) {
      budget_request const request{.shape = shape, .layer = {l}, .heads = {0, shape.kv_heads}, .tokens = tokens};
      budgets_.set(l, sequence, waits ? shape.max_tokens : context_.rule.budget.of(request));
    }
  }
  void upload() const { budgets_.upload(*context_.device); }

  /// The most tokens of a head whose rows a step on so many reads.
  std::int64_t most_listed(layer_id layer, std::int64_t sequence, head_id, std::int64_t tokens) const noexcept {
    Rule const& rule = context_.rule;
    if (rule.layers.reads_all(layer) || rule.select.all_after_boundary) return tokens;
    std::int64_t const prompt = budgets_.get(context_.shape.layers, sequence);
    std::int64_t const behind = rule.window.generated ? tokens - prompt : rule.segment.longest;
    return std::min<std::int64_t>(tokens, budgets_.get(layer.value, sequence) + behind);
  }

  void choose(decode_step const& step) {
    Rule const& rule = context_.rule;
    layer_id const layer = step.layer;
    D& device = *context_.device;
    if (layer.value == 0) {
      device.template launch<sentence_step_body>({divided_up(context_.sequences, sentence_step_body::threads), 1, 1},
                                                 {state(),
                                                  step.lengths,
                                                  step.ids,
                                                  step.id_rows,
                                                  context_.sequences,
                                                  {boundary_.get().data, boundary_size_},
                                                  rule.segment.longest,
                                                  rule.segment.shortest});
    }
    if (rule.layers.dense(layer)) return;
    unit_scores_.take(step, state());
    unit_scores_.score(layer, state().scored, scores_.get());
    auto const heads = static_cast<std::int32_t>(context_.shape.kv_heads);
    device.template launch<sentence_fill_body>(
        {heads, context_.sequences, 1},
        {scores_.get(), most_, state(), unit_scores_.units(layer), standing_ ? stands_.of(layer) : buffer<std::uint8_t>{},
         step.retained, heads, budgets_.of(layer.value), rule.window.sinks, rule.window.recent, rule.select.all_after_boundary,
         rule.window.generated, budgets_.of(context_.shape.layers), lists_.units(layer), lists_.stride(), lists_.named(layer)});
  }

  token_lists lists(layer_id layer, token_lists const& retained) const noexcept {
    if (context_.rule.layers.reads_all(layer)) return retained;
    std::int64_t const most = context_.rule.window.generated
                                  ? context_.shape.max_tokens
                                  : context_.rule.budget.most_tokens(context_.shape) + context_.rule.segment.longest;
    return lists_.of(layer, {{}, token_lists::no_tail}, retained.tokens, most);
  }

 private:
  sentence_state state() const noexcept {
    auto const row = [&](std::int64_t nth) { return part_of(state_.get(), nth * context_.sequences, context_.sequences); };
    return {ends_.get(), row(0), row(1), row(2), row(3), most_};
  }

  /// No sentence is in, and none stands.
  void begin_layer(layer_id layer, std::int64_t sequence) {
    std::vector<std::uint8_t> const none(static_cast<std::size_t>(standing_ ? most_ : 0));
    for (std::int64_t h = 0; h < context_.shape.kv_heads; ++h) {
      std::int64_t const row = sequence * context_.shape.kv_heads + h;
      unit_scores_.restart(layer, row);
      if (standing_) context_.device->upload(part_of(stands_.of(layer), row * most_, most_), none.data(), most_);
    }
  }

  /// The sentences up to the current token, the last of `tokens`: those that steps have ended are known on the device.
  void learn_sentences(std::int64_t sequence, std::int64_t tokens) {
    std::vector<std::int32_t>& ends = marks_[static_cast<std::size_t>(sequence)].ends;
    auto const get = [&](buffer<std::int32_t> of) {
      std::int32_t found = 0;
      context_.device->download(&found, buffer<std::int32_t const>(part_of(of, sequence, 1)));
      return found;
    };
    sentence_state const on_device = state();
    ends.resize(static_cast<std::size_t>(get(on_device.units)));
    context_.device->download(ends.data(),
                              buffer<std::int32_t const>(part_of(ends_.get(), sequence * most_, std::ssize(ends))));
    bool const closes = get(on_device.closes) == segments::mark_ends;  // with the token before, as the step's kernel will find
    if (closes && tokens - 1 > get(on_device.open_begin) && std::ssize(ends) < most_)
      ends.push_back(static_cast<std::int32_t>(tokens - 1));
  }

  /// Where the prompt's sentences end, on the host and the device.
  void mark_sentences(std::int64_t sequence, prompt_signals const& prompt) {
    segments::sentence_marks& marks = marks_[static_cast<std::size_t>(sequence)];
    KVPOLICY_EXPECTS(prompt.first <= marks.tokens || prompt.first == 0,
                     "a piece from token " + std::to_string(prompt.first) +
                         " on, behind decoded tokens: which of them ended a "
                         "sentence is known on the device alone, after " +
                         std::to_string(marks.tokens) + " tokens of the prompt; begin the sequence anew with first = 0");
    if (prompt.first == 0) marks = segments::sentence_marks(context_.rule.segment);
    marks.extend(context_.rule.segment, prompt.first, prompt.token_ids, true);
    context_.device->upload(part_of(ends_.get(), sequence * most_, most_), marks.ends.data(), std::ssize(marks.ends));
    context_.put(state().units, sequence, static_cast<std::int32_t>(marks.units()));
    context_.put(state().open_begin, sequence, static_cast<std::int32_t>(marks.open_begin()));
    context_.put(state().closes, sequence, std::int32_t{marks.last()});
    hold(sequence, marks.tokens);
  }

  /// The prompt's sentences that stand, of one head: chosen on the host, as the verb does.
  template <class View, class Exec>
  void mark_standing(prompt_piece<View> const& piece, std::int64_t h, Exec& exec) {
    Rule const& rule = context_.rule;
    cache_shape const& shape = context_.shape;
    std::int64_t const tokens = piece.view.tokens();
    std::vector<std::int32_t> ids;
    if (piece.retained.empty()) {
      for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<std::int32_t>(t));
    } else {
      each_token(list_of(piece.retained, h), [&](std::int32_t t) { ids.push_back(t); });
    }
    std::vector<std::int32_t> ends;
    for (std::int32_t const end : marks_[static_cast<std::size_t>(piece.sequence)].ends) {
      ends.push_back(static_cast<std::int32_t>(std::ranges::lower_bound(ids, end) - ids.begin()));
    }
    std::vector<std::uint8_t> stands(static_cast<std::size_t>(most_));
    query_window const& all = piece.prompt.queries;
    if (all.tokens > 0) {
      indexed_view<View> const standing_view{piece.view, std::ssize(ids), ids.data(), 0};
      head_range const all_heads{0, shape.kv_heads};
      standing_units(all.last(std::min<std::int64_t>(all.tokens, rule.score.window)).of({h, 1}, shape.group()),
                     standing_view.keys(piece.layer).of({h, 1}), std::span<std::int32_t const>(ends),
                     rule.score.standing_tokens(shape, piece.layer, all_heads, tokens), of_prompt_,
                     std::span(stands).first(ends.size()), exec);
    }
    std::int64_t const row = piece.sequence * shape.kv_heads + h;
    context_.device->upload(part_of(stands_.of(piece.layer), row * most_, most_), stands.data(), most_);
  }

  decode_context<Rule, D> context_;
  std::int64_t most_;  ///< sentences of a sequence
  unit_scores<Rule, D> unit_scores_;
  step_numbers<D> budgets_;  ///< of each layer; then the prompts' tokens
  std::vector<segments::sentence_marks> marks_;
  std::int64_t boundary_size_;
  array_of<D, std::uint16_t> boundary_;
  array_of<D, std::int32_t> ends_;   ///< `[sequences, sentences]`
  array_of<D, std::int32_t> state_;  ///< `[4, sequences]`: as sentence_state
  array_of<D, float> scores_;        ///< `[sequences, kv_heads, sentences]`
  bool standing_;
  layer_array<D, std::uint8_t> stands_;  ///< `[sequences, kv_heads, sentences]`
  standing_units_scratch of_prompt_;
  list_store<D> lists_;
};

}  // namespace kvpolicy::gpu::detail
