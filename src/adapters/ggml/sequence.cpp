#include "sequence.hpp"

#include <ggml-impl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <tuple>
#include <utility>

#include "row_writes.hpp"

namespace kvpolicy::ggml {

static void must(cudaError_t status) {
  if (status != cudaSuccess) throw error(std::string("CUDA: ") + cudaGetErrorString(status));
}

namespace {

constexpr kvpolicy_dtype dtype_of(ggml_type type) {
  return type == GGML_TYPE_F16 ? kvpolicy_dtype{2, 16, 1} : kvpolicy_dtype{4, 16, 1};
}

/// "CUDA0" is device 0.
int number_of(ggml_backend_t backend) {
  std::string const name = ggml_backend_name(backend);
  return std::atoi(name.c_str() + name.find_last_not_of("0123456789") + 1);
}

/// Tokens whose queries are kept beyond those that a policy reads: a server decodes a prompt's last ones again.
constexpr std::int64_t taken_back_at_most = 64;

float scale_of(ggml_tensor const* node) { return llama::attention_parameters(node).scale; }

policy_owner parsed(std::string const& text) {
  kvpolicy_policy* made = nullptr;
  must(kvpolicy_policy_parse(text.c_str(), nullptr, 0, &made));
  policy_owner policy(made);
  std::uint32_t const needs = kvpolicy_policy_needs(made);
  for (auto const& [need, what] : {std::pair{KVPOLICY_NEEDS_TOKEN_IDS, "token ids, which a device's graphs don't have"},
                                   std::pair{KVPOLICY_NEEDS_REPETITION, "its prompt repeated"}})
    if ((needs & static_cast<std::uint32_t>(need)) != 0) throw unsupported("'" + text + "' needs " + what);
  constexpr std::int64_t most = 4096;
  if (kvpolicy_observation_queries(made) > most)
    throw unsupported("'" + text + "' looks at more than " + std::to_string(most) +
                      " queries of a prompt, which a device has no room for");
  return policy;
}

}  // namespace

void check_policy(std::string const& text) { static_cast<void>(parsed(text)); }

device_sequence::device_sequence(std::string policy, ggml_backend_t backend, engine by,
                                 std::function<void(std::string const&)> say)
    : text_(std::move(policy)),
      policy_(parsed(text_)),
      needs_(kvpolicy_policy_needs(policy_.get())),
      observed_(kvpolicy_observation_queries(policy_.get())),
      backend_(backend),
      engine_(by),
      say_(std::move(say)),
      device_(number_of(backend)) {}

device_sequence::~device_sequence() {
  forget_steps();
  decoder_.reset();
  for (kept_queries const& each : kept_)
    for (void* const place : each.places) cudaFree(place);
  cudaFreeHost(room_.data());
  if (before_ != nullptr) ggml_backend_event_free(before_);
  if (after_ != nullptr) ggml_backend_event_free(after_);
  if (ours_ != nullptr) cudaStreamDestroy(ours_);
}

sequence_graph const& device_sequence::read_once(ggml_cgraph* graph) {
  if (graph->uid == 0 || graph->uid != read_uid_) {
    read_uid_ = 0;
    read_ = read(graph);
    read_uid_ = graph->uid;
  }
  return read_;
}

ggml_status device_sequence::compute(ggml_cgraph* graph) {
  sequence_graph const& of = read_once(graph);
  if (of.rotates) forget_rows();
  if (of.layers.empty()) return engine_(backend_, graph);
  if (device_ != 0)
    throw unsupported("layers on CUDA" + std::to_string(device_) + ": one GPU is served; set CUDA_VISIBLE_DEVICES to one");
  if (of.tokens() > 1 && of.logits != nullptr && of.logits->ne[1] > 1)
    throw unsupported(
        "outputs of " + std::to_string(of.logits->ne[1]) +
        " tokens at once: those of drafts, or of a measurement, would attend to everything; steps of one token are served");
  must(cudaSetDevice(device_));
  if (decoder_ == nullptr) start(of);
  for (std::size_t l = 0; l < of.layers.size(); ++l)
    if (bound_.at(l) != llama::storage_of(of.layers[l].node->src[1])->data) throw unsupported("a context with several caches");
  std::uint64_t writes = 0;
  for (ggml_backend_buffer_t const buffer : buffers_) writes += writes_to(buffer);
  if (writes != std::exchange(writes_, writes)) forget_rows();
  std::int64_t const first = first_cell(of, backend_, room_for(bytes_of_cells(of)));
  return of.tokens() == 1 && first > 0 ? step(graph, of, first) : prompt(graph, of, first);
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

ggml_status device_sequence::prompt(ggml_cgraph* graph, sequence_graph const& of, std::int64_t first) {
  for (attention const& each : of.layers) each.node->flags |= GGML_TENSOR_FLAG_COMPUTE;
  forget_queries(first);
  if (kept_end_ < first) forget_queries(0);  // those between were not seen
  if (!in_prompt_) prompt_begin_ = first == tokens_ ? first : 0;
  else if (first < prompt_begin_) prompt_begin_ = 0;
  in_prompt_ = true;
  ggml_status status = GGML_STATUS_FAILED;
  try {
    status = observed_ == 0 ? engine_(backend_, graph) : in_parts(graph, of, [&](std::int64_t layer, ggml_tensor* node) {
      keep(node->src[0], kept_[static_cast<std::size_t>(layer)]);
    });
  } catch (...) {
    forget_rows();
    throw;
  }
  if (status != GGML_STATUS_SUCCESS) {
    forget_rows();
    return status;
  }
  tokens_ = kept_end_ = first + of.tokens();
  return status;
}

void device_sequence::keep(ggml_tensor const* queries, kept_queries& into) {
  std::size_t const row = queries->nb[1];
  std::int64_t const room = observed_ + taken_back_at_most;
  for (void*& place : into.places)
    if (place == nullptr) must(cudaMalloc(&place, static_cast<std::size_t>(room) * row));
  std::int64_t const fresh = std::min(room, queries->ne[1]);
  std::int64_t const stay = std::min(into.count, room - fresh);
  auto const copy = [&](void* to, std::int64_t at, void const* from, std::int64_t begin, std::int64_t count) {
    if (count == 0) return;
    must(cudaMemcpyAsync(static_cast<char*>(to) + static_cast<std::size_t>(at) * row,
                         static_cast<char const*>(from) + static_cast<std::size_t>(begin) * row,
                         static_cast<std::size_t>(count) * row, cudaMemcpyDeviceToDevice, ours_));
  };
  void* const to = into.places[1 - into.now];
  copy(to, 0, into.places[into.now], into.count - stay, stay);
  copy(to, stay, queries->data, queries->ne[1] - fresh, fresh);
  into.now = 1 - into.now;
  into.count = stay + fresh;
}

void device_sequence::start(sequence_graph const& of) {
  if (ours_ == nullptr) {
    for (ggml_backend_event_t* const event : {&before_, &after_}) {
      if (*event == nullptr) *event = ggml_backend_event_new(ggml_backend_get_device(backend_));
      if (*event == nullptr) throw unsupported("this libggml-cuda.so has no events (GGML_CUDA_NO_PEER_COPY); build it without");
    }
    must(cudaStreamCreateWithFlags(&ours_, cudaStreamNonBlocking));
  }
  ggml_tensor const* const q = of.layers.front().node->src[0];
  ggml_tensor const* const k = of.layers.front().node->src[1];
  kvpolicy_shape const shape{static_cast<std::int64_t>(of.layers.size()),
                             q->ne[2],
                             k->ne[2],
                             k->ne[0],
                             llama::storage_of(k)->ne[1],
                             k->type == GGML_TYPE_F16 ? KVPOLICY_F16 : KVPOLICY_BF16};
  if ((needs_ & KVPOLICY_NEEDS_ROTATION) != 0) {
    if (of.rope == nullptr) throw unsupported("'" + text_ + "' needs the rotary embedding, and the model has none");
    rope_.learn(of.rope);
  }
  kvpolicy_decoder_options options{};
  options.sequences = 1;
  options.stream = ours_;
  options.device = device_;
  kvpolicy_decoder* made = nullptr;
  must(kvpolicy_decoder_start(policy_.get(), &shape, &options, &made));
  decoder_.reset(made);
  bound_.assign(of.layers.size(), nullptr);
  kept_.resize(of.layers.size());
  for (attention const& each : of.layers)
    for (int const source : {1, 2}) {
      ggml_backend_buffer_t const buffer = llama::storage_of(each.node->src[source])->buffer;
      if (std::ranges::find(buffers_, buffer) == buffers_.end()) buffers_.push_back(buffer);
    }
  for (ggml_backend_buffer_t const buffer : buffers_) writes_ += writes_to(buffer);
  for (std::size_t l = 0; l < of.layers.size(); ++l) bind(static_cast<std::int64_t>(l), of.layers[l].node);
  say_(text_ + " on " + ggml_backend_name(backend_) + ": " + std::to_string(shape.layers) + " layers of " +
       std::to_string(shape.q_heads) + "/" + std::to_string(shape.kv_heads) + " heads x " + std::to_string(shape.head_dim) +
       ", for up to " + std::to_string(shape.max_tokens) + " tokens");
}

void device_sequence::bind(std::int64_t layer, ggml_tensor const* node) {
  auto const rows = [&](ggml_tensor const* source) {
    ggml_tensor const* const cache = llama::storage_of(source);
    auto const stride = [&](std::size_t bytes) { return static_cast<std::int64_t>(bytes / ggml_type_size(cache->type)); };
    return std::tuple(cache->data, dtype_of(cache->type), source->ne[2], cache->ne[1], source->ne[0], stride(source->nb[2]),
                      stride(source->nb[1]));
  };
  auto const tensor = [&](auto const& of) {
    auto const& [at, type, heads, cells, channels, head_stride, token_stride] = of;
    return std::make_unique<device_tensor>(
        at, type, device_, std::initializer_list<std::int64_t>{1, heads, cells, channels},
        std::initializer_list<std::int64_t>{token_stride * cells, head_stride, token_stride, 1});
  };
  auto const keys = rows(node->src[1]);
  auto const bound = tensor(keys);
  auto const values = tensor(rows(node->src[2]));
  must(kvpolicy_decoder_bind(decoder_.get(), layer, *bound, *values, nullptr));
  bound_[static_cast<std::size_t>(layer)] = std::get<0>(keys);
  float const soft_cap = llama::attention_parameters(node).soft_cap;
  if (soft_cap == 0 && node->src[4] == nullptr) return;
  device_tensor sinks(node->src[4] != nullptr ? node->src[4]->data : nullptr, f32, device_, {node->src[0]->ne[2]}, {1});
  kvpolicy_terms const terms{soft_cap, nullptr, node->src[4] != nullptr ? static_cast<kvpolicy_tensor const*>(sinks) : nullptr};
  must(kvpolicy_decoder_bind_terms(decoder_.get(), layer, &terms));
}

void device_sequence::give_prompt(sequence_graph const& of, std::int64_t first, std::int64_t tokens) {
  rotation const turned = rope_.embedding();
  kvpolicy_tensor turns{const_cast<float*>(turned.inverse_frequency), {1, 0}, 1, f32, &turned.pairs, nullptr, 0};
  forget_queries(tokens);
  std::int64_t const wanted = std::min(observed_, tokens - first);
  if (wanted > 0 && (kept_end_ < tokens || std::ranges::any_of(kept_, [&](auto const& kept) { return kept.count < wanted; })))
    throw unsupported(
        "'" + text_ + "' reads the queries of a prompt's last " + std::to_string(wanted) +
        " tokens, and these were not all computed since the sequence was restored, shifted or taken back; send the "
        "prompt anew, with cache_prompt=false in llama-server");
  in_prompt_ = true;  // until all layers have it
  prompt_begin_ = 0;
  if (first == 0) must(kvpolicy_decoder_end(decoder_.get(), 0));
  ours_waits();
  for (std::size_t l = 0; l < of.layers.size(); ++l) {
    ggml_tensor const* const node = of.layers[l].node;
    ggml_tensor const* const q = node->src[0];
    kept_queries const& kept = kept_[l];
    std::int64_t const row = q->ne[2] * q->ne[0];
    device_tensor queries(static_cast<float*>(kept.places[kept.now]) + (kept.count - wanted) * row, f32, device_,
                          {wanted, q->ne[2], q->ne[0]}, {row, q->ne[0], 1});
    kvpolicy_prompt prompt{};
    prompt.first = first;
    prompt.scale = scale_of(node);
    prompt.queries = wanted > 0 ? static_cast<kvpolicy_tensor const*>(queries) : nullptr;
    if (rope_.known()) {
      prompt.inverse_frequencies = &turns;
      prompt.pairing = turned.how == rotation::pairing::halves ? KVPOLICY_HALVES : KVPOLICY_NEIGHBOURS;
    }
    must(kvpolicy_decoder_prefill(decoder_.get(), 0, -1, static_cast<std::int64_t>(l), tokens, &prompt));
  }
  in_prompt_ = false;
}

void device_sequence::take_back(sequence_graph const& of, std::int64_t tokens) {
  if (tokens < tokens_ && kvpolicy_decoder_cut(decoder_.get(), 0, tokens) == KVPOLICY_OK) return;
  give_prompt(of, 0, tokens);  // of a policy that learned from what is gone, or of less than a prompt
}

ggml_status device_sequence::step(ggml_cgraph* graph, sequence_graph const& of, std::int64_t first) {
  if ((needs_ & KVPOLICY_NEEDS_LOGITS) != 0 && (of.logits == nullptr || of.logits->ne[1] != 1))
    throw unsupported("'" + text_ + "' needs the logits of each step, and the program asked for none of this one");
  if (in_prompt_) give_prompt(of, prompt_begin_ <= first ? prompt_begin_ : 0, first);
  else if (first != tokens_) take_back(of, first);
  auto const now = static_cast<std::int32_t>(first + 1);
  std::int32_t planned = 0;
  must(kvpolicy_decoder_plan(decoder_.get(), 1, &now, nullptr, nullptr, &planned));
  tokens_ = now;
  forget_queries(first);
  for (attention const& each : of.layers) each.node->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
  if ((planned & KVPOLICY_STEP_DECIDES) != 0 || of.waits || graph->uid == 0) return launch(graph, of, planned);
  constexpr std::size_t most = 8;
  step_key const key{graph->uid, (planned & KVPOLICY_STEP_IDLE) != 0};
  if (!steps_.contains(key) && steps_.size() >= most) forget_steps();
  captured_step& mine = steps_[key];
  if (++mine.seen == 1) return launch(graph, of, planned);
  if (mine.graph == nullptr)
    if (ggml_status const status = capture(graph, of, planned, mine); status != GGML_STATUS_SUCCESS) return status;
  ours_waits();
  must(cudaGraphLaunch(mine.graph, ours_));
  engine_waits();
  return GGML_STATUS_SUCCESS;
}

ggml_status device_sequence::launch(ggml_cgraph* graph, sequence_graph const& of, std::int32_t planned) {
  ggml_status const status = in_parts(graph, of, [&](std::int64_t layer, ggml_tensor* node) { attend(layer, node, planned); });
  if (status == GGML_STATUS_SUCCESS) observe(of);
  return status;
}

ggml_status device_sequence::capture(ggml_cgraph* graph, sequence_graph const& of, std::int32_t planned, captured_step& into) {
  ours_waits();
  must(cudaStreamBeginCapture(ours_, cudaStreamCaptureModeRelaxed));
  ggml_status status = GGML_STATUS_FAILED;
  std::exception_ptr failure;
  try {
    engine_waits();  // by which its stream takes part
    status = launch(graph, of, planned);
    ours_waits();
  } catch (...) {
    failure = std::current_exception();
  }
  cudaGraph_t made = nullptr;
  cudaError_t ended = cudaStreamEndCapture(ours_, &made);
  if (ended == cudaSuccess && status == GGML_STATUS_SUCCESS) ended = cudaGraphInstantiate(&into.graph, made, 0);
  if (made != nullptr) cudaGraphDestroy(made);
  if (failure) std::rethrow_exception(failure);
  if (status == GGML_STATUS_SUCCESS) must(ended);
  return status;
}

ggml_status device_sequence::in_parts(ggml_cgraph* graph, sequence_graph const& of,
                                      std::function<void(std::int64_t, ggml_tensor*)> const& attend) {
  int begin = 0;
  auto const engine_until = [&](int end) {
    ggml_cgraph part = ggml_graph_view(graph, begin, end);
    begin = end;
    return engine_(backend_, &part);
  };
  for (std::size_t l = 0; l < of.layers.size(); ++l) {
    if (ggml_status const status = engine_until(of.layers[l].place + 1); status != GGML_STATUS_SUCCESS) return status;
    ours_waits();
    attend(static_cast<std::int64_t>(l), of.layers[l].node);
    engine_waits();
  }
  return begin == graph->n_nodes ? GGML_STATUS_SUCCESS : engine_until(graph->n_nodes);
}

void device_sequence::attend(std::int64_t layer, ggml_tensor* node, std::int32_t planned) {
  ggml_tensor const* const q = node->src[0];
  float const scale = scale_of(node);
  std::int64_t const row = q->ne[0] * q->ne[2];
  device_tensor queries(q->data, f32, device_, {1, q->ne[2], q->ne[0]}, {row, q->ne[0], 1});
  device_tensor out(node->data, f32, device_, {1, q->ne[2], q->ne[0]}, {row, q->ne[0], 1});
  kvpolicy_decoder* const by = decoder_.get();
  bool const idle = (planned & KVPOLICY_STEP_IDLE) != 0;
  if ((planned & KVPOLICY_STEP_DECIDES) != 0) must(kvpolicy_decoder_decide(by, layer, queries, scale));
  must(idle ? kvpolicy_decoder_standing(by, layer, nullptr)
            : kvpolicy_decoder_choose(by, layer, queries, scale, nullptr, nullptr));
  must(kvpolicy_decoder_attend(by, layer, queries, scale, out));
  if (!idle) must(kvpolicy_decoder_renew(by, layer, queries, scale));
}

void device_sequence::observe(sequence_graph const& of) {
  if ((needs_ & KVPOLICY_NEEDS_LOGITS) == 0) return must(kvpolicy_decoder_observe(decoder_.get(), nullptr));
  ours_waits();
  device_tensor logits(of.logits->data, f32, device_, {1, of.logits->ne[0]}, {of.logits->ne[0], 1});
  must(kvpolicy_decoder_observe(decoder_.get(), logits));
  engine_waits();
}

std::span<std::byte> device_sequence::room_for(std::size_t bytes) {
  if (room_.size() < bytes) {
    must(cudaFreeHost(room_.data()));
    room_ = {};
    void* made = nullptr;
    must(cudaHostAlloc(&made, 2 * bytes, cudaHostAllocDefault));
    room_ = {static_cast<std::byte*>(made), 2 * bytes};
  }
  return room_;
}

void device_sequence::ours_waits() {
  ggml_backend_event_record(before_, backend_);
  must(cudaStreamWaitEvent(ours_, static_cast<cudaEvent_t>(before_->context), 0));
}
void device_sequence::engine_waits() {
  must(cudaEventRecord(static_cast<cudaEvent_t>(after_->context), ours_));
  ggml_backend_event_wait(backend_, after_);
}

void device_sequence::forget_steps() {
  if (steps_.empty()) return;
  cudaStreamSynchronize(ours_);
  for (auto& [key, each] : steps_)
    if (each.graph != nullptr) cudaGraphExecDestroy(each.graph);
  steps_.clear();
}

}  // namespace kvpolicy::ggml
