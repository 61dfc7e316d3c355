#include "profile_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kvpolicy/text/values.hpp"
#include "read_file.hpp"

namespace kvpolicy {
namespace {

using nlohmann::ordered_json;

constexpr char const* format = "kvpolicy-profile/1";

head_role role_of(std::string const& name, std::string const& where) {
  for (head_role const role : {head_role::anchor, head_role::shifting, head_role::pivot, head_role::satellite}) {
    if (name == name_of(role)) return role;
  }
  throw invalid_value(where + ": role '" + name + "'; it must be anchor, volatile, pivot or satellite");
}

/// A whole number; JSON's others do not convert.
std::int64_t whole(ordered_json const& json, char const* name, std::string const& where) {
  if (!json.is_number_integer())
    throw invalid_value(where + ": " + name + " is " + json.dump() + "; it must be a whole number");
  return json.get<std::int64_t>();
}

/// One head of the authors' file. Throws invalid_value.
head_profile analysed_head(std::int64_t role, double part, double least, std::string const& where) {
  static constexpr std::array roles{head_role::anchor, head_role::shifting, head_role::pivot, head_role::satellite};
  if (role < 1 || role > 4) throw invalid_value(where + " is of class " + std::to_string(role) + "; there are 1 to 4");
  head_role const of = roles[static_cast<std::size_t>(role - 1)];
  if (of == head_role::shifting || of == head_role::pivot) return {.role = of, .stability = 0};
  if (!(part > 0))
    throw invalid_value(where + " is compressed, and its part of the budget is " + std::to_string(part) +
                        "; it must be above 0");
  return {.role = of, .stability = static_cast<float>(least / part)};
}

/// A profile from the file that HeteroCache's authors publish for a model, Head_Analysis_*.json. It has each compressed head's
/// part of the budget, as a multiple of the mean, in place of its stability: parts are as 1 / S_stable. Classes are numbers: 1
/// anchor, 2 volatile, 3 pivot, 4 satellite.
profile_file parse_analysis(ordered_json const& json, std::string const& where) {
  ordered_json const& roles = json.at("classification_matrix");
  ordered_json const& parts = json.at("allocation_matrix");
  ordered_json const& leaders = json.at("leader_member_relations");
  auto const layers = std::ssize(roles);
  auto const heads = layers > 0 ? std::ssize(roles[0]) : 0;
  if (heads < 1 || layers > 4096 || heads > 4096 || std::ssize(parts) != layers || std::ssize(leaders) != layers)
    throw invalid_value(where + " has " + std::to_string(layers) + " layers of roles, " + std::to_string(parts.size()) +
                        " of parts and " + std::to_string(leaders.size()) + " of leaders; it must have as many of each");
  profile_file made;
  made.layers = layers;
  made.kv_heads = heads;
  double least = std::numeric_limits<double>::infinity();
  for (auto const& layer : parts) {
    for (auto const& part : layer) {
      if (part.is_number() && part.get<double>() > 0) least = std::min(least, part.get<double>());
    }
  }
  for (std::int64_t l = 0; l < layers; ++l) {
    auto const at = static_cast<std::size_t>(l);
    if (std::ssize(roles[at]) != heads || std::ssize(parts[at]) != heads)
      throw invalid_value(where + ", layer " + std::to_string(l) + ": " + std::to_string(roles[at].size()) + " roles and " +
                          std::to_string(parts[at].size()) + " parts; the first layer has " + std::to_string(heads));
    for (std::int64_t h = 0; h < heads; ++h) {
      std::string const here = where + ", layer " + std::to_string(l) + ", head " + std::to_string(h);
      auto const head = static_cast<std::size_t>(h);
      made.heads.push_back(
          analysed_head(whole(roles[at][head], "the class", here), parts[at][head].get<double>(), least, here));
    }
    for (auto const& [leader, members] : leaders[at].items()) {
      std::int64_t pivot = -1;
      if (!text::parse_number(std::string_view(leader), pivot) || pivot < 0 || pivot >= heads)
        throw invalid_value(where + ", layer " + std::to_string(l) + ": leader '" + leader + "' is none of its " +
                            std::to_string(heads) + " heads");
      for (auto const& member : members) {
        std::int64_t const h = whole(member, "a member", where);
        if (h < 0 || h >= heads || made.heads[static_cast<std::size_t>(l * heads + h)].role != head_role::satellite)
          throw invalid_value(where + ", layer " + std::to_string(l) + ": head " + std::to_string(h) + " follows head " +
                              leader + ", and is no satellite");
        made.heads[static_cast<std::size_t>(l * heads + h)].pivot = static_cast<std::int32_t>(pivot);
      }
    }
  }
  return made;
}

/// Every satellite has a pivot of its layer. Throws invalid_value.
void check_pivots(profile_file const& profile, std::string const& where) {
  auto const kv_heads = static_cast<std::size_t>(profile.kv_heads);
  for (std::size_t i = 0; i < profile.heads.size(); ++i) {
    head_profile const& head = profile.heads[i];
    if (head.role != head_role::satellite) continue;
    if (head.pivot < 0 ||
        profile.heads[i / kv_heads * kv_heads + static_cast<std::size_t>(head.pivot)].role != head_role::pivot) {
      throw invalid_value(where + ", head " + std::to_string(i) + ": its pivot " + std::to_string(head.pivot) + " is none");
    }
  }
}

}  // namespace

profile_file read_profile(std::string const& path) { return parse_profile(read_file(path), path); }

profile_file parse_profile(std::string const& text, std::string const& name) {
  std::string const where = "profile '" + name + "'";
  ordered_json json;
  try {
    json = ordered_json::parse(text);
    if (json.contains("classification_matrix")) {
      profile_file const analysed = parse_analysis(json, where);
      check_pivots(analysed, where);
      return analysed;
    }
    profile_file profile{.model = json.value("model", ""),
                         .layers = whole(json.at("layers"), "layers", where),
                         .kv_heads = whole(json.at("kv_heads"), "kv_heads", where),
                         .thresholds = {json.value("tau_stable", .5f), json.value("tau_sim", .5f)},
                         .heads = {},
                         .retrieval = {}};
    if (json.value("format", "") != format) throw invalid_value(where + " is not of format " + format);
    if (profile.layers < 1 || profile.kv_heads < 1 || profile.layers > 4096 || profile.kv_heads > 4096) {
      throw invalid_value(where + ": " + std::to_string(profile.layers) + " layers of " + std::to_string(profile.kv_heads) +
                          " heads");
    }
    ordered_json const& heads = json.at("heads");
    auto const wanted = static_cast<std::size_t>(profile.layers * profile.kv_heads);
    if (!heads.is_array() || heads.size() != wanted) {
      throw invalid_value(where + " lists " + std::to_string(heads.size()) + " heads for " + std::to_string(wanted));
    }
    for (std::size_t i = 0; i < heads.size(); ++i) {
      std::string const here = where + ", head " + std::to_string(i);
      std::int64_t const pivot = heads[i].contains("pivot") ? whole(heads[i].at("pivot"), "pivot", here) : -1;
      head_profile head{.role = role_of(heads[i].at("role").get<std::string>(), here),
                        .pivot = static_cast<std::int32_t>(std::clamp<std::int64_t>(pivot, -1, profile.kv_heads)),
                        .stability = heads[i].at("stability").get<float>()};
      if (!(head.stability >= 0 && head.stability <= 1)) throw invalid_value(here + ": stability is not in 0..1");
      if ((head.role == head_role::satellite) != (head.pivot >= 0) || head.pivot >= profile.kv_heads) {
        throw invalid_value(here + ": pivot " + std::to_string(pivot) +
                            "; a satellite has a KV head of its layer, others have none");
      }
      profile.heads.push_back(head);
      if (!heads[i].contains("retrieval")) continue;
      profile.retrieval.push_back(heads[i].at("retrieval").get<float>());
      if (!(profile.retrieval.back() >= 0 && profile.retrieval.back() <= 1))
        throw invalid_value(here + ": retrieval is not in 0..1");
    }
    if (!profile.retrieval.empty() && profile.retrieval.size() != wanted)
      throw invalid_value(where + " says of some heads how much they retrieve, and of others not");
    check_pivots(profile, where);
    return profile;
  } catch (nlohmann::json::exception const& e) {
    throw invalid_value(where + " can't be read as JSON of a profile: " + e.what());
  }
}

std::string to_json(profile_file const& profile) {
  ordered_json json{{"format", format},
                    {"model", profile.model},
                    {"layers", profile.layers},
                    {"kv_heads", profile.kv_heads},
                    {"tau_stable", profile.thresholds.stable},
                    {"tau_sim", profile.thresholds.similar},
                    {"heads", ordered_json::array()}};
  for (std::size_t h = 0; h < profile.heads.size(); ++h) {
    head_profile const& head = profile.heads[h];
    ordered_json one{{"role", name_of(head.role)}, {"stability", head.stability}};
    if (head.pivot >= 0) one["pivot"] = head.pivot;
    if (!profile.retrieval.empty()) one["retrieval"] = profile.retrieval[h];
    json["heads"].push_back(one);
  }
  return json.dump(1);
}

owned_head_values<float> read_retrieval(std::string const& path) { return parse_retrieval(read_file(path), path); }

owned_head_values<float> parse_retrieval(std::string const& file, std::string const& name) {
  std::size_t const first = file.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && file[first] == '{') {
    profile_file const profile = parse_profile(file, name);
    if (profile.retrieval.empty())
      throw invalid_value("profile '" + name + "' does not say how much heads retrieve; make one with this kvpolicy-profile");
    return {profile.retrieval, profile.kv_heads};
  }
  std::vector<float> all;
  std::size_t heads = 0;
  std::size_t layers = 0;
  std::istringstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream numbers(line);
    std::size_t const before = all.size();
    for (std::string number; numbers >> number;) {
      float value = 0;
      if (!text::parse_number(std::string_view(number), value)) {
        throw invalid_value("'" + name + "', line " + std::to_string(layers + 1) + ": '" + number +
                            "'; it must be a table of numbers, a line for each layer, or a profile by kvpolicy-profile");
      }
      all.push_back(std::clamp(value, 0.0f, 1.0f));
    }
    if (all.size() == before) continue;
    if (layers++ == 0) heads = all.size();
    if (all.size() != layers * heads) {
      throw invalid_value("'" + name + "', line " + std::to_string(layers) + " has " + std::to_string(all.size() - before) +
                          " numbers, and the first has " + std::to_string(heads));
    }
  }
  if (all.empty()) throw invalid_value("'" + name + "' is empty; it must have a number for each head, a line for each layer");
  return {all, static_cast<std::int64_t>(heads)};
}

}  // namespace kvpolicy
