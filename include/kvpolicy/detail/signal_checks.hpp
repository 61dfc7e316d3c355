// Whether the verbs were given what the policy needs: each signal by the name of the field to set.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "kvpolicy/detail/row_checks.hpp"
#include "kvpolicy/primitive/attend.hpp"
#include "kvpolicy/signals.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// Heads of queries. Throws unsupported where there are none, invalid_value where they are another model's.
template <class Queries>
void check_heads(Queries const& queries, cache_shape const& shape, char const* what, char const* field) {
  if (queries.data == nullptr) missing(what, field);
  KVPOLICY_EXPECTS(queries.heads == shape.q_heads, std::string(field) + " has " + std::to_string(queries.heads) +
                                                       " heads; the model has " + std::to_string(shape.q_heads));
  check_scale(queries.scale, field);
  check_query_strides(queries, shape.head_dim, field);
}

/// A view's pointers are to elements of its type, where they say so. Throws invalid_value.
template <kv_cache_view View>
void check_elements(View const& view, cache_shape const& shape) {
  if constexpr (requires { view.key_base.element; }) {
    for (element_pointer const& base : std::array<element_pointer, 2>{view.key_base, view.value_base}) {
      KVPOLICY_EXPECTS(base.fits(shape.type), "a view of " + std::string(name_of(shape.type)) + " elements at a pointer to " +
                                                  std::to_string(base.element) +
                                                  " bytes each; set cache_shape::type to what the cache holds");
    }
  }
}

/// Where a layer's keys and values are.
using layer_place = std::array<void const*, 2>;

/// A view with strides has one of its layers behind the other: where their bases are layer 0's, which `first` remembers, the
/// strides are not 0. Other views may show layers in one buffer in turn. Throws invalid_value.
template <kv_cache_view View>
void check_layer_apart(View const& view, layer_id layer, layer_place& first) {
  if constexpr (requires { view.key_strides.layer; }) {
    layer_place const here{view.key_base, view.value_base};
    if (layer.value == 0) first = here;
    std::array const strides{view.key_strides.layer, view.value_strides.layer};
    for (std::size_t i = 0; i < 2 && layer.value > 0; ++i) {
      KVPOLICY_EXPECTS(here[i] == nullptr || here[i] != first[i] || strides[i] != 0,
                       "layer " + std::to_string(layer.value) + " has layer 0's " + (i == 0 ? "keys" : "values") +
                           ": byte_strides::layer is 0; set it to the bytes from one layer to the next, or give each layer a "
                           "view of its own");
    }
    check_strides(view.keys(layer), "the view's keys", layer.value, view.shape().layers, view.key_strides.layer);
  }
}

/// Whether the newest value repeats its key's first channels, as copied latent rows do (a row_store's).
inline bool values_repeat_keys(rows const& keys, rows const& values) noexcept {
  if (values.base == nullptr || keys.type != values.type || keys.tokens == 0) return false;
  std::byte const* const key = keys.address({0}, {keys.tokens - 1});
  std::byte const* const value = values.address({0}, {values.tokens - 1});
  bool zero = true;
  for (std::int64_t i = 0; i < values.head_dim; i += elements_of_block(keys.type))
    for (std::int64_t b = 0; b < size_of(keys.type); ++b) {
      std::byte const of_key = key[keys.offset_of(i) + b];
      if (of_key != value[values.offset_of(i) + b]) return false;
      zero = zero && of_key == std::byte{0};
    }
  return !zero;
}

/// Of rows that are keys and values (MLA), what is rotated lies behind the values, and rotation::pairs begin at channel 0.
/// Throws unsupported.
template <kv_cache_view View>
void check_rotated_first(View const& view, layer_id layer, signals needs, rotation const& rope, cache_shape const& shape) {
  if (!contains(needs, signals::rotation) || shape.values_dim() >= shape.head_dim) return;
  std::span const turns(rope.inverse_frequency, static_cast<std::size_t>(rope.pairs));
  if (std::ranges::all_of(turns, [](float frequency) { return frequency == 0; })) return;
  auto const keys = view.keys(layer);
  auto const values = view.values(layer);
  bool latent = keys.base == values.base && keys.pages == values.pages;
  if constexpr (std::same_as<typename View::memory, host_memory>) latent = latent || values_repeat_keys(keys, values);
  if (latent)
    throw unsupported(
        "the policy undoes the keys' rotary embedding, which of keys that hold the values, too, turns the channels "
        "behind those; let it pool keys as they lie (pre_rope=0 of chess and infllm), or take another policy");
}

