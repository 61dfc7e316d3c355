// Each arithmetic instruction against its definition, written anew: integers in 128 bits, floats in a wider type.
#include <catch2/catch_test_macros.hpp>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "cuda/ptx/modules.hpp"
#include "cuda/ptx/text_kernel.hpp"

namespace ptx {
namespace {

__extension__ using wide = __int128;
using operands = std::array<std::uint64_t, 4>;

/// What an opcode gives, a thread for each case.
std::vector<std::uint64_t> applied(std::string const& opcode, std::vector<operands> const& cases) {
  operation const* const found = find_operation(opcode);
  INFO(opcode);
  REQUIRE(found != nullptr);
  test_array<std::uint64_t> memory(cases.size() * 5);
  std::string body = "mul.wide.u32 %rd1, %r0, 40;\nadd.s64 %rd1, %rd0, %rd1;\n", call = opcode + " ";
  for (std::size_t i = 0; i < found->widths.size() && found->widths[i] != width::none; ++i) {
    std::string const at = "[%rd1+" + std::to_string(8 * i) + "]", n = std::to_string(2 + i);
    bool const is_bit = found->widths[i] == width::predicate;
    std::string const bits = is_bit ? "32" : std::to_string(8 * static_cast<int>(found->widths[i]));
    std::string const name = bits == "16" ? "%h" + n : bits == "32" ? "%r" + n : "%rd" + n;
    call += (i == 0 ? "" : ", ") + (is_bit ? "%p" + n : name);
    if (i == 0) continue;
    body += "ld.global.b" + bits + " " + name + ", " + at + ";\n";
    if (is_bit) body += "setp.ne.s32 %p" + n + ", " + name + ", 0;\n";
  }
  width const to = found->widths[0];
  body += call + ";\n";
  if (to == width::predicate) body += "selp.b32 %r2, 1, 0, %p2;\n";
  body += to == width::b16   ? "st.global.b16 [%rd1], %h2;"
          : to == width::b64 ? "st.global.b64 [%rd1], %rd2;"
                             : "st.global.b32 [%rd1], %r2;";
  for (std::size_t i = 0; i < cases.size(); ++i) {
    memory[5 * i] = 0;
    for (std::size_t k = 0; k < 4; ++k) memory[5 * i + 1 + k] = cases[i][k];
  }
  run_text(body, memory.address(), static_cast<std::uint32_t>(cases.size()));
  std::vector<std::uint64_t> results;
  for (std::size_t i = 0; i < cases.size(); ++i) results.push_back(memory[5 * i]);
  return results;
}

template <class T>
std::uint64_t bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T>
T value_of(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
bool same(std::uint64_t a, std::uint64_t b) {
  if constexpr (std::is_floating_point_v<T>)
    if (std::isnan(value_of<T>(a)) && std::isnan(value_of<T>(b))) return true;
  return a == b;
}

/// Values at which definitions differ, paired with each other.
template <class T>
std::vector<T> values() {
  using of = std::numeric_limits<T>;
  if constexpr (std::is_floating_point_v<T>)
    return {0,
            T(-0.0),
            1,
            -1,
            T(.3),
            T(-1.7),
            T(2.5),
            T(-3.5),
            of::denorm_min(),
            of::min() / 2,
            of::max(),
            of::infinity(),
            -of::infinity(),
            of::quiet_NaN(),
            T(16777215),
            T(1e-30)};
  else return {0, 1, 2, 3, 5, 8, 31, 32, 33, T(-1), T(-2), T(-7), of::min(), of::max(), T(of::max() / 3), T(of::min() + 100)};
}
template <class T>
std::vector<operands> pairs() {
  std::vector<operands> made;
  std::vector<T> const all = values<T>();
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t k = 0; k < all.size(); ++k)
      made.push_back({bits_of(all[i]), bits_of(all[k]), bits_of(all[(i + k) % all.size()]), (i + k) % 2});
  return made;
}

class definitions {
 public:
  std::set<std::string> seen;

