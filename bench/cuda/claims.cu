// What the four papers claim of a step, in their settings: whole decode steps of Llama-3.1-8B's shape, in which each layer also
// reads its weights from memory (16 bits each, or 4), against this library's attention over everything with the same weights.
// Reading weights stands for the model's matrix products, which at small batches take as long as their weights take to come.
// One JSON line a case; options: gpu.hpp.
#include <algorithm>
#include <chrono>

#include "graph.hpp"
#include "host_rows.hpp"
#include "kvpolicy/gpu/offload/resident_rows.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "step.hpp"
#include "streaming.hpp"

namespace kvpolicy::bench {
namespace {

constexpr double of_16_bits = 16.06e9;  ///< bytes of all weights
constexpr double of_4_bits = 4.5e9;

/// Weights that a step reads, layer by layer. Layers share what memory there is.
class model_weights {
 public:
  explicit model_weights(measured_gpu& on) : on_(on), memory_(on.floats(std::int64_t{1} << 28)), sink_(on.floats(64)) {}

  /// Enqueues a layer's share of so many bytes.
  void read(double bytes) const {
    auto left = static_cast<std::int64_t>(bytes / static_cast<double>(layers)) / 16 * 16;
    std::int64_t const room = memory_.get().size * 4;
    for (; left > 0; left -= room)
      read_all(on_.on(), {.blocks = 1056}, memory_.get().data, std::min(left, room), sink_.get().data);
  }

 private:
  measured_gpu& on_;
  gpu::device_buffer<float> memory_;  ///< 1 GiB, more than any cache
  gpu::device_buffer<float> sink_;
};

struct claims {
  measured_gpu& on;
  situation const& at;
  model_weights const& weights;

  /// A dense step with weights of 16 and of 4 bits; then the policy's.
  template <class Policy>
  void step(std::string const& name, Policy const& policy, moment const& when = {}) const {
    for (double const bytes : {of_16_bits, of_4_bits}) {
      std::string const of = bytes == of_16_bits ? ", 16-bit weights" : ", 4-bit weights";
      double dense_us = 0;
      on.run("claim " + name + ": dense" + of, at.batch, at.context, [&] {
        gpu::stream_device device(on.on());
        timing const time = on.time([&](int) { dense(at, device, [&](std::int64_t) { weights.read(bytes); }); }, 1);
        dense_us = time.us;
        return outcome{attention(at.batch, at.context) * layers + bytes, time};
      });
      on.run("claim " + name + of, at.batch, at.context, [&] {
        gpu::stream_device device(on.on(), std::int64_t{1} << 30);
        auto const decoder = planned(on, at, policy, when, device);
        std::vector<gpu::token_lists> lists(static_cast<std::size_t>(layers));
        timing const time =
            on.time([&](int) { enqueue_step(at, *decoder, lists, [&](std::int64_t) { weights.read(bytes); }); }, 1);
        return outcome{bytes, time, {number("us_dense", dense_us), number("ratio_to_dense", dense_us / time.us)}};
      });
    }
  }
};

class second_stream {
 public:
  second_stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"); }
  ~second_stream() { cudaStreamDestroy(stream_); }
  second_stream(second_stream const&) = delete;
  second_stream& operator=(second_stream const&) = delete;

