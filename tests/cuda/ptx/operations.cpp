// Arithmetic, comparison and conversion, each written as PTX's manual defines it for one lane.
// Compiled with -fwrapv: integers wrap, as a GPU's do.
#include <bit>
#include <cmath>
#include <concepts>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "cuda/ptx/block.hpp"
#include "cuda/ptx/instruction.hpp"

namespace ptx {

namespace {

template <class T>
constexpr width width_of = sizeof(T) == 2   ? width::b16
                           : sizeof(T) == 4 ? width::b32
                                            : width::b64;

template <class F, class D, class... S>
struct by_lane {
  template <std::size_t... I>
  static void run(warp& on, instruction const& what, lane_mask lanes, std::index_sequence<I...>) {
    // A source may be the destination itself, but they overlap in no other way.
    D* const to = on.values<D>(what.at[0]);
    std::tuple<S const*...> const from{on.values<S>(what.at[I + 1])...};
    if (lanes == all_lanes) {
#pragma GCC ivdep
      for (int lane = 0; lane < warp_size; ++lane) to[lane] = F{}(std::get<I>(from)[lane]...);
    } else {
      for (; lanes != 0; lanes &= lanes - 1) {
        int const lane = std::countr_zero(lanes);
        to[lane] = F{}(std::get<I>(from)[lane]...);
      }
    }
  }
  static void run(warp& on, instruction const& what, lane_mask lanes) { run(on, what, lanes, std::index_sequence_for<S...>{}); }
};

template <class F, class T>
void compare(warp& on, instruction const& what, lane_mask lanes) {
  T const* const a = on.values<T>(what.at[1]);
  T const* const b = on.values<T>(what.at[2]);
  lane_mask found = 0;
  for (int lane = 0; lane < warp_size; ++lane) found |= static_cast<lane_mask>(F{}(a[lane], b[lane])) << lane;
  lane_mask& to = on.predicate(what.at[0]);
  to = (to & ~lanes) | (found & lanes);
}
template <class T>
void select(warp& on, instruction const& what, lane_mask lanes) {
  T* const to = on.values<T>(what.at[0]);
  T const* const a = on.values<T>(what.at[1]);
  T const* const b = on.values<T>(what.at[2]);
  lane_mask const first = on.predicate(what.at[3]);
  for (int lane = 0; lane < warp_size; ++lane) {
    T const chosen = (first >> lane & 1) != 0 ? a[lane] : b[lane];
    to[lane] = (lanes >> lane & 1) != 0 ? chosen : to[lane];
  }
}
template <class F>
void combine(warp& on, instruction const& what, lane_mask lanes) {
  lane_mask& to = on.predicate(what.at[0]);
  to = (to & ~lanes) | (F{}(on.predicate(what.at[1]), on.predicate(what.at[2])) & lanes);
}

/// A register of the second width from neighbours of the first, the lowest first, and back.
template <class Part, class Whole>
void pack(warp& on, instruction const& what, lane_mask lanes) {
  for (; lanes != 0; lanes &= lanes - 1) {
    int const lane = std::countr_zero(lanes);
    Part const low = on.values<Part>(what.at[1])[lane], high = on.values<Part>(what.at[2])[lane];
    on.values<Whole>(what.at[0])[lane] = static_cast<Whole>(Whole{high} << sizeof(Part) * 8 | low);
  }
}
template <class Part, class Whole>
void unpack(warp& on, instruction const& what, lane_mask lanes) {
  for (; lanes != 0; lanes &= lanes - 1) {
    int const lane = std::countr_zero(lanes);
    Whole const whole = on.values<Whole>(what.at[2])[lane];
    on.values<Part>(what.at[0])[lane] = static_cast<Part>(whole);
    on.values<Part>(what.at[1])[lane] = static_cast<Part>(whole >> sizeof(Part) * 8);
  }
}

/// Opcodes and what they do, filled once.
class table {
 public:
  table() {
    integers<std::int32_t, std::uint32_t>("32");
    integers<std::int64_t, std::uint64_t>("64");
    floats<float>("f32");
    floats<double>("f64");
    bits<std::uint16_t>("16");
    bits<std::uint32_t>("32");
    bits<std::uint64_t>("64");
    comparisons<std::int16_t>("s16"), comparisons<std::uint16_t>("u16"), comparisons<std::uint16_t>("b16");
    comparisons<std::int32_t>("s32"), comparisons<std::uint32_t>("u32"), comparisons<std::uint32_t>("b32");
    comparisons<std::int64_t>("s64"), comparisons<std::uint64_t>("u64"), comparisons<std::uint64_t>("b64");
    comparisons<float>("f32"), comparisons<double>("f64");
    conversions();
    approximations();

    add("mul.wide.s32", [](std::int32_t a, std::int32_t b) { return std::int64_t{a} * b; });
    add("mul.wide.u32", [](std::uint32_t a, std::uint32_t b) { return std::uint64_t{a} * b; });
    add("mul.hi.s32", [](std::int32_t a, std::int32_t b) { return static_cast<std::int32_t>((std::int64_t{a} * b) >> 32); });
    add("mul.hi.u32",
        [](std::uint32_t a, std::uint32_t b) { return static_cast<std::uint32_t>((std::uint64_t{a} * b) >> 32); });
    add("popc.b32", [](std::uint32_t a) { return static_cast<std::uint32_t>(std::popcount(a)); });
    add("prmt.b32", permute);
    add("bfi.b32", insert);
    predicates("and.pred", [](lane_mask a, lane_mask b) { return a & b; });
    predicates("or.pred", [](lane_mask a, lane_mask b) { return a | b; });
    predicates("xor.pred", [](lane_mask a, lane_mask b) { return a ^ b; });
    predicates(
        "not.pred", [](lane_mask a, lane_mask) { return ~a; }, width::none);
    predicates(
        "mov.pred", [](lane_mask a, lane_mask) { return a; }, width::none);
  }

