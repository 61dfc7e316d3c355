// Preset quest: the pages whose keys could matter most to this step's query (Tang et al., 2024, arXiv 2406.10774).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/bounds.hpp"
#include "kvpolicy/score/upper_bound.hpp"
#include "kvpolicy/segment/pages.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/window/pages.hpp"

namespace kvpolicy::presets {

/// The defaults are the setting that keeps most answers on small models: small pages, mean and spread.
struct quest {
  std::int32_t tokens = 512;      ///< read by each KV head at each step, the open page counted as whole
  std::optional<double> ratio{};  ///< fraction not read, in place of `tokens`
  std::int32_t page = 8;          ///< tokens
  std::int32_t sink_pages = 1;
  std::int32_t recent_pages = 1;                             ///< the open page is one of them
  pool::bounds::kind metadata = pool::bounds::kind::spread;  ///< of a page's keys: minima and maxima, or mean and spread
  group_merge group = group_merge::maximum;                  ///< how the query heads of a KV head are merged
  layering layers{};

  /// The paper's setting: pages of 16, minima and maxima, the first two layers dense.
  static constexpr quest paper() noexcept {
    return {.page = 16,
            .sink_pages = 0,
            .metadata = pool::bounds::kind::range,
            .group = group_merge::mean,
            .layers = {.dense_first = 2}};
  }

  constexpr auto parts() const {
    return policy{keep_all{}, keep{segment::pages{page}, pool::bounds{metadata}, score::upper_bound{group},
                                   budget::tokens{.count = tokens, .ratio = ratio}, select::top{},
                                   window::pages{.size = page, .sink_pages = sink_pages, .recent_pages = recent_pages},
                                   trigger::every_step{}, layers}};
  }
};

static_assert(policy_like<quest> && preset<quest>);

}  // namespace kvpolicy::presets
