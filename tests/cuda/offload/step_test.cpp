// A decoder's steps with rows in host memory beside the same steps without: list for list, and output for output.
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <vector>

#include "cuda/batch_run.hpp"
#include "kvpolicy/gpu/offload/resident_rows.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr std::int64_t prompt = 60;
constexpr std::int64_t steps = 14;
constexpr cache_shape shape{.layers = 2, .q_heads = 6, .kv_heads = 3, .head_dim = 16, .max_tokens = prompt + steps + 2};
constexpr std::int64_t sequences = 2;
constexpr std::array<std::uint8_t, 7> boundary{0, 0, 0, segments::sentence_mark(".")};
constexpr std::array profile{head_profile{.role = head_role::pivot, .stability = .3f},
                             head_profile{.role = head_role::satellite, .pivot = 0, .stability = .3f},
                             head_profile{.role = head_role::anchor, .stability = .9f},
                             head_profile{.role = head_role::satellite, .pivot = 1, .stability = .5f},
                             head_profile{.role = head_role::pivot, .stability = .2f},
                             head_profile{.role = head_role::shifting, .stability = .1f}};

presets::heterocache heterocache() {
  presets::heterocache made = presets::heterocache::paper();
  made.heads = profile;
  made.ratio = .3;  // half of the heads are whole
  made.window = made.every = 3;
  made.drift = .9f;
  return made;
}

/// Where a step's rows are: in the engine's cache; in slots, as its lists name them; or in slots, as the policy retains them.
enum class rows_in { cache, slots_of_lists, slots_of_retained };

/// One decoder's steps on two sequences, captured once.
template <class Policy>
class steps_of {
 public:
  steps_of(Policy const& policy, std::span<std::int32_t const> slots, rows_in where, std::uint64_t seed)
      : random_(seed),
        cache_(shape, sequences, 8, page_layout::nhd, random_, false),
        decoder_(policy, shape, sequences, device_),
        where_(where),
        ahead_(requirements_of(policy).next_step),
        resident_(shape, sequences, slots, device_),
        queries_(static_cast<std::size_t>(shape.layers * size)),
        out_(queries_.size(), 7),
        ids_(static_cast<std::size_t>(sequences)) {
    for (std::int64_t s = 0; s < sequences; ++s) {
      for (std::int64_t t = 0; t < shape.max_tokens; ++t) cache_.write(s, t, random_);
      prefill(s);
    }
  }

  void step() {
    ++tokens_;
    std::array<std::int32_t, sequences> now{};
    now.fill(static_cast<std::int32_t>(tokens_));
    decoder_.plan(now);
    if (where_ == rows_in::slots_of_lists) resident_.plan(decoder_);
    if constexpr (gives_back) {
      if (where_ == rows_in::slots_of_retained) resident_.plan_retained(decoder_);
    }
    for (float& q : queries_) q = random_.real();
    for (std::int32_t& id : ids_) id = static_cast<std::int32_t>(random_.between(0, 6));
    device_.send();
    captured_.run(device_.on(), [&] { enqueue(); });
    device_.wait();
    for (std::int64_t s = 0; s < sequences && where_ == rows_in::slots_of_retained; ++s) {
      for (std::int64_t t = 0; t < tokens_; ++t) cache_.give_back(s, t);  // the next token is yet to come
    }
  }
  std::vector<std::int64_t> list(std::int64_t layer, std::int64_t sequence, std::int64_t head) const {
    return tokens_of(device_, lists_[static_cast<std::size_t>(layer)], sequence, head);
  }
  shared_vector<float> const& out() const { return out_; }
  std::vector<std::int32_t> missed(std::int64_t layer) const {
    return device_.read(resident_.missed({layer}), 0, sequences * shape.kv_heads);
  }
  std::int64_t side_by_side() const { return captured_.side_by_side(); }
  std::int32_t overflow(std::int64_t layer) const { return device_.read(resident_.overflow({layer}), 0, 1)[0]; }
  void forget(std::int64_t sequence) { resident_.forget(sequence, device_); }

