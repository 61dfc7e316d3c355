// Moments of a model's queries as a JSON file.
#pragma once

#include <kvpolicy/scorers/trigonometric.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace kvpolicy {

struct moments_file {
  std::string model;  ///< the file's name, for people
  std::int64_t layers = 0;
  std::int64_t q_heads = 0;
  std::int64_t pairs = 0;             ///< of channels that the model rotates
  std::vector<query_moment> moments;  ///< `[layers, q_heads, pairs]`
};

/// From its JSON. Throws invalid_value that says what is wrong: `name` stands for the file.
moments_file parse_moments(std::string const& json, std::string const& name);

moments_file read_moments(std::string const& path);

std::string to_json(moments_file const& moments);

}  // namespace kvpolicy
