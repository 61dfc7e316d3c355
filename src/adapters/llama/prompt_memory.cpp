#include "prompt_memory.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace kvpolicy::llama {

void prompt_memory::reserve(cache_shape const& shape, std::int64_t queries) {
  shape_ = shape;
  kept_.resize(static_cast<std::size_t>(shape.layers));
  ids_.reserve(static_cast<std::size_t>(shape.max_tokens));
  std::int64_t const room = std::min(queries, shape.max_tokens);
  if (room <= room_) return;
  for (span_of_layer& kept : kept_) kept.count = 0;
  queries_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(shape.layers * room * row()));
  room_ = room;
}

void prompt_memory::release() noexcept {
  for (span_of_layer& kept : kept_) kept.count = 0;
  room_ = 0;
  queries_ = nullptr;
}

void prompt_memory::keep(std::int64_t layer, graph_queries const& q, std::span<std::int32_t const> tokens, std::int64_t first) {
  span_of_layer& kept = kept_[static_cast<std::size_t>(layer)];
  std::int64_t const old = kept.end == first ? kept.count : 0;
  std::int64_t const fresh = std::min<std::int64_t>(std::ssize(tokens), room_);
  std::int64_t const left = std::min(old, room_ - fresh);
  float* const window = queries_.get() + layer * room_ * row();
  if (left < old) std::memmove(window, window + (old - left) * row(), static_cast<std::size_t>(left * row()) * sizeof(float));
  float* to = window + left * row();
  for (std::int32_t const token : tokens.last(static_cast<std::size_t>(fresh))) {
    for (std::int64_t h = 0; h < shape_.q_heads; ++h, to += shape_.head_dim) {
      std::memcpy(to, q.at(token, h), static_cast<std::size_t>(shape_.head_dim) * sizeof(float));
    }
  }
  kept = {left + fresh, first + std::ssize(tokens)};
}

void prompt_memory::keep_id(std::int64_t token, std::int32_t id) {
  if (token > std::ssize(ids_)) return;
  ids_.resize(static_cast<std::size_t>(token));
  ids_.push_back(id);
}

query_window prompt_memory::window_of(std::int64_t layer, std::int64_t end, float scale) const noexcept {
  if (kept_.empty() || kept_[static_cast<std::size_t>(layer)].end != end) return {};
  return {.data = queries_.get() + layer * room_ * row(),
          .tokens = kept_[static_cast<std::size_t>(layer)].count,
          .heads = shape_.q_heads,
          .token_stride = row(),
          .head_stride = shape_.head_dim,
          .scale = scale};
}

std::span<std::int32_t const> prompt_memory::ids_of(std::int64_t first, std::int64_t end) const noexcept {
  if (end > std::ssize(ids_)) return {};
  return std::span(ids_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
}

void prompt_memory::forget(std::int64_t tokens) noexcept {
  for (span_of_layer& kept : kept_) {
    if (kept.end <= tokens) continue;
    kept.count = std::max<std::int64_t>(0, kept.count - (kept.end - tokens));
    kept.end = tokens;
  }
  if (tokens < std::ssize(ids_)) ids_.resize(static_cast<std::size_t>(tokens));
}

prompt_memory::span_of_layer prompt_memory::of_all_layers(std::int64_t until) const noexcept {
  // A graph that failed in the middle has moved on in its first layers.
  span_of_layer all{room_, until};
  for (span_of_layer const& kept : kept_) all.end = std::min(all.end, kept.end);
  for (span_of_layer const& kept : kept_) all.count = std::clamp<std::int64_t>(kept.count - (kept.end - all.end), 0, all.count);
  return all;
}

float const* prompt_memory::last_queries(std::int64_t layer, std::int64_t count, std::int64_t end) const noexcept {
  span_of_layer const& kept = kept_[static_cast<std::size_t>(layer)];
  return queries_.get() + (layer * room_ + kept.count - (kept.end - end) - count) * row();
}

saved_prompt prompt_memory::save(std::int64_t until) const {
  if (kept_.empty()) return {};
  auto const [window, tokens] = of_all_layers(until);
  saved_prompt saved{.tokens = tokens, .window = window, .queries = {}, .ids = ids_};
  saved.queries.reserve(static_cast<std::size_t>(shape_.layers * window * row()));
  for (std::int64_t l = 0; l < shape_.layers && window > 0; ++l) {
    float const* const from = last_queries(l, window, tokens);
    saved.queries.insert(saved.queries.end(), from, from + window * row());
  }
  if (until < std::ssize(saved.ids)) saved.ids.resize(static_cast<std::size_t>(until));
  return saved;
}

void prompt_memory::take_over(prompt_memory const& other, std::int64_t until) {
  auto const [window, tokens] = other.of_all_layers(until);
  std::int64_t const count = std::min(window, room_);
  for (std::int64_t l = 0; l < shape_.layers; ++l) {
    if (count > 0) std::copy_n(other.last_queries(l, count, tokens), count * row(), queries_.get() + l * room_ * row());
    kept_[static_cast<std::size_t>(l)] = {count, tokens};
  }
  ids_.assign(other.ids_.begin(), other.ids_.begin() + std::min(until, std::ssize(other.ids_)));
}

void prompt_memory::load(saved_prompt const& saved) {
  auto const refuse_unless = [&](bool holds, char const* what, std::int64_t value, std::int64_t most) {
    KVPOLICY_EXPECTS(holds, "the saved prompt is of another context, or damaged: its " + std::string(what) + " are " +
                                std::to_string(value) + " where there may be " + std::to_string(most));
  };
  auto const up_to = [&](char const* what, std::int64_t value, std::int64_t most) {
    refuse_unless(value >= 0 && value <= most, what, value, most);
  };
  up_to("fingerprints", std::ssize(saved.fingerprints), shape_.max_tokens);
  up_to("tokens", saved.tokens, saved.fingerprints.empty() ? shape_.max_tokens : std::ssize(saved.fingerprints));
  up_to("ids", std::ssize(saved.ids), shape_.max_tokens);
  up_to("queries of a layer", saved.window, saved.tokens);
  std::int64_t const queries = shape_.layers * saved.window * row();
  refuse_unless(std::ssize(saved.queries) == queries, "query elements", std::ssize(saved.queries), queries);
  std::int64_t const count = std::min(saved.window, room_);
  for (std::int64_t l = 0; l < shape_.layers; ++l) {
    if (count > 0)
      std::copy_n(saved.queries.data() + ((l + 1) * saved.window - count) * row(), count * row(),
                  queries_.get() + l * room_ * row());
    kept_[static_cast<std::size_t>(l)] = {count, saved.tokens};
  }
  ids_ = saved.ids;
}

}  // namespace kvpolicy::llama
