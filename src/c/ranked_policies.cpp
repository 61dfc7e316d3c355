#include "ranked_backend.hpp"

namespace kvpolicy::c {

ranked_policy_list const& ranked_policies() {
  static ranked_policy_list const all = published_policies<layer_table_view, ranked_exec>();
  return all;
}

}  // namespace kvpolicy::c
