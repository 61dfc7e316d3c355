// When a choice for the whole request is made anew, on the device: after so many steps, or when the model is unsure.
#pragma once

#include <algorithm>
#include <optional>

#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/hierarchy/entropy.hpp"
#include "kvpolicy/gpu/hierarchy/page_trigger.hpp"
#include "kvpolicy/gpu/step/context.hpp"
#include "kvpolicy/triggers/any_of.hpp"
#include "kvpolicy/triggers/entropy.hpp"
#include "kvpolicy/triggers/every.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/triggers/prefill.hpp"

namespace kvpolicy::gpu {

/// A trigger as the device knows it. A user's own joins by an on_device() beside it.
struct device_trigger {
  std::int32_t steps = 0;                     ///< after as many the choice is made anew; 0: never
  std::optional<triggers::entropy> unsure{};  ///< or by the entropy of a page of tokens
};
constexpr device_trigger on_device(triggers::prefill const&) noexcept { return {}; }
constexpr device_trigger on_device(triggers::every_step const&) noexcept { return {.steps = 1}; }
constexpr device_trigger on_device(triggers::every const& when) noexcept { return {.steps = when.steps}; }
constexpr device_trigger on_device(triggers::entropy const& when) noexcept { return {.unsure = when}; }
/// Of two that both look at entropies the device knows one alone.
template <class A, class B>
  requires(!(contains(A::needs, signals::logits) && contains(B::needs, signals::logits)))
constexpr device_trigger on_device(triggers::any_of<A, B> const& either) noexcept {
  device_trigger made = on_device(either.first);
  device_trigger const other = on_device(either.second);
  if (other.steps > 0) made.steps = made.steps > 0 ? std::min(made.steps, other.steps) : other.steps;
  if (other.unsure) made.unsure = other.unsure;
  return made;
}

template <class Rule>
concept triggers_on_device = requires(typename Rule::trigger_type const& when) {
  { on_device(when) } -> std::same_as<device_trigger>;
};

namespace detail {

/// Which sequences' models are unsure.
template <owning_device D>
class page_uncertainties {
 public:
  page_uncertainties(device_trigger const& when, std::int64_t sequences, std::int64_t tokens_of_step, D& device)
      : when_(when),
        sequences_(sequences),
        tokens_of_step_(tokens_of_step),
        device_(&device),
        counts_(device.template allocate<std::int32_t>(2 * sequences)),
        moments_(device.template allocate<double>(2 * sequences)),
        entropy_(device.template allocate<float>(tokens_of_step * sequences)) {}

  std::int32_t steps() const noexcept { return when_.steps; }
  /// Steps before which what fired does not count.
  std::int32_t rest() const noexcept { return when_.unsure ? when_.unsure->rest : 0; }
  buffer<std::int32_t> fired() const noexcept { return part_of(counts_.get(), 0, sequences_); }

  /// A prompt, or a piece of one, is there; `anew`: a sequence begins.
  void restart(std::int64_t sequence, bool anew) {
    auto const zero = [&](auto all, std::int64_t at) {
      std::remove_pointer_t<decltype(all.data)> const none{};
      device_->upload(part_of(all, at * sequences_ + sequence, 1), &none, 1);
    };
    if (anew) zero(counts_.get(), 0);
    zero(counts_.get(), 1);
    for (std::int64_t row = 0; row < 2; ++row) zero(moments_.get(), row);
  }

  /// The entropies behind the tokens that a step brought, for observe().
  void read(vector_rows const& logits, std::int64_t vocabulary, per_sequence const& brought) {
    device_->template launch<entropy_body>({sequences_, tokens_of_step_, 1},
                                           {logits, vocabulary, sequences_, brought, entropy_.get(), {}});
  }
  /// What came behind a step's nth token, of sequences that had so many tokens with it.
  void observe(std::int64_t nth, per_sequence const& lengths) {
    buffer<float> const entropies = part_of(entropy_.get(), nth * sequences_, sequences_);
    page_trigger const state{part_of(moments_.get(), 0, sequences_), part_of(moments_.get(), sequences_, sequences_),
                             part_of(counts_.get(), sequences_, sequences_), fired()};
    device_->template launch<page_trigger_body>({divided_up(sequences_, page_trigger_body::threads), 1, 1},
                                                {state, entropies, lengths, sequences_, when_.unsure->page, when_.unsure->mean,
                                                 when_.unsure->variance, when_.unsure->both});
  }

 private:
  device_trigger when_;
  std::int64_t sequences_;
  std::int64_t tokens_of_step_;
  D* device_;
  array_of<D, std::int32_t> counts_;  ///< `[2, sequences]`: fired, entropies of the page
  array_of<D, double> moments_;       ///< `[2, sequences]`
  array_of<D, float> entropy_;        ///< `[tokens of a step, sequences]`
};

}  // namespace detail
}  // namespace kvpolicy::gpu
