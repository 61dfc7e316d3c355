// A decoder's arrays on the device: numbers that plan() makes, elements and lists of every layer.
#pragma once

#include <numeric>
#include <span>
#include <vector>

#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/base/batch.hpp"
#include "kvpolicy/selection.hpp"

namespace kvpolicy::gpu {

/// The turns that parts take at a step: one for each token that the last step brought beyond its first one, if it stays, and
/// the last for this step's first token.
struct step_turns {
  std::int64_t count = 1;
  std::int64_t now = 0;  ///< the turn that numbers are set and read for
};
inline constexpr step_turns one_turn{};

/// Small integers of a step: rows of one for each sequence, made by plan() on the host for each turn, copied in one go.
template <owning_device D>
class step_numbers {
 public:
  /// `turns` outlive the numbers.
  step_numbers(D& device, std::int64_t rows, std::int64_t sequences, step_turns const& turns = one_turn)
      : rows_(rows),
        sequences_(sequences),
        turns_(&turns),
        host_(static_cast<std::size_t>(turns.count * rows * sequences)),
        device_(device.template allocate<std::int32_t>(std::ssize(host_))) {
    upload(device);
  }

  void set(std::int64_t row, std::int64_t sequence, std::int64_t value) noexcept {
    host_[static_cast<std::size_t>(at(turns_->now, row) + sequence)] = static_cast<std::int32_t>(value);
  }
  /// For every turn.
  void set_all(std::int64_t row, std::int64_t sequence, std::int64_t value) noexcept {
    for (std::int64_t t = 0; t < turns_->count; ++t)
      host_[static_cast<std::size_t>(at(t, row) + sequence)] = static_cast<std::int32_t>(value);
  }
  std::int64_t get(std::int64_t row, std::int64_t sequence) const noexcept {
    return host_[static_cast<std::size_t>(at(turns_->now, row) + sequence)];
  }
  per_sequence of(std::int64_t row) const noexcept { return {{device_.get().data + at(turns_->now, row), sequences_}, 0}; }
  void upload(D& device) const { device.upload(device_.get(), host_.data(), std::ssize(host_)); }

 private:
  std::int64_t at(std::int64_t turn, std::int64_t row) const noexcept { return (turn * rows_ + row) * sequences_; }

  std::int64_t rows_;
  std::int64_t sequences_;
  step_turns const* turns_;
  std::vector<std::int32_t> host_;  ///< `[turns, rows, sequences]`
  array_of<D, std::int32_t> device_;
};

/// Elements of every layer, `[layers, size]`.
template <owning_device D, class T>
class layer_array {
 public:
  layer_array(D& device, std::int64_t layers, std::int64_t size)
      : size_(size), all_(device.template allocate<T>(layers * size)) {}

  buffer<T> of(layer_id layer) const noexcept { return {all_.get().data + layer.value * size_, size_}; }
  buffer<T> all() const noexcept { return all_.get(); }

 private:
  std::int64_t size_;
  array_of<D, T> all_;
};

/// 0, 1, 2, ..., as many as `size`.
template <owning_device D>
array_of<D, std::int32_t> counted(D& device, std::int64_t size) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  array_of<D, std::int32_t> made = device.template allocate<std::int32_t>(size);
  device.upload(made.get(), all.data(), size);
  return made;
}

/// Lists of tokens, or of units of several, for every layer: `[layers, sequences, lists, stride]`, and how many tokens each
/// names.
template <owning_device D>
class list_store {
 public:
  list_store(D& device, std::int64_t layers, std::int64_t sequences, std::int64_t lists, std::int64_t stride,
             std::int64_t unit_size = 1)
      : sequences_(sequences),
        lists_(lists),
        stride_(stride),
        unit_size_(unit_size),
        units_(device, layers, sequences * lists * stride),
        named_(device, layers, sequences * lists) {
    std::vector<std::int32_t> const none(static_cast<std::size_t>(layers * sequences * lists));
    device.upload(named_.all(), none.data(), std::ssize(none));
  }

  std::int64_t lists() const noexcept { return lists_; }
  std::int64_t stride() const noexcept { return stride_; }
  std::int64_t rows() const noexcept { return sequences_ * lists_; }
  buffer<std::int32_t> units(layer_id layer) const noexcept { return units_.of(layer); }
  buffer<std::int32_t> named(layer_id layer) const noexcept { return named_.of(layer); }

  /// Each list, then its sequence's tokens from `tail` on; `about`: token_lists'.
  token_lists of(layer_id layer, per_sequence const& tail, per_sequence const& lengths, std::int64_t about) const noexcept {
    return {.units = units(layer),
            .stride = stride_,
            .named = named(layer),
            .tail = tail,
            .tokens = lengths,
            .lists = static_cast<std::int32_t>(lists_),
            .unit_size = static_cast<std::int32_t>(unit_size_),
            .about = about};
  }

  /// One sequence's lists of `tokens` tokens, without a tail.
  token_lists of_sequence(layer_id layer, std::int64_t sequence, std::int64_t tokens) const noexcept {
    token_lists made = of(layer, {{}, token_lists::no_tail}, {{}, tokens}, 0);
    made.units = part_of(units(layer), sequence * lists_ * stride_, lists_ * stride_);
    made.named = part_of(named(layer), sequence * lists_, lists_);
    return made;
  }

  /// One sequence's lists of tokens, as the host has them.
  void upload(layer_id layer, std::int64_t sequence, std::span<range_list const> lists, D& device) const {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> counts;
    for (std::size_t l = 0; l < lists.size(); ++l) {
      tokens.clear();
      each_token(lists[l], [&](std::int32_t t) { tokens.push_back(t); });
      counts.push_back(static_cast<std::int32_t>(tokens.size()));
      std::int64_t const row = sequence * lists_ + static_cast<std::int64_t>(l);
      device.upload(part_of(units(layer), row * stride_, stride_), tokens.data(), std::ssize(tokens));
    }
    device.upload(part_of(named(layer), sequence * lists_, lists_), counts.data(), std::ssize(counts));
  }

 private:
  std::int64_t sequences_;
  std::int64_t lists_;  ///< of a sequence: 1, or one for each KV head
  std::int64_t stride_;
  std::int64_t unit_size_;
  layer_array<D, std::int32_t> units_;
  layer_array<D, std::int32_t> named_;
};

}  // namespace kvpolicy::gpu
