// A decoder behind the C ABI: a policy's steps of a batch, over a caller's tensors on a CUDA device.
#pragma once

#include <memory>
#include <span>

#include "kvpolicy/types.hpp"
#include "policy.hpp"

/// All checks come before any change. `enter()` comes before each other call: throws invalid_value where the device is not the
/// calling thread's.
struct kvpolicy_decoder {
  kvpolicy_decoder() = default;
  kvpolicy_decoder(kvpolicy_decoder const&) = delete;
  kvpolicy_decoder& operator=(kvpolicy_decoder const&) = delete;
  virtual ~kvpolicy_decoder() = default;

  virtual void enter() const = 0;
  virtual void on(void* stream) = 0;
  virtual void bind(std::int64_t layer, kvpolicy_tensor const* keys, kvpolicy_tensor const* values,
                    kvpolicy_tensor const* pages) = 0;
  virtual void prefill(std::int64_t sequence, std::int64_t row, std::int64_t layer, std::int64_t tokens,
                       kvpolicy_prompt const& prompt) = 0;
  /// Returns what the step asks for. `brought` and `slots` have as many numbers as `tokens`, or none.
  virtual std::int32_t plan(std::span<std::int32_t const> tokens, std::span<std::int32_t const> brought,
                            std::span<std::int32_t const> slots) = 0;
  virtual void settle(float scale) = 0;
  virtual void cut(std::int64_t sequence, std::int64_t tokens) = 0;
  virtual void end(std::int64_t sequence) = 0;
  virtual void decide(std::int64_t layer, kvpolicy_tensor const* queries, float scale) = 0;
  virtual kvpolicy_device_lists standing(std::int64_t layer) = 0;
  virtual kvpolicy_device_lists choose(std::int64_t layer, kvpolicy_tensor const* queries, float scale,
                                       kvpolicy_tensor const* token_ids) = 0;
  virtual void bind_terms(std::int64_t layer, kvpolicy_terms const& terms) = 0;
  virtual void attend(std::int64_t layer, kvpolicy_tensor const* queries, float scale, kvpolicy_tensor const* out) = 0;
  virtual void renew(std::int64_t layer, kvpolicy_tensor const* queries, float scale) = 0;
  virtual void observe(kvpolicy_tensor const* logits) = 0;
};

namespace kvpolicy::c {

/// Only where the library is built with CUDA. Throws as gpu_backend does, and as decoder_of().
std::unique_ptr<kvpolicy_decoder> start_decoder(kvpolicy_policy const& policy, cache_shape const& shape,
                                                kvpolicy_decoder_options const& options);

}  // namespace kvpolicy::c
