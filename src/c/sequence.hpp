// One sequence behind the C ABI: a policy's state, where its rows are, and the order of calls. All checks come before any
// change.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/interop/page_table.hpp"
#include "kvpolicy/primitive/attend_block.hpp"
#include "kvpolicy/store/row_store.hpp"
#include "layer_rows.hpp"
#include "prompt.hpp"
#include "published.hpp"
#include "status.hpp"
#include "tensor.hpp"
#include "terms.hpp"

namespace kvpolicy::c {

/// Backend: `executor`; `policy_of(text, inputs)`; `exec`; `enter()` before each call; `rows`, `vectors`: where those may be;
/// `on_host(tensor, axes, size)`, the same elements where the host reads them, until the next call.
template <class Backend>
class sequence {
  using executor = typename Backend::executor;
  using memory = typename executor::memory;
  using rows = basic_rows<memory>;
  using view = basic_layer_table_view<memory>;

 public:
  template <class... Args>
  sequence(named_policy<view, executor> policy, cache_shape const& shape, Args const&... args)
      : policy_(std::move(policy)),
        requirements_(requirements_of(policy_.policy)),
        shape_(shape),
        backend_(shape, args...),
        request_(start(policy_.policy, shape)),
        keys_(static_cast<std::size_t>(shape.layers)),
        values_(keys_.size()),
        room_(keys_.size()),
        terms_(keys_.size()),
        prompted_(keys_.size()),
        scale_(keys_.size()),
        resident_(static_cast<std::size_t>(shape.kv_heads)) {}

  /// Goes on as the other one would, on its own; tensors stay bound, a store does not.
  sequence(sequence const& other) requires std::constructible_from<Backend, cache_shape const&>
      : policy_(other.policy_),
        requirements_(other.requirements_),
        shape_(other.shape_),
        backend_(other.shape_),
        request_(other.request_),
        keys_(other.store_ == nullptr ? other.keys_ : std::vector<rows>(other.keys_.size())),
        values_(other.store_ == nullptr ? other.values_ : std::vector<rows>(other.values_.size())),
        room_(other.room_),
        terms_(other.terms_),
        prompted_(other.prompted_),
        brought_(other.brought_),
        observed_from_(other.observed_from_),
        scale_(other.scale_),
        resident_(other.resident_) {}

  void bind(std::int64_t layer, kvpolicy_tensor const* keys, kvpolicy_tensor const* values, kvpolicy_tensor const* pages) {
    backend_.enter();
    check_layer(layer);
    KVPOLICY_EXPECTS(store_ == nullptr, "the state is bound to a store, which holds its rows; bind tensors to another state");
    layer_room space;
    rows paged;
    if (pages != nullptr) {
      tensor const table = checked(pages, {.name = "pages", .layer = layer, .dtype = int32, .dense_last = true}, {{"pages"}});
      paged.pages = reinterpret_cast<std::int32_t const*>(table.data);
      space.table = table.extent[0];
    }
    tensor_rule rule{.name = "keys", .layer = layer, .dtype = dtype_of(shape_.type), .where = backend_.rows, .apart = true};
    rows const key_rows = bound_rows(keys, rule, shape_, key_axis(shape_), paged, space);
    rule.name = "values";
    rows const value_rows = values == nullptr ? rows{} : bound_rows(values, rule, shape_, value_axis(shape_), paged, space);
    if (values != nullptr && paged.pages != nullptr && value_rows.page_size != key_rows.page_size) {
      throw invalid_value("values of layer " + std::to_string(layer) + ": page_size (axis 2) has " +
                          std::to_string(value_rows.page_size) + " elements; the keys' pages have " +
                          std::to_string(key_rows.page_size));
    }
    auto const at = static_cast<std::size_t>(layer);
    keys_[at] = key_rows;
    values_[at] = value_rows;
    room_[at] = space;
  }
  void bind_terms(std::int64_t layer, kvpolicy_terms const& terms) {
    backend_.enter();
    check_layer(layer);
    terms_[static_cast<std::size_t>(layer)] = terms_of(terms, shape_, layer, backend_.vectors);
  }