  /// `expected` takes sources of type S and gives a D.
  template <class D, class S, class F>
  void are(std::string const& opcode, std::vector<operands> const& cases, F expected) {
    std::vector<std::uint64_t> const got = applied(opcode, cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      std::uint64_t const wanted =
          bits_of<D>(expected(value_of<S>(cases[i][0]), value_of<S>(cases[i][1]), value_of<S>(cases[i][2]), cases[i]));
      if (same<D>(got[i], wanted)) continue;
      FAIL(opcode << " of " << std::hex << cases[i][0] << ", " << cases[i][1] << ", " << cases[i][2] << ": " << got[i]
                  << ", not " << wanted);
    }
    seen.insert(opcode);
  }
  /// One case with its result, as bits.
  template <class D = std::uint64_t>
  void is(std::string const& opcode, operands const& sources, std::uint64_t wanted) {
    std::uint64_t const got = applied(opcode, {sources})[0];
    INFO(opcode << " of " << std::hex << sources[0] << ", " << sources[1] << ": " << got << ", not " << wanted);
    REQUIRE(same<D>(got, wanted));
    seen.insert(opcode);
  }

  template <class T>
  void integers(std::string const& type) {
    constexpr int size = sizeof(T) * 8;
    auto const two = [&](std::string const& name, auto expected) {
      are<T, T>(name + "." + type, pairs<T>(),
                [&](wide a, wide b, wide c, operands const&) { return static_cast<T>(expected(a, b, c)); });
    };
    two("add", [](wide a, wide b, wide) { return a + b; });
    two("sub", [](wide a, wide b, wide) { return a - b; });
    two("mul.lo", [](wide a, wide b, wide) { return a * b; });
    two("mad.lo", [](wide a, wide b, wide c) {
      return static_cast<wide>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b)) + c;
    });
    two("min", [](wide a, wide b, wide) { return a < b ? a : b; });
    two("max", [](wide a, wide b, wide) { return a < b ? b : a; });
    two("div", [](wide a, wide b, wide) { return b == 0 ? wide{-1} : a / b; });
    two("rem", [](wide a, wide b, wide) { return b == 0 ? a : a % b; });
    are<T, T>("shr." + type, pairs<T>(), [](wide a, wide, wide, operands const& from) {
      auto const by = static_cast<std::uint32_t>(from[1]);
      return static_cast<T>(a >> (by < 100 ? by : 100));
    });
    if constexpr (std::is_signed_v<T>) {
      two("neg", [](wide a, wide, wide) { return -a; });
      two("abs", [](wide a, wide, wide) { return a < 0 ? -a : a; });
    }
    if constexpr (size == 32) {
      using twice = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
      are<twice, T>("mul.wide." + type, pairs<T>(),
                    [](wide a, wide b, wide, operands const&) { return static_cast<twice>(a * b); });
      two("mul.hi", [](wide a, wide b, wide) { return static_cast<twice>(a * b) >> 32; });
    }
  }
  template <class T>
  void bits(std::string const& size) {
    are<T, T>("and.b" + size, pairs<T>(), [](T a, T b, T, operands const&) { return T(a & b); });
    are<T, T>("or.b" + size, pairs<T>(), [](T a, T b, T, operands const&) { return T(a | b); });
    are<T, T>("xor.b" + size, pairs<T>(), [](T a, T b, T, operands const&) { return T(a ^ b); });
    are<T, T>("not.b" + size, pairs<T>(), [](T a, T, T, operands const&) { return T(T(-1) - a); });
    are<T, T>("shl.b" + size, pairs<T>(), [](T a, T, T, operands const& from) {
      auto const by = static_cast<std::uint32_t>(from[1]);
      return by >= sizeof(T) * 8 ? T{0} : T(wide{a} << by);
    });
    for (std::string const type : {"b", "s", "u", "f"}) {
      are<T, T>("mov." + type + size, pairs<T>(), [](T a, T, T, operands const&) { return a; });
      std::vector<operands> cases = pairs<T>();
      for (operands& one : cases) one[2] = one[3];
      are<T, T>("selp." + type + size, cases, [](T a, T b, T, operands const& from) { return from[2] != 0 ? a : b; });
    }
    are<T, T>("cvta.to.global.u" + size, pairs<T>(), [](T a, T, T, operands const&) { return a; });
  }

