// An act that is chosen at run time, by name: one of a list of acts, with the state of that one.
#pragma once

#include <type_traits>
#include <utility>
#include <variant>

#include "kvpolicy/policy.hpp"

namespace kvpolicy {

/// Stands where an act stands: `policy<one_of<...>, one_of<...>>` is any pair of them. What it needs is known at compile time
/// as the union, at run time (needs_of, scope_of, prompt_queries) as the chosen act's.
template <class... Acts>
struct one_of {
  static constexpr signals needs = (signals::none | ... | Acts::needs);
  static constexpr scope how_fine = std::max({Acts::how_fine...});

  std::variant<Acts...> act{};
};

template <class... Acts>
signals needs_of(one_of<Acts...> const& any) noexcept {
  return std::visit([](auto const& act) { return needs_of(act); }, any.act);
}
template <class... Acts>
scope scope_of(one_of<Acts...> const& any) noexcept {
  return std::visit([](auto const& act) { return scope_of(act); }, any.act);
}
template <class... Acts>
std::int64_t prompt_queries(one_of<Acts...> const& any) noexcept {
  return std::visit([](auto const& act) { return prompt_queries(act); }, any.act);
}
template <class... Acts>
bool keeps_all(one_of<Acts...> const& any) noexcept {
  return std::visit([](auto const& act) { return keeps_all(act); }, any.act);
}
template <class... Acts>
bool evicts(one_of<Acts...> const& any) noexcept {
  return std::visit([](auto const& act) { return evicts(act); }, any.act);
}
template <class... Acts>
bool needs_ranks(one_of<Acts...> const& any) noexcept {
  return std::visit([](auto const& act) { return needs_ranks(act); }, any.act);
}
template <class... Acts>
layering layers_of(one_of<Acts...> const& any) noexcept {
  return std::visit([](auto const& act) { return layers_of(act); }, any.act);
}
template <class... Acts>
void check(one_of<Acts...> const& any, cache_shape const& shape) {
  std::visit([&](auto const& act) { check(act, shape); }, any.act);
}
template <class... Acts>
void check_window(one_of<Acts...> const& any, cache_shape const& shape) {
  std::visit([&](auto const& act) { check_window(act, shape); }, any.act);
}

/// The state of whichever act was chosen; each call goes to it with the act that it belongs to.
template <template <class> class State, class... Acts>
class state_of_one {
 public:
  state_of_one(one_of<Acts...> const& any, cache_shape const& shape)
      : state_(std::visit(
            [&](auto const& act) { return states(std::in_place_type<State<std::decay_t<decltype(act)>>>, act, shape); },
            any.act)) {}

  template <class Call>
  decltype(auto) with(one_of<Acts...> const& any, Call call) {
    return std::visit(
        [&](auto& state) -> decltype(auto) {
          return call(*std::get_if<typename act_of<std::decay_t<decltype(state)>>::type>(&any.act), state);
        },
        state_);
  }
  template <class Call>
  decltype(auto) with(Call call) {
    return std::visit(call, state_);
  }
  template <class Call>
  decltype(auto) with(Call call) const {
    return std::visit(call, state_);
  }

 private:
  using states = std::variant<State<Acts>...>;
  template <class S>
  struct act_of;
  template <class Act>
  struct act_of<State<Act>> {
    using type = Act;
  };
  states state_;
};

template <class... Acts>
class retain_state<one_of<Acts...>> {
  using any = one_of<Acts...>;

 public:
  retain_state(any const& act, cache_shape const& shape) : state_(act, shape) {}

  std::span<range_list const> lists(layer_id layer) const noexcept {
    return state_.with([&](auto const& s) { return s.lists(layer); });
  }
  std::int64_t revision(layer_id layer) const noexcept {
    return state_.with([&](auto const& s) { return s.revision(layer); });
  }
  static std::size_t ranges(any const& act, cache_shape const& shape) {
    return std::visit([&](auto const& a) { return retain_state<std::decay_t<decltype(a)>>::ranges(a, shape); }, act.act);
  }
  void truncate(std::int64_t tokens) {
    state_.with([&](auto& s) { s.truncate(tokens); });
  }
  void restart() noexcept {
    state_.with([&](auto& s) { s.restart(); });
  }
  template <class View, class Exec>
  void prefill(any const& act, View const& view, layer_id layer, prompt_signals const& prompt, Exec& exec) {
    state_.with(act, [&](auto const& a, auto& s) { s.prefill(a, view, layer, prompt, exec); });
  }
  template <class View, class Exec>
  void step(any const& act, View const& view, layer_id layer, step_signals const& signals, Exec& exec) {
    state_.with(act, [&](auto const& a, auto& s) { s.step(a, view, layer, signals, exec); });
  }
  template <class Exec>
  void observe(any const& act, std::int64_t tokens, step_outcome const& outcome, Exec& exec) {
    state_.with(act, [&](auto const& a, auto& s) { s.observe(a, tokens, outcome, exec); });
  }

 private:
  state_of_one<retain_state, Acts...> state_;
};

template <class... Acts>
class retrieve_state<one_of<Acts...>> {
  using any = one_of<Acts...>;

 public:
  retrieve_state(any const& act, cache_shape const& shape) : state_(act, shape) {}

  std::span<range_list const> lists(layer_id layer) const noexcept {
    return state_.with([&](auto const& s) { return s.lists(layer); });
  }
  void reserve(std::size_t ranges) {
    state_.with([&](auto& s) { s.reserve(ranges); });
  }
  void truncate(std::int64_t tokens) {
    state_.with([&](auto& s) { s.truncate(tokens); });
  }
  void restart() noexcept {
    state_.with([&](auto& s) { s.restart(); });
  }
  void cut(layer_id layer, head_range heads, std::int64_t tokens) {
    state_.with([&](auto& s) { s.cut(layer, heads, tokens); });
  }
  template <class View, class Exec>
  void prefill(any const& act, View const& view, layer_id layer, retained_tokens const& there, prompt_signals const& prompt,
               Exec& exec) {
    state_.with(act, [&](auto const& a, auto& s) { s.prefill(a, view, layer, there, prompt, exec); });
  }
  template <class View, class Exec>
  void choose(any const& act, View const& view, layer_id layer, retained_tokens const& there, step_signals const& signals,
              Exec& exec) {
    state_.with(act, [&](auto const& a, auto& s) { s.choose(a, view, layer, there, signals, exec); });
  }
  template <class Exec>
  void observe(any const& act, std::int64_t tokens, step_outcome const& outcome, Exec& exec) {
    state_.with(act, [&](auto const& a, auto& s) { s.observe(a, tokens, outcome, exec); });
  }

 private:
  state_of_one<retrieve_state, Acts...> state_;
};

}  // namespace kvpolicy