  /// Rows of a store, in all layers.
  void bind(row_store& store) {
    if constexpr (!std::same_as<memory, host_memory>) {
      throw unsupported("a row store is in host memory, the state on a device; bind tensors");
    } else {
      cache_shape const& of = store.shape();
      KVPOLICY_EXPECTS(of.layers == shape_.layers && of.kv_heads == shape_.kv_heads && of.head_dim == shape_.head_dim &&
                           of.values_dim() == shape_.values_dim() && of.type == shape_.type,
                       "the store is of " + text_of(of) + ", the state of " + text_of(shape_));
      KVPOLICY_EXPECTS(of.max_tokens >= shape_.max_tokens, "the store is for " + std::to_string(of.max_tokens) +
                                                               " tokens, the state for " + std::to_string(shape_.max_tokens) +
                                                               "; start the store for as many");
      for (std::int64_t l = 0; l < shape_.layers; ++l) {
        auto const at = static_cast<std::size_t>(l);
        keys_[at] = store.view(0).keys({l});
        values_[at] = store.view(0).values({l});
        keys_[at].tokens = values_[at].tokens = INT64_MAX;  // each call checks how many the store has
        room_[at] = {};
      }
      store_ = &store;
    }
  }

  /// What is not retained in a layer goes from the store.
  void drop(row_store& store, std::int64_t layer) {
    KVPOLICY_EXPECTS(&store == store_, "the state is not bound to this store; call kvpolicy_bind_store");
    check_layer(layer);
    KVPOLICY_EXPECTS(layer < request_.order().prefilled() || layer < request_.order().chosen(),
                     "layer " + std::to_string(layer) + " has decided nothing yet; call prefill or choose first");
    store.retain({layer}, request_.retained({layer}), request_.tokens());
  }

  void prefill(std::int64_t layer, std::int64_t tokens, kvpolicy_prompt const* prompt) {
    backend_.enter();
    check_layer(layer);
    required(prompt, "prompt");
    std::int64_t const first = prompt->first;
    check_stored(layer, tokens);
    request_.order().check_prompt({layer}, first, tokens);
    prompt_signals given = signals_of(*prompt, requirements_, shape_, layer, tokens, backend_, floats_);
    check_rows(layer, tokens, contains(requirements_.needs, signals::keys), contains(requirements_.needs, signals::values));
    if (store_ != nullptr && !store_->whole()) {  // of this layer all may be there, where others' prompts have ended
      std::span const lists = resident(layer, tokens);
      auto const is_whole = [&](range_list const& list) {
        return list.size() == 1 && list.front().begin == 0 && list.front().end == tokens;
      };
      if (!std::ranges::all_of(lists, is_whole)) given.resident = lists;
    }
    given.observed_from = observed_from_;
    know_scale(layer, given.queries.scale);
    request_.prefill(view_of(tokens), {layer}, given, backend_.exec);
    prompted_[static_cast<std::size_t>(layer)] = 1;
    if (layer + 1 == shape_.layers) observed_from_ = 0;
  }

  void observed_from(std::int64_t token) {
    KVPOLICY_EXPECTS(token >= 0, "queries from token " + std::to_string(token) + " on; it can't be negative");
    observed_from_ = token;
  }
  void cut(std::int64_t tokens) { request_.cut(tokens); }

  void choose(std::int64_t layer, std::int64_t tokens, kvpolicy_tensor const* queries, float scale, std::int32_t token_id) {
    backend_.enter();
    check_layer(layer);
    follow_store(layer, tokens, 1);
    request_.order().check_step({layer}, tokens);
    step_signals given{{}, token_id};
    if (contains(requirements_.needs, signals::queries)) given.queries = queries_of(queries, layer, scale, true);
    know_scale(layer, given.queries.scale);
    choose({layer}, tokens, 1, given);
  }

