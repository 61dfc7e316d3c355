// A request that lives through prompts, further pieces, steps and removed tails, with what must hold at every step.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "conformance/list_faults.hpp"
#include "conformance/random_cache.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {

/// A request's tokens [first, last), as a prompt that tells nothing beside the keys.
template <class State, class View, class Exec>
void prefill_all(State& state, View const& view, Exec& exec, std::int64_t first = 0) {
  for (std::int64_t l = 0; l < view.shape().layers && view.tokens() > 0; ++l) state.prefill(view, {l}, {.first = first}, exec);
}

/// Where in a request's history a step stands.
struct moment {
  std::int64_t layer = 0;
  std::int64_t tokens = 0;
  std::int64_t prompt = 0;            ///< tokens at the last prefill
  bool since_prompt = true;           ///< no removal reached into that prompt since
  bool untouched = true;              ///< nothing was removed since that prompt
  bool rebuilt = false;               ///< the choice is made at this step
  range_list const* there = nullptr;  ///< what the retain left of the list that is looked at
};

/// A retain that evicts while decoding can't be replayed in one go; a twin walks along from the prompt on.
template <class Model>
concept stepwise = requires {
  requires Model::stepwise;
};

struct full_model {
  using preset = presets::full;
  static preset draw(cache_shape const&, random_source&) { return {}; }
  static bool like_fresh(moment const&) { return true; }
  static std::string fault(preset const&, cache_shape const&, range_list const& list, moment const& at) {
    return list == range_list{{0, static_cast<std::int32_t>(at.tokens), reason::open}} ? "" : "not everything";
  }
};

struct quest_model {
  using preset = presets::quest;
  static preset draw(cache_shape const& shape, random_source& random) {
    return {.tokens = static_cast<std::int32_t>(random.between(1, shape.max_tokens)),
            .page = static_cast<std::int32_t>(random.between(1, 20)),
            .sink_pages = static_cast<std::int32_t>(random.between(0, 2)),
            .recent_pages = static_cast<std::int32_t>(random.between(0, 3)),
            .metadata = pools::bounds::kind::range,
            .group = group_merge::mean};
  }
  static bool like_fresh(moment const&) { return true; }
  static std::string fault(preset const& p, cache_shape const& shape, range_list const& list, moment const& at) {
    if (p.tokens > shape.max_tokens) return token_count(list) == at.tokens ? "" : "not everything";
    std::int64_t const pages = (at.tokens + p.page - 1) / p.page;
    std::int64_t const budget = std::max<std::int64_t>(1, std::min<std::int64_t>(p.tokens, shape.max_tokens) / p.page);
    std::int64_t const open = pages * p.page - at.tokens;
    if (token_count(list) != std::min(budget, pages) * p.page - open) return "not the exact budget";
    if (!reads_all(list, 0, std::min<std::int64_t>(at.tokens, p.sink_pages * p.page))) return "a sink page is missing";
    std::int64_t const recent = std::max<std::int64_t>(0, pages - std::max(1, p.recent_pages)) * p.page;
    return reads_all(list, recent, at.tokens) ? "" : "a recent page is missing";
  }
};

/// Some first layers dense, some layers that take over another's choice.
struct layered_quest_model : quest_model {
  static preset draw(cache_shape const& shape, random_source& random) {
    preset made = quest_model::draw(shape, random);
    made.layers = {static_cast<std::int32_t>(random.between(0, 3)), static_cast<std::int32_t>(random.between(1, 3))};
    made.metadata = random.pick(std::array{pools::bounds::kind::range, pools::bounds::kind::mean_deviation});
    made.group = random.pick(std::array{group_merge::mean, group_merge::maximum});
    return made;
  }
  static std::string fault(preset const& p, cache_shape const& shape, range_list const& list, moment const& at) {
    if (at.layer >= p.layers.dense_first) return quest_model::fault(p, shape, list, at);
    return full_model::fault({}, shape, list, at);
  }
};

struct streaming_model {
  using preset = presets::streaming_llm;
  static constexpr bool stepwise = true;
  static preset draw(cache_shape const& shape, random_source& random) {
    auto const tokens = static_cast<std::int32_t>(random.between(1, shape.max_tokens));
    return {.tokens = tokens, .sinks = static_cast<std::int32_t>(random.between(0, std::min(8, tokens - 1)))};
  }
  static bool like_fresh(moment const& at) { return at.untouched; }
  /// The one-line rule: the first `sinks` tokens, and the most recent ones. What was evicted before a tail was removed is gone.
  static std::string fault(preset const& p, cache_shape const&, range_list const& list, moment const& at) {
    if (token_count(list) > p.tokens) return "more than the budget";
    if (!at.untouched) return "";
    for (std::int64_t t = 0; t < at.tokens; ++t) {
      if (reads(list, t) != (t < p.sinks || t >= at.tokens - (p.tokens - p.sinks))) return "not sinks and most recent";
    }
    return "";
  }
};

