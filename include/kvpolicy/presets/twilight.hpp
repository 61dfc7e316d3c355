// Preset twilight: of the pages that could matter most, the fewest tokens that hold a share of the attention (Twilight).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/bounds.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/upper_bound.hpp"
#include "kvpolicy/segments/pages.hpp"
#include "kvpolicy/selectors/pruned_top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/pages.hpp"

namespace kvpolicy::presets {

/// Of the pages that could matter most to this step's query, reads the fewest tokens that hold a share of the attention
/// (Twilight, Lin et al. 2025, arXiv 2502.02770).
struct twilight {
  static constexpr char const* name = "twilight";
  static constexpr char const* source = "of quest's pages, the tokens with most attention (Lin et al. 2025, arXiv 2502.02770)";

  std::int32_t tokens = 512;      ///< tokens that each KV head reads of at each step; the open page counts as whole
  std::optional<double> ratio{};  ///< fraction of the tokens not looked at, 0 to below 1, in place of `tokens`; the paper: .75
  double mass = .85;              ///< p: least share of the attention that is read
  std::int32_t page = 8;          ///< page size, tokens; the paper: 16
  std::int32_t sink_pages = 1;    ///< first pages, always read; the paper: 0
  std::int32_t recent_pages = 1;  ///< last pages, always read; the open page is one
  /// Summary of a page: minima and maxima by channel (the paper), or mean -/+ standard deviation.
  pools::bounds::kind metadata = pools::bounds::kind::mean_deviation;
  group_merge group = group_merge::maximum;  ///< merges the query heads of a KV head, to score pages
  layering layers{};  ///< first layers that read everything, and layers that share one choice; the paper: 2 dense layers

  /// Returns the paper's setting: a quarter of the tokens in pages of 16, of which .85 of the attention is read.
  static constexpr twilight paper() noexcept {
    return {.ratio = .75,
            .page = 16,
            .sink_pages = 0,
            .metadata = pools::bounds::kind::range,
            .group = group_merge::mean,
            .layers = {.dense_first = 2}};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "looked at by each KV head at each step, the open page counted as whole");
    visit("mass", p.mass, "least share of the attention to them that is read, above 0, at most 1");
    page_parameters(p, visit);
    layer_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "a quarter of the tokens, in pages of 16, minima and maxima; the first two layers dense");
  }

  constexpr auto parts() const {
    return policy{keep_all{}, keep{segments::pages{page}, pools::bounds{metadata}, scorers::upper_bound{group},
                                   budgets::tokens{.count = tokens, .ratio = ratio}, selectors::pruned_top{mass},
                                   windows::pages{.size = page, .sink_pages = sink_pages, .recent_pages = recent_pages},
                                   triggers::every_step{}, layers}};
  }
};

static_assert(policy_like<twilight> && preset<twilight>);

}  // namespace kvpolicy::presets
