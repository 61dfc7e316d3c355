#include "sequence.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace kvpolicy::ggml {

void must(cudaError_t status) {
  if (status != cudaSuccess) throw error(std::string("CUDA: ") + cudaGetErrorString(status));
}

namespace {

constexpr kvpolicy_dtype dtype_of(ggml_type type) {
  return type == GGML_TYPE_F16 ? kvpolicy_dtype{2, 16, 1} : kvpolicy_dtype{4, 16, 1};
}

/// Tokens whose queries are kept beyond those that a policy reads: a server decodes a prompt's last ones again.
constexpr std::int64_t taken_back_at_most = 64;

float scale_of(ggml_tensor const* node) { return llama::attention_parameters(node).scale; }

policy_owner parsed(std::string const& text) {
  kvpolicy_policy* made = nullptr;
  must(kvpolicy_policy_parse(text.c_str(), nullptr, 0, &made));
  return policy_owner(made);
}

}  // namespace

device_policy::device_policy(std::string of)
    : text(std::move(of)),
      policy(parsed(text)),
      needs(kvpolicy_policy_needs(policy.get())),
      observed(kvpolicy_observation_queries(policy.get())) {
  for (auto const& [need, what] : {std::pair{KVPOLICY_NEEDS_TOKEN_IDS, "token ids, which a device's graphs don't have"},
                                   std::pair{KVPOLICY_NEEDS_REPETITION, "its prompt repeated"}})
    if ((needs & static_cast<std::uint32_t>(need)) != 0) throw unsupported("'" + text + "' needs " + what);
  constexpr std::int64_t most = 4096;
  if (observed > most)
    throw unsupported("'" + text + "' looks at more than " + std::to_string(most) +
                      " queries of a prompt, which a device has no room for");
}

device_sequence::device_sequence(device_rows& rows) : rows_(rows), kept_(static_cast<std::size_t>(rows.shape.layers)) {
  must(cudaStreamCreateWithFlags(&ours_, cudaStreamNonBlocking));
  kvpolicy_decoder_options options{};
  options.sequences = 1;
  options.stream = ours_;
  options.device = rows.device;
  kvpolicy_decoder* made = nullptr;
  try {
    must(kvpolicy_decoder_start(rows.policy.policy.get(), &rows.shape, &options, &made));
  } catch (...) {
    cudaStreamDestroy(ours_);
    throw;
  }
  decoder_.reset(made);
}

device_sequence::~device_sequence() {
  decoder_.reset();
  for (kept_queries const& each : kept_)
    for (void* const place : each.places) cudaFree(place);
  cudaFree(table_);
  cudaFreeHost(host_table_);
  cudaStreamDestroy(ours_);
}

void device_sequence::begin(token_cells tokens, device_sequence const* other) {
  forget_rows();
  cells_ = std::move(tokens);
  tokens_ = cells_.tokens();
  in_table_ = 0;
  left_ = false;
  why_left_.clear();
  if (other == nullptr || other->kept_end_ < tokens_) return;
  std::size_t const row = sizeof(float) * static_cast<std::size_t>(rows_.shape.q_heads * rows_.shape.head_dim);
  for (std::size_t l = 0; l < kept_.size(); ++l) {
    kept_queries const& from = other->kept_[l];
    kept_queries& to = kept_[l];
    std::int64_t const count = from.count - (other->kept_end_ - tokens_);
    if (count <= 0) continue;
    for (void*& place : to.places)
      if (place == nullptr)
        must(cudaMalloc(&place, static_cast<std::size_t>(rows_.policy.observed + taken_back_at_most) * row));
    must(cudaMemcpyAsync(to.places[to.now], from.places[from.now], static_cast<std::size_t>(count) * row,
                         cudaMemcpyDeviceToDevice, ours_));
    to.count = count;
  }
  must(cudaStreamSynchronize(ours_));  // the other one may go on
  kept_end_ = tokens_;
}

void device_sequence::forget_rows() {
  forget_queries(0);
  in_prompt_ = true;
  prompt_begin_ = 0;
}

void device_sequence::forget_queries(std::int64_t first) {
  for (kept_queries& each : kept_)
    if (first < kept_end_) each.count = std::max<std::int64_t>(0, each.count - (kept_end_ - first));
  kept_end_ = std::min(kept_end_, first);
}

bool device_sequence::bring(attention_graph const& of, std::int64_t before, std::span<std::int64_t const> cells,
                            std::span<std::uint64_t const> written) {
  cells_.cut(before);
  in_table_ = std::min(in_table_, before);
  for (std::size_t i = 0; i < cells.size(); ++i) cells_.append(cells[i], written[i]);
  std::int64_t const first = cells.front() / rows_.shape.max_tokens * rows_.shape.max_tokens;
  std::int64_t const now = cells_.follow_from(first) ? first : by_table;
  if (now == by_table) bring_table();
  if (now == bound_) return false;
  bound_ = nowhere;  // until all layers are
  for (std::size_t l = 0; l < of.layers.size(); ++l) bind(static_cast<std::int64_t>(l), of.layers[l].node, now);
  bound_ = now;
  return true;
}

