// The C library's decoder, with exceptions, and its tensors.
#pragma once

#include <kvpolicy.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "kvpolicy/error.hpp"

namespace kvpolicy::ggml {

/// Throws what a call of the C library says.
inline void must(kvpolicy_status status) {
  if (status == KVPOLICY_UNSUPPORTED) throw unsupported(kvpolicy_message());
  if (status != KVPOLICY_OK) throw error(kvpolicy_message());
}

struct c_deleter {
  void operator()(kvpolicy_policy* of) const noexcept { kvpolicy_policy_free(of); }
  void operator()(kvpolicy_decoder* of) const noexcept { kvpolicy_decoder_free(of); }
};
using policy_owner = std::unique_ptr<kvpolicy_policy, c_deleter>;
using decoder_owner = std::unique_ptr<kvpolicy_decoder, c_deleter>;

constexpr kvpolicy_dtype f32{2, 32, 1};

/// A tensor on a device, strides in elements; it converts to what the C library takes.
class device_tensor {
 public:
  device_tensor(void* at, kvpolicy_dtype type, int device, std::initializer_list<std::int64_t> shape,
                std::initializer_list<std::int64_t> strides)
      : tensor_{at, {2, device}, static_cast<std::int32_t>(shape.size()), type, nullptr, nullptr, 0} {
    std::ranges::copy(shape, shape_.begin());
    std::ranges::copy(strides, strides_.begin());
  }
  device_tensor(device_tensor const&) = delete;
  device_tensor& operator=(device_tensor const&) = delete;
  operator kvpolicy_tensor const*() noexcept {
    tensor_.shape = shape_.data();
    tensor_.strides = strides_.data();
    return &tensor_;
  }

 private:
  kvpolicy_tensor tensor_;
  std::array<std::int64_t, 4> shape_{};
  std::array<std::int64_t, 4> strides_{};
};

}  // namespace kvpolicy::ggml