  std::map<std::string, operation, std::less<>> const& operations() const { return operations_; }

 private:
  template <class F>
  void add(std::string const& opcode, F each) {
    add_as(opcode, each, &F::operator());
  }
  template <class F, class D, class... S>
  void add_as(std::string const& opcode, F, D (F::*)(S...) const) {
    operations_[opcode] = {by_lane<F, D, S...>::run, {width_of<D>, width_of<S>...}};
  }
  template <class F>
  void predicates(std::string const& opcode, F, width second = width::predicate) {
    operations_[opcode] = {combine<F>, {width::predicate, width::predicate, second}};
  }

  template <class S, class U>
  void integers(std::string const& size) {
    for (std::string const& type : {"s" + size, "u" + size}) {
      add("add." + type, [](U a, U b) { return a + b; });
      add("sub." + type, [](U a, U b) { return a - b; });
      add("mul.lo." + type, [](U a, U b) { return a * b; });
      add("mad.lo." + type, [](U a, U b, U c) { return a * b + c; });
    }
    order<S>("s" + size), order<U>("u" + size);
    add("neg.s" + size, [](S a) { return -a; });
    add("abs.s" + size, [](S a) { return a < 0 ? -a : a; });
    add("shr.s" + size, [](S a, std::uint32_t by) { return a >> (by < sizeof(S) * 8 ? by : sizeof(S) * 8 - 1); });
    add("shr.u" + size, [](U a, std::uint32_t by) { return by < sizeof(U) * 8 ? a >> by : U{0}; });
  }
  /// By zero PTX leaves the result open; GPUs give all ones.
  template <class T>
  void order(std::string const& type) {
    add("min." + type, [](T a, T b) { return a < b ? a : b; });
    add("max." + type, [](T a, T b) { return a > b ? a : b; });
    add("div." + type, [](T a, T b) { return b == 0 ? static_cast<T>(~T{0}) : negates(b) ? static_cast<T>(-a) : a / b; });
    add("rem." + type, [](T a, T b) { return b == 0 ? a : negates(b) ? T{0} : a % b; });
  }
  template <class T>
  static bool negates(T by) {
    return std::is_signed_v<T> && by == static_cast<T>(-1);
  }

  template <class T>
  void bits(std::string const& size) {
    add("and.b" + size, [](T a, T b) { return static_cast<T>(a & b); });
    add("or.b" + size, [](T a, T b) { return static_cast<T>(a | b); });
    add("xor.b" + size, [](T a, T b) { return static_cast<T>(a ^ b); });
    add("not.b" + size, [](T a) { return static_cast<T>(~a); });
    add("shl.b" + size, [](T a, std::uint32_t by) { return by < sizeof(T) * 8 ? static_cast<T>(a << by) : T{0}; });
    for (char const type : {'b', 's', 'u', 'f'}) {
      add(std::string("mov.") + type + size, [](T a) { return a; });
      operations_[std::string("selp.") + type + size] = {select<T>, {width_of<T>, width_of<T>, width_of<T>, width::predicate}};
    }
    add("cvta.to.global.u" + size, [](T a) { return a; });
  }

