// Files about a model's heads: a profile as JSON, and how much each head retrieves as a table.
#pragma once

#include <kvpolicy/head_profile.hpp>
#include <kvpolicy/head_values.hpp>

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
  std::vector<float> retrieval;     ///< `[layers * kv_heads]`, how much each head retrieves; or empty
};

/// From its JSON, or from a Head_Analysis_*.json of HeteroCache's authors. Throws invalid_value that says what is wrong, and
/// where: `name` stands for the file.
profile_file parse_profile(std::string const& json, std::string const& name);

profile_file read_profile(std::string const& path);

std::string to_json(profile_file const& profile);

/// How much each head retrieves, `[layers * kv_heads]`: of a profile, or of a table with a line for each layer and a number for
/// each KV head, which is clipped to 0..1 (DuoAttention's full_attention_heads.tsv). Throws invalid_value as parse_profile().
owned_head_values<float> parse_retrieval(std::string const& file, std::string const& name);

owned_head_values<float> read_retrieval(std::string const& path);

}  // namespace kvpolicy
