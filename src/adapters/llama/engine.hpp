// A session's inside: a rewriter of graphs, the sequences that attend in them, and the storage of their rows.
#pragma once

#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph_rewriter.hpp"
#include "kvpolicy/interop/llama.hpp"
#include "sequences.hpp"
#include "storage.hpp"

namespace kvpolicy::llama {

class session::engine final : graph_client {
 public:
  engine(host_policy policy, session_options options);
  engine(engine const&) = delete;
  engine& operator=(engine const&) = delete;

  void attach(llama_context_params& params, llama_model const* model);
  void detach() noexcept;
  void use(host_policy policy);
  void use(host_policy policy, llama_seq_id of);
  template <class... Batch>
  void set_batch(Batch const&... batch) {
    if (attached_) sequences_.batch().set(batch...);
  }
  saved_prompt save(llama_seq_id of) const;
  void load(saved_prompt const& saved, llama_seq_id of);
  int decode(llama_context* context, llama_batch const& batch);
  void copy(llama_seq_id from, llama_seq_id to);
  void end(llama_seq_id of) noexcept;
  void cut(llama_seq_id of, std::int64_t tokens) noexcept;
  void give_back(llama_context* context, std::span<llama_seq_id const> sequences);
  memory_statistics memory() const noexcept;
  std::vector<std::byte> save_state(std::string const& policy, llama_seq_id of);
  void load_state(std::span<std::byte const> state, std::string const& policy, llama_seq_id of);
  void check();
  /// See kvpolicy::llama::repeat().
  void repeat(llama_context* context, repeat_options const& options, llama_seq_id of);
  /// Throws unsupported where lossless decoding can't be done.
  void check_lossless(bool drafts) const;
  cache_shape const& attached_shape() const noexcept { return attached_shape_; }
  std::vector<std::string> report() const;
  sequence const* find(llama_seq_id of) const noexcept { return sequences_.find(of); }

 private:
  bool active() const noexcept override { return attached_ && failure_ == nullptr; }
  bool stops() const noexcept override { return attached_ && failure_ != nullptr && !options_.lenient; }
  bool wants_rope() const noexcept override { return sequences_.needs(signals::rotation); }
  bool takes_prompts() const noexcept override { return options_.prompts; }
  bool wants_logits() const noexcept override { return sequences_.wants_logits(); }
  cache_shape const& shape() const noexcept override { return sequences_.shape(); }
  void correct_positions(attention_node const& node, graph_tokens const& graph, std::span<std::int32_t> counted) override {
    sequences_.correct_positions(node, graph, counted);
  }
  bool follow(attention_node const& node, graph_tokens const& graph) noexcept override {
    return sequences_.follow(node, graph);
  }
  node_use serve(attention_node const& node, graph_tokens const& graph) override;
  void attend(attention_node const& node, graph_tokens const& graph, simd_exec& exec) noexcept override;
  void sealed(attention_node const& node, graph_tokens const& graph) noexcept override { sequences_.seal(node, graph); }
  void computed(attention_node const& node, simd_exec& exec) override { sequences_.computed(node, exec); }
  void observe(std::int32_t at, std::span<float const> logits) override { sequences_.observe(at, logits); }
  void rotate(std::span<std::int32_t const> by) override { sequences_.rotate(by); }
  void rotated() noexcept override { sequences_.rotated(); }
  void fail() noexcept override;

  void running_again() noexcept;
  bool follows_state(llama_context* context, llama_batch const& batch);
  void check_engine_goes_on(llama_context* context, llama_batch const& batch) const;
  void check_managed(char const* what) const;
  void check_rows_are_all() const;
  void check_chooses(host_policy const& policy, served_layers const& layers) const;
  void repeat_piece(llama_context* context, sequence& s, std::vector<llama_token> const& text,
                    std::vector<llama_token> const& tokens, token_span const& piece);
  std::string cache() const;

  session_options options_;
  std::unique_ptr<storage> storage_;
  graph_rewriter rewriter_;
  sequences sequences_;
  bool attached_ = false;
  bool detached_ = false;  ///< and the engine can't go on without the session's rows
  std::exception_ptr failure_;
  cache_shape attached_shape_{};        ///< as the parameters were at attach
  std::string passed_by_;               ///< lenient: why nothing is served
  std::string model_;                   ///< which one, for a state
  bool windows_ = false;                ///< layers with them are the engine's
  bool whole_windows_ = false;          ///< sliding windows keep cells outside of them too
  bool hybrid_ = false;                 ///< a refused micro-batch is not undone, and no tail is cut
  std::vector<llama_seq_id> of_batch_;  ///< scratch
  std::vector<llama_pos> positions_;    ///< scratch
};

}  // namespace kvpolicy::llama
