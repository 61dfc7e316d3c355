// The benchmarks of single kernels: each prints the cases of one file of primitive/.
#pragma once

#include "gpu.hpp"

namespace kvpolicy::bench {

void pooling(gpu& on);
void scores(gpu& on);
void cascades(gpu& on);
void top_ks(gpu& on);
void attention(gpu& on);
void list_weight_cases(gpu& on);
void window_attention_cases(gpu& on);
void sentence_scores(gpu& on);
void entropies(gpu& on);
void gathers(gpu& on);

}  // namespace kvpolicy::bench
