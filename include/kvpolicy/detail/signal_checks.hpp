// Whether the verbs were given what the policy needs: each signal by the name of the field to set.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kvpolicy/signals.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// Throws unsupported: a needed signal is missing.
[[noreturn]] inline void missing(char const* signal, char const* field) {
  throw unsupported(std::string("the policy needs ") + signal + ", and was given none: set " + field);
}

/// Heads of queries. Throws unsupported where there are none, invalid_value where they are another model's.
inline void check_heads(float const* data, std::int64_t heads, float scale, cache_shape const& shape, char const* what,
                        char const* field) {
  if (data == nullptr) missing(what, field);
  KVPOLICY_EXPECTS(heads == shape.q_heads, std::string(field) + " has " + std::to_string(heads) + " heads; the model has " +
                                               std::to_string(shape.q_heads));
  KVPOLICY_EXPECTS(std::isfinite(scale),
                   std::string(field) + ".scale is " + std::to_string(scale) + "; it must be a finite number");
}

/// The view is the started request's cache, and has the rows that the policy reads. Throws invalid_value, unsupported.
template <kv_cache_view View>
void check_view(View const& view, layer_id layer, signals needs, cache_shape const& shape) {
  cache_shape given = view.shape();
  given.max_tokens = shape.max_tokens;
  KVPOLICY_EXPECTS(given == shape, "a view of " + text_of(given) + "; this request was started for " + text_of(shape));
  auto const check_rows = [&](auto const& given_rows, char const* what) {
    if (given_rows.base == nullptr) missing(what, what);
    KVPOLICY_EXPECTS(
        given_rows.heads == shape.kv_heads && given_rows.head_dim == shape.head_dim && given_rows.tokens >= view.tokens(),
        std::string(what) + " of layer " + std::to_string(layer.value) + " are " + std::to_string(given_rows.heads) +
            " heads x " + std::to_string(given_rows.tokens) + " tokens x " + std::to_string(given_rows.head_dim) +
            "; the view has " + text_of(shape) + " and " + std::to_string(view.tokens()) + " tokens");
  };
  if (contains(needs, signals::keys)) check_rows(view.keys(layer), "the view's keys");
  if (contains(needs, signals::values)) check_rows(view.values(layer), "the view's values");
}

/// Of a prompt's queries there may be fewer than the policy looks at, but not none. Throws unsupported, invalid_value.
inline void check_signals(prompt_signals const& given, signals needs, std::int64_t tokens, cache_shape const& shape) {
  std::int64_t const fresh = tokens - given.first;
  if (contains(needs, signals::observation_queries) && fresh > 0) {
    query_window const& q = given.queries;
    check_heads(q.tokens > 0 ? q.data : nullptr, q.heads, q.scale, shape, "the prompt's last queries",
                "prompt_signals::queries");
    KVPOLICY_EXPECTS(q.tokens <= tokens, "prompt_signals::queries are of " + std::to_string(q.tokens) +
                                             " tokens; the prompt has " + std::to_string(tokens));
  }
  if (token_span const of = given.repeats; !of.empty()) {
    query_window const& q = given.queries;
    KVPOLICY_EXPECTS(of.begin >= 0 && of.begin < of.end && of.end <= given.first,
                     "prompt_signals::repeats names tokens " + std::to_string(of.begin) + ".." + std::to_string(of.end) +
                         "; a repetition that begins at token " + std::to_string(given.first) + " repeats earlier ones");
    if (contains(needs, signals::repetition)) {
      check_heads(fresh > 0 ? q.data : nullptr, q.heads, q.scale, shape, "the repetition's queries", "prompt_signals::queries");
      KVPOLICY_EXPECTS(q.tokens == fresh, "prompt_signals::queries are of " + std::to_string(q.tokens) +
                                              " tokens; the repetition has " + std::to_string(fresh));
    }
  }
  std::size_t const heads = given.resident.size();
  KVPOLICY_EXPECTS(heads <= 1 || heads == static_cast<std::size_t>(shape.kv_heads),
                   "prompt_signals::resident has " + std::to_string(heads) + " lists; one for all heads, or " +
                       std::to_string(shape.kv_heads) + ", can be");
  for (range_list const& list : given.resident) {
    std::int32_t end = 0;
    bool ascends = !list.empty();
    for (token_range const& range : list) ascends = ascends && range.begin >= std::exchange(end, range.end) && range.size() > 0;
    KVPOLICY_EXPECTS(ascends && end <= tokens,
                     "prompt_signals::resident has a list that is empty, does not ascend, or names tokens behind the view's " +
                         std::to_string(tokens));
  }
  if (contains(needs, signals::rotation)) {
    rotation const& r = given.rope;
    if (r.inverse_frequency == nullptr) missing("the keys' rotary embedding", "prompt_signals::rope");
    KVPOLICY_EXPECTS(r.pairs >= 0 && 2 * r.pairs <= shape.head_dim,
                     "prompt_signals::rope has " + std::to_string(r.pairs) + " pairs; rows of " +
                         std::to_string(shape.head_dim) + " channels have at most " + std::to_string(shape.head_dim / 2));
  }
  if (contains(needs, signals::token_ids)) {
    if (given.token_ids.empty() && fresh > 0) missing("the tokens' ids", "prompt_signals::token_ids");
    KVPOLICY_EXPECTS(std::ssize(given.token_ids) == fresh, "prompt_signals::token_ids are " +
                                                               std::to_string(given.token_ids.size()) + "; the prompt has " +
                                                               std::to_string(fresh) + " new tokens");
  }
}

inline void check_signals(step_signals const& given, signals needs, cache_shape const& shape) {
  if (contains(needs, signals::queries)) {
    query_heads const& q = given.queries;
    check_heads(q.data, q.heads, q.scale, shape, "the current token's queries", "step_signals::queries");
  }
  if (contains(needs, signals::token_ids) && given.token_id < 0) missing("the current token's id", "step_signals::token_id");
}

inline void check_signals(step_window const& given, signals needs, cache_shape const& shape) {
  if (contains(needs, signals::queries)) {
    query_window const& q = given.queries;
    check_heads(q.data, q.heads, q.scale, shape, "the step's queries", "step_window::queries");
    KVPOLICY_EXPECTS(q.tokens == given.tokens, "step_window::queries are of " + std::to_string(q.tokens) +
                                                   " tokens; the step has " + std::to_string(given.tokens));
  }
  if (contains(needs, signals::token_ids) && given.token_ids.empty()) missing("the tokens' ids", "step_window::token_ids");
  KVPOLICY_EXPECTS(given.token_ids.empty() || std::ssize(given.token_ids) == given.tokens,
                   "step_window::token_ids are " + std::to_string(given.token_ids.size()) + "; the step has " +
                       std::to_string(given.tokens) + " tokens");
}

inline void check_signals(step_outcome const& given, signals needs) {
  if (contains(needs, signals::logits) && given.logits.empty() && !given.entropy) {
    missing("the next token's logits", "step_outcome::logits (or ::entropy)");
  }
}

}  // namespace kvpolicy
