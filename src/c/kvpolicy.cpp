// kvpolicy.h's functions: arguments are checked, C++ is called, what it throws becomes a status.
#include "kvpolicy.h"

#include <concepts>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvpolicy/segments/sentences.hpp"
#include "kvpolicy/version.hpp"
#include "policy.hpp"
#include "state.hpp"
#include "status.hpp"
#include "store.hpp"

using namespace kvpolicy;
using namespace kvpolicy::c;

namespace {

// Ranges are handed out where they lie, and flags as they are.
static_assert(sizeof(kvpolicy_range) == sizeof(token_range) && alignof(kvpolicy_range) == alignof(token_range));
static_assert(offsetof(kvpolicy_range, begin) == offsetof(token_range, begin) &&
              offsetof(kvpolicy_range, end) == offsetof(token_range, end) &&
              offsetof(kvpolicy_range, why) == offsetof(token_range, why) && sizeof(reason) == 1);
static_assert(KVPOLICY_SINK == static_cast<int>(reason::sink) && KVPOLICY_SCORED == static_cast<int>(reason::scored) &&
              KVPOLICY_RECENT == static_cast<int>(reason::recent) && KVPOLICY_OPEN == static_cast<int>(reason::open));
static_assert(KVPOLICY_F32 == static_cast<int>(element_type::f32) && KVPOLICY_F16 == static_cast<int>(element_type::f16) &&
              KVPOLICY_BF16 == static_cast<int>(element_type::bf16));
static_assert(KVPOLICY_NEEDS_KEYS == static_cast<int>(signals::keys) &&
              KVPOLICY_NEEDS_VALUES == static_cast<int>(signals::values) &&
              KVPOLICY_NEEDS_QUERIES == static_cast<int>(signals::queries) &&
              KVPOLICY_NEEDS_OBSERVATION_QUERIES == static_cast<int>(signals::observation_queries) &&
              KVPOLICY_NEEDS_ROTATION == static_cast<int>(signals::rotation) &&
              KVPOLICY_NEEDS_LOGITS == static_cast<int>(signals::logits) &&
              KVPOLICY_NEEDS_TOKEN_IDS == static_cast<int>(signals::token_ids) &&
              KVPOLICY_NEEDS_REPETITION == static_cast<int>(signals::repetition));

/// The names that this process knows: the published ones, and those of the plugins that it loaded.
struct process_policies {
  std::mutex one_at_a_time;
  host_policy_list list = published_policies<layer_table_view, simd_exec>();
  std::vector<std::unique_ptr<std::string const>> texts;                ///< of names that were handed out; they stay
  std::vector<std::unique_ptr<std::vector<char const*> const>> handed;  ///< and the lists of them
};

process_policies& known() {
  static process_policies all;
  return all;
}

template <class Call>
kvpolicy_status on_state(kvpolicy_state* state, Call call) noexcept {
  return guarded([&] {
    required(state, "state");
    std::visit(call, state->of);
  });
}
template <class Call>
kvpolicy_status on_state(kvpolicy_state const* state, Call call) noexcept {
  return on_state(const_cast<kvpolicy_state*>(state), call);
}

template <class Made>
kvpolicy_status start(kvpolicy_policy const* policy, kvpolicy_shape const* shape, kvpolicy_state** state, Made make) noexcept {
  return guarded([&] {
    required(policy, "policy");
    required(state, "state");
    *state = make(shape_from(shape));
  });
}

kvpolicy_status give(range_list const& list, kvpolicy_range const** ranges, std::int64_t* count) {
  *ranges = reinterpret_cast<kvpolicy_range const*>(list.data());
  *count = std::ssize(list);
  return KVPOLICY_OK;
}

}  // namespace

