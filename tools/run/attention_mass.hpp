// How much of dense attention falls on what a policy reads.
#pragma once

#include <kvpolicy/interop/llama.hpp>

#include <nlohmann/json.hpp>
#include <vector>

namespace kvpolicy {

/// Handed to a session as its on_queries and, behind that, its on_choice. Off until started. Softmax over all tokens, without
/// soft caps and biases; mean over the query group.
class attention_mass {
 public:
  void start();
  void stop() noexcept { on_ = false; }
  void see(layer_id layer, layer_table_view const& view, query_heads const& queries, simd_exec& exec);
  void choose(selection const& kept);

  /// Of each step, layer and KV head the share that is read: the mean, and what nine of ten have at least.
  nlohmann::ordered_json result() const;

 private:
  bool on_ = false;
  std::vector<float> weights_;  ///< `[kv_heads, tokens]` of the layer that chooses now
  std::int64_t tokens_ = 0;
  std::vector<double> shares_;
};

}  // namespace kvpolicy
