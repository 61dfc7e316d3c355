// The queries that a policy observes whose choice waits for tokens of the answer: the prompt's last ones, and the answer's.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kvpolicy/detail/observed_queries.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/step/context.hpp"

namespace kvpolicy::gpu::detail {

/// Copies queries of consecutive tokens into rows. One block a token and sequence.
struct keep_late_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "keep_late";
  struct arguments {
    vector_rows queries;  ///< `[sequences, tokens, q_heads, head_dim]`
    std::int32_t q_heads = 1;
    std::int32_t head_dim = 0;
    per_sequence row;    ///< of the first token; -1: none is kept
    buffer<float> kept;  ///< `[sequences, room, q_heads, head_dim]`
    std::int64_t room = 1;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const row = a.row.of(block, block.y());
    if (row < 0) return;
    std::int32_t const size = a.q_heads * a.head_dim;
    std::int64_t const from = a.queries.begin(block, block.y()) + block.x() * a.queries.token_stride;
    std::int64_t const to = (block.y() * a.room + row + block.x()) * size;
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < size; i += B::threads) {
      std::int32_t const head = i / a.head_dim;
      block.global(a.kept)[to + i] = get(block, a.queries, from + head * a.queries.head_stride + (i - head * a.head_dim));
    }
  }
};

/// Throws invalid_value where the last step's choice was not made.
inline void expect_no_choice(bool due, std::int64_t sequence) {
  KVPOLICY_EXPECTS(!due, "the choice of sequence " + std::to_string(sequence) +
                             " was due at the last step, and decide() was not called for every layer; where "
                             "decides() is true, call it before choose(), and don't replay a captured step");
}

/// Which sequences wait, until when, and what is observed until then. A step brings one token.
template <owning_device D>
class late_queries {
 public:
  /// @param device, shape, sequences  of the decoder
  /// @param after  tokens of the answer that choices wait for
  /// @param window  queries that they look at
  late_queries(D& device, cache_shape const& shape, std::int64_t sequences, std::int64_t after, std::int64_t window)
      : device_(&device),
        shape_(shape),
        after_(after),
        window_(window),
        slots_(static_cast<std::size_t>(sequences)),
        rows_(device, 1, sequences),
        kept_(device, shape.layers, sequences * room() * size()) {}

  /// The prompt is there, or a piece of it, in this layer.
  void begin(std::int64_t sequence, layer_id layer, prompt_signals const& prompt, std::int64_t tokens) {
    if (!prompt.resident.empty())
      throw unsupported(
          "the policy waits for tokens of the answer and reads every token until then, and rows of this sequence are gone; "
          "prefill it anew, or set the policy's after to 0");
    slot& mine = slots_[static_cast<std::size_t>(sequence)];
    mine = {.due_at = tokens + after_};
    if (window_ == 0) return;
    query_window const last = last_queries(&prompt, window_);
    mine.of_prompt = last.tokens;
    scratch_scope const scope(*device_);
    std::int64_t const count = (last.tokens - 1) * last.token_stride + (last.heads - 1) * last.head_stride + shape_.head_dim;
    vector_rows from{};
    from.base = const_cast<float*>(device_->in(last.data, count).data);
    from.elements = count;
    from.token_stride = last.token_stride;
    from.head_stride = last.head_stride;
    per_sequence first{};
    first.all = window_ - last.tokens;
    std::int64_t const room_floats = room() * size();
    keep(from, first, part_of(kept_.of(layer), sequence * room_floats, room_floats), {last.tokens, 1, 1});
  }
  void plan(std::int64_t sequence, std::int64_t tokens) {
    slot& mine = slots_[static_cast<std::size_t>(sequence)];
    bool const waits = tokens > 0 && mine.due_at > 0;
    mine.due = waits && tokens == mine.due_at;
    rows_.set(0, sequence, waits ? window_ + tokens - 1 - (mine.due_at - after_) : -1);
  }
  void upload() const { rows_.upload(*device_); }
  /// Enqueues the copy of what waiting sequences bring to a step.
  void add(decode_step const& step) {
    if (window_ == 0) return;
    KVPOLICY_EXPECTS(step.queries.base != nullptr,
                     "the policy's choice waits for tokens of the answer and looks at their queries, and was given none");
    keep(step.queries, rows_.of(0), kept_.of(step.layer), {1, std::ssize(slots_), 1});
  }

  /// Whether a sequence waits at the planned step, and after it.
  bool waits(std::int64_t sequence) const noexcept { return rows_.get(0, sequence) >= 0 && !due(sequence); }
  /// Whether any waits, or makes its choice.
  bool waits() const noexcept {
    for (std::size_t s = 0; s < slots_.size(); ++s)
      if (rows_.get(0, static_cast<std::int64_t>(s)) >= 0) return true;
    return false;
  }
  /// Whether the planned step makes a sequence's choice.
  bool due(std::int64_t sequence) const noexcept { return slots_[static_cast<std::size_t>(sequence)].due; }
  bool any_due() const noexcept { return std::ranges::any_of(slots_, &slot::due); }
  /// The last queries of a sequence whose choice is due, on the device.
  query_window last(std::int64_t sequence, layer_id layer, float scale) const noexcept {
    if (window_ == 0) return {};
    std::int64_t const count = std::min(window_, slots_[static_cast<std::size_t>(sequence)].of_prompt + after_);
    std::int64_t const first = (sequence + 1) * room() - count;
    return {kept_.of(layer).data + first * size(), count, shape_.q_heads, size(), shape_.head_dim, scale};
  }
  /// Its choice was made.
  void end(std::int64_t sequence) { slots_[static_cast<std::size_t>(sequence)] = {}; }
  void expect_decided() const {
    for (std::size_t s = 0; s < slots_.size(); ++s) expect_no_choice(slots_[s].due, static_cast<std::int64_t>(s));
  }

 private:
  struct slot {
    std::int64_t due_at = 0;     ///< tokens when the choice is made; 0: it does not wait
    std::int64_t of_prompt = 0;  ///< queries of the prompt that are kept
    bool due = false;
  };

  std::int64_t room() const noexcept { return window_ + after_; }
  std::int64_t size() const noexcept { return shape_.q_heads * shape_.head_dim; }
  void keep(vector_rows const& from, per_sequence const& row, buffer<float> to, grid_size grid) {
    device_->template launch<keep_late_body>(
        grid, {from, static_cast<std::int32_t>(shape_.q_heads), static_cast<std::int32_t>(shape_.head_dim), row, to, room()});
  }

  D* device_;
  cache_shape shape_;
  std::int64_t after_;
  std::int64_t window_;
  std::vector<slot> slots_;
  step_numbers<D> rows_;        ///< where a step's queries go
  layer_array<D, float> kept_;  ///< `[sequences, window + after, q_heads, head_dim]`
};

}  // namespace kvpolicy::gpu::detail
