// One sequence of llama.cpp's on a CUDA device: its prompts are the engine's, its steps read what a policy chooses.
#pragma once

#include <cuda_runtime_api.h>
#include <ggml-backend-impl.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "decoder.hpp"
#include "graph.hpp"
#include "llama/rotary.hpp"
#include "token_cells.hpp"

namespace kvpolicy::ggml {

/// A policy for a device's contexts.
struct device_policy {
  std::string text;
  policy_owner policy;
  std::uint32_t needs;
  std::int64_t observed;  ///< queries of a prompt that it reads

  /// Throws unsupported for a policy whose steps a device can't make, and what parsing throws.
  explicit device_policy(std::string of);
};

/// What the sequences of a context have in common.
struct device_rows {
  device_policy policy;
  int device = 0;
  kvpolicy_shape shape{};  ///< of a sequence; its tokens are a stream's cells at most
  std::int64_t streams = 0;
  llama::rotary rope{};  ///< learned for a policy that needs it
};

/// Its work is on a stream of its own; the caller has it wait for the engine's, and the other way round. At a batch's begin the
/// work of all graphs before is done.
class device_sequence {
 public:
  /// Throws error if the device has too little memory.
  explicit device_sequence(device_rows& rows);
  ~device_sequence();
  device_sequence(device_sequence const&) = delete;
  device_sequence& operator=(device_sequence const&) = delete;

  cudaStream_t stream() const noexcept { return ours_; }
  token_cells const& cells() const noexcept { return cells_; }

  /// Another sequence takes its place, of which nothing is known but these tokens.
  /// @param other  has the same first tokens, and may have their queries; null: none has
  void begin(token_cells tokens, device_sequence const* other);
  /// Its rows were turned where they lie.
  void forget_rows();

  /// A batch brings tokens behind the sequence's first `before`, to these cells, which were written under these numbers.
  /// Returns whether its rows are found in another way from now on, so that steps that were captured are of no use.
  bool bring(attention_graph const& of, std::int64_t before, std::span<std::int64_t const> cells,
             std::span<std::uint64_t const> written);

  /// Whether the engine computes its steps, which read everything then: until more of a prompt comes.
  bool is_left() const noexcept { return left_; }
  /// Says whether that is news.
  bool leave(std::string const& why) { return left_ = true, why != std::exchange(why_left_, why); }

  /// They are a prompt, or a piece of one. Its queries are kept where the policy reads them; then it is computed.
  void begin_prompt(std::int64_t first, std::int64_t tokens);
  void keep(std::int64_t layer, ggml_tensor const* queries, std::int64_t begin, std::int64_t end);
  void end_prompt(std::int64_t tokens);

  /// The token is a step: the policy is given what came before. Throws unsupported where that can't be had.
  void prepare_step(attention_graph const& of, std::int64_t first);
  /// What the step asks for (KVPOLICY_STEP_IDLE, say), of that token.
  std::int32_t plan(std::int64_t first);
  /// Attends for the batch's token at `row`, and chooses unless `planned` says that nothing is due.
  void attend(std::int64_t layer, ggml_tensor* node, std::int64_t row, std::int32_t planned);
  /// @param logits,row  the step's, for policies that need them
  void observe(ggml_tensor const* logits, std::int64_t row);

 private:
  /// A layer's last queries of a prompt, f32 `[tokens, q_heads, head_dim]`, in one of two places that take turns.
  struct kept_queries {
    void* places[2] = {};
    int now = 0;
    std::int64_t count = 0;
  };

  static constexpr std::int64_t nowhere = -1;
  static constexpr std::int64_t by_table = -2;

  void bind(std::int64_t layer, ggml_tensor const* node, std::int64_t place);
  void bring_table();
  /// The queries of tokens from this one on, of which others take the place.
  void forget_queries(std::int64_t first);
  /// Tokens `first` to `tokens` are a prompt, behind what the policy knows, which is nothing where `first` is 0.
  void give_prompt(attention_graph const& of, std::int64_t first, std::int64_t tokens);

  device_rows& rows_;
  cudaStream_t ours_ = nullptr;
  decoder_owner decoder_{};
  token_cells cells_{};
  std::int64_t bound_ = nowhere;  ///< the first cell of a stream, from which on the rows follow each other; or one of these two
  std::int32_t* table_ = nullptr;       ///< `[max_tokens]` cells, on the device
  std::int32_t* host_table_ = nullptr;  ///< in pinned memory
  std::int64_t in_table_ = 0;           ///< tokens
  std::vector<kept_queries> kept_;      ///< `[layers]`
  std::int64_t kept_end_ = 0;           ///< the token behind the last kept query's
  std::int64_t tokens_ = 0;             ///< that were computed
  bool in_prompt_ = true;               ///< those from `prompt_begin_` on are not the decoder's yet
  std::int64_t prompt_begin_ = 0;
  bool left_ = false;
  std::string why_left_{};
};

/// Throws what CUDA says.
void must(cudaError_t status);

}  // namespace kvpolicy::ggml
