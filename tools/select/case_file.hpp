// A captured prompt: queries, keys and values of every layer, in a .safetensors file of format kvpolicy-case/1.
#pragma once

#include <kvpolicy/view.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace kvpolicy {

struct case_file {
  cache_shape shape{};                      ///< max_tokens is the prompt's length
  std::vector<std::vector<float>> queries;  ///< `[layers][tokens, q_heads, head_dim]`, after rotation
  std::vector<float> keys;                  ///< `[layers, tokens, kv_heads, head_dim]`
  std::vector<float> values;
  std::vector<float> inverse_frequency;  ///< `[head_dim / 2]`, or empty

  strided_view<> view(std::int64_t tokens) const noexcept;
};

/// From a file's bytes. Throws invalid_value that names the file and what is wrong with it.
case_file parse_case(std::string bytes, std::string const& name);

case_file read_case(std::string const& path);

}  // namespace kvpolicy
