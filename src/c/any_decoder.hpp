// Decoders of policies that are chosen at run time.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/gpu_exec.hpp"
#include "kvpolicy/text/draft.hpp"

namespace kvpolicy::c {

/// The layers' rows where the engine has them, each layer bound by itself.
struct bound_rows {
  gpu::batch_rows const* key_rows = nullptr;    ///< `[layers]`
  gpu::batch_rows const* value_rows = nullptr;  ///< `[layers]`

  gpu::batch_rows keys(layer_id layer) const { return key_rows[layer.value]; }
  gpu::batch_rows values(layer_id layer) const { return value_rows[layer.value]; }
};

/// gpu::decoder of any policy.
class any_decoder {
 public:
  any_decoder() = default;
  any_decoder(any_decoder const&) = delete;
  any_decoder& operator=(any_decoder const&) = delete;
  virtual ~any_decoder() = default;

  virtual void prefill(std::int64_t sequence, bound_rows const& view, std::int64_t tokens, layer_id layer,
                       prompt_signals const& prompt, gpu_exec& exec, std::int64_t row) = 0;
  virtual void plan(std::span<std::int32_t const> tokens, std::span<std::int32_t const> brought) = 0;
  virtual void plan_rows(std::span<std::int32_t const> slots, std::span<std::int32_t const> tokens,
                         std::span<std::int32_t const> brought) = 0;
  virtual bool unsettled() const = 0;
  virtual void settle(bound_rows const& view, float scale) = 0;
  /// Throws unsupported where the policy learns from steps.
  virtual void cut(std::int64_t sequence, std::int64_t tokens) = 0;
  virtual void end(std::int64_t sequence) = 0;
  virtual bool idle() const = 0;
  virtual bool decides() const = 0;
  virtual void decide(bound_rows const& view, layer_id layer, gpu::vector_rows const& queries, float scale, gpu_exec& exec) = 0;
  virtual gpu::token_lists standing(layer_id layer) const = 0;
  virtual gpu::token_lists choose(bound_rows const& view, layer_id layer, gpu::vector_rows const& queries, float scale,
                                  gpu::buffer<std::int32_t const> ids) = 0;
  virtual void attend(bound_rows const& view, layer_id layer, gpu::token_lists const& lists, gpu::vector_rows const& queries,
                      float scale, gpu::vector_rows const& out, attention_terms const& terms) = 0;
  virtual void renew(bound_rows const& view, layer_id layer, gpu::vector_rows const& queries, float scale) = 0;
  virtual void observe(gpu::vector_rows const& logits, std::int64_t vocabulary) = 0;
};

/// As gpu::decoder's constructor has them.
struct decoder_sizes {
  std::int64_t sequences;
  std::int64_t step_tokens;
  std::int64_t rows;
};

/// Makes the decoder of a policy that policy_list::parse() accepted.
/// Throws unsupported for a pair of policies without kernels, for a trigger that text names, and as the decoder does.
/// In a file of its own: it instantiates every decoder.
std::unique_ptr<any_decoder> decoder_of(std::string_view text, policy_inputs const& inputs, cache_shape const& shape,
                                        gpu::stream_device& device, decoder_sizes const& sizes);

}  // namespace kvpolicy::c