 private:
  static constexpr bool gives_back = requires(gpu::decoder<Policy, test_device> const& of) { of.retained({}); };
  static constexpr std::int64_t size = sequences * shape.q_heads * shape.head_dim;

  gpu::vector_rows rows_of(shared_vector<float> const& all, std::int64_t layer) const {
    gpu::vector_rows made{};
    made.base = on_device(all).data + layer * size;
    made.elements = size;
    made.sequence_stride = shape.q_heads * shape.head_dim;
    made.token_stride = made.sequence_stride;
    made.head_stride = shape.head_dim;
    return made;
  }
  void prefill(std::int64_t sequence) {
    device_.send();
    std::vector<std::int32_t> ids(prompt);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random_.between(0, 6));
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      std::vector<float> queries(static_cast<std::size_t>(prompt * shape.q_heads * shape.head_dim));
      for (float& q : queries) q = random_.real();
      prompt_signals told{};
      told.token_ids = ids;
      told.queries = {queries.data(), prompt, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, .125f};
      decoder_.prefill(sequence, cache_.view(), prompt, {l}, told, exec_);
    }
  }
  void enqueue() {
    gpu::paged_batch const host = cache_.view();
    lists_.clear();
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      if constexpr (gives_back) {
        if (where_ == rows_in::slots_of_retained) {
          resident_.gather(host, {l}, decoder_.retained({l}), device_);
          step_of(resident_.view(), l);
          continue;
        }
      }
      if (where_ == rows_in::cache) {
        step_of(host, l);
        continue;
      }
      gpu::vector_rows const queries = rows_of(queries_, l);
      lists_.push_back(decoder_.choose(host, {l}, queries, .125f, on_device(ids_)));
      resident_.gather(host, {l}, lists_.back(), device_);
      decoder_.attend(resident_.view(), {l}, lists_.back(), queries, .125f, rows_of(out_, l));
      decoder_.renew(resident_.view(), {l}, queries, .125f);
      if (ahead_) device_.beside(side_stream(), [&] { resident_.gather(host, {l}, decoder_.standing({l}), device_); });
    }
    if (where_ == rows_in::slots_of_lists && ahead_) device_.join(side_stream());
  }
  template <class View>
  void step_of(View const& view, std::int64_t l) {
    gpu::vector_rows const queries = rows_of(queries_, l);
    lists_.push_back(decoder_.choose(view, {l}, queries, .125f, on_device(ids_)));
    decoder_.attend(view, {l}, lists_.back(), queries, .125f, rows_of(out_, l));
    decoder_.renew(view, {l}, queries, .125f);
  }

  random_source random_;
  batch_cache cache_;
  test_device device_;
  prompt_exec exec_;
  gpu::decoder<Policy, test_device> decoder_;
  rows_in where_;
  bool ahead_;
  gpu::resident_rows<test_device> resident_;
  shared_vector<float> queries_;
  shared_vector<float> out_;
  shared_vector<std::int32_t> ids_;
  std::vector<gpu::token_lists> lists_;
  captured_step captured_;
  std::int64_t tokens_ = prompt;
};

/// Slots of each head: all tokens, or so many.
std::vector<std::int32_t> slots_for(presets::heterocache const& policy) {
  std::vector<std::int64_t> lengths(profile.size());
  policy.parts().retain.budget.lengths(prompt, lengths);
  std::vector<std::int32_t> made;
  for (std::int64_t const length : lengths)
    made.push_back(static_cast<std::int32_t>(length == prompt ? shape.max_tokens : length + steps));
  return made;
}

