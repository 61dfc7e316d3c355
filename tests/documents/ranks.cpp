// The snippet of docs/ranks.md, as the page has it: compiled, not run.
#include <kvpolicy/exec/ranked.hpp>
#include <kvpolicy/exec/simd.hpp>
#include <kvpolicy/interop/mpi.hpp>
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

void ranks(kv::strided_view<> const& part, kv::presets::chess const& policy, kv::prompt_signals const& prompt,
           kv::step_signals const& step, float entropy_from_the_last_stage, bool const& decoding,
           void (*attend)(std::int64_t layer, kv::selection const& kept));
void ranks(kv::strided_view<> const& part, kv::presets::chess const& policy, kv::prompt_signals const& prompt,
           kv::step_signals const& step, float entropy_from_the_last_stage, bool const& decoding,
           void (*attend)(std::int64_t layer, kv::selection const& kept)) {
  kv::mpi_communicator all(MPI_COMM_WORLD, std::chrono::seconds(30));
  kv::ranked<kv::simd_exec, kv::mpi_communicator> exec(all, kv::shape_of(part));
  auto state = kv::start(policy, kv::shape_of(part));
  for (std::int64_t l = 0; l < part.shape().layers; ++l) state.prefill(part, {l}, prompt, exec);
  while (decoding) {
    for (std::int64_t l = 0; l < part.shape().layers; ++l) attend(l, state.choose(part, {l}, step, exec));
    state.observe({.logits = {}, .entropy = entropy_from_the_last_stage}, exec);
  }
}
