#include "gpu_decoder.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "any_decoder.hpp"
#include "gpu_backend.hpp"
#include "kvpolicy/gpu/base/batch.hpp"
#include "prompt.hpp"
#include "terms.hpp"

namespace kvpolicy::c {
namespace {

class gpu_decoder final : public kvpolicy_decoder {
 public:
  gpu_decoder(kvpolicy_policy const& policy, cache_shape const& of, kvpolicy_decoder_options const& options)
      : shape_(of),
        step_tokens_(options.step_tokens == 0 ? 1 : options.step_tokens),
        moves_(options.rows != 0),
        rows_(moves_ ? options.rows : options.sequences),
        needed_(requirements_of(policy.chosen.policy)),
        backend_(of, options.device, static_cast<gpu::stream>(options.stream), options.workspace),
        steps_(decoder_of(policy.chosen.text, policy.inputs, of, backend_.exec.device(),
                          {options.sequences, step_tokens_, options.rows})),
        keys_(static_cast<std::size_t>(of.layers)),
        values_(keys_.size()),
        lists_(keys_.size()),
        room_(keys_.size()),
        terms_(keys_.size()) {}

  void enter() const override { backend_.enter(); }
  void on(void* stream) override { backend_.exec.device().on(static_cast<gpu::stream>(stream)); }

  void bind(std::int64_t layer, kvpolicy_tensor const* given_keys, kvpolicy_tensor const* given_values,
            kvpolicy_tensor const* pages) override {
    check_layer({layer}, shape_.layers);
    std::int64_t key_room = 0;
    std::int64_t value_room = 0;
    gpu::batch_rows const key_rows = bound(given_keys, "keys", layer, pages, key_axis(shape_), key_room);
    gpu::batch_rows const value_rows = bound(given_values, "values", layer, pages, value_axis(shape_), value_room);
    auto const at = static_cast<std::size_t>(layer);
    keys_[at] = key_rows;
    values_[at] = value_rows;
    room_[at] = std::min(key_room, value_room);
  }
  void bind_terms(std::int64_t layer, kvpolicy_terms const& terms) override {
    check_layer({layer}, shape_.layers);
    terms_[static_cast<std::size_t>(layer)] = terms_of(terms, shape_, layer, backend_.rows);
  }

  void prefill(std::int64_t sequence, std::int64_t row, std::int64_t layer, std::int64_t tokens,
               kvpolicy_prompt const& prompt) override {
    check_room(layer, tokens);
    KVPOLICY_EXPECTS(row < rows_, "row " + std::to_string(row) + " of batches of " + std::to_string(rows_));
    steps_->prefill(sequence, view(), tokens, {layer}, signals_of(prompt, needed_, shape_, layer, tokens, backend_, floats_),
                    backend_.exec, row);
  }

  std::int32_t plan(std::span<std::int32_t const> tokens, std::span<std::int32_t const> brought,
                    std::span<std::int32_t const> slots) override {
    KVPOLICY_EXPECTS(moves_ == (slots.data() != nullptr) || (moves_ && tokens.empty()),
                     moves_ ? "no slots; the decoder's rows move, so say whose each row is"
                            : "slots; the decoder was started without rows that move, so a slot's number is its row");
    std::int32_t const most = tokens.empty() ? 0 : *std::ranges::max_element(tokens);
    for (std::int64_t l = 0; l < shape_.layers; ++l) check_room(l, most);
    if (moves_) steps_->plan_rows(slots, tokens, brought);
    else steps_->plan(tokens, brought);
    planned_ = most;
    return (steps_->idle() ? KVPOLICY_STEP_IDLE : 0) | (steps_->decides() ? KVPOLICY_STEP_DECIDES : 0) |
           (steps_->unsettled() ? KVPOLICY_STEP_UNSETTLED : 0);
  }
  void settle(float scale) override {
    for (std::int64_t l = 0; l < shape_.layers; ++l) check_room(l, planned_);
    check_scale(scale);
    steps_->settle(view(), scale);
  }
  void cut(std::int64_t sequence, std::int64_t tokens) override { steps_->cut(sequence, tokens); }
  void end(std::int64_t sequence) override { steps_->end(sequence); }

  void decide(std::int64_t layer, kvpolicy_tensor const* queries, float scale) override {
    check_room(layer, planned_);
    if (!steps_->decides()) return;
    check_scale(scale);
    steps_->decide(view(), {layer}, heads_of(queries, "queries", layer, key_axis(shape_)), scale, backend_.exec);
  }

