// After any public calls around an attached session: what a policy sees is the truth, and what it chooses follows from that.
// KVPOLICY_SEEDS and KVPOLICY_FIRST_SEED as seeds.hpp says; a failure prints what repeats it.
#include "random_calls.hpp"

#include <catch2/catch_test_macros.hpp>
#include <type_traits>

#include "first_layer.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "seeds.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

constexpr tiny_shape shape{.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 32};

/// What a session may refuse, and when: docs/llama.md lists it.
constexpr struct {
  char const* says;
  bool (*may)(modelled const&);
} refusals[] = {
    {"positions have holes (llama_memory_seq_rm from the middle, ", [](modelled const& s) { return s.hole != never; }},
    {"holds a token that it did not see written", [](modelled const& s) { return s.blind != never; }},
    {"need the prompt's last queries", [](modelled const& s) { return !s.prompted; }},
    {"needs the prompt's last queries", [](modelled const& s) { return !s.prompted; }},
};

first_layer const& layer_0() {
  static first_layer const one(shape);
  return one;
}

template <class Policy>
class checked_calls : public random_calls {
  /// full is followed by a context without a session. Choices of full and quest depend on the rows alone; those of the others
  /// are compared with those of states that go along with the calls.
  static constexpr bool dense = std::is_same_v<Policy, presets::full>;
  static constexpr bool goes_along = !dense && !std::is_same_v<Policy, presets::quest>;

 public:
  checked_calls(Policy const& preset, std::uint64_t seed) : random_calls(seed), preset_(preset), checks_(sequences()) {
    static model_owner const model = tiny_llama(shape);
    open(model.get(), std::make_unique<session>(preset, hooks()), dense);
  }

 private:
  struct shadow {
    decltype(start(std::declval<Policy const&>(), cache_shape{})) request;
    std::int64_t due = 0;                 ///< the first token that it was not told of
    std::optional<saved_prompt> heard{};  ///< of another sequence with the same tokens
  };
  struct layer_step {
    std::vector<float> queries;
    std::vector<range_list> lists;
  };
  struct checks {
    std::vector<shadow> shadows;       ///< each may be like the session's own state
    std::vector<saved_prompt> others;  ///< what it may have begun with, of other sequences
    std::array<layer_step, shape.layers> step;
    int steps = 0;            ///< of the decode that runs now
    std::int64_t before = 0;  ///< tokens before it
  };