struct snapkv_model {
  using preset = presets::snapkv;
  static preset draw(cache_shape const& shape, random_source& random) {
    return {.tokens = static_cast<std::int32_t>(random.between(1, shape.max_tokens)),
            .sinks = static_cast<std::int32_t>(random.between(0, 5)),
            .window = static_cast<std::int32_t>(random.between(1, 12)),
            .smooth = {random.pick(std::array{smoothing::kind::none, smoothing::kind::average, smoothing::kind::maximum}),
                       2 * random.between(0, 16) + 1},
            .after = 0};
  }
  static bool like_fresh(moment const& at) { return at.since_prompt; }
  static std::string fault(preset const& p, cache_shape const&, range_list const& list, moment const& at) {
    if (!at.since_prompt) return "";
    if (token_count(list) != std::min<std::int64_t>(p.tokens, at.prompt) + at.tokens - at.prompt) return "not the exact budget";
    if (!reads_all(list, 0, std::min<std::int64_t>(p.sinks, at.prompt))) return "a sink is missing";
    return reads_all(list, std::max<std::int64_t>(0, at.prompt - p.window), at.tokens) ? "" : "a recent token is missing";
  }
};

struct adakv_model {
  using preset = presets::adakv;
  static preset draw(cache_shape const& shape, random_source& random) {
    snapkv_model::preset const like = snapkv_model::draw(shape, random);
    return {.tokens = like.tokens, .window = like.window, .smooth = like.smooth, .alpha = .5 + .5 * random.real(), .after = 0};
  }
  static bool like_fresh(moment const& at) { return at.since_prompt; }
  static std::string fault(preset const& p, cache_shape const&, range_list const& list, moment const& at) {
    if (!at.since_prompt) return "";
    auto const sure = static_cast<std::int64_t>(p.tokens * p.alpha);
    if (token_count(list) - (at.tokens - at.prompt) < std::min(at.prompt, sure)) return "less than its own share";
    return reads_all(list, std::max<std::int64_t>(0, at.prompt - p.window), at.tokens) ? "" : "a recent token is missing";
  }
  static std::string layer_fault(preset const& p, cache_shape const& shape, selection const& kept, moment const& at) {
    std::int64_t const each = std::min<std::int64_t>(p.tokens, at.prompt) + at.tokens - at.prompt;
    return !at.since_prompt || kept.tokens() == shape.kv_heads * each ? "" : "not the layer's exact budget";
  }
};

struct chunkkv_model {
  using preset = presets::chunkkv;
  static preset draw(cache_shape const& shape, random_source& random) {
    snapkv_model::preset const like = snapkv_model::draw(shape, random);
    return {.tokens = like.tokens,
            .chunk = static_cast<std::int32_t>(random.between(1, 12)),
            .window = like.window,
            .smooth = like.smooth,
            .reduce = random.pick(std::array{selectors::merge::mean, selectors::merge::sum, selectors::merge::maximum}),
            .layers = {static_cast<std::int32_t>(random.between(0, 1)), static_cast<std::int32_t>(random.between(1, 3))},
            .after = 0};
  }
  static bool like_fresh(moment const& at) { return at.since_prompt; }
  static std::string fault(preset const& p, cache_shape const&, range_list const& list, moment const& at) {
    if (!at.since_prompt) return "";
    if (at.layer < p.layers.dense_first) return token_count(list) == at.tokens ? "" : "not everything";
    std::int64_t const begin = std::max<std::int64_t>(0, at.prompt - p.window);
    if (!reads_all(list, begin, at.tokens)) return "a recent token is missing";
    std::int64_t chunks = 0;
    for (std::int64_t first = 0; first < begin; first += p.chunk) {
      std::int64_t const last = std::min<std::int64_t>(begin, first + p.chunk);
      for (std::int64_t t = first; t < last; ++t) {
        if (reads(list, t) != reads(list, first)) return "part of a chunk";
      }
      chunks += reads(list, first) ? 1 : 0;
    }
    std::int64_t const all = (begin + p.chunk - 1) / p.chunk;
    std::int64_t const room = std::min(all, (p.tokens - (at.prompt - begin)) / p.chunk);
    bool const whole = at.prompt <= p.tokens && chunks == all;  // the last chunk may be short of its size
    return whole || chunks == room ? "" : "not as many chunks as fit";
  }
};

