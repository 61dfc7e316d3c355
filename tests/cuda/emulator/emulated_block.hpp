// The block concept's model on a CPU: a fiber for every thread, and every access and every collective checked.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "cuda/emulator/state.hpp"
#include "kvpolicy/gpu/base/rows.hpp"

namespace kvpolicy_test {

template <class T>
inline constexpr char type_key = 0;

/// What a collective's result is where it has none: floats are NaN.
template <class T>
T poison() {
  T value;
  std::memset(static_cast<void*>(&value), std::is_integral_v<T> ? 0xaa : 0xff, sizeof value);
  return value;
}

/// An element, for as long as an expression: read by conversion, written by assignment, and nothing else.
template <class Owner, class T>
class element_proxy {
 public:
  element_proxy(Owner& owner, element_index const& index) : owner_(owner), index_(index) {}
  element_proxy(element_proxy const&) = delete;

  operator T() && { return owner_.read(index_); }
  T operator=(T const& value) && {
    owner_.write(index_, value);
    return value;
  }
  T operator=(element_proxy&& other) && { return std::move(*this) = static_cast<T>(std::move(other)); }

 private:
  Owner& owner_;
  element_index index_;
};

/// Shared memory of a block.
template <class T, int N>
class emulated_array {
  static_assert(std::is_trivially_copyable_v<T> && N > 0);

 public:
  emulated_array() { std::memset(data_, 0xaa, sizeof data_); }
  emulated_array(emulated_array const&) = delete;

  element_proxy<emulated_array, T> operator[](element_index i) { return {*this, i}; }
  T atomic_add(element_index i, T value) {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, std::int32_t> || std::is_same_v<T, std::uint32_t>);
    touch(i, access::add);
    T const before = get(i);
    put(i, static_cast<T>(before + value));
    return before;
  }
  T read(element_index const& i) {
    touch(i, access::read);
    return get(i);
  }
  void write(element_index const& i, T const& value) {
    touch(i, access::write);
    put(i, value);
  }

 private:
  static std::string name(element_index const& i) {
    return "element " + std::to_string(i.value) + " of a shared array of " + std::to_string(N);
  }
  void touch(element_index const& i, access how) {
    thread_state& me = *current;
    spend(me, i.where);
    if (i.value < 0 || i.value >= N) fail("out of bounds", name(i), i.where);
    shadow& of = shadows_[i.value];
    if (how != access::write && of.by[1].epoch == 0) fail("uninitialised", name(i), i.where);
    if (of.races(me, how)) fail("race", name(i) + of.text_of_race(me, how), i.where);
  }
  T get(element_index const& i) const {
    T value;
    std::memcpy(static_cast<void*>(&value), data_ + static_cast<std::size_t>(i.value) * sizeof(T), sizeof(T));
    return value;
  }
  void put(element_index const& i, T const& value) {
    std::memcpy(data_ + static_cast<std::size_t>(i.value) * sizeof(T), static_cast<void const*>(&value), sizeof(T));
  }

  std::byte data_[sizeof(T) * N];
  shadow shadows_[N];
};

/// Global memory behind a buffer.
template <class T>
class emulated_global {
  using value_type = std::remove_const_t<T>;
  static_assert(std::is_trivially_copyable_v<value_type>);

 public:
  explicit emulated_global(kvpolicy::gpu::buffer<T> of) : of_(of) {}

  value_type operator[](element_index i) const requires std::is_const_v<T> { return read(i); }
  element_proxy<emulated_global const, T> operator[](element_index i) const requires(!std::is_const_v<T>) { return {*this, i}; }
  kvpolicy::gpu::pack load(element_index i) const { return get<kvpolicy::gpu::pack>(i, 16, pack_elements(), access::read); }
  void store(element_index i, kvpolicy::gpu::pack const& value) const requires(!std::is_const_v<T>) {
    put(i, 16, pack_elements(), access::write, value);
  }
  T atomic_add(element_index i, T value) const
      requires(std::is_same_v<T, float> || std::is_same_v<T, std::int32_t> || std::is_same_v<T, std::uint32_t>) {
    T const before = get<T>(i, alignof(T), 1, access::add);
    T const after = static_cast<T>(before + value);
    std::memcpy(place(i), &after, sizeof after);
    return before;
  }
  value_type read(element_index const& i) const { return get<value_type>(i, alignof(T), 1, access::read); }
  void write(element_index const& i, value_type const& value) const { put(i, alignof(T), 1, access::write, value); }

