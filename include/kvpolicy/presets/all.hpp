// Every published method, once: the list that text, tools, the C library and tests read.
#pragma once

#include "kvpolicy/presets/adakv.hpp"
#include "kvpolicy/presets/chess.hpp"
#include "kvpolicy/presets/chunkkv.hpp"
#include "kvpolicy/presets/expected_attention.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/h2o.hpp"
#include "kvpolicy/presets/heterocache.hpp"
#include "kvpolicy/presets/infllm.hpp"
#include "kvpolicy/presets/keydiff.hpp"
#include "kvpolicy/presets/knorm.hpp"
#include "kvpolicy/presets/lagkv.hpp"
#include "kvpolicy/presets/pyramidkv.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/sentencekv.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "kvpolicy/presets/tova.hpp"

namespace kvpolicy::presets {

template <class... Preset>
struct list {
  static constexpr std::size_t size = sizeof...(Preset);
  /// Calls visit(preset with its defaults) for each, in order.
  template <class Visit>
  static constexpr void each(Visit visit) {
    (visit(Preset{}), ...);
  }
};

/// In the order of their documentation.
using all = list<full, chess, heterocache, sentencekv, chunkkv, streaming_llm, h2o, tova, knorm, snapkv, pyramidkv, adakv,
                 keydiff, quest, infllm, expected_attention, lagkv>;

}  // namespace kvpolicy::presets
