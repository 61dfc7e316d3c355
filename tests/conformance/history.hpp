// A request that lives through prompts, further pieces, steps and removed tails, with what must hold at every step.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "conformance/random_cache.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {

using lists_copy = std::vector<range_list>;

inline lists_copy copy_of(selection const& kept) { return {kept.lists().begin(), kept.lists().end()}; }

inline bool reads(range_list const& list, std::int64_t token) {
  return std::any_of(list.begin(), list.end(), [&](token_range const& r) { return r.begin <= token && token < r.end; });
}
inline bool reads_all(range_list const& list, std::int64_t first, std::int64_t last) {
  for (std::int64_t t = first; t < last; ++t) {
    if (!reads(list, t)) return false;
  }
  return true;
}

/// Empty where the list is ascending, disjoint, in range, without empty ranges or ranges that should be one.
inline std::string fault_of(range_list const& list, std::int64_t tokens) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].begin < end) return "overlaps or descends";
    if (list[i].end <= list[i].begin) return "an empty range";
    if (list[i].end > tokens) return "out of range";
    if (i > 0 && list[i].begin == end && list[i].why == list[i - 1].why) return "two ranges that are one";
    end = list[i].end;
  }
  return list.empty() || end != tokens ? "the current token is missing" : "";
}

/// Where in a request's history a step stands.
struct moment {
  std::int64_t tokens = 0;
  std::int64_t prompt = 0;   ///< tokens at the last prefill
  bool since_prompt = true;  ///< no removal reached into that prompt since
  bool rebuilt = false;      ///< the choice is made at this step
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
            .recent_pages = static_cast<std::int32_t>(random.between(0, 3))};
  }
  static bool like_fresh(moment const&) { return true; }
  static std::string fault(preset const& p, cache_shape const& shape, range_list const& list, moment const& at) {
    std::int64_t const pages = (at.tokens + p.page - 1) / p.page;
    std::int64_t const budget = std::max<std::int64_t>(1, std::min<std::int64_t>(p.tokens, shape.max_tokens) / p.page);
    std::int64_t const open = pages * p.page - at.tokens;
    if (token_count(list) != std::min(budget, pages) * p.page - open) return "not the exact budget";
    if (!reads_all(list, 0, std::min<std::int64_t>(at.tokens, p.sink_pages * p.page))) return "a sink page is missing";
    std::int64_t const recent = std::max<std::int64_t>(0, pages - std::max(1, p.recent_pages)) * p.page;
    return reads_all(list, recent, at.tokens) ? "" : "a recent page is missing";
  }
};

struct streaming_model {
  using preset = presets::streaming_llm;
  static preset draw(cache_shape const& shape, random_source& random) {
    auto const tokens = static_cast<std::int32_t>(random.between(1, shape.max_tokens));
    return {.tokens = tokens, .sinks = static_cast<std::int32_t>(random.between(0, std::min(8, tokens - 1)))};
  }
  static bool like_fresh(moment const&) { return true; }
  /// The one-line rule: the first `sinks` tokens, and the most recent ones.
  static std::string fault(preset const& p, cache_shape const&, range_list const& list, moment const& at) {
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
                       2 * random.between(0, 16) + 1}};
  }
  static bool like_fresh(moment const& at) { return at.since_prompt; }
  static std::string fault(preset const& p, cache_shape const&, range_list const& list, moment const& at) {
    if (!at.since_prompt) return "";
    if (token_count(list) != std::min<std::int64_t>(p.tokens, at.prompt) + at.tokens - at.prompt) return "not the exact budget";
    if (!reads_all(list, 0, std::min<std::int64_t>(p.sinks, at.prompt))) return "a sink is missing";
    return reads_all(list, std::max<std::int64_t>(0, at.prompt - p.window), at.tokens) ? "" : "a recent token is missing";
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
  bool allowed() const {
    try {
      check(policy_, shape_);
    } catch (invalid_value const&) {
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
    window_tokens_ = random_.between(1, std::min<std::int64_t>(tokens_ - first, 14));
    window_ = random_.reals(window_tokens_ * shape_.q_heads * shape_.head_dim, 3);
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      prefill(policy_, *state_, own_view{&cache_, tokens_}, {l}, {first, window()}, exec_);
    }
    at_ = {tokens_, tokens_, true, false};
    stepped_ = false;
  }

  std::string shorten() {
    std::int64_t const before = tokens_;
    tokens_ = random_.between(random_.one_in(8) ? 0 : tokens_ / 2, std::min(tokens_, shape_.max_tokens - 1));
    renew();
    if (tokens_ < at_.prompt) at_.since_prompt = false;
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
    if constexpr (requires { state_->trigger.fired; }) at_.rebuilt |= state_->trigger.fired;
    stepped_ = true;
    own_view const view{&cache_, tokens_};
    std::vector<float> const queries = random_.reals(shape_.q_heads * shape_.head_dim, 3);
    query_heads const heads{queries.data(), shape_.q_heads, shape_.head_dim, .5f};
    auto fresh = start(policy_, shape_);
    bool const compared = Model::like_fresh(at_);
    if (compared) replay(fresh);
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      selection const kept = choose(policy_, *state_, view, {l}, heads, exec_);
      std::int64_t const lists = kept.how_fine() == scope::head ? shape_.kv_heads : 1;
      if (std::ssize(kept.lists()) != lists) return "not one list for each";
      for (range_list const& list : kept.lists()) {
        std::string fault = fault_of(list, tokens_);
        if (fault.empty()) fault = Model::fault(policy_, shape_, list, at_);
        if (!fault.empty()) return fault;
      }
      if (compared) {
        lists_copy const here = copy_of(kept);
        if (copy_of(choose(policy_, fresh, view, {l}, heads, exec_)) != here) return "not what a fresh state chooses";
      }
    }
    std::vector<float> const logits = random_.reals(9, random_.one_in(2) ? .1f : 9.0f);
    observe(policy_, *state_, {logits}, exec_);
    return "";
  }

  /// The same tokens in one go: what was decided on is the prompt where the policy retains, else all before this step.
  template <class State>
  void replay(State& fresh) {
    std::int64_t const known = parts_t<typename Model::preset>::retains ? at_.prompt : tokens_ - 1;
    if (known == 0) return;
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      prefill(policy_, fresh, own_view{&cache_, known}, {l}, {0, window()}, exec_);
    }
  }

  cache_shape shape_;
  random_source& random_;
  Exec& exec_;
  content kind_;
  random_cache cache_;
  typename Model::preset policy_{};
  std::optional<policy_state<parts_t<typename Model::preset>>> state_;
  std::vector<float> window_;
  std::int64_t window_tokens_ = 0;
  std::int64_t tokens_ = 0;
  bool stepped_ = false;
  moment at_;
};

}  // namespace kvpolicy_test
