// The kernels of primitives.cu that read and write the most, counted.
#include "primitives.hpp"

int main(int count, char** arguments) {
  using namespace kvpolicy::bench;
  return main_of(count, arguments, dearest);
}