/// Returns how many rows came in all steps but the first two.
template <class Policy>
std::int64_t compare(Policy const& policy, std::span<std::int32_t const> slots, std::uint64_t seed,
                     rows_in where = rows_in::slots_of_lists) {
  bool const fetches_ahead = where == rows_in::slots_of_lists && requirements_of(policy).next_step;
  steps_of<Policy> with(policy, slots, where, seed);
  steps_of<Policy> without(policy, slots, rows_in::cache, seed);
  std::int64_t came = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step == 9 && where == rows_in::slots_of_lists) with.forget(1);  // its rows come anew
    with.step();
    without.step();
    INFO("step " << step);
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      REQUIRE(with.overflow(l) == 0);
      for (std::int32_t const rows : with.missed(l)) came += step >= 2 && step < 9 ? rows : 0;
      for (std::int64_t s = 0; s < sequences; ++s) {
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          INFO("layer " << l << " sequence " << s << " head " << h);
          REQUIRE(with.list(l, s, h) == without.list(l, s, h));
        }
      }
    }
    REQUIRE(std::ranges::equal(with.out(), without.out()));
  }
  // What a fetch enqueues for the next step waits for nothing of the later layers, and they for nothing of it.
  if (with.side_by_side() >= 0) {
    CHECK((with.side_by_side() > 0) == fetches_ahead);
    CHECK(without.side_by_side() == 0);
  }
  return came;
}

TEST_CASE("steps with rows in host memory are those without: heterocache, fetching beside the step", "[cuda]") {
  presets::heterocache policy = heterocache();
  std::int64_t const every_row = 7 * shape.layers * sequences * shape.kv_heads * prompt;
  std::int64_t came = compare(policy, slots_for(policy), 31);
  CHECK(came < every_row / 4);  // the newest rows, and what a drift brings
  policy.next_step = false;
  came = compare(policy, slots_for(policy), 32);
  CHECK(came < every_row / 4);
}

TEST_CASE("steps with rows in host memory are those without: sentencekv", "[cuda]") {
  presets::sentencekv policy = presets::sentencekv::paper();
  policy.tokens = 20;
  policy.window = 6;
  policy.sentences.boundary = boundary;
  std::int32_t const slots = 20 + steps;
  compare(policy, std::span(&slots, 1), 33);
  policy = {.tokens = 20, .window = 4, .sentences = {.boundary = boundary, .longest = 12}, .after = 0};
  std::int32_t const others = 32;
  compare(policy, std::span(&others, 1), 34);
}

TEST_CASE("steps with rows in host memory are those without: quest", "[cuda]") {
  std::int32_t const slots = 24;
  compare(presets::quest{.tokens = 24, .page = 4}, std::span(&slots, 1), 35);
}

TEST_CASE("steps read what was retained, once the engine has given its own rows of earlier tokens away", "[cuda]") {
  std::int32_t slots = 16 + steps;
  presets::snapkv const window{.tokens = 16, .window = 4, .after = 0};
  CHECK(compare(window, std::span(&slots, 1), 39, rows_in::slots_of_retained) == 7 * shape.layers * sequences * shape.kv_heads);
  presets::sentencekv sentences = presets::sentencekv::paper();
  sentences.tokens = 12;
  sentences.window = 4;
  sentences.sentences.boundary = boundary;
  slots = 24 + steps;
  compare(sentences, std::span(&slots, 1), 40, rows_in::slots_of_retained);
  sentences = {.tokens = 12, .window = 4, .sentences = {.boundary = boundary, .longest = 12}, .after = 0};
  slots = 36 + steps;
  compare(sentences, std::span(&slots, 1), 41, rows_in::slots_of_retained);
  slots = 30 + steps;
  compare(policy{presets::snapkv{.tokens = 30, .window = 4, .after = 0}.parts().retain,
                 presets::quest{.tokens = 12, .page = 4}.parts().retrieve},
          std::span(&slots, 1), 42, rows_in::slots_of_retained);
  slots = 18;
  compare(presets::streaming_llm{.tokens = 18}, std::span(&slots, 1), 43, rows_in::slots_of_retained);
  slots = 16;
  steps_of<presets::snapkv> few(window, std::span(&slots, 1), rows_in::slots_of_retained, 44);
  CHECK_THROWS_WITH(few.step(), ContainsSubstring("KV head 0 of layer 0 may retain 17 tokens of sequence 0, and has 16 slots"));
}

