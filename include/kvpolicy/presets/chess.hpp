// Preset chess: reads one list of pages for the request, chosen coarse to fine and renewed when the model is unsure (CHESS).
#pragma once

#include <limits>

#include "kvpolicy/budgets/fractions.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/hierarchical_mean.hpp"
#include "kvpolicy/scorers/anchor_affinity.hpp"
#include "kvpolicy/segments/hierarchy.hpp"
#include "kvpolicy/selectors/cascade.hpp"
#include "kvpolicy/triggers/any_of.hpp"
#include "kvpolicy/triggers/entropy.hpp"
#include "kvpolicy/triggers/every.hpp"
#include "kvpolicy/windows/pages.hpp"

namespace kvpolicy::presets {

/// Reads one list of pages for the request, chosen coarse to fine and renewed when the model is unsure (CHESS, Fei et al.).
/// The defaults answer most on a small model (docs/results/answers.md). The paper's settings have names.
struct chess {
  static constexpr char const* name = "chess";
  static constexpr char const* source = "hierarchical selection, renewed when the model is unsure (CHESS, Fei et al.)";

  budgets::fractions fractions{.tokens = 512};                  ///< tokens read in all, or fractions of each level
  segments::hierarchy units{.page = 16, .pages_per_chunk = 4};  ///< tokens of a page, N_c pages a chunk, N_g chunks a grid
  std::int32_t sink_pages = 1;                                  ///< first pages, always read
  std::int32_t recent_pages = 3;                                ///< W, last pages: always read, and their mean is the anchor
  bool slides = false;                                          ///< recent pages leave the window between choices; the paper: 1
  float entropy = 2.0f;     ///< threshold of a page's mean entropy, nats; triggers::calibrate() finds a model's own
  float varentropy = 2.0f;  ///< threshold of the entropies' variance within a page, nats squared
  std::int32_t rest = 32;   ///< fewest steps before an unsure page renews the choice; the paper: 0
  bool both = false;        ///< both measures have to exceed their thresholds, in place of either
  /// Steps after which the choice is renewed anyway, which bounds what a step reads; 0, the paper: never.
  std::int32_t every = 256;
  std::int32_t depth = 2;      ///< levels: 1 pages alone, 2 chunks and pages, 3 grids too; the paper: 3
  bool pre_rope = true;        ///< average keys before their rotary embedding; not in the paper
  bool standardised = true;    ///< rank pages by their differences from the mean page; not in the paper
  bool following = true;       ///< a page scores at least as high as the live page before it; not in the paper
  std::int32_t after = 0;      ///< tokens of the answer that the first choice waits for, while everything is read
  bool paper_literal = false;  ///< follow Algorithm 1 to the letter, for comparison

  /// Returns the paper's method: pages of 32, three levels, W = 8.
  /// @param fractions  fractions of the live units of each level
  /// @return the setting
  static constexpr chess of_paper(budgets::fractions const& fractions) noexcept {
    return {.fractions = fractions,
            .units = {.page = 32, .pages_per_chunk = 8},
            .recent_pages = 8,
            .slides = true,
            .rest = 0,
            .both = true,
            .every = 0,
            .depth = 3,
            .pre_rope = false,
            .standardised = false,
            .following = false};
  }
  /// Returns one of the paper's three settings, named by the share of the cache that it keeps; aggressive is the paper's "1%".
  static constexpr chess conservative() noexcept { return of_paper({.grids = .9f, .chunks = .9f, .pages = .9f}); }
  static constexpr chess moderate() noexcept { return of_paper({.grids = .8f, .chunks = .7f, .pages = .7f}); }
  static constexpr chess aggressive() noexcept { return of_paper({.grids = .5f, .chunks = .2f, .pages = .1f}); }
  static constexpr chess paper() noexcept { return aggressive(); }
  /// Returns the paper's baseline for the trigger: the choice is renewed every six pages, whatever the entropy.
  static constexpr chess fixed_interval() noexcept {
    chess made = aggressive();
    made.entropy = made.varentropy = std::numeric_limits<float>::infinity();
    made.every = 192;
    return made;
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("grids", p.fractions.grids, "fraction of grids kept");
    visit("chunks", p.fractions.chunks, "fraction of live chunks kept");
    visit("pages", p.fractions.pages, "fraction of live pages kept");
    visit("tokens", p.fractions.tokens, "tokens to read, in place of the fractions; 0: the fractions");
    visit("page", p.units.page, "tokens of a page");
    visit("pages_per_chunk", p.units.pages_per_chunk, "N_c");
    visit("chunks_per_grid", p.units.chunks_per_grid, "N_g");
    visit("sink_pages", p.sink_pages, "first pages, always read");
    visit("recent_pages", p.recent_pages, "W: last pages, always read, the anchor");
    visit("slides", p.slides, "recent pages leave the window between two choices, and are read no more");
    visit("entropy", p.entropy, "threshold of a page's mean entropy, nats; triggers::calibrate finds a model's own");
    visit("varentropy", p.varentropy, "threshold of its variance, nats squared");
    visit("both", p.both, "both measures have to exceed their thresholds, in place of either");
    visit("rest", p.rest, "the fewest steps between two choices");
    visit("every", p.every, "steps after which the choice is renewed anyway, 0: none");
    visit("depth", p.depth, "levels: 1 pages alone, 2 chunks and pages, 3 with grids");
    visit("pre_rope", p.pre_rope, "pool keys as they were before their rotary embedding");
    visit("standardised", p.standardised, "weigh each channel by its deviation over pages; not in the paper");
    visit("following", p.following, "a page scores at least as high as the page before it; not in the paper");
    visit("paper_literal", p.paper_literal, "Algorithm 1 to the letter, for comparison");
    visit("after", p.after, "tokens of the answer before the first choice; until then every token is read");
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "pages of 32, three levels, the aggressive fractions; calibrate entropy and varentropy first");
    visit("conservative", conservative(), "the paper's (.9, .9, .9)");
    visit("moderate", moderate(), "the paper's (.8, .7, .7)");
    visit("aggressive", aggressive(), "the paper's (.5, .2, .1)");
    visit("fixed_interval", fixed_interval(), "renewed every six pages, the trigger's baseline");
  }

  constexpr auto parts() const {
    return policy{
        keep_all{after},
        keep{units, pools::hierarchical_mean{.pre_rope = pre_rope},
             scorers::anchor_affinity{.recent_pages = recent_pages, .standardised = standardised}, fractions,
             selectors::cascade{.paper_literal = paper_literal, .following = following, .depth = depth},
             windows::pages{.size = units.page, .sink_pages = sink_pages, .recent_pages = recent_pages, .slides = slides},
             triggers::any_of{
                 triggers::every{every},
                 triggers::entropy{.mean = entropy, .variance = varentropy, .page = units.page, .rest = rest, .both = both}}}};
  }
};

static_assert(policy_like<chess> && preset<chess>);

}  // namespace kvpolicy::presets
