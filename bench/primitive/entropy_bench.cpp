// The trigger's look at one step's logits, 49152 of them. They are fresh from the last product, so in the cache.
#include <kvpolicy/primitive/entropy.hpp>

#include "executors.hpp"

namespace kvpolicy::bench {
namespace {

using namespace smollm2;

constexpr std::int64_t vocabulary = 49152;
bool const registered = register_on_each("entropy", vocabulary * 4, [](auto& exec, std::size_t turn) {
  static ring const logits(1, vocabulary, shape.layers * vocabulary * 4);
  benchmark::DoNotOptimize(entropy(std::span(logits.at(turn).data, vocabulary), exec));
});

}  // namespace
}  // namespace kvpolicy::bench