 private:
  static constexpr std::int64_t pack_elements() {
    static_assert(16 % sizeof(T) == 0);
    return static_cast<std::int64_t>(16 / sizeof(T));
  }
  void check(element_index const& i, std::size_t alignment, std::int64_t elements, access how) const {
    thread_state& me = *current;
    spend(me, i.where);
    if (of_.size != kvpolicy::gpu::everywhere && (i.value < 0 || i.value > of_.size - elements || of_.data == nullptr)) {
      fail("out of bounds",
           std::to_string(elements) + " from element " + std::to_string(i.value) + " on of a buffer of " +
               std::to_string(of_.size) + (of_.data == nullptr ? " (null)" : ""),
           i.where);
    }
    T* const at = place(i);
    if (reinterpret_cast<std::uintptr_t>(at) % alignment != 0) {
      fail(
          "misaligned",
          "element " + std::to_string(i.value) + " of a buffer is not at a multiple of " + std::to_string(alignment) + " bytes",
          i.where);
    }
    me.block->memory.touch(me, at, static_cast<std::size_t>(elements) * sizeof(T), how, i);
  }
  /// By address: a buffer of everywhere may begin at none.
  T* place(element_index const& i) const {
    return std::bit_cast<T*>(std::bit_cast<std::uintptr_t>(of_.data) + static_cast<std::uintptr_t>(i.value) * sizeof(T));
  }
  template <class V>
  V get(element_index const& i, std::size_t alignment, std::int64_t elements, access how) const {
    check(i, alignment, elements, how);
    V value;
    std::memcpy(static_cast<void*>(&value), static_cast<void const*>(place(i)), sizeof value);
    return value;
  }
  template <class V>
  void put(element_index const& i, std::size_t alignment, std::int64_t elements, access how, V const& value) const {
    check(i, alignment, elements, how);
    std::memcpy(static_cast<void*>(place(i)), static_cast<void const*>(&value), sizeof value);
  }

  kvpolicy::gpu::buffer<T> of_;
};

/// What a collective works in: not to be used again before a sync.
class emulated_storage {
 public:
  emulated_storage() = default;
  emulated_storage(emulated_storage const&) = delete;

  void enter(std::source_location const& where) const {
    if (used_ == current->block->epoch) fail("storage reused", "no sync since its last collective", where);
  }
  void leave() { used_ = current->block->epoch; }

 private:
  std::uint32_t used_ = 0;
};

/// What the threads at a meeting brought.
template <class Item>
struct brought_items {
  thread_state const* first;
  Item& operator[](unsigned t) const { return *static_cast<Item*>(first[t].brought); }
};

/// Waits at `place` until all its threads have come; the last calls compute(items).
template <class Item, class Compute>
void meet(thread_state& me, meeting& place, meeting_key const& key, Item& item, Compute compute) {
  if (me.block->arrive(place, key, &item)) {
    compute(brought_items<Item>{&me.block->each[place.first]});
    place.arrived = 0;
    me.block->scheduler.wake(place.first, place.threads);
  }
  me.block->scheduler.wait();
  current = &me;
}

class emulated_tile {
  using location = std::source_location;

 public:
  explicit emulated_tile(thread_state& me) : me_(&me) {}

