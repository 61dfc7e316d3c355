#include "tier_json.hpp"

namespace kvpolicy {

nlohmann::ordered_json tier_json(std::string const& name, tiers::resident_statistics const& s) {
  if (name.empty()) return nullptr;
  return {{"name", name.substr(0, name.find(':'))},
          {"hit_rate", s.wanted > 0 ? static_cast<double>(s.hits) / static_cast<double>(s.wanted) : 1.0},
          {"bytes_stored", s.bytes_stored},
          {"bytes_fetched", s.bytes_fetched},
          {"stall_seconds", s.stall_seconds}};
}

}  // namespace kvpolicy
