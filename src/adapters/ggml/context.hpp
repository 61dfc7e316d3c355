// The graphs of one context on a CUDA device: its sequences' steps read what a policy chooses.
#pragma once

#include <cuda_runtime_api.h>
#include <ggml-backend-impl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "batch_parts.hpp"
#include "graph.hpp"
#include "row_history.hpp"
#include "sequence.hpp"
#include "token_cells.hpp"

namespace kvpolicy::ggml {

/// What a backend's graphs go through. All calls are from the thread that computes, or saves and restores states.
class device_context {
 public:
  using engine = ggml_status (*)(ggml_backend_t, ggml_cgraph*);

  /// @param sequences  that the context may have at once
  /// @param say  takes lines for the user
  /// Throws what device_policy() throws.
  device_context(std::string policy, std::int64_t sequences, ggml_backend_t backend, engine by,
                 std::function<void(std::string const&)> say);
  ~device_context();
  device_context(device_context const&) = delete;
  device_context& operator=(device_context const&) = delete;

  /// The backend's graph_compute. Throws unsupported for a graph that can't be served; nothing of it was computed then.
  ggml_status compute(ggml_cgraph* graph);

 private:
  /// A part of a batch, and who serves it.
  struct served_part {
    batch_part part;
    device_sequence* by;
    bool step;
  };
  using batch = std::vector<served_part>;
  /// A captured step, by the graph's number, whether all of it is idle, and its sequences.
  using step_key = std::tuple<std::uint64_t, bool, std::vector<device_sequence const*>>;
  struct captured_step {
    int seen = 0;
    cudaGraphExec_t graph = nullptr;
  };

  attention_graph const& read_once(ggml_cgraph* graph);
  void start(attention_graph const& of);
  /// Rows of some sequences are about to be turned where they lie.
  void shift(attention_graph const& by);
  batch read_batch(attention_graph const& of);
  /// The sequence that has the part's tokens, and is not another part's; null: none has.
  device_sequence* find(batch_part const& part, batch const& others);
  /// One that is free to take up another's tokens.
  device_sequence& free_sequence(batch const& taken);
  /// Steps that no policy can serve are left to the engine, and the user is told.
  void prepare(attention_graph const& of, batch& parts);
  ggml_status run(ggml_cgraph* graph, attention_graph const& of, batch const& parts);
  ggml_status launch(ggml_cgraph* graph, attention_graph const& of, batch const& parts, std::int32_t planned);
  ggml_status replay(ggml_cgraph* graph, attention_graph const& of, batch const& parts, std::int32_t planned);
  ggml_status capture(ggml_cgraph* graph, attention_graph const& of, batch const& parts, std::int32_t planned,
                      captured_step& into);
  void engine_is_here();
  void waits_for_engine(device_sequence const& of);
  void engine_waits_for(device_sequence const& of);
  std::span<std::byte> room_for(std::size_t bytes);
  void forget_steps();

  device_rows rows_;
  std::int64_t most_;
  ggml_backend_t backend_;
  engine engine_;
  std::function<void(std::string const&)> say_;
  ggml_backend_event_t here_ = nullptr;   ///< the engine's stream was so far
  ggml_backend_event_t there_ = nullptr;  ///< takes a sequence's event to the engine
  std::span<std::byte> room_{};           ///< in pinned memory
  std::uint64_t read_uid_ = 0;            ///< of the graph that was read last; 0: none
  attention_graph read_{};
  row_history history_{};
  std::vector<std::unique_ptr<device_sequence>> sequences_{};  ///< the one that was used last is last
  std::map<step_key, captured_step> steps_{};
};

}  // namespace kvpolicy::ggml
