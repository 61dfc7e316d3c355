// SnapKV's scores of a layer, with the preset's window of 16 queries. Bound by arithmetic: keys are read once.
#include <kvpolicy/primitive/window_attention.hpp>

#include "executors.hpp"

namespace kvpolicy::bench {
namespace {

using namespace smollm2;

bool const registered = register_on_each("window_attention", layer_bytes, [](auto& exec, std::size_t turn) {
  static output const scores(shape.kv_heads, shape.max_tokens - 16);
  window_attention(window(16), cache().keys(layer_of(turn)), {.how = smoothing::kind::maximum, .width = 31}, scores, exec);
});

}  // namespace
}  // namespace kvpolicy::bench
