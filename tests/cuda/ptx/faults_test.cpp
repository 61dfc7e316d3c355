// Bugs, each of which the interpreter must name; and the runtime that shows a wait that is missing.
#include <cuda_runtime_api.h>
#include <unistd.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <array>
#include <cstdio>

#include "cuda/ptx/text_kernel.hpp"

namespace ptx {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

void wrong(std::string const& body, std::string const& message, std::uint32_t threads = 64) {
  test_array<std::uint32_t> memory(threads);
  INFO(body);
  for (int seed = -1; seed < 8; ++seed) {
    std::optional<std::uint64_t> order;
    if (seed >= 0) order = static_cast<std::uint64_t>(seed);
    REQUIRE_THROWS_MATCHES(run_text(body, memory.address(), threads, order), fault, MessageMatches(ContainsSubstring(message)));
  }
}
void right(std::string const& body, std::uint32_t threads = 64) {
  test_array<std::uint32_t> memory(threads);
  INFO(body);
  for (std::uint64_t seed = 0; seed < 8; ++seed) REQUIRE_NOTHROW(run_text(body, memory.address(), threads, seed));
}

std::string const at_thread = "add.s64 %rd2, %rd0, %rd1;\n";  // %rd2: an element of memory
std::string const at_shared =
    "shl.b32 %r1, %r0, 2;\nmov.u32 %r2, shared;\nadd.s32 %r1, %r1, %r2;\n";  // %r1: a word of shared memory

TEST_CASE("an access beyond its allocation is a fault with its line", "[ptx]") {
  right(at_thread + "ld.global.u32 %r3, [%rd2];");
  wrong(at_thread + "ld.global.u32 %r3, [%rd2+4];", "test:14: out of bounds: thread 63 reads 4 bytes");
  wrong(at_thread + "st.global.u32 [%rd2+-4], %r0;", "out of bounds: thread 0 writes 4 bytes");
  wrong("st.global.u32 [%rd1], %r0;", "no allocation");
  wrong(at_thread + "st.global.v4.u32 [%rd2], {%r0, %r0, %r0, %r0};", "no multiple of the 16 bytes");
  wrong(at_thread + "ld.global.u32 %r3, [%rd2+2];", "no multiple of the 4 bytes");
  wrong(at_shared + "st.shared.u32 [%r1+4], %r0;", "uses byte 256 of 256 bytes of shared memory");
  wrong(at_shared + "st.shared.u32 [%r1+2], %r0;", "no multiple of the 4 bytes");
  wrong("ld.param.u32 %r1, [test_param_0+8];", "at byte 8 of 8 bytes of parameters");
}

TEST_CASE("memory that was freed is no longer there", "[ptx]") {
  std::uint64_t gone = 0;
  {
    test_array<std::uint32_t> memory(64);
    gone = memory.address();
  }
  test_array<std::uint32_t> other(64);
  REQUIRE_THROWS_AS(run_text(at_thread + "ld.global.u32 %r3, [%rd2];", gone), fault);
}

TEST_CASE("lanes that never meet are a fault", "[ptx]") {
  std::string const half = "and.b32 %r3, %r0, 1;\nsetp.eq.s32 %p1, %r3, 0;\n";
  right(half + "bar.sync 0;");
  wrong(half + "@%p1 bar.sync 0;", "a barrier of the block whose guard holds for some lanes");
  wrong(half + "@%p1 bra PAST;\nbar.sync 0;\nPAST:", "divergence: lanes 0xaaaaaaaa");
  wrong("setp.lt.u32 %p1, %r0, 32;\n@%p1 bra PAST;\nbar.sync 0;\nPAST:", "1 of 2 warps returned before a barrier");
  wrong(half + "@%p1 bra PAST;\nbar.warp.sync -1;\nPAST:", "wait for each other");
  wrong(half + "@%p1 bra PAST;\nshfl.sync.idx.b32 %r2, %r0, 0, 31, -1;\nPAST:", "wait for each other");
  wrong(half + "@%p1 bra PAST;\nshfl.sync.idx.b32 %r2, %r0, 0, 31, 0xaaaaaaaa;\nPAST:",
        "a shuffle from a lane that is not there");
  wrong(half + "@%p1 bra PAST;\nbar.warp.sync 1;\nPAST:", "a lane is not among the members that it names");
  right(half + "@%p1 bra PAST;\nbar.warp.sync 0xaaaaaaaa;\nPAST:");
}

TEST_CASE("two threads that use a word with nothing between them are a race", "[ptx]") {
  std::string const other_warp = "xor.b32 %r4, %r1, 128;\n", other_lane = "xor.b32 %r4, %r1, 4;\n";  // whose word %r4 is
  std::string const write = "st.shared.u32 [%r1], %r0;\n", read = "ld.shared.u32 %r5, [%r4];\n";
  std::string const block = "bar.sync 0;\n", warp = "bar.warp.sync -1;\n";
  wrong(at_shared + "ld.shared.u32 %r5, [%r1];", "that no thread of the block wrote");
  wrong(at_shared + "atom.shared.add.u32 %r5, [%r1], 1;", "that no thread of the block wrote");
  right(at_shared + write + "ld.shared.u32 %r5, [%r1];");
  wrong(at_shared + other_lane + write + read, "a read of what another thread wrote");
  right(at_shared + other_lane + write + warp + read);
  wrong(at_shared + other_warp + write + warp + "setp.lt.u32 %p1, %r0, 32;\n@%p1 bra PAST;\n" + read + "PAST:",
        "shared memory");
  right(at_shared + other_warp + write + block + read);
  wrong(at_shared + other_lane + write + warp + read + write, "a write of what another thread reads");
  right(at_shared + other_lane + write + warp + read + warp + write);
  wrong(at_shared + other_warp + write + block + read + warp + write, "a race in shared memory");
  wrong("st.shared.u32 [shared], %r0;", "two threads that write");
  right("st.shared.u32 [shared], 7;");
  right("st.shared.u32 [shared], 7;\nbar.sync 0;\natom.shared.add.u32 %r5, [shared], 1;");
  wrong("st.shared.u32 [shared], 7;\nbar.sync 0;\natom.shared.add.u32 %r5, [shared], 1;\nld.shared.u32 %r6, [shared];",
        "a race");
}

TEST_CASE("what is not executed here is refused with its line", "[ptx]") {
  auto const refused = [](std::string const& body, std::string const& message) {
    REQUIRE_THROWS_MATCHES(run_text(body, 0), std::invalid_argument, MessageMatches(ContainsSubstring(message)));
  };
  refused("tanh.approx.f32 %r1, %r0;", "test:13: the instruction tanh.approx.f32 is not executed here");
  refused("ld.global.v2.u32 {%r1, %r2, %r3}, [%rd0];", "not executed here");
  refused("ld.shared.u16 %h1, [shared];", "not executed here");
  refused("add.s64 %rd2, %rd1, %r0;", "%r0 is of another width");
  refused("bra NOWHERE;", "a branch to 'NOWHERE'");
  refused("mov.u32 %r1, %clock;", "'%clock' is no operand");
}

TEST_CASE("what a launch reads and writes is counted in sectors of 32 bytes, each once", "[ptx]") {
  test_array<std::uint32_t> memory(64);
  counts const sum =
      run_text(at_thread + "ld.global.u32 %r3, [%rd2];\nld.global.u32 %r4, [%rd2];\n@!%p1 st.global.u32 [%rd0], %r3;",
               memory.address(), 64);
  REQUIRE(sum.launches == 1);
  REQUIRE(sum.sectors_read == 8);
  REQUIRE(sum.sectors_written == 1);
  REQUIRE(sum.instructions == 2 * 8);
}

TEST_CASE("what is enqueued is done at a wait, and not before", "[ptx]") {
  cudaStream_t on = nullptr;
  void *device = nullptr, *managed = nullptr;
  REQUIRE(cudaStreamCreate(&on) == cudaSuccess);
  REQUIRE(cudaMalloc(&device, 64) == cudaSuccess);
  REQUIRE(cudaMallocManaged(&managed, 64, cudaMemAttachGlobal) == cudaSuccess);
  int value = 5;
  auto& seen = *static_cast<int*>(managed);
  seen = 0;
  cudaMemcpyAsync(device, &value, sizeof value, cudaMemcpyDefault, on);
  value = 6;  // the copy took what was there at the call
  cudaMemcpyAsync(managed, device, sizeof value, cudaMemcpyDefault, on);
  REQUIRE(seen == 0);
  REQUIRE(cudaStreamSynchronize(on) == cudaSuccess);
  REQUIRE(seen == 5);

  // A graph does its work when it is replayed, with what is there then.
  REQUIRE(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  cudaMemcpyAsync(device, managed, sizeof value, cudaMemcpyDefault, on);
  REQUIRE(cudaMalloc(&managed, 64) == cudaErrorStreamCaptureUnsupported);
  REQUIRE(cudaStreamSynchronize(on) == cudaErrorStreamCaptureUnsupported);
  REQUIRE(cudaPeekAtLastError() == cudaErrorStreamCaptureUnsupported);
  REQUIRE(cudaGetLastError() == cudaErrorStreamCaptureUnsupported);
  REQUIRE(cudaGetLastError() == cudaSuccess);  // once asked, it is forgotten
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  REQUIRE(cudaStreamEndCapture(on, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&step, graph, 0) == cudaSuccess);
  seen = 8;
  REQUIRE(cudaGraphLaunch(step, on) == cudaSuccess);
  int found = 0;
  REQUIRE(cudaMemcpyAsync(&found, device, sizeof found, cudaMemcpyDefault, on) == cudaSuccess);
  REQUIRE(found == 8);
  cudaGraphDestroy(graph), cudaGraphExecDestroy(step), cudaFree(device), cudaFree(managed);
}

/// What this program prints where it runs a hidden test, and whether it passed.
std::pair<std::string, bool> apart(std::string const& test) {
  std::string const command =
      "KVPOLICY_PTX_INITCHECK=1 KVPOLICY_UNPOISONED=1 /proc/" + std::to_string(getpid()) + "/exe '" + test + "' 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string said;
  std::array<char, 512> piece{};
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) said += piece.data();
  return {said, pclose(pipe) == 0};
}

TEST_CASE("planted for the host", "[.planted]") {
  void* device = nullptr;
  REQUIRE(cudaMalloc(&device, 64) == cudaSuccess);
  *static_cast<int volatile*>(device) = 1;
}

TEST_CASE("bugs that are planted in compiled kernels and on the host are found", "[ptx]") {
  for (auto const& [test, message] : {std::pair{"planted for memcheck", "out of bounds: thread 0 writes 4 bytes"},
                                      {"planted for initcheck", "a read of device memory that was never written"},
                                      {"planted for racecheck", "two threads that write"},
                                      {"planted for synccheck", "divergence: lanes 0x55555555"},
                                      {"planted for the host", "ptx: the host used device memory"}}) {
    auto const [said, passed] = apart(test);
    INFO(test << ": " << said);
    REQUIRE_FALSE(passed);
    REQUIRE(said.find(message) != said.npos);
  }
}

}  // namespace
}  // namespace ptx
