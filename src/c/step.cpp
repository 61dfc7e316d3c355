// kvpolicy.h's steps of several sequences.
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "state.hpp"
#include "status.hpp"
#include "tensor.hpp"

using namespace kvpolicy;
using namespace kvpolicy::c;

namespace {

/// One token's tensors of several sequences.
class step_tensors {
 public:
  /// Throws invalid_value for tensors that are not of `count` sequences of the shape.
  step_tensors(std::int64_t count, std::int64_t layer, cache_shape const& shape, kvpolicy_tensor const* keys,
               kvpolicy_tensor const* values, kvpolicy_tensor const* queries, float scale, kvpolicy_tensor const* token_ids,
               kvpolicy_tensor const* out)
      : layer_{layer}, shape_(shape), scale_(scale) {
    check_layer({layer}, shape.layers);
    check_scale(scale);
    auto const of = [&](kvpolicy_tensor const* t, char const* name, kvpolicy_dtype dtype, std::int64_t heads,
                        axis const& dims) {
      return checked(t, {.name = name, .layer = layer, .dtype = dtype, .dense_last = true, .apart = true},
                     {{"sequences", count}, {"heads", heads}, dims});
    };
    keys_ = of(keys, "keys", dtype_of(shape.type), shape.kv_heads, key_axis(shape));
    values_ = of(values, "values", dtype_of(shape.type), shape.kv_heads, value_axis(shape));
    queries_ = of(queries, "queries", float32, shape.q_heads, key_axis(shape));
    out_ = of(out, "out", float32, shape.q_heads, value_axis(shape));
    KVPOLICY_EXPECTS(shape.q_heads == 1 || out_.stride[1] == shape.values_dim() * 4,
                     "out of layer " + std::to_string(layer) + " is not dense: a sequence's heads must lie behind one another");
    if (token_ids != nullptr)
      ids_ = checked(token_ids, {.name = "token ids", .dtype = int32, .dense_last = true}, {{"sequences", count}});
  }

  /// Of sequence i; returns rows that it read.
  template <class Sequence>
  std::int64_t step(Sequence& sequence, std::int64_t i, bool leave_whole) const {
    query_heads const queries{reinterpret_cast<float const*>(queries_.data + i * queries_.stride[0]), shape_.q_heads,
                              queries_.stride[1] / 4, scale_};
    std::int32_t const id = ids_.data == nullptr ? -1 : reinterpret_cast<std::int32_t const*>(ids_.data)[i];
    return sequence.step(layer_, row_of(keys_, i, shape_.head_dim), row_of(values_, i, shape_.values_dim()), queries, id,
                         reinterpret_cast<float*>(out_.data + i * out_.stride[0]), leave_whole);
  }

 private:
  rows row_of(tensor const& all, std::int64_t i, std::int64_t dim) const noexcept {
    return {.base = all.data + i * all.stride[0],
            .type = shape_.type,
            .heads = shape_.kv_heads,
            .tokens = 1,
            .head_dim = dim,
            .head_stride = all.stride[1],
            .token_stride = all.stride[1] * shape_.kv_heads,
            .dim_stride = size_of(shape_.type)};
  }

  layer_id layer_;
  cache_shape shape_;
  float scale_;
  tensor keys_, values_, queries_, out_, ids_;
};

/// Sequences that step together have stores of one shape; on several threads, of an arena each.
void check_stores(std::span<kvpolicy_state* const> all, cache_shape const& shape, bool apart) {
  std::vector<block_arena const*> arenas;
  for (std::size_t i = 0; i < all.size(); ++i) {
    row_store const* const store = std::visit([](auto const& of) { return of.store(); }, all[i]->of);
    KVPOLICY_EXPECTS(store != nullptr && store->shape() == shape,
                     "state " + std::to_string(i) + " has no store of the first one's shape; call bind_store");
    if (!apart) continue;
    KVPOLICY_EXPECTS(
        std::ranges::find(arenas, &store->arena()) == arenas.end(),
        "state " + std::to_string(i) +
            " has a store of another one's arena, which one thread may use at a time; give each an arena of its own");
    arenas.push_back(&store->arena());
  }
}

/// Calls work(i) for each, on the caller's threads or on this one. What the first of them throws is thrown when all have ended.
template <class Work>
void each_of(std::int64_t count, kvpolicy_threads const* threads, Work work) {
  struct shared {
    Work& work;
    std::int64_t count;
    std::atomic<std::int64_t> next{0};
    std::mutex failing{};
    std::int64_t failed = INT64_MAX;
    std::exception_ptr why{};

    void run() noexcept {
      for (std::int64_t i = 0; (i = next.fetch_add(1)) < count;) {
        try {
          work(i);
        } catch (...) {
          std::lock_guard const lock(failing);
          if (i < failed) failed = i, why = std::current_exception();
        }
      }
    }
  };
  shared all{work, count};
  auto const run = [](void* argument) { static_cast<shared*>(argument)->run(); };
  if (threads == nullptr) run(&all);
  else threads->run(threads->user, run, &all);
  KVPOLICY_EXPECTS(all.next >= count, "the threads' run did no work; it must call it on one thread at least");
  if (all.why) std::rethrow_exception(all.why);
}

}  // namespace

kvpolicy_status kvpolicy_step(kvpolicy_state* const* states, int64_t count, int64_t layer, kvpolicy_tensor const* keys,
                              kvpolicy_tensor const* values, kvpolicy_tensor const* queries, float scale,
                              kvpolicy_tensor const* token_ids, kvpolicy_tensor const* out, int64_t* read, int32_t leave_whole,
                              kvpolicy_threads const* threads) {
  return guarded([&] {
    KVPOLICY_EXPECTS(count >= 1, std::to_string(count) + " sequences; there must be at least 1");
    required(states, "states");
    required(read, "read");
    std::fill_n(read, count, -1);
    if (threads != nullptr) required(threads->run, "run");
    std::span const all(states, static_cast<std::size_t>(count));
    for (kvpolicy_state const* const state : all) required(state, "a state");
    cache_shape const shape = std::visit([](auto const& of) { return of.shape(); }, all.front()->of);
    // Sums over ranks come in the same order on all of them.
    bool const in_order = std::ranges::any_of(all, [](kvpolicy_state const* state) {
      auto const* const ranked = std::get_if<sequence<ranked_backend>>(&state->of);
      return ranked != nullptr && ranked->chooses_for_request();
    });
    check_stores(all, shape, threads != nullptr && !in_order);
    for (std::size_t i = 1; layer == 0 && i < all.size(); ++i) {
      KVPOLICY_EXPECTS(std::ranges::find(all.first(i), all[i]) == all.begin() + static_cast<std::ptrdiff_t>(i),
                       "state " + std::to_string(i) + " is there twice; a sequence makes one step at a time");
    }
    step_tensors const given(count, layer, shape, keys, values, queries, scale, token_ids, out);
    each_of(count, in_order ? nullptr : threads, [&](std::int64_t i) {
      read[i] = std::visit([&](auto& of) { return given.step(of, i, leave_whole != 0); }, all[static_cast<std::size_t>(i)]->of);
    });
  });
}
