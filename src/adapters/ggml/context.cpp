#include "context.hpp"

#include <ggml-impl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <ranges>
#include <utility>

namespace kvpolicy::ggml {
namespace {

/// "CUDA0" is device 0.
int number_of(ggml_backend_t backend) {
  std::string const name = ggml_backend_name(backend);
  return std::atoi(name.c_str() + name.find_last_not_of("0123456789") + 1);
}

}  // namespace

device_context::device_context(std::string policy, std::int64_t sequences, ggml_backend_t backend, engine by,
                               std::function<void(std::string const&)> say)
    : rows_{.policy = device_policy(std::move(policy)), .device = number_of(backend)},
      most_(sequences),
      backend_(backend),
      engine_(by),
      say_(std::move(say)) {}

device_context::~device_context() {
  forget_steps();
  sequences_.clear();
  cudaFreeHost(room_.data());
  for (ggml_backend_event_t const event : {here_, there_})
    if (event != nullptr) ggml_backend_event_free(event);
}

attention_graph const& device_context::read_once(ggml_cgraph* graph) {
  if (graph->uid == 0 || graph->uid != read_uid_) {
    read_uid_ = 0;
    read_ = read(graph);
    read_uid_ = graph->uid;
  }
  return read_;
}

ggml_status device_context::compute(ggml_cgraph* graph) {
  attention_graph const& of = read_once(graph);
  if (of.shifts != nullptr) shift(of);
  if (of.layers.empty()) return engine_(backend_, graph);
  if (rows_.device != 0)
    throw unsupported("layers on CUDA" + std::to_string(rows_.device) + ": one GPU is served; set CUDA_VISIBLE_DEVICES to one");
  must(cudaSetDevice(rows_.device));
  if (!history_.is_begun()) start(of);
  if (!history_.is_of(of)) throw unsupported("a context with several caches");
  batch parts = read_batch(of);
  prepare(of, parts);
  return run(graph, of, parts);
}

void device_context::start(attention_graph const& of) {
  for (ggml_backend_event_t* const event : {&here_, &there_}) {
    if (*event == nullptr) *event = ggml_backend_event_new(ggml_backend_get_device(backend_));
    if (*event == nullptr) throw unsupported("this libggml-cuda.so has no events (GGML_CUDA_NO_PEER_COPY); build it without");
  }
  ggml_tensor const* const q = of.layers.front().node->src[0];
  ggml_tensor const* const k = of.layers.front().node->src[1];
  ggml_tensor const* const cache = llama::storage_of(k);
  rows_.shape = {static_cast<std::int64_t>(of.layers.size()),
                 q->ne[2],
                 k->ne[2],
                 k->ne[0],
                 of.stream_cells(),
                 k->type == GGML_TYPE_F16 ? KVPOLICY_F16 : KVPOLICY_BF16,
                 0};
  rows_.streams = cache->ne[2];
  if ((rows_.policy.needs & KVPOLICY_NEEDS_ROTATION) != 0) {
    for (ggml_tensor const* const written : of.written) rows_.rope.learn(written, rows_.shape.head_dim);
    if (rows_.rope.has_several_axes())
      throw unsupported("'" + rows_.policy.text +
                        "' undoes the rotary embedding, which has several axes in this model: on a device "
                        "plain ones are served");
  }
  most_ = std::max(most_, rows_.streams);
  sequences_.push_back(std::make_unique<device_sequence>(rows_));
  history_.begin(of);
  say_(rows_.policy.text + " on " + ggml_backend_name(backend_) + ": " + std::to_string(rows_.shape.layers) + " layers of " +
       std::to_string(rows_.shape.q_heads) + "/" + std::to_string(rows_.shape.kv_heads) + " heads x " +
       std::to_string(rows_.shape.head_dim) + ", for up to " + std::to_string(rows_.shape.max_tokens) + " tokens");
}

void device_context::shift(attention_graph const& by) {
  auto const cells = static_cast<std::size_t>(ggml_nelements(by.shifts));
  std::vector<std::int32_t> positions(by.shifts->type == GGML_TYPE_I32 ? cells : 0);
  if (!positions.empty()) {
    std::span<std::byte> const room = room_for(cells * sizeof positions[0]);
    ggml_backend_tensor_get_async(backend_, by.shifts, room.data(), 0, cells * sizeof positions[0]);
    ggml_backend_synchronize(backend_);
    std::memcpy(positions.data(), room.data(), cells * sizeof positions[0]);
  }
  auto const is_shifted = [&](std::int64_t cell) {
    return cell >= std::ssize(positions) || positions[static_cast<std::size_t>(cell)] != 0;
  };
  for (auto const& each : sequences_)
    for (cell_run const& run : each->cells().runs())
      if (std::ranges::any_of(std::views::iota(run.cell, run.cell + run.count), is_shifted)) {
        each->forget_rows();
        break;
      }
}

device_context::batch device_context::read_batch(attention_graph const& of) {
  write_order& order = history_.order();
  batch parts;
  for (batch_part& part : parts_of(of, backend_, [&](std::size_t bytes) { return room_for(bytes); }))
    parts.push_back({std::move(part), nullptr, false});
  most_ = std::max(most_, static_cast<std::int64_t>(parts.size()));
  for (served_part& each : parts) each.by = find(each.part, parts);
  std::vector<std::pair<token_cells, device_sequence const*>> fresh;  // of parts that nobody has, and who has the same tokens
  for (served_part const& each : parts) {
    if (each.by != nullptr) continue;
    device_sequence const* same = nullptr;
    for (auto const& other : sequences_)
      if (each.part.before() > 0 && other->cells().begins_with(each.part.seen, order)) same = other.get();
    fresh.emplace_back(token_cells(each.part.seen, order), same);
  }
  for (served_part& each : parts)
    for (std::int64_t const cell : each.part.cells) each.part.written.push_back(order.write(cell));
  auto next = fresh.begin();
  for (served_part& each : parts) {
    if (each.by == nullptr) {
      each.by = &free_sequence(parts);
      each.by->begin(std::move(next->first), next->second);
      ++next;
    }
    each.step = each.part.tokens() == 1 && each.part.before() > 0 && each.part.output >= 0 && !each.by->is_left();
    if (each.step && (rows_.policy.needs & KVPOLICY_NEEDS_LOGITS) != 0 && of.logits == nullptr)
      throw unsupported("'" + rows_.policy.text +
                        "' needs the logits of each step, and the program asked for none of this one");
  }
  for (served_part const& each : parts)
    if (each.by->bring(of, each.part.before(), each.part.cells, each.part.written)) forget_steps();
  return parts;
}

device_sequence* device_context::find(batch_part const& part, batch const& others) {
  write_order const& order = history_.order();
  auto best = sequences_.end();  // the shortest that has them, of those the one used last
  for (auto at = sequences_.begin(); part.before() > 0 && at != sequences_.end(); ++at) {
    bool const is_free = std::ranges::none_of(others, [&](served_part const& other) { return other.by == at->get(); });
    bool const shorter = best == sequences_.end() || (*at)->cells().tokens() <= (*best)->cells().tokens();
    if (is_free && shorter && (*at)->cells().begins_with(part.seen, order)) best = at;
  }
  if (best == sequences_.end()) return nullptr;
  std::rotate(best, std::next(best), sequences_.end());
  return sequences_.back().get();
}

device_sequence& device_context::free_sequence(batch const& taken) {
  write_order const& order = history_.order();
  auto const is_free = [&](auto const& each) {
    return std::ranges::none_of(taken, [&](served_part const& other) { return other.by == each.get(); });
  };
  auto const is_over = [&](auto const& each) {  // it has no tokens, or others took cells of them
    return is_free(each) && (each->cells().tokens() == 0 ||
                             !std::ranges::all_of(each->cells().runs(), [&](cell_run const& run) { return order.holds(run); }));
  };
  auto place = std::ranges::find_if(sequences_, is_over);
  if (place == sequences_.end() && std::ssize(sequences_) < most_) {
    sequences_.push_back(std::make_unique<device_sequence>(rows_));
    place = std::prev(sequences_.end());
  }
  if (place == sequences_.end()) place = std::ranges::find_if(sequences_, is_free);
  std::rotate(place, std::next(place), sequences_.end());
  return *sequences_.back();
}

void device_context::prepare(attention_graph const& of, batch& parts) {
  for (served_part& each : parts) {
    if (!each.step) continue;
    try {
      each.by->prepare_step(of, each.part.before());
    } catch (unsupported const& why) {
      each.step = false;
      if (each.by->leave(why.what()))
        say_(std::string("a sequence reads everything, until its prompt is sent anew (cache_prompt=false in llama-server): ") +
             why.what());
    }
  }
}

ggml_status device_context::run(ggml_cgraph* graph, attention_graph const& of, batch const& parts) {
  bool const prompts = std::ranges::any_of(parts, [](served_part const& each) { return !each.step; });
  bool const steps = std::ranges::any_of(parts, &served_part::step);
  auto const each = [&](bool step, auto what) {
    for (served_part const& one : parts)
      if (one.step == step) what(*one.by, one.part);
  };
  each(false, [&](device_sequence& by, batch_part const& part) { by.begin_prompt(part.before(), part.tokens()); });
  std::int32_t planned = KVPOLICY_STEP_IDLE;
  for (attention const& layer : of.layers) {
    if (prompts) layer.node->flags |= GGML_TENSOR_FLAG_COMPUTE;
    else layer.node->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
  }
  ggml_status status = GGML_STATUS_FAILED;
  try {
    each(true, [&](device_sequence& by, batch_part const& part) {
      std::int32_t const asked = by.plan(part.before());
      planned = (planned & asked & KVPOLICY_STEP_IDLE) | ((planned | asked) & KVPOLICY_STEP_DECIDES);
    });
    if (!steps && rows_.policy.observed == 0) status = engine_(backend_, graph);
    else if (prompts || (planned & KVPOLICY_STEP_DECIDES) != 0 || of.waits || graph->uid == 0)
      status = launch(graph, of, parts, planned);
    else status = replay(graph, of, parts, planned);
  } catch (...) {
    for (served_part const& one : parts) one.by->forget_rows();
    throw;
  }
  each(false, [&](device_sequence& by, batch_part const& part) {
    if (status != GGML_STATUS_SUCCESS) by.forget_rows();
    else by.end_prompt(part.before() + part.tokens());
  });
  return status;
}

ggml_status device_context::launch(ggml_cgraph* graph, attention_graph const& of, batch const& parts, std::int32_t planned) {
  int begin = 0;
  auto const engine_until = [&](int end) {
    ggml_cgraph part = ggml_graph_view(graph, begin, end);
    begin = end;
    return engine_(backend_, &part);
  };
  auto const between = [&](auto const& those, auto const& what) {
    engine_is_here();
    for (served_part const& each : parts) {
      if (!std::invoke(those, each)) continue;
      waits_for_engine(*each.by);
      what(each);
      engine_waits_for(*each.by);
    }
  };
  for (std::size_t l = 0; l < of.layers.size(); ++l) {
    ggml_tensor* const node = of.layers[l].node;
    auto const layer = static_cast<std::int64_t>(l);
    if (ggml_status const status = engine_until(of.layers[l].place + 1); status != GGML_STATUS_SUCCESS) return status;
    between([&](served_part const& each) { return each.step || rows_.policy.observed > 0; },
            [&](served_part const& each) {
              if (each.step) each.by->attend(layer, node, each.part.first, planned);
              else each.by->keep(layer, node->src[0], each.part.first, each.part.first + each.part.tokens());
            });
  }
  if (begin < graph->n_nodes)
    if (ggml_status const status = engine_until(graph->n_nodes); status != GGML_STATUS_SUCCESS) return status;
  between(&served_part::step, [&](served_part const& each) { each.by->observe(of.logits, each.part.output); });
  return GGML_STATUS_SUCCESS;
}

ggml_status device_context::replay(ggml_cgraph* graph, attention_graph const& of, batch const& parts, std::int32_t planned) {
  constexpr std::size_t most = 8;
  step_key key{graph->uid, (planned & KVPOLICY_STEP_IDLE) != 0, {}};
  for (served_part const& each : parts) std::get<2>(key).push_back(each.by);
  if (!steps_.contains(key) && steps_.size() >= most) forget_steps();
  captured_step& mine = steps_[key];
  if (++mine.seen == 1) return launch(graph, of, parts, planned);
  if (mine.graph == nullptr)
    if (ggml_status const status = capture(graph, of, parts, planned, mine); status != GGML_STATUS_SUCCESS) return status;
  device_sequence const& first = *parts.front().by;
  auto const taken_over = static_cast<cudaEvent_t>(there_->context);
  for (served_part const& each : std::span(parts).subspan(1)) {  // what they planned is on their own streams
    must(cudaEventRecord(taken_over, each.by->stream()));
    must(cudaStreamWaitEvent(first.stream(), taken_over, 0));
  }
  engine_is_here();
  waits_for_engine(first);
  must(cudaGraphLaunch(mine.graph, first.stream()));
  engine_waits_for(first);
  return GGML_STATUS_SUCCESS;
}

ggml_status device_context::capture(ggml_cgraph* graph, attention_graph const& of, batch const& parts, std::int32_t planned,
                                    captured_step& into) {
  device_sequence const& first = *parts.front().by;
  engine_is_here();
  waits_for_engine(first);
  must(cudaStreamBeginCapture(first.stream(), cudaStreamCaptureModeRelaxed));
  ggml_status status = GGML_STATUS_FAILED;
  std::exception_ptr failure;
  try {
    engine_waits_for(first);  // by which its stream takes part
    status = launch(graph, of, parts, planned);
    engine_is_here();
    waits_for_engine(first);
  } catch (...) {
    failure = std::current_exception();
  }
  cudaGraph_t made = nullptr;
  cudaError_t ended = cudaStreamEndCapture(first.stream(), &made);
  if (ended == cudaSuccess && status == GGML_STATUS_SUCCESS) ended = cudaGraphInstantiate(&into.graph, made, 0);
  if (made != nullptr) cudaGraphDestroy(made);
  if (failure) std::rethrow_exception(failure);
  if (status == GGML_STATUS_SUCCESS) must(ended);
  return status;
}

std::span<std::byte> device_context::room_for(std::size_t bytes) {
  if (room_.size() < bytes) {
    must(cudaFreeHost(room_.data()));
    room_ = {};
    void* made = nullptr;
    must(cudaHostAlloc(&made, 2 * bytes, cudaHostAllocDefault));
    room_ = {static_cast<std::byte*>(made), 2 * bytes};
  }
  return room_;
}

void device_context::engine_is_here() { ggml_backend_event_record(here_, backend_); }
void device_context::waits_for_engine(device_sequence const& of) {
  must(cudaStreamWaitEvent(of.stream(), static_cast<cudaEvent_t>(here_->context), 0));
}
void device_context::engine_waits_for(device_sequence const& of) {
  must(cudaEventRecord(static_cast<cudaEvent_t>(there_->context), of.stream()));
  ggml_backend_event_wait(backend_, there_);
}

void device_context::forget_steps() {
  if (steps_.empty()) return;
  for (auto const& each : sequences_) cudaStreamSynchronize(each->stream());
  for (auto& [key, each] : steps_)
    if (each.graph != nullptr) cudaGraphExecDestroy(each.graph);
  steps_.clear();
}

}  // namespace kvpolicy::ggml
