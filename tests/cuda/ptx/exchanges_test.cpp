// What lanes give each other, and when they meet.
#include <catch2/catch_test_macros.hpp>

#include <random>

#include "cuda/ptx/text_kernel.hpp"

namespace ptx {
namespace {

/// What each lane ends with in %r2, where %r1 is 100 + its index.
std::vector<std::uint32_t> by_lane(std::string const& body) {
  test_array<std::uint32_t> out(32);
  run_text("add.s32 %r1, %r0, 100;\nmov.u32 %r2, 0;\n" + body + "\nadd.s64 %rd1, %rd0, %rd1;\nst.global.u32 [%rd1], %r2;",
           out.address());
  std::vector<std::uint32_t> made;
  for (std::size_t i = 0; i < out.size(); ++i) made.push_back(out[i]);
  return made;
}

TEST_CASE("a shuffle takes from the lane that it names, within its segment", "[ptx]") {
  struct shuffled {
    char const* mode;
    int by, segment;
  };
  for (auto const& [mode, by, segment] : {shuffled{"up", 3, 32},
                                          {"up", 1, 8},
                                          {"down", 5, 32},
                                          {"down", 2, 16},
                                          {"bfly", 16, 32},
                                          {"bfly", 5, 8},
                                          {"idx", 9, 32},
                                          {"idx", 3, 4}}) {
    bool const up = std::string(mode) == "up";
    int const clamp = (32 - segment) << 8 | (up ? 0 : 31);
    std::string const call = "shfl.sync." + std::string(mode) + ".b32 %r2|%p1, %r1, " + std::to_string(by) + ", " +
                             std::to_string(clamp) + ", -1;\n@!%p1 add.s32 %r2, %r2, 1000;";
    std::vector<std::uint32_t> const got = by_lane(call);
    for (int lane = 0; lane < 32; ++lane) {
      int const begin = lane / segment * segment, within = lane - begin;
      int const wanted = up                            ? within - by
                         : std::string(mode) == "down" ? within + by
                         : std::string(mode) == "bfly" ? within ^ by
                                                       : by;
      bool const in = wanted >= 0 && wanted < segment;
      INFO(call << " lane " << lane);
      REQUIRE(static_cast<int>(got[static_cast<std::size_t>(lane)]) == 100 + (in ? begin + wanted : lane + 1000));
    }
  }
}

TEST_CASE("a ballot has a bit for each lane that votes for it", "[ptx]") {
  REQUIRE(by_lane("and.b32 %r3, %r0, 5;\nsetp.eq.s32 %p1, %r3, 5;\nvote.sync.ballot.b32 %r2, %p1, -1;") ==
          std::vector<std::uint32_t>(32, 0xa0a0a0a0));
}

TEST_CASE("lanes that branched meet again, at a shuffle too", "[ptx]") {
  // Odd lanes go round a loop as often as their index says; then all exchange what they counted.
  auto const got = by_lane(
      "and.b32 %r3, %r0, 1;\nsetp.eq.s32 %p1, %r3, 0;\nmov.u32 %r4, 0;\n@%p1 bra MEET;\nLOOP:\nadd.s32 %r4, %r4, 1;\n"
      "setp.lt.s32 %p2, %r4, %r0;\n@%p2 bra LOOP;\nMEET:\nshfl.sync.bfly.b32 %r2, %r4, 1, 31, -1;");
  for (std::size_t lane = 0; lane < 32; ++lane) REQUIRE(got[lane] == (lane % 2 == 0 ? lane + 1 : 0));
  // The exchange lies before the loop in the text, and half of the warp comes to it later.
  auto const back = by_lane(
      "and.b32 %r3, %r0, 1;\nsetp.eq.s32 %p1, %r3, 1;\n@%p1 bra LATER;\nMEET:\nshfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;\nbra "
      "END;\nLATER:\n"
      "add.s32 %r1, %r1, 1000;\nbra MEET;\nEND:");
  for (std::size_t lane = 0; lane < 32; ++lane) REQUIRE(back[lane] == (lane % 2 == 0 ? lane + 1101 : lane + 99));
}

TEST_CASE("a transposed matrix has rows where columns were", "[ptx]") {
  // Element (row, column) is 8 row + column.
  auto const got = by_lane(
      "mul.lo.s32 %r3, %r0, 2;\nadd.s32 %r4, %r3, 1;\nshl.b32 %r4, %r4, 16;\nor.b32 %r3, %r3, %r4;\n"
      "movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r3;");
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    std::uint32_t const row = lane / 4, column = lane % 4 * 2;
    REQUIRE(got[lane] == ((8 * column + row) | (8 * (column + 1) + row) << 16));
  }
}

TEST_CASE("a product of matrices is the sum over k, in both types", "[ptx]") {
  for (bool const is_half : {true, false}) {
    std::mt19937 random(11);
    std::array<std::array<float, 16>, 16> a;
    std::array<std::array<float, 8>, 16> b, c;
    auto const draw = [&] { return static_cast<float>(static_cast<int>(random() % 33) - 16) / 8; };  // exact in 16 bits
    for (auto& row : a)
      for (float& x : row) x = draw();
    for (auto& row : b)
      for (float& x : row) x = draw();
    for (auto& row : c)
      for (float& x : row) x = draw();
    // The manual's tables of fragments, element by element.
    test_array<std::uint32_t> io(32 * 14);
    for (unsigned lane = 0; lane < 32; ++lane) {
      unsigned const group = lane >> 2, in_group = lane % 4;
      std::array<float, 8> of_a;
      std::array<float, 4> of_b;
      for (unsigned i = 0; i < 8; ++i)
        of_a[i] = a[i < 2 || (i >= 4 && i < 6) ? group : group + 8][in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)];
      for (unsigned i = 0; i < 4; ++i) of_b[i] = b[in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)][group];
      auto const packed = [&](float low, float high) {
        auto const bits = [&](float x) -> std::uint32_t {
          return is_half ? std::bit_cast<std::uint16_t>(static_cast<_Float16>(x)) : std::bit_cast<std::uint32_t>(x) >> 16;
        };
        return bits(low) | bits(high) << 16;
      };
      for (unsigned i = 0; i < 4; ++i) io[lane * 14 + i] = packed(of_a[2 * i], of_a[2 * i + 1]);
      for (unsigned i = 0; i < 2; ++i) io[lane * 14 + 4 + i] = packed(of_b[2 * i], of_b[2 * i + 1]);
      for (unsigned i = 0; i < 4; ++i)
        io[lane * 14 + 6 + i] = std::bit_cast<std::uint32_t>(c[group + (i < 2 ? 0 : 8)][in_group * 2 + (i & 1)]);
    }
    std::string body = "mul.wide.u32 %rd1, %r0, 56;\nadd.s64 %rd1, %rd0, %rd1;\n";
    for (int i = 0; i < 10; ++i)
      body += "ld.global.u32 %r" + std::to_string(10 + i) + ", [%rd1+" + std::to_string(4 * i) + "];\n";
    std::string const type = is_half ? "f16" : "bf16";
    body += "mma.sync.aligned.m16n8k16.row.col.f32." + type + "." + type +
            ".f32 {%r20,%r21,%r22,%r23}, {%r10,%r11,%r12,%r13}, {%r14,%r15}, {%r16,%r17,%r18,%r19};\n";
    for (int i = 0; i < 4; ++i)
      body += "st.global.u32 [%rd1+" + std::to_string(40 + 4 * i) + "], %r" + std::to_string(20 + i) + ";\n";
    run_text(body, io.address());
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (unsigned i = 0; i < 4; ++i) {
        unsigned const row = (lane >> 2) + (i < 2 ? 0 : 8), column = lane % 4 * 2 + (i & 1);
        float wanted = c[row][column];
        for (unsigned k = 0; k < 16; ++k) wanted += a[row][k] * b[k][column];
        REQUIRE(std::bit_cast<float>(io[lane * 14 + 10 + i]) == wanted);
      }
    }
  }
}

}  // namespace
}  // namespace ptx