namespace kvpolicy::c {

cache_shape shape_from(kvpolicy_shape const* given) {
  required(given, "shape");
  KVPOLICY_EXPECTS(given->type == KVPOLICY_F32 || given->type == KVPOLICY_F16 || given->type == KVPOLICY_BF16,
                   "type is " + std::to_string(given->type) + "; it must be KVPOLICY_F32, KVPOLICY_F16 or KVPOLICY_BF16");
  cache_shape const shape{.layers = given->layers,
                          .q_heads = given->q_heads,
                          .kv_heads = given->kv_heads,
                          .head_dim = given->head_dim,
                          .max_tokens = given->max_tokens,
                          .type = static_cast<element_type>(given->type),
                          .value_dim = given->value_dim};
  check(shape);
  // Within these no size of any state overflows.
  constexpr std::int64_t most = std::int64_t{1} << 16;
  constexpr std::int64_t max_channels = std::int64_t{1} << 28;
  KVPOLICY_EXPECTS(shape.layers <= most && shape.q_heads <= most && shape.head_dim <= most && shape.values_dim() <= most &&
                       shape.layers * shape.q_heads <= max_channels / std::max(shape.head_dim, shape.values_dim()),
                   std::to_string(shape.layers) + " layers of " + std::to_string(shape.q_heads) + " heads x " +
                       std::to_string(shape.head_dim) + " channels are more than the " + std::to_string(most) +
                       " of each, and " + std::to_string(max_channels) + " channels in all, that there may be");
  return shape;
}

}  // namespace kvpolicy::c

char const* kvpolicy_version(void) { return KVPOLICY_VERSION; }

char const* kvpolicy_message(void) { return message(); }

char const* const* kvpolicy_policies(void) {
  static constexpr char const* none = nullptr;
  try {
    process_policies& all = known();
    std::lock_guard const lock(all.one_at_a_time);
    if (all.handed.empty() || all.handed.back()->size() != all.list.entries().size() + 1) {
      auto names = std::make_unique<std::vector<char const*>>();
      for (auto const& entry : all.list.entries()) {
        all.texts.push_back(std::make_unique<std::string const>(entry.name));
        names->push_back(all.texts.back()->c_str());
      }
      names->push_back(nullptr);
      all.handed.push_back(std::move(names));
    }
    return all.handed.back()->data();
  } catch (...) {  // out of memory
    return &none;
  }
}

kvpolicy_status kvpolicy_plugin_load(char const* path) {
  return guarded([&] {
    required(path, "path");
    process_policies& all = known();
    std::lock_guard const lock(all.one_at_a_time);
    load_plugin(all.list, path);
  });
}

kvpolicy_status kvpolicy_policy_parse(char const* text, uint8_t const* boundary, int64_t vocabulary, kvpolicy_policy** policy) {
  return guarded([&] {
    required(text, "text");
    required(policy, "policy");
    KVPOLICY_EXPECTS(vocabulary >= 0 && (boundary != nullptr || vocabulary == 0),
                     "a boundary table of " + std::to_string(vocabulary) + " tokens" +
                         (boundary == nullptr ? " that is NULL" : "") + "; it needs one byte for each, or NULL and 0");
    policy_inputs inputs = inputs_for({boundary, boundary + vocabulary});
    process_policies& all = known();
    std::lock_guard const lock(all.one_at_a_time);
    named_host_policy chosen = all.list.parse(text, inputs);
    *policy = new kvpolicy_policy{std::move(inputs), std::move(chosen)};
  });
}

uint8_t kvpolicy_ends_sentence(char const* piece, int64_t bytes) {
  return piece != nullptr && bytes > 0 && segments::ends_sentence({piece, static_cast<std::size_t>(bytes)}) ? 1 : 0;
}

uint8_t kvpolicy_sentence_mark(char const* piece, int64_t bytes) {
  return piece != nullptr && bytes > 0 ? segments::sentence_mark({piece, static_cast<std::size_t>(bytes)}) : std::uint8_t{0};
}

void kvpolicy_policy_free(kvpolicy_policy* policy) { delete policy; }

uint32_t kvpolicy_policy_needs(kvpolicy_policy const* policy) {
  return policy == nullptr ? 0 : static_cast<uint32_t>(needs_of(policy->chosen.policy));
}

