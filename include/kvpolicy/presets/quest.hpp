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

struct quest {
  std::int32_t tokens = 512;  ///< read by each KV head at each step, the open page counted as whole
  std::int32_t page = 16;     ///< tokens
  std::int32_t sink_pages = 0;
  std::int32_t recent_pages = 1;  ///< the open page is one of them

  constexpr auto parts() const {
    return policy{
        keep_all{},
        keep{segment::pages{page}, pool::bounds{}, score::upper_bound{}, budget::tokens{tokens}, select::top{},
             window::pages{.size = page, .sink_pages = sink_pages, .recent_pages = recent_pages}, trigger::every_step{}}};
  }
};

static_assert(policy_like<quest> && preset<quest>);

}  // namespace kvpolicy::presets
