// Baselines that a policy has to beat. `random`: of a prompt the first tokens stay, the recent ones, and others at random.
// `random_late`: the prompt stays, and of the answer the recent tokens, and others at random.
#include <kvpolicy/compose.hpp>
#include <kvpolicy/text/plugin.hpp>
#include <kvpolicy/triggers/every.hpp>

#include <random>

namespace kv = kvpolicy;

/// Scores at random: otherwise in each layer, KV head and choice, the same in each run.
struct by_chance {
  static constexpr kv::signals needs = kv::signals::none;
  static constexpr kv::scope granularity = kv::scope::head;
  static constexpr kv::scored of = kv::scored::tokens;
  static constexpr bool after_attention = true;  // a step still reads what it evicts
  static constexpr kv::no_memory start(kv::cache_shape const&) noexcept { return {}; }

  template <class Input, kv::executor Exec>
  void score(Input const& input, kv::table<float> out, Exec&) const {
    draw(input, out);
  }
  template <class Input, kv::executor Exec>
  void score_kept(Input const& input, std::span<kv::range_list const>, kv::table<float> out, Exec&) const {
    draw(input, out);
  }

 private:
  template <class Input>
  static void draw(Input const& input, kv::table<float> out) {
    std::seed_seq seed{static_cast<std::int64_t>(input.layer.value), input.tokens};
    std::mt19937 source(seed);
    std::uniform_real_distribution<float> chance;
    for (std::int64_t list = 0; list < out.rows; ++list)
      for (std::int64_t t = 0; t < out.columns; ++t) out(list, t) = chance(source);
  }
};

struct random_tokens {
  std::int32_t tokens = 512;
  std::int32_t sinks = 4;
  std::int32_t recent = 32;

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("tokens", p.tokens, "kept of the prompt for each KV head");
    visit("sinks", p.sinks, "first tokens, always kept");
    visit("recent", p.recent, "last tokens of the prompt, always kept");
  }

  constexpr auto parts() const { return kv::retain(by_chance{}, {.tokens = tokens, .sinks = sinks, .recent = recent}); }
};

struct random_late {
  std::int32_t tokens = 512;
  std::int32_t recent = 8;
  std::int32_t every = 128;

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("tokens", p.tokens, "kept of the answer for each KV head at an eviction");
    visit("recent", p.recent, "last tokens, always kept");
    visit("every", p.every, "steps from one eviction to the next");
  }

  constexpr auto parts() const {
    return kv::policy{
        kv::keep{kv::segments::tokens{}, kv::pools::none{}, by_chance{}, kv::budgets::tokens{.count = tokens},
                 kv::selectors::top{}, kv::windows::tokens{.recent = recent, .prompt = true}, kv::triggers::every{every}},
        kv::keep_all{}};
  }
};

KVPOLICY_PLUGIN(kv::named<random_tokens>("random", "the first and the recent tokens of a prompt, and others at random"),
                kv::named<random_late>("random_late", "a prompt, the recent tokens of its answer, and others at random"))