  gpu::stream on() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Heads with the roles that HeteroCache's authors count in Llama-3.1-8B: of 256, 10 anchors, 17 volatile, 33 pivots.
std::vector<head_profile> authors_roles() {
  std::vector<head_profile> made;
  for (std::int64_t head = 0; head < layers * kv_heads; ++head) {
    std::int64_t const layer = head / kv_heads;
    std::int64_t const h = head % kv_heads;
    head_profile one{.role = head_role::satellite, .pivot = 0, .stability = .3f + .05f * static_cast<float>(head % 11)};
    if (h == 0 || (h == 1 && layer == 0)) one = {.role = head_role::pivot, .stability = 0};
    else if (h == 2 && layer % 2 == 0) one = {.role = head_role::shifting, .stability = 0};
    else if (h == 3 && layer % 3 == 0 && layer < 30) one = {.role = head_role::anchor, .stability = .9f};
    else if (h == 4 && layer == 0) one = {.role = head_role::shifting, .stability = 0};
    made.push_back(one);
  }
  return made;
}

/// HeteroCache with all rows in pinned host memory: whole heads have a slot for every token, the others for their lists, and
/// what the next step reads comes on a second stream. `fetching`: every step looks, finds a drift, and asks for other rows.
void offloaded(measured_gpu& on, situation const& at, model_weights const& weights, presets::heterocache policy,
               bool fetching) {
  if (fetching) policy.drift = 2;  // no overlap is enough
  on.run(std::string("claim heterocache, rows in host memory, ") + (fetching ? "fetching" : "idle") + ", 16-bit weights",
         at.batch, at.context, [&] {
           gpu::stream_device device(on.on(), std::int64_t{1} << 30);
           auto const decoder = planned(on, at, policy, {.before = fetching ? policy.every - 1 : 0}, device);
           std::int64_t const prompt = at.context - (fetching ? policy.every : 1);
           std::vector<std::int64_t> lengths(policy.heads.size());
           policy.parts().retain.budget.lengths(prompt, lengths);
           std::vector<std::int32_t> slots;
           for (std::int64_t const length : lengths)
             slots.push_back(static_cast<std::int32_t>(length == prompt ? at.context : length + policy.every));
           gpu::resident_rows<gpu::stream_device> resident(shape(at.context), at.batch, slots, device);
           resident.plan(*decoder);
           host_rows const keys(at.context);
           host_rows const values(at.context);
           host_batch const host{keys.rows(), values.rows()};
           second_stream const side;
           timing const time = on.time(
               [&](int turn) {
                 for (std::int64_t l = 0; l < layers; ++l) {
                   weights.read(of_16_bits);
                   gpu::vector_rows const queries = at.queries_of((l + turn) % layers);  // other ones in turns
                   gpu::token_lists const lists = decoder->choose(host, {l}, queries, scale, at.ids.get());
                   resident.gather(host, {l}, lists, device);
                   decoder->attend(resident.view(), {l}, lists, queries, scale, at.outputs());
                   decoder->renew(resident.view(), {l}, queries, scale);
                   device.beside(side.on(), [&] { resident.gather(host, {l}, decoder->standing({l}), device); });
                 }
                 device.join(side.on());
               },
               2);
           double rows = 0;
           for (std::int64_t l = 0; l < layers; ++l) {
             for (std::int32_t const missed : on.on_host(resident.missed({l}))) rows += missed;
           }
           return outcome{of_16_bits, time, {number("rows_fetched", rows)}};
         });
}

/// What a prompt of all layers costs a policy: chunkkv with and without layers that share a choice. Wall time, as it waits.
void prompts(measured_gpu& on, situation const& at) {
  for (std::int32_t const reuse : {1, 2}) {
    presets::chunkkv policy = presets::chunkkv::paper();
    policy.tokens = static_cast<std::int32_t>(at.context / 10);
    policy.layers.reuse = reuse;
    on.run("claim chunkkv, prompt, reuse " + std::to_string(reuse), at.batch, at.context, [&] {
      gpu::stream_device device(on.on(), std::int64_t{512} << 20);
      static_cast<void>(planned(on, at, policy, {}, device));  // loads its kernels
      timing time;
      time.repetitions = 1;
      std::vector<double> found;
      for (time.replays = 0; time.replays < 5; ++time.replays) {
        auto const begin = std::chrono::steady_clock::now();
        static_cast<void>(planned(on, at, policy, {}, device));
        found.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
      }
      std::ranges::sort(found);
      time.us = found[found.size() / 2];
      time.least = found.front();
      time.most = found.back();
      return outcome{keys(at.batch, at.context) * static_cast<double>(layers / reuse), time};
    });
  }
}

void cell(measured_gpu& on, std::int64_t batch, std::int64_t context) {
  situation const at(on, batch, context);
  model_weights const weights(on);
  claims const of{on, at, weights};
  if (context == 32768) {
    presets::chess chess = presets::chess::aggressive();
    chess.entropy = chess.varentropy = 0;
    of.step("chess", chess);
    chess.both = false;  // one entropy does not vary
    of.step("chess that chooses", chess, {.fires = true});
    presets::chunkkv chunks = presets::chunkkv::paper();
    chunks.tokens = static_cast<std::int32_t>(context / 10);
    of.step("chunkkv", chunks);
    if (batch == 1) prompts(on, at);
  }
  std::vector<head_profile> const roles = authors_roles();
  presets::heterocache heads = presets::heterocache::paper();
  heads.heads = roles;
  if (context == 229376) {
    of.step("heterocache, idle", heads);
    of.step("heterocache, look", heads, {.before = heads.every - 1});
    for (bool const fetching : {false, true}) offloaded(on, at, weights, heads, fetching);
  }
  if (context == 262144) {
    presets::sentencekv sentences = presets::sentencekv::paper();
    sentences.tokens = 1024;
    sentences.sentences.boundary = boundaries();
    sentences.sentences.shortest = shortest_sentence;
    of.step("sentencekv", sentences);
  }
}

}  // namespace
}  // namespace kvpolicy::bench

int main(int count, char** arguments) {
  using namespace kvpolicy::bench;
  return main_of(count, arguments, [](measured_gpu& on) {
    on.each_cell({1, 14}, {32768}, [&](std::int64_t batch, std::int64_t context) { cell(on, batch, context); });
    on.each_cell({1}, {229376, 262144}, [&](std::int64_t batch, std::int64_t context) { cell(on, batch, context); });
  });
}