  template <class T>
  void comparisons(std::string const& type) {
    auto const one = [&](std::string const& name, bool less, bool equal, bool more, bool unordered) {
      are<std::uint32_t, T>("setp." + name + "." + type, pairs<T>(), [=](T a, T b, T, operands const&) {
        return std::uint32_t{a < b ? less : a == b ? equal : a > b ? more : unordered};
      });
    };
    one("eq", false, true, false, false), one("ne", true, false, true, false);
    one("lt", true, false, false, false), one("le", true, true, false, false);
    one("gt", false, false, true, false), one("ge", false, true, true, false);
    if constexpr (std::is_floating_point_v<T>) {
      one("equ", false, true, false, true), one("neu", true, false, true, true), one("nan", false, false, false, true);
      one("ltu", true, false, false, true), one("leu", true, true, false, true);
      one("gtu", false, false, true, true), one("geu", false, true, true, true);
    }
  }

  template <class T, class W>
  void floats(std::string const& type) {
    auto const two = [&](std::string const& name, auto expected) {
      are<T, T>(name + "." + type, pairs<T>(),
                [&](T a, T b, T c, operands const&) { return static_cast<T>(expected(W{a}, W{b}, W{c})); });
    };
    for (std::string const rn : {"", ".rn"}) {
      two("add" + rn, [](W a, W b, W) { return a + b; });
      two("sub" + rn, [](W a, W b, W) { return a - b; });
      two("mul" + rn, [](W a, W b, W) { return a * b; });
    }
    two("div.rn", [](W a, W b, W) { return a / b; });
    two("fma.rn",
        [](W a, W b, W c) { return static_cast<T>(std::fma(static_cast<T>(a), static_cast<T>(b), static_cast<T>(c))); });
    two("neg", [](W a, W, W) { return -a; });
    two("abs", [](W a, W, W) { return std::signbit(a) ? -a : a; });
    two("sqrt.rn", [](W a, W, W) { return std::sqrt(a); });
    two("rcp.rn", [](W a, W, W) { return 1 / a; });
    two("copysign", [](W a, W b, W) { return std::signbit(a) == std::signbit(b) ? b : -b; });
    // Of both zeros the minimum is -0; where one operand is NaN, the other.
    two("min", [](W a, W b, W) {
      return std::isnan(a) ? b : std::isnan(b) ? a : a < b || (a == b && std::signbit(a)) ? a : b;
    });
    two("max", [](W a, W b, W) {
      return std::isnan(a) ? b : std::isnan(b) ? a : a > b || (a == b && !std::signbit(a)) ? a : b;
    });
  }

  template <class D, class S>
  void between(std::string const& to, std::string const& from) {
    are<D, S>("cvt." + to + "." + from, pairs<S>(), [](S a, S, S, operands const&) { return static_cast<D>(a); });
  }
  template <class S>
  void of_integer(std::string const& from) {
    between<std::uint16_t, S>("u16", from), between<std::int16_t, S>("s16", from), between<std::uint32_t, S>("u32", from);
    between<std::int32_t, S>("s32", from), between<std::uint64_t, S>("u64", from), between<std::int64_t, S>("s64", from);
    are<float, S>("cvt.rn.f32." + from, pairs<S>(),
                  [](S a, S, S, operands const&) { return static_cast<float>(static_cast<long double>(a)); });
    are<double, S>("cvt.rn.f64." + from, pairs<S>(),
                   [](S a, S, S, operands const&) { return static_cast<double>(static_cast<long double>(a)); });
  }
  template <class I, class F>
  void rounded(std::string const& to, std::string const& from) {
    auto const one = [&](std::string const& mode, auto whole) {
      are<I, F>("cvt." + mode + "." + to + "." + from, pairs<F>(), [&](F a, F, F, operands const&) {
        long double const r = whole(static_cast<long double>(a));
        if constexpr (std::is_floating_point_v<I>) return static_cast<I>(r);
        else
          return std::isnan(a)                       ? I{0}
                 : r < std::numeric_limits<I>::min() ? std::numeric_limits<I>::min()
                 : r > std::numeric_limits<I>::max() ? std::numeric_limits<I>::max()
                                                     : static_cast<I>(r);
      });
    };
    one("rzi", [](long double a) { return std::trunc(a); });
    one("rni", [](long double a) { return std::rint(a); });
    one("rmi", [](long double a) { return std::floor(a); });
    one("rpi", [](long double a) { return std::ceil(a); });
  }
};