  kvpolicy_device_lists standing(std::int64_t layer) override {
    check_room(layer, planned_);
    KVPOLICY_EXPECTS(steps_->idle(), "the planned step is not idle: something is due; call kvpolicy_decoder_choose");
    return told(lists_[static_cast<std::size_t>(layer)] = steps_->standing({layer}));
  }

  kvpolicy_device_lists choose(std::int64_t layer, kvpolicy_tensor const* queries, float scale,
                               kvpolicy_tensor const* ids) override {
    check_room(layer, planned_);
    gpu::vector_rows heads{};
    if (contains(needed_.needs, signals::queries) || (needed_.after > 0 && queries != nullptr))
      heads = heads_of(queries, "queries", layer, key_axis(shape_));
    check_scale(scale);
    gpu::buffer<std::int32_t const> current{};
    if (contains(needed_.needs, signals::token_ids)) {
      tensor const t =
          checked(ids, {.name = "token ids", .dtype = int32, .where = backend_.rows, .dense_last = true}, of_step());
      KVPOLICY_EXPECTS(
          step_tokens_ == 1 || rows_ == 1 || t.stride[0] == 4 * step_tokens_,
          "token ids: axis 0 (rows) has a stride of " + std::to_string(t.stride[0]) + " bytes; give ids that are dense");
      current = {reinterpret_cast<std::int32_t const*>(t.data), rows_ * step_tokens_};
    }
    return told(lists_[static_cast<std::size_t>(layer)] = steps_->choose(view(), {layer}, heads, scale, current));
  }

  void attend(std::int64_t layer, kvpolicy_tensor const* queries, float scale, kvpolicy_tensor const* out) override {
    check_room(layer, planned_);
    gpu::token_lists const& chosen = lists_[static_cast<std::size_t>(layer)];
    KVPOLICY_EXPECTS(chosen.lists > 0 && chosen.tokens.values.data != nullptr,
                     "layer " + std::to_string(layer) + " has chosen nothing yet; call kvpolicy_decoder_choose first");
    check_scale(scale);
    steps_->attend(view(), {layer}, chosen, heads_of(queries, "queries", layer, key_axis(shape_)), scale,
                   heads_of(out, "out", layer, value_axis(shape_)), terms_[static_cast<std::size_t>(layer)]);
  }

  void renew(std::int64_t layer, kvpolicy_tensor const* queries, float scale) override {
    check_room(layer, planned_);
    if (!needed_.next_step) return;
    check_scale(scale);
    steps_->renew(view(), {layer}, heads_of(queries, "queries", layer, key_axis(shape_)), scale);
  }

  void observe(kvpolicy_tensor const* given) override {
    if (!contains(needed_.needs, signals::logits)) return;
    tensor const t =
        checked(given, {.name = "logits", .dtype = float_type_of(given), .where = backend_.rows, .dense_last = true},
                of_step({{"vocabulary"}}));
    std::int64_t const vocabulary = t.extent[step_tokens_ == 1 ? 1 : 2];
    KVPOLICY_EXPECTS(vocabulary >= 1, "logits: the axis of the vocabulary has 0 elements; it must have at least 1");
    steps_->observe(vectors(t, given, 0), vocabulary);
  }

 private:
  static kvpolicy_device_lists told(gpu::token_lists const& made) noexcept {
    return {.units = made.units.data,
            .named = made.named.data,
            .tail = made.tail.values.data,
            .tokens = made.tokens.values.data,
            .stride = made.stride,
            .tail_of_all = made.tail.all,
            .lists = made.lists,
            .unit_size = made.unit_size,
            .tails = made.tails};
  }
  bound_rows view() const noexcept { return {keys_.data(), values_.data()}; }