  unsigned lane() const { return me_->index % 32; }
  unsigned index() const { return me_->index / 32; }
  void sync(location where = location::current()) const {
    char none = 0;
    meet(*me_, me_->warp->place, {"tile.sync", nullptr, nullptr, where}, none,
         [&](auto const&) { me_->block->next_epoch(me_->warp->epoch, me_->warp->place, where); });
  }
  std::uint32_t ballot(bool which, location where = location::current()) const {
    struct {
      bool mine;
      std::uint32_t all;
    } item{which, 0};
    meet(*me_, me_->warp->place, {"tile.ballot", nullptr, nullptr, where}, item, [](auto const& items) {
      std::uint32_t all = 0;
      for (unsigned l = 0; l < 32; ++l) all |= (items[l].mine ? 1u : 0u) << l;
      for (unsigned l = 0; l < 32; ++l) items[l].all = all;
    });
    return item.all;
  }
  template <class T>
  T shfl(T value, unsigned from, location where = location::current()) const {
    return shuffled("tile.shfl", value, from, where);
  }
  template <class T>
  T shfl_xor(T value, unsigned mask, location where = location::current()) const {
    return shuffled("tile.shfl_xor", value, lane() ^ mask, where);
  }
  template <kvpolicy::element_type E>
  void multiply(std::uint32_t const (&a)[4], std::uint32_t const (&b)[2], float (&c)[4],
                location where = location::current()) const {
    struct {
      std::uint32_t a[4];
      std::uint32_t b[2];
      float c[4];
    } item{};
    std::copy_n(a, 4, item.a);
    std::copy_n(b, 2, item.b);
    std::copy_n(c, 4, item.c);
    meet(*me_, me_->warp->place, {"tile.multiply", &type_key<element_of<E>>, nullptr, where}, item, [](auto const& items) {
      // As PTX lays m16n8k16 out: lane l has rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next, of each 8 x 8 quarter.
      float left[16][16];
      float right[16][8];
      for (unsigned l = 0; l < 32; ++l) {
        for (unsigned half = 0; half < 2; ++half) {
          unsigned const pair = 2 * (l % 4) + half;
          for (unsigned r = 0; r < 4; ++r) left[l / 4 + 8 * (r % 2)][pair + 8 * (r / 2)] = half_of<E>(items[l].a[r], half);
          for (unsigned r = 0; r < 2; ++r) right[pair + 8 * r][l / 4] = half_of<E>(items[l].b[r], half);
        }
      }
      for (unsigned l = 0; l < 32; ++l) {
        for (unsigned i = 0; i < 4; ++i) {
          float sum = items[l].c[i];
          for (unsigned k = 0; k < 16; ++k) sum += left[l / 4 + 8 * (i / 2)][k] * right[k][2 * (l % 4) + i % 2];
          items[l].c[i] = sum;
        }
      }
    });
    std::copy_n(item.c, 4, c);
  }
  std::uint32_t transpose(std::uint32_t word, location where = location::current()) const {
    struct {
      std::uint32_t mine;
      std::uint32_t got;
    } item{word, 0};
    meet(*me_, me_->warp->place, {"tile.transpose", nullptr, nullptr, where}, item, [](auto const& items) {
      for (unsigned l = 0; l < 32; ++l) {
        for (unsigned half = 0; half < 2; ++half) {
          unsigned const row = 2 * (l % 4) + half;  // of what is turned: its column
          unsigned const column = l / 4;
          std::uint32_t const from = items[row * 4 + column / 2].mine >> (16 * (column % 2)) & 0xffff;
          items[l].got |= from << (16 * half);
        }
      }
    });
    return item.got;
  }

 private:
  template <kvpolicy::element_type E>
  struct element_of {};
  template <kvpolicy::element_type E>
  static float half_of(std::uint32_t word, unsigned which) {
    return kvpolicy::gpu::widened<E>(static_cast<std::uint16_t>(word >> (16 * which)));
  }
  template <class T>
  T shuffled(char const* kind, T const& value, unsigned from, location const& where) const {
    if (from >= 32) fail("out of bounds", "lane " + std::to_string(from), where);
    struct {
      T mine;
      T got;
      unsigned from;
    } item{value, value, from};
    meet(*me_, me_->warp->place, {kind, &type_key<T>, nullptr, where}, item, [](auto const& items) {
      for (unsigned l = 0; l < 32; ++l) items[l].got = items[items[l].from].mine;
    });
    return item.got;
  }

