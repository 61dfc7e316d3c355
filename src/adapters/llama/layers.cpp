#include "layers.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

#include "chosen_tokens.hpp"
#include "kvpolicy/error.hpp"
#include "nodes.hpp"

namespace kvpolicy::llama {
namespace {

/// One attention node.
struct found_attention {
  std::int64_t layer = -1;  ///< -1: over no ordinary cache
  cache_shape shape{};
  ggml_tensor const* mask = nullptr;
  std::int64_t cells = 0;
  std::string refused{};  ///< by check_attention
  bool chosen = false;    ///< its tokens, by an indexer of the model's
  bool offloaded = false;
};

/// A graph's attention, as the engine offers its nodes.
class survey {
 public:
  survey(llama_context_params params, llama_model const* model) {
    params.n_ctx = 512;
    params.n_batch = params.n_ubatch = params.n_seq_max = 1;
    params.n_outputs_max = params.n_outputs_max_per_seq = 0;  // as the batch is
    params.swa_full = false;
    params.samplers = nullptr;
    params.n_samplers = 0;
    params.cb_eval = &on_node;
    params.cb_eval_user_data = this;
    params.abort_callback = &on_abort;
    params.abort_callback_data = this;
    struct context_end {
      void operator()(llama_context* context) const noexcept { llama_free(context); }
    };
    // The engine takes its models without const, and changes nothing of them.
    std::unique_ptr<llama_context, context_end> const context(llama_init_from_model(const_cast<llama_model*>(model), params));
    if (context == nullptr) throw unsupported("the engine makes no context of these parameters; its log says why");
    llama_token token = 0;
    llama_decode(context.get(), llama_batch_get_one(&token, 1));
    if (failure_) std::rethrow_exception(failure_);
    if (flash_attention_off_) {
      throw unsupported("flash attention is off in this context; set flash_attn_type to LLAMA_FLASH_ATTN_TYPE_ENABLED");
    }
  }

  std::vector<found_attention> const& found() const noexcept { return found_; }

 private:
  static bool on_node(ggml_tensor* node, bool, void* self_data) noexcept {
    auto& self = *static_cast<survey*>(self_data);
    try {
      self.see(node);
    } catch (...) {
      self.failure_ = std::current_exception();
    }
    return false;
  }
  /// A part of a graph is offered before any of it is computed; there may be several parts.
  static bool on_abort(void* self) noexcept { return static_cast<survey*>(self)->whole_; }

  void see(ggml_tensor const* node) {
    std::string_view const name = node->name;
    whole_ = whole_ || name == "result_output";
    flash_attention_off_ = flash_attention_off_ || (node->op == GGML_OP_SOFT_MAX && name.starts_with("kq_soft_max"));
    if (node->op != GGML_OP_FLASH_ATTN_EXT) return;
    ggml_tensor const* const keys = node->src[1];
    found_attention made{.layer = attended_layer(node).value_or(-1),
                         .shape = {.q_heads = node->src[0]->ne[2],
                                   .kv_heads = keys->ne[2],
                                   .head_dim = keys->ne[0],
                                   .value_dim = node->src[2]->ne[0]},
                         .cells = storage_of(keys)->ne[1]};
    try {
      check_attention(node);
      made.offloaded = is_offloaded(node);
      made.chosen = chosen_at_most(node).has_value();
      if (!made.chosen) made.mask = graph_mask(node).input();
    } catch (unsupported const& refusal) {
      made.refused = refusal.what();
    }
    found_.push_back(std::move(made));
  }

