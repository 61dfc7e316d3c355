// Attention over the tokens that the model's own indexer chooses (DeepSeek sparse attention and kin): the graph says which by a
// mask that it computes. The engine's kernel goes through it head by head, and in prompts reads nearly everything.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kvpolicy/exec/simd.hpp"
#include "kvpolicy/selection.hpp"

namespace kvpolicy::llama {

/// How many tokens the model chooses for each token, at most, if a FLASH_ATTN_EXT node's mask is the engine's own plus minus
/// infinity but where indices in the graph say; none for other masks. Nothing has to be computed yet.
std::optional<std::int64_t> chosen_at_most(ggml_tensor const* attention) noexcept;

/// Attends to the finite entries of the mask alone, in the engine's place. Its result is the engine's within rounding.
class chosen_tokens {
 public:
  /// @param attention  a node that chosen_at_most() knows, all of whose sources are computed
  /// @param exec  for its heads, and as many tokens as the cache has cells
  void attend(ggml_tensor* attention, simd_exec& exec);

 private:
  std::vector<range_list> list_{1};  ///< scratch
};

}  // namespace kvpolicy::llama
