// Links kvpolicy::store: rows that one is given, and lets go of.
#include <kvpolicy/store/row_store.hpp>

int main() {
  kvpolicy::cache_shape const shape{.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 32, .max_tokens = 100};
  kvpolicy::block_arena arena(kvpolicy::row_store::block_bytes(shape), 2);
  kvpolicy::row_store const store(arena, shape);
  return store.released() == 0 && arena.held() == 0 ? 0 : 1;
}
