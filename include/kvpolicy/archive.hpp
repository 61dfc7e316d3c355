// Archives: what a request remembers, as bytes and back, for states that outlive a process.
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

/// A struct that names the members which an archive keeps.
/// Requires: `template <class Archive> void archive(Archive& a) { a(member, ...); }`.
/// Model: pools::bounds::summaries. Not a model: a std::vector (archives know vectors already).
template <class T, class Archive>
concept archived = requires(T& value, Archive& a) {
  value.archive(a);
};

/// Appends values to a vector of bytes.
/// Archived structs name their members. Vectors are written with their length, and their long runs of zeros as counts. Numbers,
/// enums, and structs and arrays of these are written as they lie in memory, so only a machine of the same kind can read them.
class state_writer {
 public:
  static constexpr bool reads = false;  ///< for an archive() that does more after reading
  /// Writes into a vector.
  /// @param into  where the bytes are appended; not owned
  explicit state_writer(std::vector<std::byte>& into) : into_(into) {}

  /// Appends values, in this order.
  /// @param values  archived structs, vectors, or trivially copyable values
  template <class... T>
  void operator()(T&... values) {
    (put(values), ...);
  }
  /// Appends bytes. Runs of 32 or more zeros are written as counts.
  /// @param all  the bytes; their number is not written
  void bytes(std::span<std::byte const> all);

 private:
  template <class T>
  void put(T& value) {
    if constexpr (archived<T, state_writer>) {
      value.archive(*this);
    } else {
      static_assert(std::is_trivially_copyable_v<T>,
                    "this type is not trivially copyable: give it archive(), see kvpolicy/archive.hpp");
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

/// Reads what a state_writer wrote, into values that were made with the same parameters.
/// A vector with elements keeps its size; an empty vector gets the size that was written. Every call throws invalid_value if a
/// size differs from the written one, or if the bytes end too early.
class state_reader {
 public:
  static constexpr bool reads = true;
  /// Reads from bytes.
  /// @param from  what a state_writer wrote; not owned
  explicit state_reader(std::span<std::byte const> from) : from_(from) {}

  /// Reads values, in the order in which they were written.
  /// @param values  overwritten
  /// @throws invalid_value if the bytes do not fit the values
  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }
  /// Reads bytes that state_writer::bytes() wrote.
  /// @param all  overwritten; as many bytes as were written
  /// @throws invalid_value if the number of bytes differs
  void bytes(std::span<std::byte> all);
  /// The bytes that are not read yet.
  std::span<std::byte const> rest() const noexcept { return from_; }
  /// Refuses the state.
  /// @throws invalid_value always
  [[noreturn]] static void refuse() {
    throw invalid_value(
        "the state does not fit: it is of another policy, cache or version, or damaged; decode the prompt again");
  }

 private:
  template <class T>
  void get(T& value) {
    if constexpr (archived<T, state_reader>) {
      value.archive(*this);
    } else if constexpr (std::is_same_v<T, bool>) {
      unsigned char byte = 0;
      raw(&byte, sizeof byte);
      if (byte > 1) refuse();
      value = byte != 0;
    } else {
      raw(&value, sizeof value);
    }
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
/// The shortest run of zeros that is written as a count, in bytes.
inline constexpr std::size_t worth_counting = 32;
}  // namespace detail

// The format: two counts, of bytes and of the zeros that follow them, then the bytes; again until the end.
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

/// Archives the memory of a part, if the memory has an archive().
/// @param a  a state_writer or state_reader
/// @param value  the part's memory
/// @param lasts  whether the memory remembers anything from one call to the next
/// @param whose  the part's role ("scorer"), for the message
/// @throws unsupported if the memory lasts and has no archive()
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