  void choose_several(std::int64_t layer, std::int64_t tokens, std::int64_t brought, kvpolicy_tensor const* queries,
                      float scale, std::int32_t const* ids) {
    if constexpr (!std::same_as<memory, host_memory>) {
      throw unsupported("steps of several tokens are made in host memory alone, and the state is on a device");
    } else {
      check_layer(layer);
      KVPOLICY_EXPECTS(brought >= 1 && brought <= most_step_tokens, "a step of " + std::to_string(brought) +
                                                                        " tokens; it can have 1 to " +
                                                                        std::to_string(most_step_tokens) + ": prefill more");
      follow_store(layer, tokens, brought);
      request_.order().check_step({layer}, tokens, brought);
      step_window given{.tokens = brought, .queries = {}, .token_ids = {}};
      if (contains(requirements_.needs, signals::queries)) given.queries = window_of(queries, "queries", layer, brought, scale);
      if (contains(requirements_.needs, signals::token_ids) && ids != nullptr)
        given.token_ids = {ids, static_cast<std::size_t>(brought)};
      know_scale(layer, given.queries.scale);
      choose({layer}, tokens, brought, given);
    }
  }

  /// For step().
  row_store const* store() const noexcept { return store_; }
  bool chooses_for_request() const noexcept { return requirements_.granularity == scope::request; }
  cache_shape const& shape() const noexcept { return shape_; }

  /// A layer's next token; returns rows that were read. The token is gone again where this throws.
  std::int64_t step(layer_id layer, basic_rows<host_memory> const& key, basic_rows<host_memory> const& value,
                    query_heads const& queries, std::int32_t id, float* out, bool leave_whole) {
    if constexpr (!std::same_as<memory, host_memory>) {
      throw unsupported("steps of several sequences are made in host memory alone, and the state is on a device");
    } else {
      std::int64_t const tokens = store_->tokens(layer) + 1;
      KVPOLICY_EXPECTS(layer.value != 0 || tokens <= stepping_,
                       "layer 0 makes a step on " + std::to_string(tokens) + " tokens, and the one before, on " +
                           std::to_string(stepping_) + ", was not made in every layer; go on with it, or truncate the store");
      check_known(layer.value, queries.scale);
      if (layer.value == 0) request_.cut(tokens - 1);
      request_.order().check_step(layer, tokens);
      store_->append(layer, key, value);
      try {
        choose(layer, tokens, 1, step_signals{contains(requirements_.needs, signals::queries) ? queries : query_heads{}, id});
        auto const kept = request_.kept(layer);
        view const cache = view_of(tokens);
        if (!leave_whole || kept.tokens() < tokens * shape_.kv_heads)
          kvpolicy::attend(queries, cache.keys(layer), cache.values(layer), kept, terms(layer.value),
                           table<float>{out, shape_.q_heads, shape_.values_dim(), shape_.values_dim()}, {}, backend_.exec);
        stepping_ = layer.value + 1 == shape_.layers ? INT64_MAX : tokens;
        if (layer.value + 1 == shape_.layers) end_step(tokens);
        return kept.tokens();
      } catch (...) {
        stepping_ = INT64_MAX;
        store_->truncate(tokens - 1);
        throw;
      }
    }
  }

  range_list const& list(std::int64_t layer, std::int64_t kv_head) const {
    check_chosen(layer);
    check_head(kv_head);
    return request_.kept({layer}).of({kv_head});
  }

  range_list const& retained(std::int64_t layer, std::int64_t kv_head) {
    check_layer(layer);
    check_head(kv_head);
    KVPOLICY_EXPECTS(layer < request_.order().prefilled() || layer < request_.order().chosen(),
                     "layer " + std::to_string(layer) + " has no prompt yet; call prefill first");
    return request_.retained({layer}).of({kv_head});
  }

  page_list pages(std::int64_t layer, std::int64_t kv_head, std::span<std::int32_t> out) const {
    range_list const& kept = list(layer, kv_head);
    auto const at = static_cast<std::size_t>(layer);
    KVPOLICY_EXPECTS(keys_[at].pages != nullptr && keys_[at].page_table_stride == 0,
                     "layer " + std::to_string(layer) + " has no page table; bind it with one");
    check_rows(layer, request_.tokens(), true, false);
    if constexpr (std::same_as<memory, host_memory>)
      check_read_pages(view_of(request_.tokens()).keys({layer}), kv_head, kept, "the keys");
    return page_table(kept, keys_[at].page_size, {keys_[at].pages, static_cast<std::size_t>(room_[at].table)}, out);
  }

