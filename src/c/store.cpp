// kvpolicy.h's row store: arguments are checked, C++ is called, what it throws becomes a status.
#include "store.hpp"

#include <string>

#include "kvpolicy/error.hpp"
#include "status.hpp"
#include "tensor.hpp"

using namespace kvpolicy;
using namespace kvpolicy::c;

namespace {

void check_tokens(std::int64_t tokens) {
  KVPOLICY_EXPECTS(tokens >= 0, std::to_string(tokens) + " tokens; they can't be negative");
}

rows rows_of(kvpolicy_tensor const* given, char const* name, std::int64_t layer, cache_shape const& shape, axis const& dims) {
  tensor const t = checked(given, {.name = name, .layer = layer, .dtype = dtype_of(shape.type), .dense_last = true},
                           {{"kv_heads", shape.kv_heads}, {"tokens"}, dims});
  return {.base = t.data,
          .type = shape.type,
          .heads = shape.kv_heads,
          .tokens = t.extent[1],
          .head_dim = dims.extent,
          .head_stride = t.stride[0],
          .token_stride = t.stride[1],
          .dim_stride = size_of(shape.type)};
}

}  // namespace

kvpolicy_status kvpolicy_arena_start(kvpolicy_shape const* shape, int64_t bytes, kvpolicy_arena** arena) {
  return guarded([&] {
    required(arena, "arena");
    std::int64_t const block = row_store::block_bytes(shape_from(shape));
    KVPOLICY_EXPECTS(bytes >= block, "an arena of " + std::to_string(bytes) + " bytes; a block of " +
                                         std::to_string(row_store::rows_of_block) + " rows takes " + std::to_string(block));
    std::int64_t const blocks = std::min<std::int64_t>(bytes / block, INT32_MAX / row_store::rows_of_block);
    *arena = new kvpolicy_arena{std::make_shared<block_arena>(block, blocks)};
  });
}

void kvpolicy_arena_free(kvpolicy_arena* arena) { delete arena; }

int64_t kvpolicy_arena_bytes(kvpolicy_arena const* arena) {
  return arena == nullptr ? 0 : arena->blocks->held() * arena->blocks->block_bytes();
}

kvpolicy_status kvpolicy_store_start(kvpolicy_arena* arena, kvpolicy_shape const* shape, kvpolicy_store** store) {
  return guarded([&] {
    required(arena, "arena");
    required(store, "store");
    *store = new kvpolicy_store{arena->blocks, row_store(*arena->blocks, shape_from(shape))};
  });
}

void kvpolicy_store_free(kvpolicy_store* store) { delete store; }

kvpolicy_status kvpolicy_store_fork(kvpolicy_store const* store, int64_t tokens, kvpolicy_store** copy) {
  return guarded([&] {
    required(store, "store");
    required(copy, "copy");
    check_tokens(tokens);
    *copy = new kvpolicy_store{store->blocks, store->rows.fork(tokens)};
  });
}

kvpolicy_status kvpolicy_store_append(kvpolicy_store* store, int64_t layer, kvpolicy_tensor const* keys,
                                      kvpolicy_tensor const* values) {
  return guarded([&] {
    required(store, "store");
    check_layer({layer}, store->rows.shape().layers);
    cache_shape const& shape = store->rows.shape();
    store->rows.append({layer}, rows_of(keys, "keys", layer, shape, key_axis(shape)),
                       rows_of(values, "values", layer, shape, value_axis(shape)));
  });
}

kvpolicy_status kvpolicy_store_truncate(kvpolicy_store* store, int64_t tokens) {
  return guarded([&] {
    required(store, "store");
    check_tokens(tokens);
    store->rows.truncate(tokens);
  });
}

int64_t kvpolicy_store_released(kvpolicy_store const* store) { return store == nullptr ? 0 : store->rows.released(); }

int64_t kvpolicy_store_rows(kvpolicy_store const* store) { return store == nullptr ? 0 : store->rows.rows_held(); }