/// One more than the budget: what a step evicts is still read by it.
inline std::string evicting_fault(std::int64_t budget, std::int64_t recent, range_list const& list, moment const& at) {
  std::int64_t const most = std::min(budget, at.tokens - 1) + 1;
  if (token_count(list) > most) return "more than the budget";
  if (!at.untouched) return "";
  if (token_count(list) != most) return "not the exact budget";
  return reads_all(list, std::max<std::int64_t>(0, at.tokens - 1 - recent), at.tokens) ? "" : "a recent token is missing";
}

struct h2o_model {
  using preset = presets::h2o;
  static constexpr bool stepwise = true;
  static preset draw(cache_shape const& shape, random_source& random) {
    return {.tokens = static_cast<std::int32_t>(random.between(1, shape.max_tokens)),
            .recent_share = random.pick(std::array{0.0, .25, .5, 1.0}),
            .reduce = random.pick(
                std::array{scorers::accumulated_attention::reduction::sum, scorers::accumulated_attention::reduction::mean}),
            .layers = {static_cast<std::int32_t>(random.between(0, 1)), static_cast<std::int32_t>(random.between(1, 3))}};
  }
  static bool like_fresh(moment const& at) { return at.untouched; }
  static std::string fault(preset const& p, cache_shape const&, range_list const& list, moment const& at) {
    if (at.layer < p.layers.dense_first) return !at.untouched || token_count(list) == at.tokens ? "" : "not everything";
    std::int64_t const budget = std::min<std::int64_t>(p.tokens, at.tokens - 1);
    return evicting_fault(p.tokens, static_cast<std::int64_t>(p.recent_share * static_cast<double>(budget)), list, at);
  }
};

struct tova_model {
  using preset = presets::tova;
  static constexpr bool stepwise = true;
  static preset draw(cache_shape const& shape, random_source& random) {
    return {.tokens = static_cast<std::int32_t>(random.between(1, shape.max_tokens))};
  }
  static bool like_fresh(moment const& at) { return at.untouched; }
  static std::string fault(preset const& p, cache_shape const&, range_list const& list, moment const& at) {
    return evicting_fault(p.tokens, 1, list, at);
  }
};

/// Both rules: quest's pages are of the tokens that snapkv left, by index.
struct snapkv_quest_model {
  using preset = policy<decltype(presets::snapkv{.after = 0}.parts().retain), decltype(presets::quest{}.parts().retrieve)>;
  static preset draw(cache_shape const& shape, random_source& random) {
    return {snapkv_model::draw(shape, random).parts().retain, quest_model::draw(shape, random).parts().retrieve};
  }
  static bool like_fresh(moment const& at) { return at.since_prompt; }
  static std::string fault(preset const& p, cache_shape const&, range_list const& list, moment const& at) {
    std::int64_t const page = p.retrieve.segment.size;
    std::int64_t const there = token_count(*at.there);
    std::int64_t const pages = (there + page - 1) / page;
    std::int64_t const budget = std::max<std::int64_t>(1, p.retrieve.budget.count / page);
    if (token_count(list) != std::min(budget, pages) * page - (pages * page - there)) return "not the exact budget";
    std::int64_t const recent = std::max<std::int64_t>(0, pages - p.retrieve.window.recent_pages) * page;
    std::int64_t rank = 0;
    for (token_range const& range : *at.there) {
      for (std::int64_t t = range.begin; t < range.end; ++t, ++rank) {
        bool const forced = rank >= recent || rank < p.retrieve.window.sink_pages * page;
        if (forced && !reads(list, t)) return "a page of the window is missing";
      }
    }
    return "";
  }
  static std::string retained_fault(preset const& p, range_list const& list, moment const& at) {
    if (!at.since_prompt) return "";
    std::int64_t const exact = std::min<std::int64_t>(p.retain.budget.count, at.prompt) + at.tokens - at.prompt;
    return token_count(list) == exact ? "" : "not the exact budget there";
  }
};

