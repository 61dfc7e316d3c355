// Any bytes are a captured prompt or a message; a prompt has all the rows that its shape says.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "case_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace kvpolicy;
  try {
    case_file const read = parse_case({reinterpret_cast<char const*>(data), size}, "fuzzed");
    cache_shape const& s = read.shape;
    std::vector<float> row(static_cast<std::size_t>(s.head_dim));
    for (std::int64_t l = 0; l < s.layers; ++l) {
      if (std::ssize(read.queries[static_cast<std::size_t>(l)]) != s.max_tokens * s.q_heads * s.head_dim) std::abort();
      for (std::int64_t h = 0; h < s.kv_heads; ++h) {
        read.view(s.max_tokens).keys({l}).load({h}, {s.max_tokens - 1}, row);
        read.view(s.max_tokens).values({l}).load({h}, {s.max_tokens - 1}, row);
      }
    }
  } catch (error const&) {
  }
  return 0;
}