  void attend(std::int64_t layer, kvpolicy_tensor const* queries, float scale, kvpolicy_tensor const* out) {
    backend_.enter();
    check_chosen(layer);
    if constexpr (std::same_as<memory, host_memory>) {
      if (queries != nullptr && queries->ndim == 3) return attend_several(layer, queries, scale, out);
    }
    KVPOLICY_EXPECTS(brought_ == 1, "the step has " + std::to_string(brought_) +
                                        " tokens: queries and out must be [tokens, q_heads, head_dim]");
    query_heads const heads = queries_of(queries, layer, scale, false);
    check_known(layer, scale);
    tensor const to = checked(
        out, {.name = "out", .layer = layer, .dtype = float32, .where = backend_.vectors, .dense_last = true, .apart = true},
        {{"q_heads", shape_.q_heads}, value_axis(shape_)});
    check_rows(layer, request_.tokens(), true, true);
    view const cache = view_of(request_.tokens());
    kvpolicy::attend(heads, cache.keys({layer}), cache.values({layer}), request_.kept({layer}), terms(layer),
                     table<float>{reinterpret_cast<float*>(to.data), shape_.q_heads, shape_.values_dim(), to.stride[0] / 4}, {},
                     backend_.exec);
  }

  void attend_prompt(std::int64_t layer, std::int64_t tokens, kvpolicy_tensor const* queries, float scale,
                     kvpolicy_tensor const* out) {
    if constexpr (!std::same_as<memory, host_memory>) {
      throw unsupported(
          "attention of prompts is computed in host memory alone, and the state is on a device; use the engine's");
    } else {
      check_layer(layer);
      tensor const from =
          checked(queries, {.name = "queries", .layer = layer, .dtype = float32, .dense_last = true, .apart = true},
                  {{"tokens"}, {"q_heads", shape_.q_heads}, {"head_dim", shape_.head_dim}});
      std::int64_t const count = from.extent[0];
      KVPOLICY_EXPECTS(count >= 1 && count <= tokens && tokens <= shape_.max_tokens,
                       "queries of " + std::to_string(count) + " tokens, the last of " + std::to_string(tokens) +
                           "; there must be 1 query at least, of at most as many tokens, and at most " +
                           std::to_string(shape_.max_tokens) + " of these");
      check_scale(scale);
      check_known(layer, scale);
      tensor const to = checked(out, {.name = "out", .layer = layer, .dtype = float32, .dense_last = true, .apart = true},
                                {{"tokens", count}, {"q_heads", shape_.q_heads}, value_axis(shape_)});
      KVPOLICY_EXPECTS(count == 1 || to.stride[0] == shape_.q_heads * to.stride[1],
                       "out of layer " + std::to_string(layer) + " is not dense: a token's heads must lie behind one another");
      check_rows(layer, tokens, true, true);
      view const cache = view_of(tokens);
      attend_block(
          {reinterpret_cast<float const*>(from.data), count, shape_.q_heads, from.stride[0] / 4, from.stride[1] / 4, scale},
          cache.keys({layer}), cache.values({layer}), {scope::head, resident(layer, tokens), shape_.kv_heads}, terms(layer),
          table<float>{reinterpret_cast<float*>(to.data), count * shape_.q_heads, shape_.values_dim(), to.stride[1] / 4},
          backend_.exec);
    }
  }

  void observe(kvpolicy_tensor const* logits) {
    backend_.enter();
    request_.order().check_outcome();
    step_outcome outcome;
    if (contains(requirements_.needs, signals::logits)) {
      tensor const from = checked(logits, {.name = "logits", .dtype = float32, .where = backend_.vectors, .dense_last = true},
                                  {{"vocabulary"}});
      KVPOLICY_EXPECTS(from.extent[0] >= 1, "logits: axis 0 (vocabulary) has 0 elements; it must have at least 1");
      outcome.logits = {reinterpret_cast<float const*>(from.data), static_cast<std::size_t>(from.extent[0])};
    }
    request_.observe(outcome, backend_.exec);
  }