void device_sequence::bring_table() {
  auto const bytes = [](std::int64_t tokens) { return static_cast<std::size_t>(tokens) * sizeof(std::int32_t); };
  if (table_ == nullptr) {
    void* made = nullptr;
    if (host_table_ == nullptr) must(cudaHostAlloc(&made, bytes(rows_.shape.max_tokens), cudaHostAllocDefault));
    if (made != nullptr) host_table_ = static_cast<std::int32_t*>(made);
    must(cudaMalloc(&made, bytes(rows_.shape.max_tokens)));
    table_ = static_cast<std::int32_t*>(made);
  }
  std::int64_t token = 0;
  for (cell_run const& run : cells_.runs()) {
    for (std::int64_t i = std::max<std::int64_t>(0, in_table_ - token); i < run.count; ++i)
      host_table_[token + i] = static_cast<std::int32_t>(run.cell + i);
    token += run.count;
  }
  must(cudaMemcpyAsync(table_ + in_table_, host_table_ + in_table_, bytes(token - in_table_), cudaMemcpyHostToDevice, ours_));
  in_table_ = token;
}

void device_sequence::bind(std::int64_t layer, ggml_tensor const* node, std::int64_t place) {
  auto const rows = [&](ggml_tensor const* source) {
    ggml_tensor const* const cache = llama::storage_of(source);
    auto const stride = [&](std::size_t bytes) { return static_cast<std::int64_t>(bytes / ggml_type_size(cache->type)); };
    std::int64_t const heads = source->ne[2];
    std::int64_t const head = stride(source->nb[2]);
    std::int64_t const token = stride(source->nb[1]);
    std::int64_t const cells = rows_.shape.max_tokens;
    if (place == by_table)
      return std::make_unique<device_tensor>(
          cache->data, dtype_of(cache->type), rows_.device,
          std::initializer_list<std::int64_t>{cells * rows_.streams, heads, 1, source->ne[0]},
          std::initializer_list<std::int64_t>{token, head, token, 1});
    return std::make_unique<device_tensor>(static_cast<char*>(cache->data) + static_cast<std::size_t>(place) * source->nb[1],
                                           dtype_of(cache->type), rows_.device,
                                           std::initializer_list<std::int64_t>{1, heads, cells, source->ne[0]},
                                           std::initializer_list<std::int64_t>{token * cells, head, token, 1});
  };
  auto const keys = rows(node->src[1]);
  auto const values = rows(node->src[2]);
  device_tensor table(table_, {0, 32, 1}, rows_.device, {1, rows_.shape.max_tokens}, {rows_.shape.max_tokens, 1});
  must(kvpolicy_decoder_bind(decoder_.get(), layer, *keys, *values,
                             place == by_table ? static_cast<kvpolicy_tensor const*>(table) : nullptr));
  float const soft_cap = llama::attention_parameters(node).soft_cap;
  if (soft_cap == 0 && node->src[4] == nullptr) return;
  device_tensor sinks(node->src[4] != nullptr ? node->src[4]->data : nullptr, f32, rows_.device, {node->src[0]->ne[2]}, {1});
  kvpolicy_terms const terms{soft_cap, nullptr, node->src[4] != nullptr ? static_cast<kvpolicy_tensor const*>(sinks) : nullptr};
  must(kvpolicy_decoder_bind_terms(decoder_.get(), layer, &terms));
}

void device_sequence::begin_prompt(std::int64_t first, std::int64_t tokens) {
  if (tokens > 1) left_ = false, why_left_.clear();
  forget_queries(first);
  if (kept_end_ < first) forget_queries(0);  // those between were not seen
  if (!in_prompt_) prompt_begin_ = first == tokens_ ? first : 0;
  else if (first < prompt_begin_) prompt_begin_ = 0;
  in_prompt_ = true;
}

void device_sequence::keep(std::int64_t layer, ggml_tensor const* queries, std::int64_t begin, std::int64_t end) {
  kept_queries& into = kept_[static_cast<std::size_t>(layer)];
  std::size_t const row = queries->nb[1];
  std::int64_t const room = rows_.policy.observed + taken_back_at_most;
  for (void*& place : into.places)
    if (place == nullptr) must(cudaMalloc(&place, static_cast<std::size_t>(room) * row));
  std::int64_t const fresh = std::min(room, end - begin);
  std::int64_t const stay = std::min(into.count, room - fresh);
  auto const copy = [&](void* to, std::int64_t at, void const* from, std::int64_t first, std::int64_t count) {
    if (count == 0) return;
    must(cudaMemcpyAsync(static_cast<char*>(to) + static_cast<std::size_t>(at) * row,
                         static_cast<char const*>(from) + static_cast<std::size_t>(first) * row,
                         static_cast<std::size_t>(count) * row, cudaMemcpyDeviceToDevice, ours_));
  };
  void* const to = into.places[1 - into.now];
  copy(to, 0, into.places[into.now], into.count - stay, stay);
  copy(to, stay, queries->data, end - fresh, fresh);
  into.now = 1 - into.now;
  into.count = stay + fresh;
}

void device_sequence::end_prompt(std::int64_t tokens) { tokens_ = kept_end_ = tokens; }

