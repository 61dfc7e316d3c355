// Launches that summarise units, and score their bounds.
#pragma once

#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/gpu/pooling/pool.hpp"
#include "kvpolicy/gpu/pooling/score_bounds_tensor.hpp"

namespace kvpolicy::gpu::detail {

/// Body is pool_mean_body, pool_bounds_body or pool_mean_deviation_body; one launch for all heads and sequences.
template <template <element_type> class Body, device D, class Set>
void launch_pool(D& device, batch_rows const& keys, pooled_tokens const& what, std::int64_t sequences, Set set) {
  with_type(keys.type, [&]<element_type E>() {
    typename Body<E>::arguments a{};
    a.keys = keys;
    a.what = what;
    set(a);
    device.template launch<Body<E>>({divided_up(what.units * keys.parts(), Body<E>::threads), keys.heads, sequences}, a);
  });
}

/// What is scored: `bounds`' rows, of unit u, 2u the maxima and 2u + 1 the minima.
struct scored_bounds {
  batch_rows bounds;
  std::int32_t group = 1;
  std::int64_t max_units = 0;  ///< of a sequence
  std::int64_t sequences = 1;
};

/// A body's arguments, but for what `set` gives.
template <class Body, class Set>
typename Body::arguments bounds_arguments(scored_bounds const& what, Set const& set) {
  typename Body::arguments a{};
  a.bounds = what.bounds;
  a.group = what.group;
  a.head_dim = what.bounds.head_dim;
  set(a);
  return a;
}

template <device D, class Set>
void launch_score_bounds(D& device, scored_bounds const& what, Set set) {
  batch_rows const& bounds = what.bounds;
  expect_row("score_bounds", bounds.head_dim, what.group, max_wide_dim);
  bool const on_tensors =
      what.group <= 8 && with_tensor_rows(bounds, [&]<element_type E, int Chunks>() {
        using body = score_bounds_tensor_body<E, Chunks>;
        auto a = bounds_arguments<body>(what, set);
        a.blocks = blocks_of_row<body>(device, what.max_units, body::units_of_block, what.sequences * bounds.heads);
        device.template launch<body>({a.blocks, bounds.heads, what.sequences}, a);
      });
  if (on_tensors) return;
  with_type(bounds.type, [&]<element_type E>() {
    auto const launch = [&]<class Body>() {
      std::int64_t const at_once = Body::threads / 32 * row_lanes(bounds.parts()).rows_of_warp();
      device.template launch<Body>({divided_up(what.max_units, at_once), bounds.heads, what.sequences},
                                   bounds_arguments<Body>(what, set));
    };
    if (bounds.head_dim > max_head_dim) launch.template operator()<score_bounds_body<E, true>>();
    else launch.template operator()<score_bounds_body<E>>();
  });
}

/// Pools each sequence's newest token and scores units of which none is that token's: in one launch, where tensor cores score.
template <template <element_type> class Pool, device D, class SetPool, class SetScore>
void launch_pool_beside_bounds(D& device, batch_rows const& keys, pooled_tokens const& newest, SetPool set_pool,
                               scored_bounds const& what, SetScore set_score) {
  expect_row("score_bounds", what.bounds.head_dim, what.group, max_wide_dim);
  bool const at_once = what.group <= 8 && with_tensor_rows(what.bounds, [&]<element_type E, int Chunks>() {
                         using score = score_bounds_tensor_body<E, Chunks>;
                         using body = pool_beside_bounds_body<Pool<E>, score>;
                         typename body::arguments a{};
                         a.pool.keys = keys;
                         a.pool.what = newest;
                         set_pool(a.pool);
                         a.score = bounds_arguments<score>(what, set_score);
                         a.score.before = 1;
                         std::int64_t const rows = what.sequences * what.bounds.heads;
                         a.score.blocks = blocks_of_row<body>(device, what.max_units, score::units_of_block, rows);
                         device.template launch<body>({a.score.blocks + 1, what.bounds.heads, what.sequences}, a);
                       });
  if (at_once) return;
  launch_pool<Pool>(device, keys, newest, what.sequences, set_pool);
  launch_score_bounds(device, what, set_score);
}

}  // namespace kvpolicy::gpu::detail
