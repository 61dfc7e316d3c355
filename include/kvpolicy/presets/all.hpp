// The list of all presets, which text, tools, the C library and tests read.
#pragma once

#include "kvpolicy/presets/adakv.hpp"
#include "kvpolicy/presets/chess.hpp"
#include "kvpolicy/presets/chunkkv.hpp"
#include "kvpolicy/presets/duoattention.hpp"
#include "kvpolicy/presets/expected_attention.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/h2o.hpp"
#include "kvpolicy/presets/heterocache.hpp"
#include "kvpolicy/presets/infllm.hpp"
#include "kvpolicy/presets/keydiff.hpp"
#include "kvpolicy/presets/knorm.hpp"
#include "kvpolicy/presets/kvzip.hpp"
#include "kvpolicy/presets/lagkv.hpp"
#include "kvpolicy/presets/omnikv.hpp"
#include "kvpolicy/presets/pyramidkv.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/rkv.hpp"
#include "kvpolicy/presets/rocketkv.hpp"
#include "kvpolicy/presets/sentencekv.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "kvpolicy/presets/tova.hpp"
#include "kvpolicy/presets/triattention.hpp"
#include "kvpolicy/presets/twilight.hpp"

namespace kvpolicy::presets {

/// A list of preset types.
template <class... Preset>
struct list {
  static constexpr std::size_t size = sizeof...(Preset);  ///< number of presets
  /// Visits each preset with its defaults, in order.
  /// @param visit  called as visit(preset)
  template <class Visit>
  static constexpr void each(Visit visit) {
    (visit(Preset{}), ...);
  }
};

/// The preset full and every published method, in the order in which text and tools list them.
using all =
    list<full, chess, heterocache, sentencekv, chunkkv, streaming_llm, h2o, tova, knorm, snapkv, pyramidkv, adakv, keydiff,
         quest, infllm, expected_attention, lagkv, duoattention, omnikv, twilight, rkv, triattention, rocketkv, kvzip>;

}  // namespace kvpolicy::presets