  std::vector<found_attention> found_;
  bool whole_ = false;
  bool flash_attention_off_ = false;
  std::exception_ptr failure_;
};

/// The mask of attention over all tokens; null: there is none. Windows have a cache of their own, with fewer cells if the
/// window is short, and the engine makes its inputs after the others.
ggml_tensor const* whole_mask(std::vector<found_attention> const& all, llama_model const* model) {
  std::map<ggml_tensor const*, std::int64_t> cells;
  for (found_attention const& f : all) {
    if (f.mask != nullptr) cells[f.mask] = f.cells;
  }
  if (cells.empty() || (cells.size() == 1 && llama_model_n_swa(model) > 0)) return nullptr;
  return std::ranges::max_element(cells, {}, [](auto const& mask) { return mask.second; })->first;  // the first of equals
}

std::string const windows = "sliding windows of ";

auto heads_of(cache_shape const& s) { return std::tuple(s.q_heads, s.kv_heads, s.head_dim, s.values_dim()); }

}  // namespace

served_layers::served_layers(llama_context_params params, llama_model const* model, bool anywhere) {
  survey const seen(params, model);
  std::vector<found_attention> const& all = seen.found();
  if (all.empty()) throw unsupported("the model's graph has no attention that kvpolicy knows");
  // Layers on several devices have copies of one mask: without windows all of them are it.
  bool const one_mask = anywhere && llama_model_n_swa(model) == 0;
  ggml_tensor const* const whole = whole_mask(all, model);
  std::map<std::string, std::int64_t> left;  // by reason
  std::vector<found_attention const*> usable;
  for (found_attention const& f : all) {
    bool const shared =
        std::ranges::count_if(all, [&](found_attention const& other) { return f.layer >= 0 && other.layer == f.layer; }) > 1;
    if (!f.refused.empty()) {
      ++left[f.refused];
    } else if (f.chosen && !shared && !f.offloaded && (chosen_.empty() || heads_of(f.shape) == heads_of(chosen_shape_))) {
      chosen_.push_back(f.layer);
      chosen_shape_ = f.shape;
    } else if (f.chosen) {
      ++left["tokens that the model chooses, in heads of another shape, or on a device"];
    } else if (f.mask != whole && !one_mask) {
      ++left[windows + std::to_string(llama_model_n_swa(model)) + " tokens"];
    } else if (shared) {
      ++left["keys and values that several layers share"];
    } else if (f.offloaded && !anywhere) {
      ++left[offloaded];
    } else {
      usable.push_back(&f);
    }
  }
  std::map<decltype(heads_of(shape_)), std::int64_t> shapes;
  for (found_attention const* f : usable) ++shapes[heads_of(f->shape)];
  auto const most = std::ranges::max_element(shapes, {}, [](auto const& s) { return s.second; });
  for (found_attention const* f : usable) {
    if (heads_of(f->shape) == most->first) {
      served_.push_back(f->layer);
      shape_ = f->shape;
    } else {
      ++left["other heads than most layers have"];
    }
  }
  std::ranges::sort(served_);
  std::ranges::sort(chosen_);
  shape_.layers = count();
  if (served_.empty() && !chosen_.empty()) shape_ = chosen_shape_, shape_.layers = std::ssize(chosen_);
  for (auto const& [reason, count] : left) {
    left_.push_back(std::to_string(count) + " of " + std::to_string(all.size()) +
                    " attention layers are the engine's: " + reason);
    if (reason == offloaded) avoidable_ = left_.back();
    if (besides_windows_.empty() && !reason.starts_with(windows)) besides_windows_ = left_.back();
  }
  if (!chosen_.empty()) {
    left_.push_back(std::to_string(chosen_.size()) + " of " + std::to_string(all.size()) +
                    " attention layers read the tokens that the model's own indexer chooses, and no others");
    if (besides_windows_.empty()) besides_windows_ = left_.back();
  }
  if (served_.empty() && chosen_.empty()) throw unsupported("no layer can be served: " + left_.front());
}

std::optional<std::int64_t> served_layers::find(std::int64_t layer) const noexcept {
  auto const at = std::ranges::lower_bound(served_, layer);
  if (at == served_.end() || *at != layer) return std::nullopt;
  return at - served_.begin();
}

}  // namespace kvpolicy::llama
