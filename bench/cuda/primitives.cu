// Each CUDA kernel at Llama-3.1-8B's shape, one layer where it is of a layer: one JSON line a case. Options: gpu.hpp.
#include "primitives.hpp"

int main(int count, char** arguments) {
  using namespace kvpolicy::bench;
  return main_of(count, arguments, [](measured_gpu& on) {
    dearest(on);
    top_ks(on);
    entropies(on);
    gathers(on);
  });
}
