// Vectors of units as they are kept between steps, in memory that follows the sequences' texts.
#pragma once

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/gpu/base/device_memory.hpp"
#include "kvpolicy/gpu/pooling/pool.hpp"

namespace kvpolicy::gpu::detail {

/// One vector a unit of every layer, sequence and KV head, or two, of the cache's type. A sequence holds runs of units, of all
/// layers; where they begin lies in device memory, so a captured step finds what came after its capture.
template <owning_device D>
class unit_vectors {
 public:
  static constexpr std::int64_t run = 16;  ///< units; a tile of a scoring warp is half of that

  /// So many units of a sequence at most, `of_unit` vectors each, 1 or 2.
  unit_vectors(cache_shape const& shape, std::int64_t sequences, std::int64_t units, std::int64_t of_unit, D& device)
      : shape_(shape),
        units_(units),
        of_unit_(of_unit),
        device_(&device),
        held_(static_cast<std::size_t>(sequences)),
        places_(device.template allocate<std::int64_t>(sequences * most_runs())) {
    std::vector<std::int64_t> const none(static_cast<std::size_t>(sequences * most_runs()));
    device.upload(places_.get(), none.data(), std::ssize(none));
  }

  std::int64_t units() const noexcept { return units_; }

  /// A sequence has so many units from now on: those that it has, and room for more; none of what is beyond. Allocates where
  /// what sequences gave back does not suffice, and some in advance.
  /// Throws device_memory_exceeded where the device has too little: the sequence then has what it had, or more.
  void hold(std::int64_t sequence, std::int64_t units) {
    std::vector<std::int64_t>& mine = held_[static_cast<std::size_t>(sequence)];
    std::int64_t const wanted = divided_up(std::min(units, units_), run);
    std::int64_t const had = std::ssize(mine);
    for (; std::ssize(mine) > wanted; mine.pop_back()) free_.push_back(mine.back());
    if (wanted < had) put(sequence, wanted, std::vector<std::int64_t>(static_cast<std::size_t>(had - wanted)));  // no place
    if (wanted <= had) return;
    if (wanted - had > std::ssize(free_)) grow(wanted - had - std::ssize(free_));
    for (; std::ssize(mine) < wanted; free_.pop_back()) mine.push_back(free_.back());
    put(sequence, had, std::span(mine).subspan(static_cast<std::size_t>(had)));
  }

  /// As kernels write them, from a sequence on.
  batch_vectors to(layer_id layer, std::int64_t first_sequence = 0) const noexcept {
    batch_vectors made{};
    made.base = first(layer);
    made.elements = everywhere;
    made.head_stride = head_size();
    made.places = places_from(first_sequence);
    made.place_stride = most_runs();
    made.place_shift = std::countr_zero(static_cast<std::uint64_t>(run));
    return made;
  }
  /// As they are read: of unit u, row u, or rows 2u and 2u + 1.
  batch_rows rows(layer_id layer) const noexcept {
    batch_rows made{};
    made.base = first(layer);
    made.elements = everywhere;
    made.type = shape_.type;
    made.heads = static_cast<std::int32_t>(shape_.kv_heads);
    made.head_dim = static_cast<std::int32_t>(shape_.head_dim);
    made.head_stride = head_size();
    made.token_stride = shape_.head_dim;
    made.places = places_from(0);
    made.page_table_stride = most_runs();
    made.page_size = static_cast<std::int32_t>(run * of_unit_);
    return finished(made);
  }

 private:
  std::int64_t most_runs() const noexcept { return divided_up(units_, run); }
  std::int64_t head_size() const noexcept { return run * of_unit_ * shape_.head_dim; }
  std::int64_t layer_size() const noexcept { return shape_.kv_heads * head_size(); }
  std::int64_t run_bytes() const noexcept { return shape_.layers * layer_size() * size_of(shape_.type); }
  /// What a layer's elements are behind a run's first one: an address that a place is added to.
  void* first(layer_id layer) const noexcept {
    return std::bit_cast<void*>(static_cast<std::uintptr_t>(layer.value * layer_size() * size_of(shape_.type)));
  }
  buffer<std::int64_t const> places_from(std::int64_t sequence) const noexcept {
    std::int64_t const skipped = sequence * most_runs();
    return part_of(places_.get(), skipped, places_.get().size - skipped);
  }

  void put(std::int64_t sequence, std::int64_t first, std::span<std::int64_t const> places) {
    device_->upload(part_of(places_.get(), sequence * most_runs() + first, std::ssize(places)), places.data(),
                    std::ssize(places));
  }

  /// Runs that no sequence has, in one allocation: so many, and some in advance where the device has them.
  void grow(std::int64_t needed) {
    std::int64_t runs = std::max(needed, made_ / 8);
    auto const allocate = [&] { memory_.push_back(device_->template allocate<pack>(runs * run_bytes() / 16)); };
    try {
      allocate();
    } catch (device_memory_exceeded const&) {
      if (runs == needed) throw;
      runs = needed;
      allocate();
    }
    auto const begin = std::bit_cast<std::uintptr_t>(memory_.back().get().data);
    for (std::int64_t r = runs; r-- > 0;)
      free_.push_back((static_cast<std::int64_t>(begin) + r * run_bytes()) / size_of(shape_.type));
    made_ += runs;
  }

  cache_shape shape_;
  std::int64_t units_;
  std::int64_t of_unit_;
  D* device_;
  std::vector<std::vector<std::int64_t>> held_;  ///< each sequence's runs: of each its place in elements
  std::vector<std::int64_t> free_;               ///< runs of no sequence
  std::int64_t made_ = 0;                        ///< runs
  std::vector<array_of<D, pack>> memory_;        ///< runs `[layers, kv_heads, run, of_unit, head_dim]`
  array_of<D, std::int64_t> places_;             ///< `[sequences, most_runs]`
};

}  // namespace kvpolicy::gpu::detail