TEST_CASE("a list that its head's slots can't hold is refused before the step", "[cuda]") {
  std::int32_t const slots = 20;
  steps_of<presets::quest> few({.tokens = 24, .page = 4}, std::span(&slots, 1), rows_in::slots_of_lists, 36);
  CHECK_THROWS_WITH(few.step(), ContainsSubstring("KV head 0 of layer 0 may read 21 tokens of sequence 0, and has 20 slots"));
  // A pivot looks at all of the prompt, whatever it reads.
  presets::heterocache policy = heterocache();
  std::vector<std::int32_t> by_head = slots_for(policy);
  by_head[0] = prompt;
  steps_of<presets::heterocache> short_pivot(policy, by_head, rows_in::slots_of_lists, 37);
  CHECK_THROWS_WITH(short_pivot.step(), ContainsSubstring("KV head 0 of layer 0 may read 61 tokens"));
}

TEST_CASE("slots are of heads that there are, at least one and at most every token", "[cuda]") {
  test_device device;
  using rows = gpu::resident_rows<test_device>;
  std::vector<std::int32_t> const five(5, 10);
  CHECK_THROWS_WITH(rows(shape, 1, five, device), ContainsSubstring("slots of 5 heads; give a number for each of 2 layers' 3"));
  for (std::int32_t const slots : {0, static_cast<std::int32_t>(shape.max_tokens + 1)})
    CHECK_THROWS_WITH(rows(shape, 1, std::span(&slots, 1), device), ContainsSubstring("slots; it has 1 to max_tokens"));
  std::int32_t const ten = 10;
  cache_shape odd = shape;
  odd.head_dim = 5;
  CHECK_THROWS_AS(rows(odd, 1, std::span(&ten, 1), device), unsupported);
  rows unplanned(shape, 1, std::span(&ten, 1), device);
  CHECK_THROWS_WITH(unplanned.gather(unplanned.view(), {0}, {}, device), ContainsSubstring("slots were never planned for"));
}

TEST_CASE("a policy that chooses for the next step is told where renew() is missing", "[cuda]") {
  random_source random(38);
  batch_cache cache(shape, 1, 8, page_layout::nhd, random, false);
  for (std::int64_t t = 0; t < shape.max_tokens; ++t) cache.write(0, t, random);
  test_device device;
  prompt_exec exec;
  gpu::decoder<presets::heterocache, test_device> decoder(heterocache(), shape, 1, device);
  device.send();
  std::vector<float> const queries(static_cast<std::size_t>(prompt * shape.q_heads * shape.head_dim), .5f);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    prompt_signals told{};
    told.queries = {queries.data(), prompt, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, .125f};
    decoder.prefill(0, cache.view(), prompt, {l}, told, exec);
  }
  decoder.plan(std::array{static_cast<std::int32_t>(prompt + 1)});
  gpu::vector_rows heads{};
  heads.head_stride = shape.head_dim;
  for (std::int64_t l = 0; l < shape.layers; ++l) decoder.choose(cache.view(), {l}, heads, .125f);
  CHECK_THROWS_WITH(decoder.plan(std::array{static_cast<std::int32_t>(prompt + 2)}),
                    ContainsSubstring("renew() was called for 0 of the 2 layers that were read"));
  presets::quest const pages{.tokens = 24, .next_step = true};
  CHECK_THROWS_WITH((gpu::decoder<presets::quest, test_device>(pages, shape, 1, device)),
                    ContainsSubstring("chooses for the next step by triggers::drift alone"));
}

}  // namespace
}  // namespace kvpolicy_test