 private:
  /// A store has a layer's rows of these tokens, the new ones included, and no others.
  void check_stored(std::int64_t layer, std::int64_t tokens) const {
    KVPOLICY_EXPECTS(store_ == nullptr || store_->tokens({layer}) == tokens,
                     "the store has rows of " + std::to_string(store_ == nullptr ? 0 : store_->tokens({layer})) +
                         " tokens in layer " + std::to_string(layer) + ", the call is on " + std::to_string(tokens) +
                         "; append the new tokens' rows first, once");
  }
  /// Where a store's rows were truncated, the state has as many tokens as are left before the step's own, which are in.
  void follow_store(std::int64_t layer, std::int64_t tokens, std::int64_t brought) {
    check_stored(layer, tokens);
    if (layer == 0 && store_ != nullptr) request_.cut(std::max<std::int64_t>(0, tokens - brought));
  }

  query_heads queries_of(kvpolicy_tensor const* given, std::int64_t layer, float scale, bool on_host) {
    tensor t = checked(
        given,
        {.name = "queries", .layer = layer, .dtype = float32, .where = backend_.vectors, .dense_last = true, .apart = true},
        {{"q_heads", shape_.q_heads}, {"head_dim", shape_.head_dim}});
    check_scale(scale);
    if (on_host) t = backend_.on_host(t, 2, sizeof(float));
    return {reinterpret_cast<float const*>(t.data), shape_.q_heads, t.stride[0] / 4, scale};
  }

  /// Remembers the scale of a layer's queries, where the policy was given any.
  void know_scale(std::int64_t layer, float scale) {
    if (scale > 0) scale_[static_cast<std::size_t>(layer)] = scale;
  }
  /// Attention has the scale that the policy's queries had. Throws invalid_value.
  void check_known(std::int64_t layer, float scale) const {
    float const known = scale_[static_cast<std::size_t>(layer)];
    KVPOLICY_EXPECTS(known == 0 || std::abs(scale - known) <= 1e-3f * known,
                     "attention of layer " + std::to_string(layer) + " with a scale of " + std::to_string(scale) +
                         "; its policy was given queries with " + std::to_string(known));
  }
  attention_terms const& terms(std::int64_t layer) const noexcept { return terms_[static_cast<std::size_t>(layer)]; }
  void check_layer(std::int64_t layer) const { kvpolicy::check_layer({layer}, shape_.layers); }
  void check_head(std::int64_t head) const {
    KVPOLICY_EXPECTS(head >= 0 && head < shape_.kv_heads,
                     "KV head " + std::to_string(head) + "; there are 0 to " + std::to_string(shape_.kv_heads - 1));
  }
  void check_chosen(std::int64_t layer) const {
    check_layer(layer);
    KVPOLICY_EXPECTS(layer < request_.order().chosen(),
                     "layer " + std::to_string(layer) + " has made no choice in this step; call choose first");
  }

  query_window window_of(kvpolicy_tensor const* given, char const* name, std::int64_t layer, std::int64_t tokens,
                         float scale) const {
    tensor const t = checked(given, {.name = name, .layer = layer, .dtype = float32, .dense_last = true, .apart = true},
                             {{"tokens", tokens}, {"q_heads", shape_.q_heads}, {"head_dim", shape_.head_dim}});
    check_scale(scale);
    return {reinterpret_cast<float const*>(t.data), tokens, shape_.q_heads, t.stride[0] / 4, t.stride[1] / 4, scale};
  }

  void attend_several(std::int64_t layer, kvpolicy_tensor const* queries, float scale, kvpolicy_tensor const* out) {
    query_window const window = window_of(queries, "queries", layer, brought_, scale);
    check_known(layer, scale);
    tensor const to = checked(out, {.name = "out", .layer = layer, .dtype = float32, .dense_last = true, .apart = true},
                              {{"tokens", brought_}, {"q_heads", shape_.q_heads}, value_axis(shape_)});
    KVPOLICY_EXPECTS(brought_ == 1 || to.stride[0] == shape_.q_heads * to.stride[1],
                     "out of layer " + std::to_string(layer) + " is not dense: a token's heads must lie behind one another");
    check_rows(layer, request_.tokens(), true, true);
    view const cache = view_of(request_.tokens());
    kvpolicy::attend(
        window, cache.keys({layer}), cache.values({layer}), request_.kept({layer}), terms(layer),
        table<float>{reinterpret_cast<float*>(to.data), brought_ * shape_.q_heads, shape_.values_dim(), to.stride[1] / 4}, {},
        backend_.exec);
  }