/// The view is the started request's cache, and has the rows that the policy reads. Throws invalid_value, unsupported.
template <kv_cache_view View>
void check_view(View const& view, layer_id layer, signals needs, cache_shape const& shape) {
  cache_shape given = view.shape();
  given.max_tokens = shape.max_tokens;
  KVPOLICY_EXPECTS(given == shape, "a view of " + text_of(given) + "; this request was started for " + text_of(shape));
  auto const check_rows = [&](auto const& given_rows, char const* what, std::int64_t dim, bool of_type) {
    if (given_rows.base == nullptr) missing(what, what);
    KVPOLICY_EXPECTS(!of_type || given_rows.type == shape.type, std::string(what) + " are " + name_of(given_rows.type) +
                                                                    " elements, of a cache of " + name_of(shape.type) +
                                                                    "; set rows::type in the view");
    KVPOLICY_EXPECTS(given_rows.heads == shape.kv_heads && given_rows.head_dim == dim && given_rows.tokens == view.tokens(),
                     std::string(what) + " of layer " + std::to_string(layer.value) + " are " +
                         std::to_string(given_rows.heads) + " heads x " + std::to_string(given_rows.tokens) + " tokens x " +
                         std::to_string(given_rows.head_dim) + "; the view has " + text_of(shape) + " and " +
                         std::to_string(view.tokens()) + " tokens");
    check_strides(given_rows, what, layer.value);
  };
  check_elements(view, shape);
  if (contains(needs, signals::keys)) check_rows(view.keys(layer), "the view's keys", shape.head_dim, true);
  if (contains(needs, signals::values)) check_rows(view.values(layer), "the view's values", shape.values_dim(), false);
  if (contains(needs, signals::keys | signals::values)) check_apart(view.keys(layer), view.values(layer));
}

/// No id is negative. Throws invalid_value.
inline void check_ids(std::span<std::int32_t const> ids, char const* field) {
  auto const wrong = std::ranges::find_if(ids, [](std::int32_t id) { return id < 0; });
  KVPOLICY_EXPECTS(wrong == ids.end(), std::string(field) + " has id " + std::to_string(wrong == ids.end() ? 0 : *wrong) +
                                           " at " + std::to_string(wrong - ids.begin()) + "; ids are 0 or more");
}