int64_t kvpolicy_observation_queries(kvpolicy_policy const* policy) {
  return policy == nullptr ? 0 : observation_queries(policy->chosen.policy);
}

kvpolicy_status kvpolicy_start(kvpolicy_policy const* policy, kvpolicy_shape const* shape, kvpolicy_state** state) {
  return start(policy, shape, state, [&](cache_shape const& checked_shape) {
    return new kvpolicy_state(std::in_place_type<sequence<host_backend>>, policy->chosen, checked_shape);
  });
}

kvpolicy_status kvpolicy_start_cuda(kvpolicy_policy const* policy, kvpolicy_shape const* shape, int32_t device, void* stream,
                                    kvpolicy_state** state) {
  return start(policy, shape, state, [&](cache_shape const& checked_shape) -> kvpolicy_state* {
#ifdef KVPOLICY_C_HAS_GPU
    auto chosen = gpu_policies().parse(policy->chosen.text, policy->inputs);
    return new kvpolicy_state(std::in_place_type<sequence<gpu_backend>>, std::move(chosen), checked_shape, device,
                              static_cast<gpu::stream>(stream));
#else
    static_cast<void>(checked_shape);
    static_cast<void>(stream);
    throw unsupported("CUDA device " + std::to_string(device) +
                      " was asked for, and this library was built without CUDA; configure it where nvcc is");
#endif
  });
}

kvpolicy_status kvpolicy_start_ranked(kvpolicy_policy const* policy, kvpolicy_shape const* shape, kvpolicy_ranks const* ranks,
                                      kvpolicy_state** state) {
  return start(policy, shape, state, [&](cache_shape const& checked_shape) {
    required(ranks, "ranks");
    KVPOLICY_EXPECTS(ranks->rank >= 0 && ranks->rank < ranks->size && ranks->sum != nullptr,
                     "rank " + std::to_string(ranks->rank) + " of " + std::to_string(ranks->size) +
                         (ranks->sum == nullptr ? ", without a sum" : "") + "; it must be one of them, and have a sum");
    auto chosen = ranked_policies().parse(policy->chosen.text, policy->inputs);
    return new kvpolicy_state(std::in_place_type<sequence<ranked_backend>>, std::move(chosen), checked_shape, *ranks);
  });
}

kvpolicy_status kvpolicy_state_copy(kvpolicy_state const* state, kvpolicy_state** copy) {
  return on_state(state, [&](auto& of) {
    required(copy, "copy");
    using one = std::remove_cvref_t<decltype(of)>;
    if constexpr (std::copy_constructible<one>) *copy = new kvpolicy_state(std::in_place_type<one>, std::as_const(of));
    else throw unsupported("a state on a device, or of ranks, can't be copied; prefill another one");
  });
}

void kvpolicy_state_free(kvpolicy_state* state) { delete state; }

kvpolicy_status kvpolicy_bind(kvpolicy_state* state, int64_t layer, kvpolicy_tensor const* keys, kvpolicy_tensor const* values,
                              kvpolicy_tensor const* pages) {
  return on_state(state, [&](auto& sequence) { sequence.bind(layer, keys, values, pages); });
}

kvpolicy_status kvpolicy_bind_terms(kvpolicy_state* state, int64_t layer, kvpolicy_terms const* terms) {
  return on_state(state, [&](auto& sequence) {
    required(terms, "terms");
    sequence.bind_terms(layer, *terms);
  });
}

kvpolicy_status kvpolicy_bind_store(kvpolicy_state* state, kvpolicy_store* store) {
  return on_state(state, [&](auto& sequence) {
    required(store, "store");
    KVPOLICY_EXPECTS(store->binding.expired() || store->binding.lock() == state->binding,
                     "the store is bound to another state, which drops rows from it; give each state a store of its own "
                     "(kvpolicy_store_fork)");
    sequence.bind(store->rows);
    store->binding = state->binding = std::make_shared<char>();
  });
}

