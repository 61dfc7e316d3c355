// Random lists of units for every KV head, ascending: one unit of each of as many stretches of the sequence.
#pragma once

#include <random>
#include <vector>

#include "cache.hpp"

namespace kvpolicy::bench {

class scattered_lists {
 public:
  /// `count` units of `unit` tokens in each list; other ones in each turn.
  scattered_lists(measured_gpu& on, std::int64_t batch, std::int64_t context, std::int64_t unit, std::int64_t count,
                  std::int64_t turns)
      : size_(batch * llama_8b::kv_heads),
        unit_(unit),
        count_(count),
        turns_(turns),
        context_(context),
        units_(on.numbers(random_units(turns * size_, context / unit, count))),
        named_(
            on.numbers(std::vector<std::int32_t>(static_cast<std::size_t>(size_), static_cast<std::int32_t>(count * unit)))) {}

  gpu::token_lists at(std::int64_t turn) const {
    gpu::token_lists made{};
    made.units = {units_.get().data + turn % turns_ * size_ * count_, size_ * count_};
    made.stride = count_;
    made.named = named_.get();
    made.tokens.all = context_;
    made.lists = static_cast<std::int32_t>(llama_8b::kv_heads);
    made.unit_size = static_cast<std::int32_t>(unit_);
    return made;
  }

 private:
  static std::vector<std::int32_t> random_units(std::int64_t lists, std::int64_t units, std::int64_t count) {
    std::int64_t const stretch = units / count;
    std::minstd_rand random{5};
    std::vector<std::int32_t> made;
    made.reserve(static_cast<std::size_t>(lists * count));
    for (std::int64_t i = 0; i < lists * count; ++i) {
      made.push_back(static_cast<std::int32_t>(i % count * stretch + static_cast<std::int64_t>(random() >> 8) % stretch));
    }
    return made;
  }

  std::int64_t size_;
  std::int64_t unit_;
  std::int64_t count_;
  std::int64_t turns_;
  std::int64_t context_;
  gpu::device_buffer<std::int32_t> units_;
  gpu::device_buffer<std::int32_t> named_;
};

}  // namespace kvpolicy::bench