/// Of a prompt's queries, from its first piece's first token `begun` on, there are as many as the policy looks at, or all.
/// Throws unsupported, invalid_value.
inline void check_signals(prompt_signals const& given, signals needs, std::int64_t observed, std::int64_t begun,
                          std::int64_t tokens, cache_shape const& shape) {
  std::int64_t const fresh = tokens - given.first;
  if (contains(needs, signals::observation_queries) && fresh > 0) {
    query_window const& q = given.queries;
    if (q.tokens < 1) missing("the prompt's last queries", "prompt_signals::queries");
    check_heads(q, shape, "the prompt's last queries", "prompt_signals::queries");
    KVPOLICY_EXPECTS(q.tokens <= tokens, "prompt_signals::queries are of " + std::to_string(q.tokens) +
                                             " tokens; the prompt has " + std::to_string(tokens));
    std::int64_t const wanted = std::min(observed, tokens - std::max(begun, given.observed_from));
    KVPOLICY_EXPECTS(q.tokens >= wanted, "prompt_signals::queries are of " + std::to_string(q.tokens) +
                                             " tokens; the policy reads those of the prompt's last " + std::to_string(wanted) +
                                             " (observation_queries(policy)), all heads of each" +
                                             (begun < given.first ? "; give those of its earlier pieces too, or say in "
                                                                    "observed_from where those that you have begin"
                                                                  : ""));
  }
  KVPOLICY_EXPECTS(!given.repeats.empty() || given.repeats.end == 0,
                   "prompt_signals::repeats names tokens " + std::to_string(given.repeats.begin) + ".." +
                       std::to_string(given.repeats.end) + "; give the first one, and the one behind the last");
  if (token_span const of = given.repeats; !of.empty()) {
    query_window const& q = given.queries;
    KVPOLICY_EXPECTS(of.begin >= 0 && of.begin < of.end && of.end <= given.first,
                     "prompt_signals::repeats names tokens " + std::to_string(of.begin) + ".." + std::to_string(of.end) +
                         "; a repetition that begins at token " + std::to_string(given.first) + " repeats earlier ones");
    if (!contains(needs, signals::repetition)) {
      throw unsupported("prompt_signals::repeats names tokens, and the policy needs no repetition; leave it empty");
    } else {
      if (fresh < 1) missing("the repetition's queries", "prompt_signals::queries");
      check_heads(q, shape, "the repetition's queries", "prompt_signals::queries");
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
    KVPOLICY_EXPECTS(fresh == 0 || end == tokens, "prompt_signals::resident has a list that ends at token " +
                                                      std::to_string(end) + " of " + std::to_string(tokens) +
                                                      "; the new tokens' rows are there too");
  }
  if (contains(needs, signals::rotation)) {
    rotation const& r = given.rope;
    if (r.inverse_frequency == nullptr) missing("the keys' rotary embedding", "prompt_signals::rope");
    std::int64_t const most = shape.head_dim / 2;
    KVPOLICY_EXPECTS(r.pairs >= std::min<std::int64_t>(most, 1) && r.pairs <= most,
                     "prompt_signals::rope has " + std::to_string(r.pairs) + " pairs; rows of " +
                         std::to_string(shape.head_dim) + " channels have 1 to " + std::to_string(most) +
                         ", and a frequency of 0 turns nothing");
    for (std::int64_t i = 0; i < r.pairs; ++i) {
      KVPOLICY_EXPECTS(std::abs(r.inverse_frequency[i]) <= 3.2f,
                       "prompt_signals::rope has the inverse frequency " + std::to_string(r.inverse_frequency[i]) + " at " +
                           std::to_string(i) + "; give radians a position, 1 for the first pair in most models");
    }
  }
  if (contains(needs, signals::token_ids)) {
    if (given.token_ids.empty() && fresh > 0) missing("the tokens' ids", "prompt_signals::token_ids");
    KVPOLICY_EXPECTS(std::ssize(given.token_ids) == fresh, "prompt_signals::token_ids are " +
                                                               std::to_string(given.token_ids.size()) + "; the prompt has " +
                                                               std::to_string(fresh) + " new tokens");
    check_ids(given.token_ids, "prompt_signals::token_ids");
  }
}

inline void check_signals(step_signals const& given, signals needs, cache_shape const& shape) {
  if (contains(needs, signals::queries)) {
    query_heads const& q = given.queries;
    check_heads(q, shape, "the current token's queries", "step_signals::queries");
  }
  if (contains(needs, signals::token_ids) && given.token_id < 0) missing("the current token's id", "step_signals::token_id");
}

/// Throws invalid_value for a step of too many tokens.
inline void check_tokens(step_window const& given) {
  KVPOLICY_EXPECTS(given.tokens >= 1 && given.tokens <= most_step_tokens,
                   "a step of " + std::to_string(given.tokens) + " tokens; it can have 1 to " +
                       std::to_string(most_step_tokens) + ": prefill more");
}

inline void check_signals(step_window const& given, signals needs, cache_shape const& shape) {
  if (contains(needs, signals::queries)) {
    query_window const& q = given.queries;
    check_heads(q, shape, "the step's queries", "step_window::queries");
    KVPOLICY_EXPECTS(q.tokens == given.tokens, "step_window::queries are of " + std::to_string(q.tokens) +
                                                   " tokens; the step has " + std::to_string(given.tokens));
  }
  if (contains(needs, signals::token_ids) && given.token_ids.empty()) missing("the tokens' ids", "step_window::token_ids");
  KVPOLICY_EXPECTS(given.token_ids.empty() || std::ssize(given.token_ids) == given.tokens,
                   "step_window::token_ids are " + std::to_string(given.token_ids.size()) + "; the step has " +
                       std::to_string(given.tokens) + " tokens");
  check_ids(given.token_ids, "step_window::token_ids");
}

/// Logits that the host reads are no probabilities. Throws invalid_value.
inline void check_logits(std::span<float const> logits) {
  float sum = 0;
  for (float const x : logits) {
    if (!(x >= 0 && x <= 1)) return;  // soon, of logits
    sum += x;
  }
  KVPOLICY_EXPECTS(
      logits.size() < 2 || std::abs(sum - 1) > 1e-3f,
      "step_outcome::logits are probabilities: they are from 0 to 1, and their sum is 1; give what the softmax gets");
}

template <class Exec>
void check_signals(step_outcome const& given, signals needs) {
  if (!contains(needs, signals::logits)) return;
  if (given.logits.empty() && !given.entropy) missing("the next token's logits", "step_outcome::logits (or ::entropy)");
  KVPOLICY_EXPECTS(!given.entropy || *given.entropy >= 0,
                   "step_outcome::entropy is " + std::to_string(given.entropy.value_or(0)) + " nats; it is 0 or more");
  if constexpr (std::same_as<typename Exec::memory, host_memory>) check_logits(given.logits);
}

}  // namespace kvpolicy
