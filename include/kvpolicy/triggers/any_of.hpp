// Trigger any_of: the choice is made again when either of two triggers is due.
#pragma once

#include "kvpolicy/archive.hpp"
#include "kvpolicy/concepts.hpp"
#include "kvpolicy/score_input.hpp"
#include "kvpolicy/triggers/every.hpp"

namespace kvpolicy::triggers {

/// Makes the choice again when either of two triggers is due: `any_of{triggers::every{64}, triggers::entropy{}}`.
template <trigger_part A, trigger_part B>
struct any_of {
  static constexpr signals needs = A::needs | B::needs;
  static constexpr bool while_decoding = A::while_decoding || B::while_decoding;

  A first{};   ///< one trigger
  B second{};  ///< the other trigger

  constexpr signals wants() const noexcept { return first.wants() | second.wants(); }

  /// Both triggers' states.
  struct state {
    decltype(std::declval<A const&>().start(cache_shape{})) first;
    decltype(std::declval<B const&>().start(cache_shape{})) second;
    void reserve(std::int64_t tokens) {
      make_room(first, tokens);
      make_room(second, tokens);
    }
    void restart() noexcept {
      first.restart();
      second.restart();
    }
    template <class Archive>
    void archive(Archive& a) {
      archive_if(a, first, A::needs != signals::none, "trigger");
      archive_if(a, second, B::needs != signals::none, "trigger");
    }
  };
  state start(cache_shape const& shape) const { return {first.start(shape), second.start(shape)}; }
  bool due(state const& s, layer_id layer, head_id head, std::int64_t since) const noexcept {
    return first.due(s.first, layer, head, since) || second.due(s.second, layer, head, since);
  }

  /// Says whether either trigger reads the keys of a head while decoding.
  /// @param head  layer * kv_heads + KV head
  /// @param prompt_tokens  tokens of the prompt
  /// @return false where neither does
  bool reads_keys(std::size_t head, std::int64_t prompt_tokens) const {
    bool read = false;
    if constexpr (requires { first.reads_keys(head, prompt_tokens); }) read = first.reads_keys(head, prompt_tokens);
    if constexpr (requires { second.reads_keys(head, prompt_tokens); }) read = read || second.reads_keys(head, prompt_tokens);
    return read;
  }

  template <executor Exec>
  void observe(state& s, std::int64_t tokens, step_outcome const& outcome, Exec& exec) const {
    if constexpr (contains(A::needs, signals::logits)) first.observe(s.first, tokens, outcome, exec);
    if constexpr (contains(B::needs, signals::logits)) second.observe(s.second, tokens, outcome, exec);
  }
  template <class Input, executor Exec>
  void begin(state& s, Input const& input, std::int64_t prompt, Exec& exec) const {
    if constexpr (contains(A::needs, signals::queries)) first.begin(s.first, input, prompt, exec);
    if constexpr (contains(B::needs, signals::queries)) second.begin(s.second, input, prompt, exec);
  }
  template <class Input, executor Exec>
  void watch(state& s, Input const& input, std::int64_t prompt, Exec& exec) const {
    if constexpr (contains(A::needs, signals::queries)) first.watch(s.first, input, prompt, exec);
    if constexpr (contains(B::needs, signals::queries)) second.watch(s.second, input, prompt, exec);
  }

  template <class Visit>
  void visit_statistics(state const& s, Visit const& visit) const {
    if constexpr (requires { first.visit_statistics(s.first, visit); }) first.visit_statistics(s.first, visit);
    if constexpr (requires { second.visit_statistics(s.second, visit); }) second.visit_statistics(s.second, visit);
  }
};

template <class A, class B>
any_of(A, B) -> any_of<A, B>;

static_assert(trigger_part<any_of<triggers::every, triggers::every>>);

}  // namespace kvpolicy::triggers
