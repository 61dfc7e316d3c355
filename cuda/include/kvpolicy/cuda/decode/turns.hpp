// A model's rotary embedding on the device, for decoders that compare unrotated keys.
#pragma once

#include "kvpolicy/cuda/decode/stage.hpp"
#include "kvpolicy/cuda/kernel/turns.hpp"
#include "kvpolicy/detail/key_turns.hpp"

namespace kvpolicy::cuda {

template <owning_device D>
class device_turns {
 public:
  device_turns(cache_shape const& shape, bool wanted, D& device)
      : angles_(device.template allocate<float>(wanted ? shape.max_tokens * shape.head_dim : 1)) {
    host_.reserve(shape, wanted);
  }

  /// What a prompt tells; uploads the turns of all tokens that there can be where they are others than before.
  void take(rotation const& rope, D& device) {
    if (host_.take(rope)) device.upload(angles_.get(), host_.angles.data(), std::ssize(host_.angles));
  }

  batch_turns get() const noexcept {
    token_turns const turns = host_.get();
    if (turns.angles == nullptr) return {};
    return {angles_.get(), static_cast<std::int32_t>(turns.pairs), turns.how == rotation::pairing::halves};
  }

 private:
  key_turns host_;
  array_of<D, float> angles_;  ///< `[max_tokens, 2, pairs]`
};

}  // namespace kvpolicy::cuda