TEST_CASE("each operation is what its definition says, and the kernels use no other", "[ptx]") {
  definitions d;
  d.integers<std::int32_t>("s32"), d.integers<std::uint32_t>("u32"), d.integers<std::int64_t>("s64"),
      d.integers<std::uint64_t>("u64");
  d.bits<std::uint16_t>("16"), d.bits<std::uint32_t>("32"), d.bits<std::uint64_t>("64");
  d.comparisons<std::int16_t>("s16"), d.comparisons<std::uint16_t>("u16"), d.comparisons<std::uint16_t>("b16");
  d.comparisons<std::int32_t>("s32"), d.comparisons<std::uint32_t>("u32"), d.comparisons<std::uint32_t>("b32");
  d.comparisons<std::int64_t>("s64"), d.comparisons<std::uint64_t>("u64"), d.comparisons<std::uint64_t>("b64");
  d.comparisons<float>("f32"), d.comparisons<double>("f64");
  d.floats<float, double>("f32"), d.floats<double, double>("f64");
  d.of_integer<std::uint16_t>("u16"), d.of_integer<std::int16_t>("s16"), d.of_integer<std::uint32_t>("u32");
  d.of_integer<std::int32_t>("s32"), d.of_integer<std::uint64_t>("u64"), d.of_integer<std::int64_t>("s64");
  d.rounded<std::int32_t, float>("s32", "f32"), d.rounded<std::uint32_t, float>("u32", "f32");
  d.rounded<std::int64_t, float>("s64", "f32"), d.rounded<std::int32_t, double>("s32", "f64");
  d.rounded<float, float>("f32", "f32"), d.rounded<double, double>("f64", "f64");
  d.are<double, float>("cvt.f64.f32", pairs<float>(), [](float a, float, float, operands const&) { return double{a}; });
  d.are<float, double>("cvt.rn.f32.f64", pairs<double>(),
                       [](double a, double, double, operands const&) { return static_cast<float>(a); });

  for (std::uint64_t a : {0, 1})
    for (std::uint64_t b : {0, 1}) {
      d.is("and.pred", {a, b}, a & b), d.is("or.pred", {a, b}, a | b), d.is("xor.pred", {a, b}, a ^ b);
      d.is("not.pred", {a}, 1 - a), d.is("mov.pred", {a}, a);
    }
  d.is("popc.b32", {0xf00f0001}, 9);
  d.is("prmt.b32", {0x33221100, 0x77665584, 0x7531}, 0x77553311);
  d.is("prmt.b32", {0x33221100, 0x77665584, 0x40c8}, 0x8400ff00);  // two bytes, and the signs of two
  d.is("bfi.b32", {0xab, 0x11111111, 8, 8}, 0x1111ab11);
  d.is("bfi.b32", {0xab, 0x11111111, 28, 8}, 0xb1111111);
  d.is("bfi.b32", {0xab, 0x11111111, 8, 0}, 0x11111111);

  auto const f = [](float value) { return bits_of(value); };
  d.is("cvt.sat.f32.f32", {f(1.5F)}, f(1)), d.is("cvt.sat.f32.f32", {f(-2)}, 0), d.is("cvt.sat.f32.f32", {f(.25F)}, f(.25F));
  d.is("cvt.sat.f32.f32", {f(std::nanf(""))}, 0);
  d.is("cvt.f32.f16", {0x3555}, f(.33325195F)), d.is("cvt.f32.f16", {0x0001}, f(5.9604645e-8F)),
      d.is("cvt.f32.f16", {0xfc00}, f(-HUGE_VALF));
  d.is("cvt.rn.f16.f32", {f(65504)}, 0x7bff), d.is("cvt.rn.f16.f32", {f(65520)}, 0x7c00);
  d.is("cvt.rn.f16.f32", {f(2049)}, 0x6800), d.is("cvt.rn.f16.f32", {f(2051)}, 0x6802);  // halves go to even
  d.is("cvt.rn.f16.f32", {f(1e-9F)}, 0);
  d.is("cvt.rn.bf16.f32", {0x3f808000}, 0x3f80), d.is("cvt.rn.bf16.f32", {0x3f818000}, 0x3f82),
      d.is("cvt.rn.bf16.f32", {0x3f808001}, 0x3f81);
  d.is("cvt.rn.bf16.f32", {f(std::numeric_limits<float>::max())}, 0x7f80), d.is("cvt.rn.bf16.f32", {0x7fa00000}, 0x7fff);
  d.is("cvt.rn.f16x2.f32", {f(2051), f(-1)}, 0x6802bc00), d.is("cvt.rn.bf16x2.f32", {f(-2), 0x3f818000}, 0xc0003f82);
  d.is("cvt.f32.bf16", {0xc0a0}, f(-5));
  d.is("ex2.approx.f32", {f(-3)}, f(.125F)), d.is("ex2.approx.f32", {f(-149)}, 1), d.is("ex2.approx.f32", {f(-HUGE_VALF)}, 0);
  d.is("ex2.approx.ftz.f32", {f(5)}, f(32)), d.is("ex2.approx.ftz.f32", {f(-149)}, 0), d.is("ex2.approx.ftz.f32", {1}, f(1));
  d.is("rcp.approx.ftz.f32", {f(-4)}, f(-.25F)), d.is("rcp.approx.ftz.f32", {1}, f(HUGE_VALF)),
      d.is("rcp.approx.ftz.f32", {f(3e38F)}, 0);
  d.is("rcp.approx.ftz.f64", {bits_of(3.0)}, 0x3fd5555500000000);
  // Down: what is beyond the last bit of a float is dropped where it is positive, and taken where it is negative.
  d.is("fma.rm.f32", {f(1), f(1), f(1e-20F)}, f(1)), d.is("fma.rm.f32", {f(1), f(1), f(-1e-20F)}, 0x3f7fffff);
  d.is("fma.rm.f32", {f(16777215), f(16777215), f(-2)}, 0x577ffffd), d.is("fma.rm.f32", {f(3e38F), f(2), f(0)}, 0x7f7fffff);

  // Whatever the kernels of this program use was seen above, or lies in another test.
  std::set<std::string> unseen;
  for (std::string_view const text : all_texts()) {
    for (std::size_t at = text.find(".entry"); at != text.npos && at < text.size();) {
      std::size_t const end = std::min(text.find('\n', at), text.size());
      std::string line(text.substr(at, end - at));
      at = end + 1;
      if (std::size_t const first = line.find_first_not_of("\t {"); first != line.npos) line.erase(0, first);
      if (line.starts_with('@')) line.erase(0, line.find(' ') + 1);
      std::string const opcode = line.substr(0, line.find_first_of(" \t"));
      if (find_operation(opcode) != nullptr && !d.seen.contains(opcode)) unseen.insert(opcode);
    }
  }
  for (std::string const& opcode : unseen) FAIL_CHECK("no case of " << opcode);
  REQUIRE(d.seen.size() > 250);
}

}  // namespace
}  // namespace ptx