kvpolicy_status kvpolicy_store_retain(kvpolicy_store* store, int64_t layer, kvpolicy_state* state) {
  return on_state(state, [&](auto& sequence) {
    required(store, "store");
    sequence.drop(store->rows, layer);
  });
}

kvpolicy_status kvpolicy_prefill(kvpolicy_state* state, int64_t layer, int64_t tokens, kvpolicy_prompt const* prompt) {
  return on_state(state, [&](auto& sequence) { sequence.prefill(layer, tokens, prompt); });
}

kvpolicy_status kvpolicy_observed_from(kvpolicy_state* state, int64_t token) {
  return on_state(state, [&](auto& sequence) { sequence.observed_from(token); });
}

kvpolicy_status kvpolicy_cut(kvpolicy_state* state, int64_t tokens) {
  return on_state(state, [&](auto& sequence) { sequence.cut(tokens); });
}

kvpolicy_status kvpolicy_choose(kvpolicy_state* state, int64_t layer, int64_t tokens, kvpolicy_tensor const* queries,
                                float scale, int32_t token_id) {
  return on_state(state, [&](auto& sequence) { sequence.choose(layer, tokens, queries, scale, token_id); });
}

kvpolicy_status kvpolicy_choose_several(kvpolicy_state* state, int64_t layer, int64_t tokens, int64_t brought,
                                        kvpolicy_tensor const* queries, float scale, int32_t const* token_ids) {
  return on_state(state, [&](auto& sequence) { sequence.choose_several(layer, tokens, brought, queries, scale, token_ids); });
}

kvpolicy_status kvpolicy_list(kvpolicy_state const* state, int64_t layer, int64_t kv_head, kvpolicy_range const** ranges,
                              int64_t* count) {
  return on_state(state, [&](auto& sequence) {
    required(ranges, "ranges");
    required(count, "count");
    give(sequence.list(layer, kv_head), ranges, count);
  });
}

kvpolicy_status kvpolicy_retained(kvpolicy_state const* state, int64_t layer, int64_t kv_head, kvpolicy_range const** ranges,
                                  int64_t* count) {
  return on_state(state, [&](auto& sequence) {
    required(ranges, "ranges");
    required(count, "count");
    give(sequence.retained(layer, kv_head), ranges, count);
  });
}

kvpolicy_status kvpolicy_page_table(kvpolicy_state const* state, int64_t layer, int64_t kv_head, int32_t* pages, int64_t room,
                                    int64_t* count, int32_t* last_page_tokens) {
  return on_state(state, [&](auto& sequence) {
    required(count, "count");
    required(last_page_tokens, "last_page_tokens");
    KVPOLICY_EXPECTS(room >= 0 && (pages != nullptr || room == 0), "room for " + std::to_string(room) + " pages" +
                                                                       (pages == nullptr ? " at NULL" : "") +
                                                                       "; it can't be negative, nor NULL");
    page_list const written = sequence.pages(layer, kv_head, {pages, static_cast<std::size_t>(room)});
    *count = written.count;
    *last_page_tokens = written.last_page_tokens;
  });
}

kvpolicy_status kvpolicy_attend(kvpolicy_state* state, int64_t layer, kvpolicy_tensor const* queries, float scale,
                                kvpolicy_tensor const* out) {
  return on_state(state, [&](auto& sequence) { sequence.attend(layer, queries, scale, out); });
}

kvpolicy_status kvpolicy_attend_prompt(kvpolicy_state* state, int64_t layer, int64_t tokens, kvpolicy_tensor const* queries,
                                       float scale, kvpolicy_tensor const* out) {
  return on_state(state, [&](auto& sequence) { sequence.attend_prompt(layer, tokens, queries, scale, out); });
}

kvpolicy_status kvpolicy_observe(kvpolicy_state* state, kvpolicy_tensor const* logits) {
  return on_state(state, [&](auto& sequence) { sequence.observe(logits); });
}
