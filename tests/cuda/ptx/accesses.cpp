// Loads, stores and atomic additions.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "cuda/ptx/block.hpp"
#include "cuda/ptx/instruction.hpp"

namespace ptx {

namespace {

template <class Each>
void for_lanes(lane_mask lanes, Each each) {
  for (; lanes != 0; lanes &= lanes - 1) each(std::countr_zero(lanes));
}

/// @tparam M an element in memory
/// @tparam R the register's integer, to which an element is extended by its own sign
template <class M, class R>
struct accesses {
  static void load(warp& by, instruction const& what, lane_mask lanes) {
    auto const from = by.on->reach(by, what, what.at[what.parts], lanes, sizeof(M) * what.parts, false);
    for (std::uint32_t part = 0; part < what.parts; ++part) {
      R* const to = by.values<R>(what.at[part]);
      for_lanes(lanes, [&](int lane) { to[lane] = element(from[static_cast<std::size_t>(lane)], part); });
    }
  }
  static void store(warp& by, instruction const& what, lane_mask lanes) {
    auto const to = by.on->reach(by, what, what.at[0], lanes, sizeof(M) * what.parts, true);
    for (std::uint32_t part = 0; part < what.parts; ++part) {
      R const* const from = by.values<R>(what.at[1 + part]);
      for_lanes(lanes, [&](int lane) {
        auto const value = static_cast<M>(from[lane]);
        std::memcpy(to[static_cast<std::size_t>(lane)] + part * sizeof(M), &value, sizeof(M));
      });
    }
  }

  static void load_parameter(warp& by, instruction const& what, lane_mask lanes) {
    auto const* const address = by.values<std::int64_t>(what.at[what.parts]);
    for_lanes(lanes, [&](int lane) {
      std::byte const* const from = by.on->parameters(address[lane] + what.offset, sizeof(M) * what.parts);
      for (std::uint32_t part = 0; part < what.parts; ++part) by.values<R>(what.at[part])[lane] = element(from, part);
    });
  }

  static void load_shared(warp& by, instruction const& what, lane_mask lanes) {
    shared_memory& shared = by.on->shared();
    for_lanes(lanes, [&](int lane) {
      std::uint32_t const bytes = sizeof(M) * what.parts;
      std::uint32_t const address = by.on->shared_address(by, what, what.at[what.parts], lane, bytes);
      for (std::uint32_t at = address; at < address + bytes; at += 4)
        shared.use_word(at, shared_memory::use::read, by.user(lane));
      for (std::uint32_t part = 0; part < what.parts; ++part)
        by.values<R>(what.at[part])[lane] = element(shared.data() + address, part);
    });
  }
  static void store_shared(warp& by, instruction const& what, lane_mask lanes) {
    shared_memory& shared = by.on->shared();
    for_lanes(lanes, [&](int lane) {
      std::uint32_t address = by.on->shared_address(by, what, what.at[0], lane, sizeof(M) * what.parts);
      for (std::uint32_t part = 0; part < what.parts; ++part, address += sizeof(M)) {
        auto const value = static_cast<M>(by.values<R>(what.at[1 + part])[lane]);
        std::array<std::uint32_t, sizeof(M) / 4> words;
        std::memcpy(words.data(), &value, sizeof(M));
        for (std::uint32_t i = 0; i < words.size(); ++i)
          shared.use_word(address + 4 * i, shared_memory::use::write, by.user(lane), words[i]);
        std::memcpy(shared.data() + address, &value, sizeof(M));
      }
    });
  }

 private:
  static R element(std::byte const* from, std::uint32_t index) {
    M value;
    std::memcpy(&value, from + index * sizeof(M), sizeof(M));
    return static_cast<R>(value);
  }
};

void add_shared(warp& by, instruction const& what, lane_mask lanes) {
  for_lanes(lanes, [&](int lane) {
    std::uint32_t const address = by.on->shared_address(by, what, what.at[1], lane, 4);
    by.on->shared().use_word(address, shared_memory::use::add, by.user(lane));
    std::uint32_t had;
    std::memcpy(&had, by.on->shared().data() + address, 4);
    std::uint32_t const sum = had + by.values<std::uint32_t>(what.at[2])[lane];
    std::memcpy(by.on->shared().data() + address, &sum, 4);
    by.values<std::uint32_t>(what.at[0])[lane] = had;
  });
}
void add_global(warp& by, instruction const& what, lane_mask lanes) {
  auto const at = by.on->reach(by, what, what.at[1], lanes, 4, true);
  for_lanes(lanes, [&](int lane) {
    std::uint32_t had;
    std::memcpy(&had, at[static_cast<std::size_t>(lane)], 4);
    std::uint32_t const sum = had + by.values<std::uint32_t>(what.at[2])[lane];
    std::memcpy(at[static_cast<std::size_t>(lane)], &sum, 4);
    by.values<std::uint32_t>(what.at[0])[lane] = had;
  });
}

struct access_row {
  space where;
  std::string_view type;
  width of_register;
  access found;
};

template <class M, class R>
void add_rows(std::vector<access_row>& rows, std::string_view type, width of_register) {
  using of = accesses<M, R>;
  rows.push_back({space::global, type, of_register, {of::load, of::store}});
  rows.push_back({space::parameter, type, of_register, {of::load_parameter, nullptr}});
  // Shared memory is checked by the word.
  if constexpr (sizeof(M) >= 4) rows.push_back({space::shared, type, of_register, {of::load_shared, of::store_shared}});
}
template <class M>
void add_rows(std::vector<access_row>& rows, std::initializer_list<std::string_view> types) {
  for (std::string_view const type : types) {
    if constexpr (sizeof(M) <= 2) add_rows<M, std::uint16_t>(rows, type, width::b16);
    if constexpr (sizeof(M) <= 4) add_rows<M, std::uint32_t>(rows, type, width::b32);
    add_rows<M, std::uint64_t>(rows, type, width::b64);
  }
}

}  // namespace

access find_access(space where, std::string_view type, width of_register) {
  static std::vector<access_row> const rows = [] {
    std::vector<access_row> made;
    add_rows<std::uint8_t>(made, {"u8", "b8"});
    add_rows<std::int8_t>(made, {"s8"});
    add_rows<std::uint16_t>(made, {"u16", "b16"});
    add_rows<std::int16_t>(made, {"s16"});
    add_rows<std::uint32_t>(made, {"u32", "b32", "f32"});
    add_rows<std::int32_t>(made, {"s32"});
    add_rows<std::uint64_t>(made, {"u64", "b64", "s64", "f64"});
    return made;
  }();
  auto const found = std::find_if(rows.begin(), rows.end(), [&](access_row const& row) {
    return row.where == where && row.type == type && row.of_register == of_register;
  });
  return found == rows.end() ? access{} : found->found;
}
action find_atomic_add(space where) {
  return where == space::shared ? add_shared : where == space::global ? add_global : nullptr;
}

}  // namespace ptx
