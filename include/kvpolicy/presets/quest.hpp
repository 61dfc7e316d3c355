// Preset quest: reads the pages whose keys could matter most to this step's query (Quest).
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

/// Reads the pages whose keys could matter most to this step's query (Tang et al. 2024, arXiv 2406.10774).
/// The defaults keep most answers on small models: small pages, summarised by mean and standard deviation.
struct quest {
  static constexpr char const* name = "quest";
  static constexpr char const* source =
      "pages that could matter most to this step's query (Tang et al. 2024, arXiv 2406.10774)";

  std::int32_t tokens = 512;      ///< token budget: tokens that each KV head reads at each step; the open page counts as whole
  std::optional<double> ratio{};  ///< fraction of the tokens not read, 0 to below 1, in place of `tokens`
  std::int32_t page = 8;          ///< page size, tokens; the paper: 16
  std::int32_t sink_pages = 1;    ///< first pages, always read; the paper: 0
  std::int32_t recent_pages = 1;  ///< last pages, always read; the open page is one
  /// Summary of a page: minima and maxima by channel (the paper), or mean -/+ standard deviation.
  pools::bounds::kind metadata = pools::bounds::kind::mean_deviation;
  group_merge group = group_merge::maximum;  ///< merges the query heads of a KV head; the paper has one query head for each
  layering layers{};       ///< first layers that read everything, and layers that share one choice; the paper: 2 dense layers
  std::int32_t after = 0;  ///< tokens of the answer that the choice waits for, while everything is read
  bool next_step = false;  ///< a choice serves the step after, so that its rows can come from a tier meanwhile

  /// Returns the paper's setting: pages of 16, minima and maxima, the first two layers dense.
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
    page_parameters(p, visit);
    layer_parameters(p, visit);
    waiting_parameters(p, visit);
    next_step_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "pages of 16, minima and maxima, the first two layers dense");
  }

  constexpr auto parts() const {
    return policy{keep_all{after}, keep{segments::pages{page}, pools::bounds{metadata}, scorers::upper_bound{group},
                                        budgets::tokens{.count = tokens, .ratio = ratio}, selectors::top{},
                                        windows::pages{.size = page, .sink_pages = sink_pages, .recent_pages = recent_pages},
                                        triggers::every_step{}, layers, next_step}};
  }
};

static_assert(policy_like<quest> && preset<quest>);

}  // namespace kvpolicy::presets
