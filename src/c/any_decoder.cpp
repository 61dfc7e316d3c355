#include "any_decoder.hpp"

#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/presets/all.hpp"

namespace kvpolicy::c {
namespace {

using owned_data = std::vector<std::shared_ptr<void const>>;

template <class Policy>
class decoder_for final : public any_decoder {
 public:
  decoder_for(Policy const& policy, owned_data owned, cache_shape const& shape, gpu::stream_device& device,
              decoder_sizes const& sizes)
      : owned_(std::move(owned)), decoder_(policy, shape, sizes.sequences, device, sizes.step_tokens, sizes.rows) {}

  void prefill(std::int64_t sequence, bound_rows const& view, std::int64_t tokens, layer_id layer, prompt_signals const& prompt,
               gpu_exec& exec, std::int64_t row) override {
    decoder_.prefill(sequence, view, tokens, layer, prompt, exec, row);
  }
  void plan(std::span<std::int32_t const> tokens, std::span<std::int32_t const> brought) override {
    decoder_.plan(tokens, brought);
  }
  void plan_rows(std::span<std::int32_t const> slots, std::span<std::int32_t const> tokens,
                 std::span<std::int32_t const> brought) override {
    decoder_.plan_rows(slots, tokens, brought);
  }
  bool unsettled() const override { return decoder_.unsettled(); }
  void settle(bound_rows const& view, float scale) override { decoder_.settle(view, scale); }
  void cut(std::int64_t sequence, std::int64_t tokens) override {
    if constexpr (requires { decoder_.cut(sequence, tokens); }) decoder_.cut(sequence, tokens);
    else throw unsupported("the policy learns from steps, which a cut would not undo; let a step bring several tokens");
  }
  void end(std::int64_t sequence) override { decoder_.end(sequence); }
  bool idle() const override { return decoder_.idle(); }
  bool decides() const override { return decoder_.decides(); }
  void decide(bound_rows const& view, layer_id layer, gpu::vector_rows const& queries, float scale, gpu_exec& exec) override {
    decoder_.decide(view, layer, queries, scale, exec);
  }
  gpu::token_lists standing(layer_id layer) const override { return decoder_.standing(layer); }
  gpu::token_lists choose(bound_rows const& view, layer_id layer, gpu::vector_rows const& queries, float scale,
                          gpu::buffer<std::int32_t const> ids) override {
    return decoder_.choose(view, layer, queries, scale, ids);
  }
  void attend(bound_rows const& view, layer_id layer, gpu::token_lists const& lists, gpu::vector_rows const& queries,
              float scale, gpu::vector_rows const& out, attention_terms const& terms) override {
    decoder_.attend(view, layer, lists, queries, scale, out, terms);
  }
  void renew(bound_rows const& view, layer_id layer, gpu::vector_rows const& queries, float scale) override {
    decoder_.renew(view, layer, queries, scale);
  }
  void observe(gpu::vector_rows const& logits, std::int64_t vocabulary) override { decoder_.observe(logits, vocabulary); }

 private:
  owned_data owned_;  ///< what the policy points into
  gpu::decoder<Policy, gpu::stream_device> decoder_;
};

/// Calls visit(preset) with the one that `text` names.
template <class Visit>
void with_preset(std::string_view text, policy_inputs const& inputs, Visit visit) {
  std::size_t const colon = text.find(':');
  std::string_view const name = text.substr(0, colon);
  std::string_view const items = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  presets::all::each([&](auto const& preset) {
    if (name != preset.name) return;
    auto const draft = text::drafted(std::string(name), preset, items, inputs);
    if (draft.when)
      throw unsupported("'" + std::string(text) + "': a decoder on a GPU has the policy's own trigger; leave out trigger");
    visit(draft);
  });
}

}  // namespace

std::unique_ptr<any_decoder> decoder_of(std::string_view text, policy_inputs const& inputs, cache_shape const& shape,
                                        gpu::stream_device& device, decoder_sizes const& sizes) {
  std::unique_ptr<any_decoder> made;
  auto const make = [&](auto const& policy, owned_data owned) {
    made = std::make_unique<decoder_for<std::decay_t<decltype(policy)>>>(policy, std::move(owned), shape, device, sizes);
  };
  std::size_t const plus = text.find('+');
  with_preset(text.substr(0, plus), inputs, [&](auto const& first) {
    if (plus == std::string_view::npos) {
      if constexpr (gpu::decodable<std::decay_t<decltype(first.policy)>, gpu::stream_device>) make(first.policy, first.owned);
      return;
    }
    using retain = decltype(first.policy.parts().retain);
    with_preset(text.substr(plus + 1), inputs, [&](auto const& second) {
      using retrieve = decltype(second.policy.parts().retrieve);
      if constexpr (!std::same_as<retain, keep_all> && !std::same_as<retrieve, keep_all>) {
        if constexpr (gpu::decodable<policy<retain, retrieve>, gpu::stream_device>) {
          owned_data owned = first.owned;
          owned.insert(owned.end(), second.owned.begin(), second.owned.end());
          make(policy{first.policy.parts().retain, second.policy.parts().retrieve}, std::move(owned));
        }
      }
    });
  });
  if (!made && plus == std::string_view::npos)
    throw unsupported(
        "'" + std::string(text) +
        "' has no decoder on a GPU: it is a plugin's, which serves host memory alone (use kvpolicy_start), or has no "
        "kernels for every step (use kvpolicy_start_cuda)");
  if (!made) {
    throw unsupported("'" + std::string(text) + "' has no decoder on a GPU: the second policy has no kernels for what the " +
                      "first one leaves; use kvpolicy_start_cuda");
  }
  return made;
}

}  // namespace kvpolicy::c
