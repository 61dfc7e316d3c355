// A model's head profile as a JSON file.
#pragma once

#include <kvpolicy/head_profile.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace kvpolicy {

struct profile_file {
  std::string model;  ///< the file's name, for people
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  role_thresholds thresholds{};
  std::vector<head_profile> heads;  ///< `[layers * kv_heads]`
};

/// From its JSON. Throws invalid_value that says what is wrong, and where: `name` stands for the file.
profile_file parse_profile(std::string const& json, std::string const& name);

profile_file read_profile(std::string const& path);

std::string to_json(profile_file const& profile);

}  // namespace kvpolicy
