// One tiny model of each kind of attention that the engine has; weights are random and the same each time.
#pragma once

#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {

/// gemma3: 12 layers, full attention on 5 and 11, a window of 64 tokens on the others; norms of queries and keys, four heads
/// over one; the full layers' rotary base is 1e6, the others' 1e4.
model_owner tiny_window_pattern();

/// gemma2: 4 layers, full attention on 1 and 3, a window of 64 tokens on 0 and 2; attention logits, of deviation near 4, are
/// capped softly at 5 on every layer, the output's at 30.
model_owner tiny_soft_capped();

/// gpt-oss: 4 layers, full attention on 1 and 3, a window of 64 tokens on 0 and 2; each query head has a sink, which takes a
/// tenth or so of 200 tokens' attention and more of a window's; 2 of 4 experts, each layer's always the same.
model_owner tiny_attention_sinks();

/// mpt: 4 layers of six heads over two, no rotary embedding but ALiBi with the greatest bias 8: the slopes of the first four
/// heads and of the last two are of different series.
model_owner tiny_alibi();

/// openelm: 4 layers of four heads over two, but layer 2 has them over one; norms of queries and keys.
model_owner tiny_unequal_heads();

/// lfm2: 6 layers, attention (full) on 2 and 4, gated short convolutions with a state of two tokens on the others.
model_owner tiny_short_convolution();

/// granitehybrid: 6 layers, attention (full) on 2 and 4, Mamba-2 on the others.
model_owner tiny_state_space();

/// gemma3 with no full layer: 2 layers with a window of 64 tokens, so that nothing reaches further than 126 tokens.
model_owner tiny_windows_only();

/// gemma4: 6 layers, full attention on 1, 3 and 5, a window of 64 tokens on the others; layers 4 and 5 have no cache of their
/// own and read those of 2 and 3. Attention has no scale but the norms' gain; the full layers' rotary embedding has factors.
model_owner tiny_shared_cache();

}  // namespace kvpolicy::llama::testing