struct chess_model {
  using preset = presets::chess;
  static preset draw(cache_shape const&, random_source& random) {
    auto const fraction = [&] { return static_cast<float>(random.between(1, 100)) / 100.0f; };
    return {.fractions = {fraction(), fraction(), fraction()},
            .units = {static_cast<std::int32_t>(random.between(1, 12)), static_cast<std::int32_t>(random.between(1, 4)),
                      static_cast<std::int32_t>(random.between(1, 4))},
            .sink_pages = static_cast<std::int32_t>(random.between(0, 2)),
            .recent_pages = static_cast<std::int32_t>(random.between(1, 4)),
            .entropy = 1.5f,
            .rest = 0,
            .every = static_cast<std::int32_t>(random.one_in(3) ? random.between(1, 6) : 0),
            .depth = static_cast<std::int32_t>(random.between(1, 3)),
            .pre_rope = false,      // histories tell no rotary embedding
            .standardised = false,  // of few pages, rounding ranks what is equal
            .paper_literal = random.one_in(4)};
  }
  static bool like_fresh(moment const& at) { return at.rebuilt; }
  static std::string fault(preset const& p, cache_shape const&, range_list const& list, moment const& at) {
    std::int64_t const page = p.units.page;
    if (!reads_all(list, 0, std::min(at.tokens, p.sink_pages * page))) return "a sink page is missing";
    std::int64_t const pages = (at.tokens + page - 1) / page;
    if (!reads_all(list, std::max<std::int64_t>(0, pages - p.recent_pages) * page, at.tokens))
      return "a recent page is missing";
    for (std::int64_t t = 1; t < at.tokens; ++t) {
      if (t % page != 0 && reads(list, t) != reads(list, t - 1)) return "part of a page";
    }
    return "";
  }
};

/// Runs one random history; returns the first fault, or nothing. `steps` counts the selections that were looked at.
template <class Model, class Exec>
class history {
 public:
  history(cache_shape const& shape, random_source& random, Exec& exec)
      : shape_(shape),
        random_(random),
        exec_(exec),
        kind_(random.pick(contents)),
        cache_(shape, random.pick(layouts), random.between(1, 40), random, kind_) {
    do policy_ = Model::draw(shape, random);
    while (!allowed());
    state_.emplace(start(policy_, shape));
  }

  std::string run(int events, std::int64_t& steps) {
    prompt(0);
    for (int i = 0; i < events; ++i) {
      std::string fault;
      std::int64_t const event = random_.between(1, 10);
      if (event == 1) {
        tokens_ = 0;
        renew();
        prompt(0);
      } else if (event == 2 && tokens_ + 1 < shape_.max_tokens) {
        prompt(tokens_);
      } else if (event == 3) {
        fault = shorten();
      } else {
        for (std::int64_t n = random_.between(1, 6); n > 0 && tokens_ < shape_.max_tokens && fault.empty(); --n, ++steps) {
          fault = step();
        }
        if (fault.empty() && tokens_ == shape_.max_tokens) fault = shorten();
      }
      if (!fault.empty()) return fault + " at " + std::to_string(tokens_) + " tokens of " + std::to_string(shape_.max_tokens);
    }
    return "";
  }

 private:
  using state_type = request_of<typename Model::preset>;

  bool allowed() const {
    try {
      check(policy_, shape_);
    } catch (error const&) {
      return false;
    }
    return true;
  }

  void renew() { cache_.fill(tokens_, shape_.max_tokens, random_, random_.one_in(2) ? kind_ : content::plain); }

  query_window window() const {
    return {window_.data(), window_tokens_, shape_.q_heads, shape_.q_heads * shape_.head_dim, shape_.head_dim, .5f};
  }

