#include "gpu_backend.hpp"

namespace kvpolicy::c {

cuda_policy_list const& gpu_policies() {
  static cuda_policy_list const all = published_policies<basic_layer_table_view<device_memory>, gpu_exec>();
  return all;
}

}  // namespace kvpolicy::c
