// Preset quest: the pages whose keys could matter most to this step's query (Tang et al., 2024, arXiv 2406.10774).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/bounds.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/upper_bound.hpp"
#include "kvpolicy/segments/pages.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/pages.hpp"

namespace kvpolicy::presets {

/// The defaults are the setting that keeps most answers on small models: small pages, mean and spread.
struct quest {
  static constexpr char const* name = "quest";
  static constexpr char const* source =
      "pages that could matter most to this step's query (Tang et al. 2024, arXiv 2406.10774)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  std::int32_t page = 8;
  std::int32_t sink_pages = 1;
  std::int32_t recent_pages = 1;
  pools::bounds::kind metadata = pools::bounds::kind::mean_deviation;
  group_merge group = group_merge::maximum;
  layering layers{};
  std::int32_t after = 0;

  /// The paper's setting: pages of 16, minima and maxima, the first two layers dense.
  static constexpr quest paper() noexcept {
    return {.page = 16,
            .sink_pages = 0,
            .metadata = pools::bounds::kind::range,
            .group = group_merge::mean,
            .layers = {.dense_first = 2}};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "read by each KV head at each step, the open page counted as whole");
    visit("page", p.page, "tokens of a page");
    visit("sink_pages", p.sink_pages, "first pages, always read");
    visit("recent_pages", p.recent_pages, "last pages, always read; the open page is one");
    visit("metadata", p.metadata, "of a page: range (min and max) or spread (mean and std)");
    visit("group", p.group, "of a KV head's query heads: mean or maximum");
    layer_parameters(p, visit);
    waiting_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "pages of 16, minima and maxima, the first two layers dense");
  }

  constexpr auto parts() const {
    return policy{keep_all{after}, keep{segments::pages{page}, pools::bounds{metadata}, scorers::upper_bound{group},
                                        budgets::tokens{.count = tokens, .ratio = ratio}, selectors::top{},
                                        windows::pages{.size = page, .sink_pages = sink_pages, .recent_pages = recent_pages},
                                        triggers::every_step{}, layers}};
  }
};

static_assert(policy_like<quest> && preset<quest>);

}  // namespace kvpolicy::presets
