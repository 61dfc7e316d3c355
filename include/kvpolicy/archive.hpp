// What a request remembers as bytes, and back: for states that are kept longer than a process.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kvpolicy/error.hpp"

namespace kvpolicy {

/// A struct that says what of it lasts: `template <class Archive> void archive(Archive& a) { a(member, ...); }`.
/// Model: pools::bounds::summaries.
template <class T, class Archive>
concept archived = requires(T& value, Archive& a) {
  value.archive(a);
};

/// Appends values to bytes: numbers, enums and structs of these as they lie in memory (a state is read on machines alike),
/// vectors and arrays with their length, and archived structs. Runs of zeros take no room.
class state_writer {
 public:
  static constexpr bool reads = false;
  explicit state_writer(std::vector<std::byte>& into) : into_(into) {}

  template <class... T>
  void operator()(T&... values) {
    (put(values), ...);
  }
  void bytes(std::span<std::byte const> all);

 private:
  template <class T>
  void put(T& value) {
    if constexpr (archived<T, state_writer>) {
      value.archive(*this);
    } else {
      static_assert(std::is_trivially_copyable_v<T>, "this has pointers or more: give it archive(), see kvpolicy/archive.hpp");
      raw(&value, sizeof value);
    }
  }
  template <class T>
  void put(std::vector<T>& values) {
    std::uint64_t size = values.size();
    raw(&size, sizeof size);
    if constexpr (std::is_trivially_copyable_v<T> && !archived<T, state_writer>) {
      bytes(std::as_bytes(std::span(values)));
    } else {
      for (T& value : values) put(value);
    }
  }
  void raw(void const* from, std::size_t size) {
    auto const* const first = static_cast<std::byte const*>(from);
    into_.insert(into_.end(), first, first + size);
  }

  std::vector<std::byte>& into_;
};

/// Reads what a state_writer wrote, into values that were just made alike: a vector that has a size keeps it, an empty one gets
/// the one that was written. Throws invalid_value where the sizes differ, or the bytes end.
class state_reader {
 public:
  static constexpr bool reads = true;
  explicit state_reader(std::span<std::byte const> from) : from_(from) {}

  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }
  void bytes(std::span<std::byte> all);
  std::span<std::byte const> rest() const noexcept { return from_; }
  [[noreturn]] static void refuse() {
    throw invalid_value("the state does not fit: it is of another policy, cache or version, or damaged; begin with the prompt");
  }

 private:
  template <class T>
  void get(T& value) {
    if constexpr (archived<T, state_reader>) value.archive(*this);
    else raw(&value, sizeof value);
  }
  template <class T>
  void get(std::vector<T>& values) {
    constexpr bool flat = std::is_trivially_copyable_v<T> && !archived<T, state_reader>;
    std::uint64_t size = 0;
    raw(&size, sizeof size);
    if (!values.empty() && size != values.size()) refuse();
    if (size > values.capacity() && size > from_.size() / (flat ? sizeof(T) : 1)) refuse();
    values.resize(size);
    if constexpr (flat) {
      bytes(std::as_writable_bytes(std::span(values)));
    } else {
      for (T& value : values) get(value);
    }
  }
  void raw(void* to, std::size_t size) {
    if (size > from_.size()) refuse();
    std::memcpy(to, from_.data(), size);
    from_ = from_.subspan(size);
  }

  std::span<std::byte const> from_;
};

namespace detail {
/// Zeros in a row from which on they are counted instead of written.
inline constexpr std::size_t worth_counting = 32;
}  // namespace detail

/// Pairs of a number of bytes and of zeros behind them.
inline void state_writer::bytes(std::span<std::byte const> all) {
  for (std::size_t at = 0; at < all.size();) {
    std::size_t end = at;
    std::size_t zeros = 0;
    for (; end + zeros < all.size() && zeros < detail::worth_counting;) {
      if (all[end + zeros] == std::byte{0}) ++zeros;
      else end += zeros + 1, zeros = 0;
    }
    while (end + zeros < all.size() && zeros >= detail::worth_counting && all[end + zeros] == std::byte{0}) ++zeros;
    std::uint64_t const counts[] = {end - at, zeros};
    raw(counts, sizeof counts);
    raw(all.data() + at, end - at);
    at = end + zeros;
  }
}

inline void state_reader::bytes(std::span<std::byte> all) {
  while (!all.empty()) {
    std::uint64_t counts[2];
    raw(counts, sizeof counts);
    auto const [written, zeros] = counts;
    if (written > all.size() || zeros > all.size() - written || written + zeros == 0) refuse();
    raw(all.data(), written);
    std::memset(all.data() + written, 0, zeros);
    all = all.subspan(written + zeros);
  }
}

/// A part's memory that may have nothing to say: `lasts` where it remembers from one call to the next. Throws unsupported for
/// one that does and has no archive().
template <class Archive, class T>
void archive_if(Archive& a, T& value, bool lasts, char const* whose) {
  if constexpr (archived<T, Archive>) {
    value.archive(a);
  } else if (lasts) {
    throw unsupported(std::string("the policy's state can't be saved: what its ") + whose +
                      " remembers has no archive(), see kvpolicy/archive.hpp");
  }
}

}  // namespace kvpolicy