  template <class T>
  void floats(std::string const& type) {
    add("add." + type, [](T a, T b) { return a + b; });
    add("sub." + type, [](T a, T b) { return a - b; });
    add("mul." + type, [](T a, T b) { return a * b; });
    add("div." + type, [](T a, T b) { return a / b; });
    add("fma." + type, [](T a, T b, T c) { return std::fma(a, b, c); });
    add("neg." + type, [](T a) { return -a; });
    add("abs." + type, [](T a) { return std::fabs(a); });
    add("sqrt." + type, [](T a) { return std::sqrt(a); });
    add("rcp." + type, [](T a) { return T{1} / a; });
    // One NaN gives the other operand; -0 is below +0.
    add("min." + type, [](T a, T b) { return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b; });
    add("max." + type, [](T a, T b) { return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b; });
    // The sign is the first operand's.
    add("copysign." + type, [](T a, T b) { return std::copysign(b, a); });
  }

  template <class T>
  void comparisons(std::string const& type) {
    auto const one = [&]<class F>(char const* name, F) {
      operations_[std::string("setp.") + name + "." + type] = {compare<F, T>, {width::predicate, width_of<T>, width_of<T>}};
    };
    one("eq", [](T a, T b) { return a == b; });
    one("ne", [](T a, T b) { return a < b || a > b; });
    one("lt", [](T a, T b) { return a < b; });
    one("le", [](T a, T b) { return a <= b; });
    one("gt", [](T a, T b) { return a > b; });
    one("ge", [](T a, T b) { return a >= b; });
    if constexpr (std::is_floating_point_v<T>) {  // true where an operand is NaN
      one("equ", [](T a, T b) { return !(a < b || a > b); });
      one("neu", [](T a, T b) { return !(a == b); });
      one("ltu", [](T a, T b) { return !(a >= b); });
      one("leu", [](T a, T b) { return !(a > b); });
      one("gtu", [](T a, T b) { return !(a <= b); });
      one("geu", [](T a, T b) { return !(a < b); });
      one("nan", [](T a, T b) { return a != a || b != b; });
    }
  }