  thread_state* me_;
};

template <unsigned Threads>
class emulated_block {
  using location = std::source_location;

 public:
  static constexpr unsigned threads = Threads;

  template <class T, int N>
  using array = emulated_array<T, N>;
  template <class T>
  struct scan_storage : emulated_storage {};
  template <class T>
  struct reduce_storage : emulated_storage {};
  struct last_storage : emulated_storage {};

  explicit emulated_block(thread_state& me) : me_(me) {}
  emulated_block(emulated_block const&) = delete;

  unsigned thread() const { return me_.index; }
  unsigned x() const { return me_.block->at[0]; }
  unsigned y() const { return me_.block->at[1]; }
  unsigned z() const { return me_.block->at[2]; }
  emulated_tile tile() const { return emulated_tile(me_); }
  template <class T>
  emulated_global<T> global(kvpolicy::gpu::buffer<T> of) const {
    return emulated_global<T>(of);
  }

  void sync(location where = location::current()) const {
    char none = 0;
    block_state& block = *me_.block;
    meet(me_, block.place, {"sync", nullptr, nullptr, where}, none, [&](auto const&) {
      block.next_epoch(block.epoch, block.place, where);
      for (unsigned w = 0; w < Threads / 32; ++w) block.warps[w].epoch = 0;
    });
  }

  template <class T>
  T exclusive_sum(scan_storage<T>& storage, T value, T& total, location where = location::current()) const {
    struct {
      T mine;
      T before;
      T total;
    } item{value, {}, {}};
    collective<T>("exclusive_sum", storage, item, where, [](auto const& items) {
      T sum{};
      for (unsigned t = 0; t < Threads; ++t) {
        items[t].before = sum;
        sum = static_cast<T>(sum + items[t].mine);
      }
      for (unsigned t = 0; t < Threads; ++t) items[t].total = sum;
    });
    total = item.total;
    return item.before;
  }

  /// In CUB's order: a tree in each warp, then the warps one after the other.
  template <class T, class Op>
  T reduce(reduce_storage<T>& storage, T value, Op op, location where = location::current()) const {
    T item = value;
    collective<T>("reduce", storage, item, where, [&op](auto const& items) {
      for (unsigned step = 1; step < 32; step *= 2) {
        for (unsigned t = 0; t < Threads; ++t) {
          if (t % 32 + step < 32) items[t] = op(items[t], items[t + step]);
        }
      }
      for (unsigned t = 32; t < Threads; t += 32) items[0] = op(items[0], items[t]);
      for (unsigned t = 1; t < Threads; ++t) items[t] = poison<T>();
    });
    return item;
  }

  bool last_of(last_storage& storage, kvpolicy::gpu::buffer<std::int32_t> counters, element_index i, std::int32_t count,
               location where = location::current()) const {
    bool item = false;
    collective<bool>("last_of", storage, item, where, [&](auto const& items) {
      if (i.value < 0 || i.value >= counters.size) fail("out of bounds", "counter " + std::to_string(i.value), where);
      block_state& block = *me_.block;
      bool const last = block.memory.last_of(counters.data + i.value, count, where);
      for (unsigned t = 0; t < Threads; ++t) items[t] = last;
      block.next_epoch(block.epoch, block.place, where);
      for (unsigned w = 0; w < Threads / 32; ++w) block.warps[w].epoch = 0;
    });
    return item;
  }

 private:
  template <class Type, class Item, class Compute>
  void collective(char const* kind, emulated_storage& storage, Item& item, location const& where, Compute compute) const {
    storage.enter(where);
    meet(me_, me_.block->place, {kind, &type_key<Type>, &storage, where}, item, [&](auto const& items) {
      compute(items);
      storage.leave();
    });
  }

  thread_state& me_;
};

}  // namespace kvpolicy_test
