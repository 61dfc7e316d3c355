// A baseline that a policy has to beat: of a prompt the first tokens stay, the recent ones, and others at random.
#include <kvpolicy/compose.hpp>
#include <kvpolicy/text/plugin.hpp>

#include <random>

namespace kv = kvpolicy;

/// Scores at random: other tokens in each layer and KV head, the same ones in each run.
struct by_chance {
  static constexpr kv::signals needs = kv::signals::none;
  static constexpr kv::scope granularity = kv::scope::head;
  static constexpr kv::scored of = kv::scored::tokens;
  static constexpr kv::no_memory start(kv::cache_shape const&) noexcept { return {}; }

  template <class Input, kv::executor Exec>
  void score(Input const& input, kv::table<float> out, Exec&) const {
    std::mt19937 source(static_cast<std::uint32_t>(input.layer.value));
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

KVPOLICY_PLUGIN(kv::named<random_tokens>("random", "the first and the recent tokens of a prompt, and others at random"))
