// A policy with parameters: quest's pages, as many for each head and step as its query looks at, in place of a fixed number.
#include <kvpolicy/budgets/mass.hpp>
#include <kvpolicy/presets/quest.hpp>
#include <kvpolicy/text/plugin.hpp>

namespace kv = kvpolicy;

struct quest_by_mass {
  double eps = .05;
  std::int32_t least = 64;
  std::int32_t most = 1024;

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("eps", p.eps, "share of a head's attention that its pages may leave out, as their bounds see it");
    visit("least", p.least, "tokens that every head reads");
    visit("most", p.most, "tokens that no head reads more of");
  }

  constexpr auto parts() const {
    auto const of = kv::presets::quest{}.parts().retrieve;
    kv::budgets::mass const by_mass{.eps = eps, .of_scores = kv::budgets::mass::kind::logits, .least = least, .most = most};
    return kv::policy{kv::keep_all{}, kv::keep{of.segment, of.pool, of.score, by_mass, of.select, of.window, of.trigger}};
  }
};

KVPOLICY_PLUGIN(kv::named<quest_by_mass>("quest_by_mass", "quest's pages, as many as hold all but eps of the attention"))
