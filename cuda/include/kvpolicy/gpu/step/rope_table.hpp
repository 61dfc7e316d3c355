// A model's rotary embedding on the device, for decoders that compare pre-rope keys.
#pragma once

#include <array>

#include "kvpolicy/detail/rope_table.hpp"
#include "kvpolicy/gpu/pooling/rope_reader.hpp"
#include "kvpolicy/gpu/step/context.hpp"

namespace kvpolicy::gpu::detail {

template <owning_device D>
class device_rope_table {
 public:
  device_rope_table(cache_shape const& shape, bool wanted, D& device)
      : angles_(device.template allocate<float>(wanted ? shape.max_tokens * shape.head_dim : 1)),
        how_(device.template allocate<std::int32_t>(batch_rope_angles::facts)) {
    host_.reserve(wanted ? shape.max_tokens : 0);
    upload_facts(device);
  }

  /// Takes the first prompt's embedding, which all sequences share: O(max_tokens x head_dim). Throws invalid_value for another
  /// one.
  void take(rotation const& rope, D& device) {
    KVPOLICY_EXPECTS(
        !host_.known || host_.is(rope),
        "the prompt has another rotary embedding than the first one; the sequences of a decoder share one, so make "
        "a decoder for each");
    if (!host_.take(rope)) return;
    device.upload(angles_.get(), host_.angles.data(), std::ssize(host_.angles));
    upload_facts(device);
  }

  /// The same memory before and after every prompt, for steps that are captured.
  batch_rope_angles get() const noexcept { return {angles_.get(), how_.get()}; }

 private:
  void upload_facts(D& device) {
    rope_angles const rope = host_.get();
    std::array<std::int32_t, batch_rope_angles::facts> facts{};
    facts[batch_rope_angles::pairs] = static_cast<std::int32_t>(rope.pairs);
    facts[batch_rope_angles::neighbours] = rope.how == rotation::pairing::neighbours ? 1 : 0;
    device.upload(how_.get(), facts.data(), std::ssize(facts));
  }

  rope_table host_;
  array_of<D, float> angles_;      ///< `[max_tokens, 2, pairs]`
  array_of<D, std::int32_t> how_;  ///< see batch_rope_angles
};

}  // namespace kvpolicy::gpu::detail