void device_sequence::give_prompt(attention_graph const& of, std::int64_t first, std::int64_t tokens) {
  rotation const turned = rows_.rope.embedding();
  kvpolicy_tensor turns{const_cast<float*>(turned.inverse_frequency), {1, 0}, 1, f32, &turned.pairs, nullptr, 0};
  forget_queries(tokens);
  std::int64_t const wanted = std::min(rows_.policy.observed, tokens - first);
  if (wanted > 0 && (kept_end_ < tokens || std::ranges::any_of(kept_, [&](auto const& kept) { return kept.count < wanted; })))
    throw unsupported("'" + rows_.policy.text + "' reads the queries of a prompt's last " + std::to_string(wanted) +
                      " tokens, and these were not all computed since the sequence was restored, shifted or taken back");
  in_prompt_ = true;  // until all layers have it
  prompt_begin_ = 0;
  if (first == 0) must(kvpolicy_decoder_end(decoder_.get(), 0));
  for (std::size_t l = 0; l < of.layers.size(); ++l) {
    ggml_tensor const* const node = of.layers[l].node;
    ggml_tensor const* const q = node->src[0];
    kept_queries const& kept = kept_[l];
    std::int64_t const row = q->ne[2] * q->ne[0];
    device_tensor queries(static_cast<float*>(kept.places[kept.now]) + (kept.count - wanted) * row, f32, rows_.device,
                          {wanted, q->ne[2], q->ne[0]}, {row, q->ne[0], 1});
    kvpolicy_prompt prompt{};
    prompt.first = first;
    prompt.scale = scale_of(node);
    prompt.queries = wanted > 0 ? static_cast<kvpolicy_tensor const*>(queries) : nullptr;
    if (rows_.rope.known()) {
      prompt.inverse_frequencies = &turns;
      prompt.pairing = turned.how == rotation::pairing::halves ? KVPOLICY_HALVES : KVPOLICY_NEIGHBOURS;
    }
    must(kvpolicy_decoder_prefill(decoder_.get(), 0, -1, static_cast<std::int64_t>(l), tokens, &prompt));
  }
  in_prompt_ = false;
}

void device_sequence::prepare_step(attention_graph const& of, std::int64_t first) {
  if (!cells_.are_ordered())
    throw unsupported("a state was restored, and in which order its tokens are in the cache is not known");
  if (in_prompt_ && prompt_begin_ == first) {  // all of a further prompt was taken back
    in_prompt_ = false;
    tokens_ = first;
  }
  if (in_prompt_) return give_prompt(of, prompt_begin_ < first ? prompt_begin_ : 0, first);
  if (first == tokens_ || (first < tokens_ && kvpolicy_decoder_cut(decoder_.get(), 0, first) == KVPOLICY_OK)) return;
  give_prompt(of, 0, first);  // of a policy that learned from what is gone, or of less than a prompt
}

std::int32_t device_sequence::plan(std::int64_t first) {
  auto const now = static_cast<std::int32_t>(first + 1);
  std::int32_t planned = 0;
  must(kvpolicy_decoder_plan(decoder_.get(), 1, &now, nullptr, nullptr, &planned));
  tokens_ = now;
  forget_queries(first);
  return planned;
}

void device_sequence::attend(std::int64_t layer, ggml_tensor* node, std::int64_t row, std::int32_t planned) {
  ggml_tensor const* const q = node->src[0];
  float const scale = scale_of(node);
  std::int64_t const size = q->ne[0] * q->ne[2];
  auto const of_row = [&](void* data) {
    return std::make_unique<device_tensor>(static_cast<float*>(data) + row * size, f32, rows_.device,
                                           std::initializer_list<std::int64_t>{1, q->ne[2], q->ne[0]},
                                           std::initializer_list<std::int64_t>{size, q->ne[0], 1});
  };
  auto const queries = of_row(q->data);
  auto const out = of_row(node->data);
  kvpolicy_decoder* const by = decoder_.get();
  bool const idle = (planned & KVPOLICY_STEP_IDLE) != 0;
  if ((planned & KVPOLICY_STEP_DECIDES) != 0) must(kvpolicy_decoder_decide(by, layer, *queries, scale));
  must(idle ? kvpolicy_decoder_standing(by, layer, nullptr)
            : kvpolicy_decoder_choose(by, layer, *queries, scale, nullptr, nullptr));
  must(kvpolicy_decoder_attend(by, layer, *queries, scale, *out));
  if (!idle) must(kvpolicy_decoder_renew(by, layer, *queries, scale));
}

void device_sequence::observe(ggml_tensor const* logits, std::int64_t row) {
  if ((rows_.policy.needs & KVPOLICY_NEEDS_LOGITS) == 0) return must(kvpolicy_decoder_observe(decoder_.get(), nullptr));
  std::int64_t const size = logits->ne[0];
  device_tensor of_step(static_cast<float*>(logits->data) + row * size, f32, rows_.device, {1, size}, {size, 1});
  must(kvpolicy_decoder_observe(decoder_.get(), of_step));
}

}  // namespace kvpolicy::ggml
