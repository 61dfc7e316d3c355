// What a remote tier's blocks are called on their servers.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "nodes.hpp"

namespace kvpolicy::tiers {

/// A request's blocks of a layer lie in one slot: neighbours in a batch share what is made of that.
class block_names {
 public:
  explicit block_names(std::string const& space) : space_(space) {}

  int slot_of(block_key const& key) {
    tag(key);
    return slot_;
  }
  /// Until the next call.
  std::string_view of(block_key const& key, std::uint64_t write) {
    tag(key);
    name_.resize(prefix_);
    append(key.head), append(key.position), append(key.generation), append(write);
    return name_;
  }

 private:
  void tag(block_key const& key) {
    if (prefix_ > 0 && key.request == request_ && key.layer == layer_) return;
    request_ = key.request;
    layer_ = key.layer;
    name_.assign(1, '{').append(space_);
    append(key.request), append(key.layer);
    slot_ = redis_nodes::slot_of(std::string_view(name_).substr(1));
    name_.push_back('}');
    prefix_ = name_.size();
  }
  template <class Number>
  void append(Number n) {
    std::array<char, 24> digits;
    name_.push_back(':');
    name_.append(digits.data(), std::to_chars(digits.begin(), digits.end(), n).ptr);
  }

  std::string const& space_;
  std::string name_;
  std::size_t prefix_ = 0;  ///< of the name, what a request's layer shares
  std::uint64_t request_ = 0;
  std::int32_t layer_ = 0;
  int slot_ = 0;
};

}  // namespace kvpolicy::tiers