  template <class Given>
  void choose(layer_id layer, std::int64_t tokens, std::int64_t brought, Given const& given) {
    check_rows(layer.value, tokens, contains(requirements_.needs, signals::keys),
               contains(requirements_.needs, signals::values));
    // One choice for all layers is made from all layers' keys of the tokens before.
    bool const all_layers =
        layer.value == 0 && requirements_.granularity == scope::request && contains(requirements_.needs, signals::keys);
    for (std::int64_t l = 1; all_layers && l < shape_.layers; ++l) check_rows(l, tokens - brought, true, false);
    request_.choose(view_of(tokens), layer, given, backend_.exec);
    brought_ = brought;
  }

  /// Rows go when the last layer has been read: a step that fails in the middle can be made again.
  void end_step(std::int64_t tokens) {
    if (!contains(requirements_.needs, signals::logits)) request_.observe({}, backend_.exec);
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      if (std::exchange(prompted_[static_cast<std::size_t>(l)], 0) != 0 || requirements_.evicts)
        store_->retain({l}, request_.retained({l}), tokens);
    }
  }

  /// Whether the layer's rows are there for the first `tokens` tokens.
  void check_rows(std::int64_t layer, std::int64_t tokens, bool with_keys, bool with_values) const {
    auto const at = static_cast<std::size_t>(layer);
    auto const named = [&](char const* what) { return std::string(what) + " of layer " + std::to_string(layer); };
    KVPOLICY_EXPECTS(!with_keys || keys_[at].heads > 0, named("keys") + ": none are bound; call bind first");
    KVPOLICY_EXPECTS(!with_values || values_[at].heads > 0, named("values") + ": none are bound; call bind with values first");
    if (!with_keys && !with_values) return;
    if (store_ != nullptr && keys_[at].page_table_stride != 0) {
      KVPOLICY_EXPECTS(tokens <= store_->tokens({layer}), named("keys and values") + ": the store has " +
                                                              std::to_string(store_->tokens({layer})) +
                                                              " tokens, the sequence has " + std::to_string(tokens));
      return;
    }
    room_[at].check(with_keys ? keys_[at] : values_[at], layer, tokens);
  }

  /// Of the first tokens, those that a layer has, by KV head.
  std::span<range_list const> resident(std::int64_t layer, std::int64_t tokens) {
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      range_list& list = resident_[static_cast<std::size_t>(h)];
      if (store_ != nullptr) store_->list({layer}, h, tokens, list);
      else list.assign(1, {0, static_cast<std::int32_t>(tokens)});
    }
    return resident_;
  }

  view view_of(std::int64_t tokens) const noexcept { return {shape_, tokens, keys_.data(), values_.data()}; }

  named_policy<view, executor> policy_;
  requirements requirements_;
  cache_shape shape_;
  Backend backend_;
  any_request<view, executor> request_;
  std::vector<rows> keys_;              ///< `[layers]`; no heads where nothing is bound
  std::vector<rows> values_;            ///< `[layers]`
  std::vector<layer_room> room_;        ///< `[layers]`
  std::vector<attention_terms> terms_;  ///< `[layers]`
  std::vector<char> prompted_;          ///< `[layers]`, whether rows that a prompt decided of are still to go
  row_store* store_ = nullptr;
  std::int64_t brought_ = 1;           ///< tokens of the last step
  std::int64_t observed_from_ = 0;     ///< of the next prompt, or piece
  std::int64_t stepping_ = INT64_MAX;  ///< tokens of a step() that some layers have made, and others have not
  std::vector<float> scale_;           ///< `[layers]` of the policy's queries; 0: not known
  std::vector<range_list> resident_;   ///< `[kv_heads]`, scratch
  std::vector<float> floats_;          ///< a prompt's queries, if they came in 16 bits
};

}  // namespace kvpolicy::c
