// One policy with its state behind function pointers, for adapters that are compiled once: the four verbs, type-erased.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "kvpolicy/exec/simd.hpp"
#include "kvpolicy/interop/layer_table_view.hpp"
#include "kvpolicy/policy.hpp"

namespace kvpolicy {

/// Owns a policy and, from start() on, its state. The verbs' contracts are those of policy.hpp.
template <executor Exec, kv_cache_view View>
class basic_policy_runner {
 public:
  template <policy_like Policy>
  static basic_policy_runner of(Policy const& policy) {
    return basic_policy_runner(std::make_unique<model<Policy>>(policy), calls_of<Policy>);
  }

  /// The same policy, not started.
  basic_policy_runner another() const { return calls_.another(self_.get()); }

  /// What this policy needs; less than its type's, perhaps, where parts are chosen at run time.
  signals needs() const noexcept { return calls_.needs(self_.get()); }
  /// Queries of a prompt that the policy looks at, 0 where it needs none.
  std::int64_t window_queries() const noexcept { return calls_.window_queries(self_.get()); }
  /// Throws what start would.
  void check(cache_shape const& shape) const { calls_.check(self_.get(), shape); }
  void start(cache_shape const& shape) { calls_.start(self_.get(), shape); }
  void prefill(View const& view, layer_id layer, prompt_signals const& prompt, Exec& exec) {
    calls_.prefill(self_.get(), view, layer, prompt, exec);
  }
  selection choose(View const& view, layer_id layer, step_signals const& signals, Exec& exec) {
    return calls_.choose(self_.get(), view, layer, signals, exec);
  }
  /// What the last choose of this layer returned.
  selection kept(layer_id layer) const { return calls_.kept(self_.get(), layer); }
  /// What is there at all, read or not; after choose.
  selection retained(layer_id layer) const { return calls_.retained(self_.get(), layer); }
  void observe(step_outcome const& outcome, Exec& exec) { calls_.observe(self_.get(), outcome, exec); }

 private:
  struct any_model {
    virtual ~any_model() = default;
  };
  template <class Policy>
  struct model : any_model {
    explicit model(Policy const& p) : policy(p) {}
    Policy policy;
    std::optional<policy_state<parts_t<Policy>>> state;
  };
  struct calls {
    basic_policy_runner (*another)(any_model*);
    signals (*needs)(any_model*);
    std::int64_t (*window_queries)(any_model*);
    void (*check)(any_model*, cache_shape const&);
    void (*start)(any_model*, cache_shape const&);
    void (*prefill)(any_model*, View const&, layer_id, prompt_signals const&, Exec&);
    selection (*choose)(any_model*, View const&, layer_id, step_signals const&, Exec&);
    selection (*kept)(any_model*, layer_id);
    selection (*retained)(any_model*, layer_id);
    void (*observe)(any_model*, step_outcome const&, Exec&);
  };

  template <class Policy>
  static model<Policy>& as(any_model* self) noexcept {
    return *static_cast<model<Policy>*>(self);
  }

  template <class Policy>
  static constexpr calls calls_of{
      .another = [](any_model* self) { return of(as<Policy>(self).policy); },
      .needs = [](any_model* self) { return needs_of(as<Policy>(self).policy); },
      .window_queries = [](any_model* self) -> std::int64_t { return prompt_queries(as<Policy>(self).policy); },
      .check = [](any_model* self, cache_shape const& shape) { kvpolicy::check(as<Policy>(self).policy, shape); },
      .start =
          [](any_model* self, cache_shape const& shape) {
            as<Policy>(self).state.emplace(kvpolicy::start(as<Policy>(self).policy, shape));
          },
      .prefill =
          [](any_model* self, View const& view, layer_id layer, prompt_signals const& prompt, Exec& exec) {
            kvpolicy::prefill(as<Policy>(self).policy, *as<Policy>(self).state, view, layer, prompt, exec);
          },
      .choose =
          [](any_model* self, View const& view, layer_id layer, step_signals const& signals, Exec& exec) {
            return kvpolicy::choose(as<Policy>(self).policy, *as<Policy>(self).state, view, layer, signals, exec);
          },
      .kept = [](any_model* self, layer_id layer) { return as<Policy>(self).state->kept(layer); },
      .retained = [](any_model* self, layer_id layer) { return as<Policy>(self).state->retained(layer); },
      .observe = [](any_model* self, step_outcome const& outcome,
                    Exec& exec) { kvpolicy::observe(as<Policy>(self).policy, *as<Policy>(self).state, outcome, exec); }};

  basic_policy_runner(std::unique_ptr<any_model> self, calls const& functions) : self_(std::move(self)), calls_(functions) {}

  std::unique_ptr<any_model> self_;
  calls calls_;
};

/// The one for CPU engines.
using policy_runner = basic_policy_runner<simd_exec, layer_table_view>;

}  // namespace kvpolicy
