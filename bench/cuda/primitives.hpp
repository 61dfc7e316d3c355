// The benchmarks of single kernels: each prints the cases of one file of the folders here.
#pragma once

#include "gpu.hpp"

namespace kvpolicy::bench {

void pooling(measured_gpu& on);
void scores(measured_gpu& on);
void cascades(measured_gpu& on);
void top_ks(measured_gpu& on);
void attention(measured_gpu& on);
void list_weight_cases(measured_gpu& on);
void window_attention_cases(measured_gpu& on);
void sentence_scores(measured_gpu& on);
void key_norms(measured_gpu& on);
void entropies(measured_gpu& on);
void gathers(measured_gpu& on);

/// The kernels that read and write the most.
inline void dearest(measured_gpu& on) {
  pooling(on);
  scores(on);
  cascades(on);
  attention(on);
  list_weight_cases(on);
  window_attention_cases(on);
  sentence_scores(on);
  key_norms(on);
}

}  // namespace kvpolicy::bench
