// One sequence of llama.cpp's on a CUDA device: its prompts are the engine's, its steps read what a policy chooses.
#pragma once

#include <cuda_runtime_api.h>
#include <ggml-backend-impl.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "decoder.hpp"
#include "graph.hpp"
#include "llama/rotary.hpp"

namespace kvpolicy::ggml {

/// Throws unsupported for a policy whose steps a device can't make, and what parsing throws.
void check_policy(std::string const& text);

/// What a backend's graphs go through. All calls are from the thread that computes.
class device_sequence {
 public:
  using engine = ggml_status (*)(ggml_backend_t, ggml_cgraph*);

  /// @param say  takes lines for the user
  /// Throws what check_policy() throws.
  device_sequence(std::string policy, ggml_backend_t backend, engine by, std::function<void(std::string const&)> say);
  ~device_sequence();
  device_sequence(device_sequence const&) = delete;
  device_sequence& operator=(device_sequence const&) = delete;

  /// The backend's graph_compute. Throws unsupported for a graph that can't be served; nothing of it was computed then.
  ggml_status compute(ggml_cgraph* graph);

 private:
  /// A layer's last queries of a prompt, f32 `[tokens, q_heads, head_dim]`, in one of two places that take turns.
  struct kept_queries {
    void* places[2] = {};
    int now = 0;
    std::int64_t count = 0;
  };
  /// A captured step, by the graph's number and whether the step is idle.
  struct captured_step {
    int seen = 0;
    cudaGraphExec_t graph = nullptr;
  };
  using step_key = std::pair<std::uint64_t, bool>;

  sequence_graph const& read_once(ggml_cgraph* graph);
  /// Somebody wrote or turned the cache's rows without the policy: what it knows of them is gone.
  void forget_rows();
  /// The queries of tokens from this cell on, of which others take the place.
  void forget_queries(std::int64_t first);
  ggml_status prompt(ggml_cgraph* graph, sequence_graph const& of, std::int64_t first);
  void keep(ggml_tensor const* queries, kept_queries& into);
  ggml_status step(ggml_cgraph* graph, sequence_graph const& of, std::int64_t first);
  void start(sequence_graph const& of);
  void bind(std::int64_t layer, ggml_tensor const* node);
  /// Cells `first` to `tokens` are a prompt, behind what the policy knows, which is nothing where `first` is 0.
  void give_prompt(sequence_graph const& of, std::int64_t first, std::int64_t tokens);
  void take_back(sequence_graph const& of, std::int64_t tokens);
  /// The engine's nodes, and behind each node of attention what `attend` enqueues for its layer.
  ggml_status in_parts(ggml_cgraph* graph, sequence_graph const& of,
                       std::function<void(std::int64_t layer, ggml_tensor* node)> const& attend);
  ggml_status launch(ggml_cgraph* graph, sequence_graph const& of, std::int32_t planned);
  ggml_status capture(ggml_cgraph* graph, sequence_graph const& of, std::int32_t planned, captured_step& into);
  void attend(std::int64_t layer, ggml_tensor* node, std::int32_t planned);
  void observe(sequence_graph const& of);
  std::span<std::byte> room_for(std::size_t bytes);
  void ours_waits();
  void engine_waits();
  void forget_steps();

  std::string text_;
  policy_owner policy_;
  std::uint32_t needs_;
  std::int64_t observed_;  ///< queries of a prompt that the policy reads
  ggml_backend_t backend_;
  engine engine_;
  std::function<void(std::string const&)> say_;
  int device_;
  cudaStream_t ours_ = nullptr;
  ggml_backend_event_t before_ = nullptr;
  ggml_backend_event_t after_ = nullptr;
  std::span<std::byte> room_{};  ///< in pinned memory
  decoder_owner decoder_{};
  llama::rotary rope_{};        ///< learned for a policy that needs it
  std::uint64_t read_uid_ = 0;  ///< of the graph that was read last; 0: none
  sequence_graph read_{};
  std::vector<void const*> bound_{};              ///< `[layers]` keys
  std::vector<ggml_backend_buffer_t> buffers_{};  ///< of keys and values
  std::uint64_t writes_ = 0;                      ///< to those, that are known
  std::vector<kept_queries> kept_{};              ///< `[layers]`
  std::int64_t kept_end_ = 0;                     ///< the cell behind the last kept query's
  std::int64_t tokens_ = 0;                       ///< cells that the sequence has
  bool in_prompt_ = true;                         ///< those from `prompt_begin_` on are not the decoder's yet
  std::int64_t prompt_begin_ = 0;
  std::map<step_key, captured_step> steps_{};
};

}  // namespace kvpolicy::ggml
