#include "moments_file.hpp"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "read_file.hpp"

namespace kvpolicy {
namespace {

using nlohmann::ordered_json;

constexpr char const* format = "kvpolicy-moments/1";
constexpr std::array<std::pair<char const*, float query_moment::*>, 3> parts{
    {{"real", &query_moment::real}, {"imaginary", &query_moment::imaginary}, {"length", &query_moment::length}}};

}  // namespace

moments_file read_moments(std::string const& path) { return parse_moments(read_file(path), path); }

moments_file parse_moments(std::string const& text, std::string const& name) {
  std::string const where = "moments '" + name + "'";
  try {
    ordered_json const json = ordered_json::parse(text);
    if (json.value("format", "") != format) throw invalid_value(where + " are not of format " + format);
    moments_file made{.model = json.value("model", ""),
                      .layers = json.at("layers").get<std::int64_t>(),
                      .q_heads = json.at("q_heads").get<std::int64_t>(),
                      .pairs = json.at("pairs").get<std::int64_t>(),
                      .moments = {}};
    for (std::int64_t const size : {made.layers, made.q_heads, made.pairs}) {
      if (size < 1 || size > 4096)
        throw invalid_value(where + ": a size of " + std::to_string(size) + "; it must be 1 to 4096");
    }
    auto const wanted = static_cast<std::size_t>(made.layers * made.q_heads * made.pairs);
    for (auto const& [part, member] : parts) {
      ordered_json const& numbers = json.at(part);
      if (!numbers.is_array() || numbers.size() != wanted) {
        throw invalid_value(where + ": " + part + " has " + std::to_string(numbers.size()) + " numbers for " +
                            std::to_string(wanted));
      }
      made.moments.resize(wanted);
      for (std::size_t i = 0; i < wanted; ++i) {
        float const number = numbers[i].get<float>();
        if (!std::isfinite(number)) throw invalid_value(where + ": " + part + " has a number that is not finite");
        made.moments[i].*member = number;
      }
    }
    return made;
  } catch (nlohmann::json::exception const& e) {
    throw invalid_value(where + " can't be read as JSON of moments: " + e.what());
  }
}

std::string to_json(moments_file const& moments) {
  ordered_json json{{"format", format},
                    {"model", moments.model},
                    {"layers", moments.layers},
                    {"q_heads", moments.q_heads},
                    {"pairs", moments.pairs}};
  for (auto const& [part, member] : parts) {
    ordered_json& numbers = json[part] = ordered_json::array();
    for (query_moment const& one : moments.moments) numbers.push_back(one.*member);
  }
  return json.dump();
}

}  // namespace kvpolicy
