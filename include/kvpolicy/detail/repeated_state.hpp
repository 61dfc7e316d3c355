// What a retain remembers that chooses once the engine has repeated the prompt.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <span>
#include <vector>

#include "kvpolicy/detail/keep_state.hpp"
#include "kvpolicy/detail/resident_tokens.hpp"
#include "kvpolicy/selectors/top.hpp"

namespace kvpolicy {

/// A rule whose scorer hears a repetition of the prompt.
template <class Rule>
concept chooses_by_repetition = contains(Rule::score_type::needs, signals::repetition);

/// Such a retain at work. Everything stays until a repetition is complete. Then all layers choose at once among the tokens that
/// were repeated; earlier ones stay as they were, later ones stay.
template <class Rule>
class repeated_state : public keep_state<Rule> {
  using base = keep_state<Rule>;
  using base::rule_, base::kept_, base::memory_, base::scratch_, base::shape_, base::summaries_;
  static_assert(std::same_as<typename Rule::select_type, selectors::top> && std::same_as<typename Rule::pool_type, pools::none>,
                "a retain that chooses by a repetition takes selectors::top and pools::none");

 public:
  repeated_state(Rule const& rule, cache_shape const& shape)
      : base(rule, shape),
        known_(kept_.slots()),
        revisions_(kept_.slots()),
        units_(static_cast<std::size_t>(shape.layers * shape.kv_heads)) {}

  /// Makes room for a sequence of so many tokens.
  void reserve(std::int64_t tokens, std::int64_t) {
    base::reserve(tokens, beside_selected);
    if (std::ssize(chosen_) < tokens) chosen_.resize(static_cast<std::size_t>(tokens));
  }

  std::int64_t revision(layer_id layer) const noexcept { return revisions_[kept_.slot(layer)]; }
  std::int64_t always_read(layer_id, std::int64_t) const noexcept { return 0; }
  bool by_steps() const noexcept { return false; }

  void truncate(std::int64_t tokens) {
    memory_.truncate(tokens);
    for (range_list& list : kept_.all()) kvpolicy::truncate(list, tokens);
    for (std::int64_t& known : known_) known = std::min(known, tokens);
  }
  void cut(layer_id, head_range, std::int64_t) noexcept {}

  template <class View, class Exec>
  void prefill(View const& view, layer_id layer, retained_tokens const&, prompt_signals const& prompt, Exec& exec) {
    if (!prompt.repeats.empty()) {
      range_list const read{{static_cast<std::int32_t>(prompt.repeats.begin), static_cast<std::int32_t>(prompt.repeats.end)}};
      expect_resident({&read, 1}, prompt.resident, view.tokens());
      typename base::template input_type<View> const input{
          view, layer, {0, shape_.kv_heads}, view.tokens(), prompt.first, summaries_, memory_, {}, &prompt};
      rule_.score.hear(input, exec);
    } else {
      give_up();
    }
    extend(layer, view.tokens(), prompt.resident);
    if (!prompt.repeats.empty() && layer.value + 1 == shape_.layers && memory_.complete)
      decide(prompt.first, view.tokens(), exec);
  }
  void wait(layer_id layer, std::int64_t tokens, prompt_signals const& prompt) { extend(layer, tokens, prompt.resident); }
  template <class View, class Exec>
  void choose(View const& view, layer_id layer, retained_tokens const&, step_signals const&, Exec&) {
    give_up();
    extend(layer, view.tokens(), {});
  }

  template <class Archive>
  void archive(Archive& a) {
    a(kept_, known_, revisions_, memory_);
  }

 private:
  static constexpr std::int64_t beside_selected = 5;  ///< ranges of a list: the window's, and what it cuts in two

  /// Something else follows the pieces of a repetition that was not completed: they are forgotten.
  void give_up() noexcept {
    if (!memory_.complete) memory_.repeated = {};
  }
  /// Tokens that were not known are kept.
  void extend(layer_id layer, std::int64_t tokens, std::span<range_list const> resident) {
    std::int64_t& known = known_[kept_.slot(layer)];
    std::span const lists = kept_.of(layer);
    for (std::size_t l = 0; l < lists.size(); ++l) {
      if (known > 0 || resident.empty()) append(lists[l], known, tokens, reason::open);
      else lists[l] = resident[resident.size() == 1 ? 0 : l];
    }
    known = tokens;
    expect_resident(lists, resident, tokens);
  }

  /// Chooses among the repeated tokens of all layers, which end at token `end`.
  template <class Exec>
  void decide(std::int64_t end, std::int64_t tokens, Exec& exec) {
    std::int64_t const begin = memory_.repeated.begin;
    budget_request request{.shape = shape_, .heads = {0, shape_.kv_heads}, .tokens = end - begin, .prompt = end - begin};
    std::int64_t const most = rule_.budget.of(request);
    protected_tokens const safe = rule_.window.at(end, end, most);
    std::int64_t const first = std::clamp<std::int64_t>(safe.sink_end, begin, begin + most);
    std::int64_t const last = std::max({first, safe.recent_begin, end - (most - (first - begin))});
    request.forced = first - begin + end - last;
    request.recent = safe.recent;
    std::int64_t const lists = shape_.layers * shape_.kv_heads;
    table<float const> const scores{memory_.scores.data() + first, lists, last - first, memory_.scores.stride()};
    std::int64_t const at_once = shares_over_layers<typename Rule::budget_type> ? lists : shape_.kv_heads;
    for (std::int64_t row = 0; row < lists; row += at_once) {
      request.layer = {row / shape_.kv_heads};
      rule_.budget.allocate(request, {scores.row(row), at_once, scores.columns, scores.row_stride},
                            std::span(units_).subspan(static_cast<std::size_t>(row), static_cast<std::size_t>(at_once)), exec);
    }
    for (std::int64_t row = 0; row < lists; ++row) {
      layer_id const layer{row / shape_.kv_heads};
      range_list& list = kept_.of(layer)[static_cast<std::size_t>(row % shape_.kv_heads)];
      auto const wanted =
          static_cast<std::int32_t>(std::clamp<std::int64_t>(units_[static_cast<std::size_t>(row)], 0, last - first));
      top_k({scores.row(row), 1, scores.columns, scores.row_stride}, std::array{wanted},
            table<std::int32_t>{chosen_.data(), 1, wanted, wanted}, exec);
      kvpolicy::truncate(list, begin);
      append(list, begin, first, reason::sink);
      for (std::int32_t i = 0; i < wanted; ++i) {
        std::int64_t const token = first + chosen_[static_cast<std::size_t>(i)];
        append(list, token, token + 1, reason::scored);
      }
      append(list, last, end, reason::recent);
      append(list, end, tokens, reason::open);
      if (row % shape_.kv_heads == 0) ++revisions_[kept_.slot(layer)];
    }
  }

  std::vector<std::int64_t> known_;  ///< tokens of each layer that were kept or chosen from
  std::vector<std::int64_t> revisions_;
  std::vector<std::int32_t> units_;   ///< `[layers * kv_heads]` tokens that each list gets
  std::vector<std::int32_t> chosen_;  ///< `[tokens]`
};

template <class... Parts>
  requires chooses_by_repetition<keep<Parts...>> repeated_state<keep<Parts...>> start_retain(keep<Parts...> const& rule,
                                                                                             cache_shape const& shape) {
    return {rule, shape};
  }

}  // namespace kvpolicy