  // The library's verbs.
  shadow fresh(std::optional<saved_prompt> const& heard = {}) const {
    return {.request = start(preset_, cache_), .heard = heard};
  }
  void prefill(shadow& it, layer_table_view const& prompt, modelled const& s) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      prompt_signals signals{.first = it.due};
      bool const elsewhere = it.heard && it.heard->tokens == prompt.tokens();
      saved_prompt const seen = elsewhere ? *it.heard : cut(s.seen, s.seen_tokens);
      if (seen.tokens == prompt.tokens() && seen.window > 0) {
        std::int64_t const row = shape.q_heads * shape.head_dim;
        float const* const first = seen.queries.data() + l * seen.window * row;
        signals.queries = {first, seen.window, shape.q_heads, row, shape.head_dim, scale_};
        signals.observed_from = prompt.tokens() - seen.window;
      }
      it.request.prefill(prompt, {l}, signals, *exec_);
    }
  }
  /// Tokens of an earlier step that were drafts then and stayed, one by one; no policy here looks at their queries.
  void settle(shadow& it, layer_table_view const& view, std::int64_t tokens, std::vector<float> const& queries) {
    for (std::int64_t n = it.request.tokens() + 1; n <= tokens && n > 1; ++n) {
      for (std::int64_t l = 0; l < shape.layers; ++l)
        it.request.choose(view.first(n), {l}, {{queries.data(), shape.q_heads, shape.head_dim, scale_}}, *exec_);
    }
  }
  bool chooses_alike(shadow& it, layer_table_view const& view, std::array<layer_step, shape.layers> const& as) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      layer_step const& step = as[static_cast<std::size_t>(l)];
      query_heads const queries{step.queries.data(), shape.q_heads, shape.head_dim, scale_};
      if (!std::ranges::equal(it.request.choose(view, {l}, {queries}, *exec_).lists(), step.lists)) return false;
    }
    return true;
  }
  void use(session& by) override { by.use(preset_); }

  session_options hooks() {
    auto const before = [this](llama_seq_id of, layer_id layer, layer_table_view const& view, query_heads const& q,
                               simd_exec&) {
      std::vector<float>& queries = of_sequence(of).step[static_cast<std::size_t>(layer.value)].queries;
      queries.clear();
      for (std::int64_t h = 0; h < q.heads; ++h) {
        queries.insert(queries.end(), q.data + h * q.head_stride, q.data + h * q.head_stride + shape.head_dim);
      }
      scale_ = q.scale;
      view_ = view;
      if (layer.value == 0) check_view(of);
    };
    auto const after = [this](llama_seq_id of, layer_id layer, std::int64_t tokens, selection const& kept) {
      std::vector<range_list>& lists = of_sequence(of).step[static_cast<std::size_t>(layer.value)].lists;
      lists.assign(kept.lists().begin(), kept.lists().end());
      for (range_list& list : lists) {  // the drafts of a step of several tokens are read, and not chosen
        if (list.back().end != tokens || list.back().begin > view_.tokens()) return wrong(of, "drafts are not read");
        truncate(list, view_.tokens());
      }
      if (layer.value + 1 == shape.layers) check_choice(of);
    };
    return {.on_choice = after, .on_queries = before};
  }

  void check_view(llama_seq_id of) {
    if (!exec_) exec_.emplace(cache_ = view_.shape());
    history const& tokens = at(of).tokens;
    auto const count = std::ssize(tokens);
    if (view_.tokens() != of_sequence(of).before + 1) {
      return wrong(of, "the view has " + std::to_string(view_.tokens()) + " tokens of " + std::to_string(count));
    }
    std::vector<float> row(static_cast<std::size_t>(shape.head_dim));
    for (std::int64_t i = 0; i < view_.tokens() * shape.kv_heads; ++i) {
      token const& t = tokens[static_cast<std::size_t>(i / shape.kv_heads)];
      view_.keys({0}).load({i % shape.kv_heads}, {i / shape.kv_heads}, row);
      if (layer_0().is_key(row.data(), t.id, t.position, i % shape.kv_heads, rounding())) continue;
      return wrong(of, "row " + std::to_string(i / shape.kv_heads) + " of " + std::to_string(count) + " is another token's");
    }
  }

  /// When the last layer's choice is made all rows are there, and the states can be asked in their own order.
  void check_choice(llama_seq_id of) {
    modelled const& s = at(of);
    checks& mine = of_sequence(of);
    ++mine.steps;
    if (is_wrong()) return;
    layer_table_view prompt = view_;
    --prompt.count;
    auto const differs = [&](shadow& it) {
      try {
        settle(it, view_, std::min(it.due, prompt.tokens()), mine.step[0].queries);
        if (it.due != never && prompt.tokens() > 0) prefill(it, prompt, s);
        it.due = never;
        return !chooses_alike(it, view_, mine.step);
      } catch (error const&) {
        return true;  // the session had to refuse
      }
    };
    if (!goes_along) mine.shadows.clear();
    if (!goes_along || (mine.shadows.empty() && !s.unsure)) begin_anew(mine);
    std::erase_if(mine.shadows, differs);
    if (mine.shadows.empty() && (!s.unsure || !goes_along)) wrong(of, "chose otherwise than a state that knows the calls");
  }

  /// What is left of a prompt's queries when tokens from `to` on are gone.
  static saved_prompt cut(saved_prompt const& whole, std::int64_t to) {
    std::int64_t const row = shape.q_heads * shape.head_dim;
    saved_prompt left{.tokens = std::min(whole.tokens, to)};
    left.window = std::max<std::int64_t>(0, whole.window - (whole.tokens - left.tokens));
    for (std::int64_t l = 0; l < shape.layers && left.window > 0; ++l) {
      auto const first = whole.queries.begin() + l * whole.window * row;
      left.queries.insert(left.queries.end(), first, first + left.window * row);
    }
    return left;
  }

  /// Of sequences that the session knew to hold the same tokens, itself perhaps, one may have seen the prompt: each of those
  /// may be who its queries are taken from.
  void take_over(modelled& s, std::vector<saved_prompt>& from) {
    auto const count = std::ssize(s.tokens);
    from.clear();
    for (llama_seq_id i = 0; i < static_cast<llama_seq_id>(sequences()); ++i) {
      modelled const& other = at(i);
      if (other.heard.tokens < count || same_prefix(s.tokens, other.known) != count) continue;
      if (saved_prompt left = cut(other.heard, count); left.window > 0) from.push_back(std::move(left));
    }
    if (!from.empty()) s.heard = from.front();
  }

  void begin_anew(checks& it) const {
    it.shadows.push_back(fresh());
    for (saved_prompt const& heard : it.others) it.shadows.push_back(fresh(heard));
  }

  /// What a sequence's states make of all that happened to it since its last decode.
  void begins(llama_seq_id of) override {
    modelled& s = at(of);
    std::vector<shadow>& shadows = of_sequence(of).shadows;
    of_sequence(of).steps = 0;
    of_sequence(of).before = std::ssize(s.tokens);
    if (detached()) return;
    std::int64_t const same = same_prefix(s.known, s.tokens);
    bool const anew = s.restarted || same == 0;
    if (anew) shadows.clear(), s.unsure = false;
    for (shadow& it : shadows) {
      // Whether it was told of a prompt that ended before the cut can't be known.
      s.unsure = s.unsure || (same < std::ssize(s.known) && it.due != never);
      if (same < std::ssize(s.tokens)) it.due = std::min(it.due, same);
      it.request.cut(same);
    }
    if (s.replaced) take_over(s, of_sequence(of).others);
    if (exec_ && (anew || s.replaced)) begin_anew(of_sequence(of));
    s.restarted = s.replaced = false;
  }

  void ended(llama_seq_id of, std::int64_t before, decoded_as what) override {
    modelled& s = at(of);
    int const steps = of_sequence(of).steps;
    bool const prompt = what == decoded_as::prompt || (what == decoded_as::either && steps == 0);
    if (steps != (detached() || prompt ? 0 : 1)) {
      throw fault(std::to_string(steps) + " choices for sequence " + std::to_string(of));
    }
    if (detached()) {
      s.blind = std::min(s.blind, before);
      return s.replace();
    }
    s.known = s.tokens;
    s.blind = never;
    if (!prompt) return;
    for (shadow& it : of_sequence(of).shadows) it.due = std::min(it.due, before);
    s.prompted = true;
    s.see(attached().save(of));
    s.heard = s.seen;
    for (std::int64_t i = 0; i < s.seen_queries * shape.q_heads; ++i) {
      token const& t = s.tokens[s.tokens.size() - static_cast<std::size_t>(s.seen_queries - i / shape.q_heads)];
      if (!layer_0().is_query(s.seen.queries.data() + i * shape.head_dim, t.id, t.position, i % shape.q_heads)) {
        throw fault("save() of sequence " + std::to_string(of) + " has other tokens' queries");
      }
    }
  }

  bool may_refuse(std::string const& what, modelled const& of) const override {
    return std::ranges::any_of(refusals, [&](auto const& r) { return what.find(r.says) != what.npos && r.may(of); });
  }

  checks& of_sequence(llama_seq_id of) { return checks_[static_cast<std::size_t>(of)]; }

  Policy preset_;
  std::vector<checks> checks_;
  cache_shape cache_{};
  std::optional<simd_exec> exec_;
  layer_table_view view_;
  float scale_ = 1;
};

template <class Policy>
void check_seeds_of(Policy const& preset) {
  check_seeds(300, [&](std::uint64_t seed) { return checked_calls(preset, seed).run(40); });
}

TEST_CASE("after any calls full gives the logits of a context without a session") { check_seeds_of(presets::full{}); }

TEST_CASE("after any calls quest chooses among the true tokens, as a fresh state does") {
  check_seeds_of(presets::quest{.tokens = 24, .page = 4});
}

TEST_CASE("after any calls streaming_llm chooses as a state that goes along") {
  check_seeds_of(presets::streaming_llm{.tokens = 24});
}

TEST_CASE("after any calls snapkv chooses as a state that goes along, or refuses") {
  check_seeds_of(presets::snapkv{.tokens = 24, .smooth = {.width = 5}, .after = 0});
}

}  // namespace
}  // namespace kvpolicy::llama::testing