  template <class D, class S>
  void between(std::string const& to, std::string const& from) {
    add("cvt." + to + "." + from, [](S a) { return static_cast<D>(a); });
    add("cvt." + to + "." + from + " of b64", [](std::uint64_t a) { return static_cast<D>(static_cast<S>(a)); });
  }
  template <class I>
  void of_integer(std::string const& type) {
    between<std::uint16_t, I>("u16", type), between<std::int16_t, I>("s16", type);
    between<std::uint32_t, I>("u32", type), between<std::int32_t, I>("s32", type);
    between<std::uint64_t, I>("u64", type), between<std::int64_t, I>("s64", type);
    add("cvt.rn.f32." + type, [](I a) { return static_cast<float>(a); });
    add("cvt.rn.f64." + type, [](I a) { return static_cast<double>(a); });
  }
  /// NaN gives 0, and what the integer can't hold its nearest limit.
  template <class I, class F>
  static I clamped(F whole) {
    F const limit = std::ldexp(F{1}, std::numeric_limits<I>::digits);
    if (whole != whole) return 0;
    if (whole >= limit) return std::numeric_limits<I>::max();
    if (whole <= (std::is_signed_v<I> ? -limit : F{0})) return std::numeric_limits<I>::min();
    return static_cast<I>(whole);
  }
  template <class F>
  void of_float(std::string const& type) {
    auto const rounded = [&]<class R>(char const* mode, R) {
      add("cvt." + std::string(mode) + "." + type + "." + type, [](F a) { return static_cast<F>(R{}(a)); });
      std::string const ending = "." + type;
      add("cvt." + std::string(mode) + ".s32" + ending, [](F a) { return clamped<std::int32_t>(static_cast<F>(R{}(a))); });
      add("cvt." + std::string(mode) + ".u32" + ending, [](F a) { return clamped<std::uint32_t>(static_cast<F>(R{}(a))); });
      add("cvt." + std::string(mode) + ".s64" + ending, [](F a) { return clamped<std::int64_t>(static_cast<F>(R{}(a))); });
      add("cvt." + std::string(mode) + ".u64" + ending, [](F a) { return clamped<std::uint64_t>(static_cast<F>(R{}(a))); });
    };
    rounded("rni", [](F a) { return std::nearbyint(a); });
    rounded("rzi", [](F a) { return std::trunc(a); });
    rounded("rmi", [](F a) { return std::floor(a); });
    rounded("rpi", [](F a) { return std::ceil(a); });
  }
  static std::uint16_t f16(float a) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(a)); }
  static std::uint16_t bf16(float a) {
    auto const bits = std::bit_cast<std::uint32_t>(a);
    return static_cast<std::uint16_t>(a != a ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  void conversions() {
    of_integer<std::uint16_t>("u16"), of_integer<std::int16_t>("s16");
    of_integer<std::uint32_t>("u32"), of_integer<std::int32_t>("s32");
    of_integer<std::uint64_t>("u64"), of_integer<std::int64_t>("s64");
    of_float<float>("f32"), of_float<double>("f64");
    add("cvt.f64.f32", [](float a) { return double{a}; });
    add("cvt.rn.f32.f64", [](double a) { return static_cast<float>(a); });
    add("cvt.sat.f32.f32", [](float a) { return a > 0 ? (a < 1 ? a : 1.0F) : 0.0F; });
    add("cvt.f32.f16", [](std::uint16_t a) { return static_cast<float>(std::bit_cast<_Float16>(a)); });
    add("cvt.rn.f16.f32", [](float a) { return f16(a); });
    add("cvt.rn.f16x2.f32", [](float high, float low) { return std::uint32_t{f16(high)} << 16 | f16(low); });
    add("cvt.rn.bf16x2.f32", [](float high, float low) { return std::uint32_t{bf16(high)} << 16 | bf16(low); });
    add("cvt.f32.bf16", [](std::uint16_t a) { return std::bit_cast<float>(std::uint32_t{a} << 16); });
    add("cvt.rn.bf16.f32", [](float a) { return bf16(a); });
  }

  static float flushed(float a) { return std::fabs(a) < std::numeric_limits<float>::min() ? std::copysign(0.0F, a) : a; }
  void approximations() {
    add("ex2.approx.f32", [](float a) { return static_cast<float>(std::exp2(double{a})); });
    add("ex2.approx.ftz.f32", [](float a) { return flushed(static_cast<float>(std::exp2(double{flushed(a)}))); });
    add("rcp.approx.ftz.f32", [](float a) { return flushed(1 / flushed(a)); });
    // The lower half of the result is zero.
    add("rcp.approx.ftz.f64",
        [](double a) { return std::bit_cast<double>(std::bit_cast<std::uint64_t>(1 / a) & 0xffffffff00000000ull); });
    // The sum of product and addend as two doubles, exact, says on which side of it the nearest float lies.
    add("fma.rm.f32", [](float a, float b, float c) {
      float const nearest = std::fma(a, b, c);
      double const product = double{a} * b, sum = product + c, of_c = sum - product;
      double const rest = (product - (sum - of_c)) + (c - of_c);
      return double{nearest} - sum > rest ? std::nextafter(nearest, -std::numeric_limits<float>::infinity()) : nearest;
    });
  }

  /// A byte of eight for each of four selectors, or its sign.
  static constexpr auto permute = [](std::uint32_t a, std::uint32_t b, std::uint32_t selectors) {
    std::uint64_t const bytes = std::uint64_t{b} << 32 | a;
    std::uint32_t made = 0;
    for (int one = 0; one < 4; ++one) {
      std::uint32_t const selector = selectors >> (4 * one) & 15;
      auto byte = static_cast<std::uint8_t>(bytes >> (8 * (selector & 7)));
      if ((selector & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
      made |= std::uint32_t{byte} << (8 * one);
    }
    return made;
  };
  /// `count` bits of `a` in place of those of `b` from `first`.
  static constexpr auto insert = [](std::uint32_t a, std::uint32_t b, std::uint32_t first, std::uint32_t count) {
    first &= 255, count &= 255;
    if (first > 31 || count == 0) return b;
    std::uint32_t const ones = (count > 31 ? ~0U : (1U << count) - 1) << first;
    return (b & ~ones) | (a << first & ones);
  };

  std::map<std::string, operation, std::less<>> operations_;
};

}  // namespace

operation const* find_operation(std::string_view opcode) {
  static table const all;
  // Round-to-nearest is the default of f32 and f64 arithmetic.
  std::string plain(opcode);
  if (std::size_t const at = plain.find(".rn."); at != plain.npos && !plain.starts_with("cvt")) plain.erase(at, 3);
  auto const found = all.operations().find(plain);
  return found == all.operations().end() ? nullptr : &found->second;
}

action find_regrouping(width whole, bool packs) {
  if (whole == width::b32) return packs ? pack<std::uint16_t, std::uint32_t> : unpack<std::uint16_t, std::uint32_t>;
  if (whole == width::b64) return packs ? pack<std::uint32_t, std::uint64_t> : unpack<std::uint32_t, std::uint64_t>;
  return nullptr;
}

}  // namespace ptx
