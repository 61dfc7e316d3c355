// The kernels of primitives.cu that read and write the most, counted.
#include "primitives.hpp"

int main(int count, char** arguments) {
  using namespace kvpolicy::bench;
  return main_of(count, arguments, [](measured_gpu& on) {
    pooling(on);
    scores(on);
    cascades(on);
    attention(on);
    list_weight_cases(on);
    window_attention_cases(on);
    sentence_scores(on);
  });
}