  /// The batch's rows: `[pages, kv_heads, page_size, head_dim]` behind page tables, or `[rows, kv_heads, tokens, head_dim]`.
  gpu::batch_rows bound(kvpolicy_tensor const* given, char const* name, std::int64_t layer, kvpolicy_tensor const* pages,
                        axis const& dims, std::int64_t& tokens) const {
    bool const paged = pages != nullptr;
    tensor const t =
        checked(given, {.name = name, .layer = layer, .dtype = dtype_of(shape_.type), .where = backend_.rows, .apart = true},
                {{paged ? "pages" : "rows", paged ? axis::any : rows_},
                 {"kv_heads", shape_.kv_heads},
                 {paged ? "page_size" : "tokens"},
                 dims});
    basic_rows<device_memory> one{.base = t.data,
                                  .type = shape_.type,
                                  .heads = shape_.kv_heads,
                                  .head_dim = dims.extent,
                                  .head_stride = t.stride[1],
                                  .token_stride = t.stride[2],
                                  .dim_stride = t.stride[3]};
    tokens = t.extent[2];
    tensor table{};
    if (paged) {
      table = checked(pages, {.name = "pages", .layer = layer, .dtype = int32, .where = backend_.rows, .dense_last = true},
                      {{"rows", rows_}, {"pages"}});
      KVPOLICY_EXPECTS(t.extent[2] >= 1 && t.extent[2] <= INT32_MAX && table.extent[1] <= INT32_MAX,
                       std::string(name) + " of layer " + std::to_string(layer) + ": " + std::to_string(table.extent[1]) +
                           " pages of " + std::to_string(t.extent[2]) +
                           " tokens; each must be at most 2147483647, and a page " + "has 1 token at least");
      one.page_size = t.extent[2];
      one.page_stride = t.stride[0];
      tokens *= table.extent[1];
    }
    gpu::batch_rows made = gpu::in_elements(one);
    made.elements = INT64_MAX;
    if (paged) {
      made.pages = {reinterpret_cast<std::int32_t const*>(table.data), INT64_MAX};
      made.page_table_stride = table.stride[0] / 4;
    } else {
      made.sequence_stride = t.stride[0] / size_of(shape_.type);
    }
    return gpu::finished(made);
  }

  void check_room(std::int64_t layer, std::int64_t tokens) const {
    check_layer({layer}, shape_.layers);
    auto const at = static_cast<std::size_t>(layer);
    KVPOLICY_EXPECTS(keys_[at].base != nullptr,
                     "keys of layer " + std::to_string(layer) + ": none are bound; call kvpolicy_decoder_bind first");
    KVPOLICY_EXPECTS(tokens <= room_[at], "keys and values of layer " + std::to_string(layer) + ": a sequence has room for " +
                                              std::to_string(room_[at]) + " tokens, one has " + std::to_string(tokens));
  }

  gpu::vector_rows heads_of(kvpolicy_tensor const* given, char const* name, std::int64_t layer, axis const& dims) const {
    tensor const t = checked(given,
                             {.name = name,
                              .layer = layer,
                              .dtype = float_type_of(given),
                              .where = backend_.rows,
                              .dense_last = true,
                              .apart = true},
                             of_step({{"q_heads", shape_.q_heads}, dims}));
    return vectors(t, given, t.stride[step_tokens_ == 1 ? 1 : 2]);
  }
  /// The axes of a batch's rows, and of their tokens where there may be several, before others.
  struct step_axes {
    std::array<axis, tensor::max_axes> all{};
    std::size_t count = 0;
    operator std::span<axis const>() const noexcept { return {all.data(), count}; }
  };
  step_axes of_step(std::initializer_list<axis> others = {}) const {
    step_axes made;
    made.all[made.count++] = {"rows", rows_};
    if (step_tokens_ > 1) made.all[made.count++] = {"step_tokens", step_tokens_};
    for (axis const& other : others) made.all[made.count++] = other;
    return made;
  }
  gpu::vector_rows vectors(tensor const& t, kvpolicy_tensor const* given, std::int64_t head_stride) const {
    kvpolicy_dtype const type = float_type_of(given);
    std::int64_t const size = type.bits / 8;
    gpu::vector_rows made{};
    made.base = t.data;
    made.elements = INT64_MAX;
    made.type = element_of(type);
    made.sequence_stride = t.stride[0] / size;
    made.token_stride = step_tokens_ == 1 ? 0 : t.stride[1] / size;
    made.head_stride = head_stride / size;
    return made;
  }

  cache_shape shape_;
  std::int64_t step_tokens_;
  bool moves_;         ///< sequences' rows do, from step to step
  std::int64_t rows_;  ///< of a batch
  requirements needed_;
  gpu_backend backend_;
  std::unique_ptr<any_decoder> steps_;
  std::vector<gpu::batch_rows> keys_;    ///< `[layers]`; no base where nothing is bound
  std::vector<gpu::batch_rows> values_;  ///< `[layers]`
  std::vector<gpu::token_lists> lists_;  ///< `[layers]`, of the last choice
  std::vector<std::int64_t> room_;       ///< `[layers]` tokens of a sequence
  std::vector<attention_terms> terms_;   ///< `[layers]`, arrays on the device
  std::vector<float> floats_;            ///< a prompt's queries, if they came in 16 bits
  std::int64_t planned_ = 0;             ///< most tokens of a sequence at the planned step
};

}  // namespace

std::unique_ptr<kvpolicy_decoder> start_decoder(kvpolicy_policy const& policy, cache_shape const& shape,
                                                kvpolicy_decoder_options const& options) {
  return std::make_unique<gpu_decoder>(policy, shape, options);
}

}  // namespace kvpolicy::c