  void prompt(std::int64_t first) {
    tokens_ = random_.between(first + 1, shape_.max_tokens - 1);
    window_tokens_ = std::min(tokens_, std::max(observation_queries(policy_), random_.between(1, 14)));
    window_ = random_.reals(window_tokens_ * shape_.q_heads * shape_.head_dim, 3);
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      state_->prefill(own_view{&cache_, tokens_}, {l}, {first, window()}, exec_);
    }
    at_ = {.tokens = tokens_, .prompt = tokens_};
    stepped_ = false;
    there_.assign(static_cast<std::size_t>(shape_.layers), {});
    if constexpr (stepwise<Model>) {
      twin_.emplace(start(policy_, shape_));
      replay(*twin_);
    }
  }

  std::string shorten() {
    std::int64_t const before = tokens_;
    tokens_ = random_.between(random_.one_in(8) ? 0 : tokens_ / 2, std::min(tokens_, shape_.max_tokens - 1));
    renew();
    if (tokens_ < at_.prompt) at_.since_prompt = false;
    at_.untouched = false;
    twin_.reset();
    for (lists_copy& lists : there_) {
      for (range_list& list : lists) truncate(list, tokens_);
    }
    if (!stepped_ && before != tokens_) {  // policy_test looks at a step right after this by itself
      prompt(tokens_);
    } else if (random_.one_in(3)) {
      return step();
    }
    return "";
  }

  std::string step() {
    ++tokens_;
    at_.tokens = tokens_;
    at_.rebuilt = !stepped_;
    if constexpr (requires { state_->retrieve().trigger().second.fired; }) {
      bool const often = at_.untouched && policy_.every > 0 && tokens_ - chosen_at_ >= policy_.every;
      at_.rebuilt |= often || state_->retrieve().trigger().second.fired;
      if (at_.rebuilt) chosen_at_ = tokens_;
    }
    stepped_ = true;
    own_view const view{&cache_, tokens_};
    std::vector<float> const queries = random_.reals(shape_.q_heads * shape_.head_dim, 3);
    query_heads const heads{queries.data(), shape_.q_heads, shape_.head_dim, .5f};
    bool const compared = Model::like_fresh(at_);
    std::optional<state_type> once;
    if (!stepwise<Model> && compared) {
      once.emplace(start(policy_, shape_));
      replay(*once);
    }
    std::optional<state_type>& fresh = stepwise<Model> ? twin_ : once;
    if (compared && !fresh) return "no state to compare with";
    state_->cut(tokens_ - 1);
    if (compared) fresh->cut(tokens_ - 1);
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      at_.layer = l;
      selection const kept = state_->choose(view, {l}, {heads}, exec_);
      if (std::string const fault = fault_of_layer(kept); !fault.empty()) return fault;
      if (compared) {
        lists_copy const here = copy_of(kept);
        if (copy_of(fresh->choose(view, {l}, {heads}, exec_)) != here) return "not what a fresh state chooses";
      }
    }
    std::vector<float> const logits = random_.reals(9, random_.one_in(2) ? .1f : 9.0f);
    state_->observe({logits}, exec_);
    return "";
  }

  std::string fault_of_layer(selection const& kept) {
    std::int64_t const lists = kept.granularity() == scope::head ? shape_.kv_heads : 1;
    if (std::ssize(kept.lists()) != lists) return "not one list for each";
    selection const there = state_->retained({at_.layer});
    if (std::string const fault = fault_of_retained(there); !fault.empty()) return fault;
    for (std::int64_t l = 0; l < lists; ++l) {
      range_list const& list = kept.of({l});
      at_.there = &there.of({l});
      std::string fault = fault_of(list, tokens_);
      if (fault.empty() && !within(list, *at_.there)) fault = "a token that is not there";
      if (fault.empty()) fault = Model::fault(policy_, shape_, list, at_);
      if (!fault.empty()) return fault;
    }
    if constexpr (requires { Model::layer_fault(policy_, shape_, kept, at_); }) {
      return Model::layer_fault(policy_, shape_, kept, at_);
    }
    return "";
  }

  /// What is there is what was there before the step, and the step's own token.
  std::string fault_of_retained(selection const& there) {
    lists_copy& before = there_[static_cast<std::size_t>(at_.layer)];
    lists_copy const now = copy_of(there);
    for (std::size_t l = 0; l < now.size(); ++l) {
      if (std::string const fault = fault_of(now[l], tokens_); !fault.empty()) return fault + " in what is there";
      if constexpr (requires { Model::retained_fault(policy_, now[l], at_); }) {
        if (std::string const fault = Model::retained_fault(policy_, now[l], at_); !fault.empty()) return fault;
      }
      if (before.empty()) continue;
      append(before[l], tokens_ - 1, tokens_, reason::open);
      if (!within(now[l], before[l])) return "a token came back";
    }
    before = now;
    return "";
  }

  /// The same tokens in one go: what was decided on is the prompt where the policy retains, else all before this step.
  void replay(state_type& fresh) {
    std::int64_t const known = !requirements_of(parts_of(policy_).retain).keeps_all ? at_.prompt : tokens_ - 1;
    if (known == 0) return;
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      fresh.prefill(own_view{&cache_, known}, {l}, {0, window()}, exec_);
    }
    for (std::int64_t n = known + 1; n < tokens_; ++n) {  // kept, whatever their queries are
      std::vector<float> const queries(static_cast<std::size_t>(shape_.q_heads * shape_.head_dim));
      for (std::int64_t l = 0; l < shape_.layers; ++l) {
        fresh.choose(own_view{&cache_, n}, {l}, {queries.data(), shape_.q_heads, shape_.head_dim, .5f}, exec_);
      }
    }
  }

  cache_shape shape_;
  random_source& random_;
  Exec& exec_;
  content kind_;
  random_cache cache_;
  typename Model::preset policy_{};
  std::optional<state_type> state_;
  std::optional<state_type> twin_;  ///< fresh at the last prompt
  std::vector<float> window_;
  std::int64_t window_tokens_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t chosen_at_ = 0;
  bool stepped_ = false;
  std::vector<lists_copy> there_;  ///< `[layers]` what the retain left at the last step
  moment at_;
};

}  // namespace kvpolicy_test
