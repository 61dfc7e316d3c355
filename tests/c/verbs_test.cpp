// Through kvpolicy.h every policy chooses what it chooses through the C++ headers, on the same rows.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "c/c_api.hpp"
#include "kvpolicy/interop/page_table.hpp"
#include "profile_file.hpp"
#include "published.hpp"

namespace kvpolicy_test {
namespace {

constexpr std::int64_t vocabulary = 50;

std::vector<std::string> policies(cache_shape const& shape) {
  return {"full",
          "streaming_llm:tokens=32",
          "h2o:tokens=40",
          "tova:tokens=40",
          "knorm:ratio=0.5",
          "snapkv:tokens=40,window=8",
          "pyramidkv:tokens=48,window=4",
          "adakv:tokens=40",
          "chunkkv:tokens=48,chunk=6",
          "keydiff:tokens=30,sinks=2,recent=3",
          "quest:tokens=40,page=8",
          "quest:tokens=40,page=16,metadata=range,trigger=every:3",
          "infllm:tokens=48,block=8,local=4,sink_blocks=1,recent_blocks=2",
          "expected_attention:ratio=0.5,future=16",
          "lagkv:ratio=0.5,lag=8",
          "chess:tokens=64,page=8,sink_pages=1,recent_pages=2",
          "sentencekv:tokens=48,window=8,longest=16,after=4",
          "heterocache:tokens=40,window=3,after=0,profile=" + profile_path(shape),
          "duoattention:tokens=40,sinks=2,recent=8,heads=" + profile_path(shape),
          "omnikv:tokens=30,dense_first=0,reuse=2",
          "rkv:tokens=30,keep_prompt=0,every=3",
          "twilight:tokens=40,page=8,mass=0.6",
          "kvzip:tokens=30,recent=2",
          "rocketkv:tokens=24,kept=60,channels=3,after=4",
          "snapkv:tokens=60,window=8+quest:tokens=24,page=4"};
}

/// What a request says beside its rows.
struct model_signals {
  std::vector<std::vector<float>> prompt;   ///< `[layers][max_tokens, q_heads, head_dim]`
  std::vector<std::vector<float>> current;  ///< `[layers][q_heads, head_dim]`
  std::vector<std::int32_t> ids;            ///< `[max_tokens]`
  std::vector<float> frequencies;           ///< `[head_dim / 2]`
  std::vector<float> logits;                ///< `[vocabulary]`
  std::vector<float> slopes, sinks;         ///< `[q_heads]`
  bool adds = false;                        ///< whether attention has these, and a cap

  model_signals(cache_shape const& s, random_source& random) {
    for (std::int64_t l = 0; l < s.layers; ++l) {
      prompt.push_back(random.reals(s.max_tokens * s.q_heads * s.head_dim));
      for (float& x : prompt.back()) x = half_to_float(float_to_half(x));  // both forms say the same
      current.push_back(random.reals(s.q_heads * s.head_dim));
    }
    for (std::int64_t t = 0; t < s.max_tokens; ++t) ids.push_back(static_cast<std::int32_t>(random.between(0, vocabulary - 1)));
    for (std::int64_t i = 0; i < s.head_dim / 2; ++i) frequencies.push_back(1 / static_cast<float>(i + 1));
    slopes = random.reals(s.q_heads);
    sinks = random.reals(s.q_heads);
    step(random);
  }
  void step(random_source& random) {
    for (auto& queries : current) {
      for (float& x : queries) x = random.real();
    }
    logits = random.reals(vocabulary, 5);
  }
};

/// The same request through the C++ headers.
class twin {
 public:
  twin(std::string const& text, std::vector<std::uint8_t> const& boundary, random_cache const& cache, model_signals const& said)
      : named_(known_policies().parse(text, inputs_for(boundary))),
        cache_(cache),
        said_(said),
        state_(start(named_.policy, cache.shape())),
        exec_(cache.shape()) {
    for (std::int64_t l = 0; l < cache.shape().layers; ++l) {
      keys_.push_back(cache.keys(l, cache.shape().max_tokens));
      values_.push_back(cache.values(l, cache.shape().max_tokens));
    }
  }

  void prefill(std::int64_t layer, std::int64_t first, std::int64_t tokens, std::int64_t queries, float scale,
               token_span const& repeats) {
    cache_shape const& s = cache_.shape();
    std::int64_t const row = s.q_heads * s.head_dim;
    auto const& of_layer = said_.prompt[static_cast<std::size_t>(layer)];
    prompt_signals const prompt{
        .first = first,
        .queries = {of_layer.data() + (tokens - queries) * row, queries, s.q_heads, row, s.head_dim, scale},
        .rope = {said_.frequencies.data(), std::ssize(said_.frequencies)},
        .token_ids = std::span(said_.ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(tokens - first)),
        .repeats = repeats};
    state_.prefill(view(tokens), {layer}, prompt, exec_);
  }
  /// The last tokens' queries are those of the prompt's rows.
  query_window window(std::int64_t layer, std::int64_t tokens, std::int64_t brought, float scale) const {
    cache_shape const& s = cache_.shape();
    std::int64_t const row = s.q_heads * s.head_dim;
    float const* const first = said_.prompt[static_cast<std::size_t>(layer)].data() + (tokens - brought) * row;
    return {first, brought, s.q_heads, row, s.head_dim, scale};
  }
  selection choose(std::int64_t layer, std::int64_t tokens, std::int64_t brought, float scale) {
    auto const ids =
        std::span(said_.ids).subspan(static_cast<std::size_t>(tokens - brought), static_cast<std::size_t>(brought));
    step_window const step{.tokens = brought, .queries = window(layer, tokens, brought, scale), .token_ids = ids};
    return state_.choose(view(tokens), {layer}, step, exec_);
  }
  std::vector<float> attend(std::int64_t layer, std::int64_t tokens, std::int64_t brought, float scale, selection const& kept) {
    cache_shape const& s = cache_.shape();
    std::vector<float> out(static_cast<std::size_t>(brought * s.q_heads * s.head_dim));
    layer_table_view const all = view(tokens);
    kvpolicy::attend(window(layer, tokens, brought, scale), all.keys({layer}), all.values({layer}), kept, terms,
                     table<float>{out.data(), brought * s.q_heads, s.head_dim, s.head_dim}, {}, exec_);
    return out;
  }
  void cut(std::int64_t tokens) { state_.cut(tokens); }
  selection choose(std::int64_t layer, std::int64_t tokens, float scale) {
    return state_.choose(view(tokens), {layer}, {queries(layer, scale), said_.ids[static_cast<std::size_t>(tokens - 1)]},
                         exec_);
  }
  std::vector<float> attend(std::int64_t layer, std::int64_t tokens, float scale, selection const& kept) {
    cache_shape const& s = cache_.shape();
    std::vector<float> out(static_cast<std::size_t>(s.q_heads * s.head_dim));
    layer_table_view const all = view(tokens);
    kvpolicy::attend(queries(layer, scale), all.keys({layer}), all.values({layer}), kept, terms,
                     table<float>{out.data(), s.q_heads, s.head_dim, s.head_dim}, {}, exec_);
    return out;
  }
  attention_terms terms;  ///< of all layers
  void observe() { state_.observe({said_.logits}, exec_); }
  range_list retained(std::int64_t layer, std::int64_t head) const { return state_.retained({layer}).of({head}); }
  rows const& keys(std::int64_t layer) const { return keys_[static_cast<std::size_t>(layer)]; }

 private:
  layer_table_view view(std::int64_t tokens) const { return {cache_.shape(), tokens, keys_.data(), values_.data()}; }
  query_heads queries(std::int64_t layer, float scale) const {
    cache_shape const& s = cache_.shape();
    return {said_.current[static_cast<std::size_t>(layer)].data(), s.q_heads, s.head_dim, scale};
  }

  named_host_policy named_;
  random_cache const& cache_;
  model_signals const& said_;
  host_request state_;
  simd_exec exec_;
  std::vector<rows> keys_;
  std::vector<rows> values_;
};

bool same(kvpolicy_range const* ranges, std::int64_t count, range_list const& list) {
  if (count != std::ssize(list)) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    token_range const& one = list[static_cast<std::size_t>(i)];
    if (ranges[i].begin != one.begin || ranges[i].end != one.end || ranges[i].why != static_cast<std::uint8_t>(one.why))
      return false;
  }
  return true;
}

/// A request through the C ABI beside its twin: everything that either says must be the same.
class pair {
 public:
  pair(std::string const& text, random_cache const& cache, model_signals const& said, std::vector<std::uint8_t> const& boundary)
      : cache_(cache), said_(said), policy_(parsed(text, boundary)), twin_(text, boundary, cache, said) {
    REQUIRE(policy_ != nullptr);
    needs_ = kvpolicy_policy_needs(policy_.get());
    window_ = kvpolicy_observation_queries(policy_.get());
    state_ = started(policy_, cache.shape());
    INFO(kvpolicy_message());
    REQUIRE(state_ != nullptr);
    c_tensor const slopes(said.slopes, {cache.shape().q_heads}), sinks(said.sinks, {cache.shape().q_heads});
    kvpolicy_terms const terms{3, &slopes.t, &sinks.t};
    for (std::int64_t l = 0; l < cache.shape().layers; ++l) {
      ok(bind(state_.get(), cache, l));
      if (said.adds) ok(kvpolicy_bind_terms(state_.get(), l, &terms));
    }
    if (said.adds) twin_.terms = {.soft_cap = 3, .slopes = said.slopes.data(), .sinks = said.sinks.data()};
    policy_.reset();  // the state lives on
  }

  void prefill(std::int64_t first, std::int64_t tokens, token_span const& repeats = {}) {
    cache_shape const& s = cache_.shape();
    std::int64_t const row = s.q_heads * s.head_dim;
    std::int64_t const queries = repeats.empty() ? std::min(window_, tokens) : tokens - first;
    unsigned with_queries = KVPOLICY_NEEDS_OBSERVATION_QUERIES;
    if (!repeats.empty()) with_queries |= KVPOLICY_NEEDS_REPETITION;
    for (std::int64_t l = 0; l < s.layers; ++l) {
      auto const& of_layer = said_.prompt[static_cast<std::size_t>(l)];
      std::vector<std::uint16_t> halves;
      for (float const x : of_layer) halves.push_back(float_to_half(x));
      std::vector<std::int64_t> const extents{queries, s.q_heads, s.head_dim};
      c_tensor const q = first == 0 ? c_tensor(of_layer.data() + (tokens - queries) * row, c_float, extents)
                                    : c_tensor(halves.data() + (tokens - queries) * row, c_dtype(element_type::f16), extents);
      c_tensor const frequencies(said_.frequencies, {std::ssize(said_.frequencies)});
      c_tensor const ids(said_.ids.data() + first, c_int, {tokens - first});
      kvpolicy_prompt const prompt{first,
                                   (needs_ & with_queries) != 0 ? &q.t : nullptr,
                                   scale,
                                   KVPOLICY_HALVES,
                                   (needs_ & KVPOLICY_NEEDS_ROTATION) != 0 ? &frequencies.t : nullptr,
                                   (needs_ & KVPOLICY_NEEDS_TOKEN_IDS) != 0 ? &ids.t : nullptr,
                                   repeats.begin,
                                   repeats.end};
      ok(kvpolicy_prefill(state_.get(), l, tokens, &prompt));
      twin_.prefill(l, first, tokens, queries, scale, repeats);
      compare_retained(l);
    }
  }

  void step(std::int64_t tokens) {
    cache_shape const& s = cache_.shape();
    for (std::int64_t l = 0; l < s.layers; ++l) {
      auto const& mine = said_.current[static_cast<std::size_t>(l)];
      c_tensor const q(mine, {s.q_heads, s.head_dim});
      std::int32_t const id = said_.ids[static_cast<std::size_t>(tokens - 1)];
      ok(kvpolicy_choose(state_.get(), l, tokens, (needs_ & KVPOLICY_NEEDS_QUERIES) != 0 ? &q.t : nullptr, scale, id));
      selection const kept = twin_.choose(l, tokens, scale);
      compare_lists(l, tokens, kept);
      std::vector<float> out(mine.size(), -1);
      c_tensor const to(out, {s.q_heads, s.head_dim});
      ok(kvpolicy_attend(state_.get(), l, q, scale, to));
      REQUIRE(out == twin_.attend(l, tokens, scale, kept));
    }
    observe();
  }

  /// The engine removed what is behind the first `tokens`.
  void cut(std::int64_t tokens) {
    ok(kvpolicy_cut(state_.get(), tokens));
    twin_.cut(tokens);
  }

  /// A step that brings the last of so many tokens, of which the first `stay` stay.
  void several(std::int64_t tokens, std::int64_t brought, std::int64_t stay) {
    cache_shape const& s = cache_.shape();
    for (std::int64_t l = 0; l < s.layers; ++l) {
      c_tensor const q(twin_.window(l, tokens, brought, scale).data, c_float, {brought, s.q_heads, s.head_dim});
      std::int32_t const* const ids = said_.ids.data() + tokens - brought;
      ok(kvpolicy_choose_several(state_.get(), l, tokens, brought, (needs_ & KVPOLICY_NEEDS_QUERIES) != 0 ? &q.t : nullptr,
                                 scale, (needs_ & KVPOLICY_NEEDS_TOKEN_IDS) != 0 ? ids : nullptr));
      selection const kept = twin_.choose(l, tokens, brought, scale);
      compare_lists(l, tokens, kept);
      std::vector<float> out(static_cast<std::size_t>(brought * s.q_heads * s.head_dim), -1);
      c_tensor const to(out, {brought, s.q_heads, s.head_dim});
      ok(kvpolicy_attend(state_.get(), l, q, scale, to));
      REQUIRE(out == twin_.attend(l, tokens, brought, scale, kept));
    }
    for (std::int64_t i = 0; i < stay; ++i) observe();
  }

 private:
  static constexpr float scale = .25f;

  static void ok(kvpolicy_status status) {
    INFO(kvpolicy_message());
    REQUIRE(status == KVPOLICY_OK);
  }
  void observe() {
    c_tensor const logits(said_.logits, {vocabulary});
    ok(kvpolicy_observe(state_.get(), (needs_ & KVPOLICY_NEEDS_LOGITS) != 0 ? &logits.t : nullptr));
    twin_.observe();
  }
  void compare_lists(std::int64_t layer, std::int64_t tokens, selection const& kept) {
    for (std::int64_t h = 0; h < cache_.shape().kv_heads; ++h) {
      kvpolicy_range const* ranges = nullptr;
      std::int64_t count = -1;
      ok(kvpolicy_list(state_.get(), layer, h, &ranges, &count));
      REQUIRE(same(ranges, count, kept.of({h})));
      compare_pages(layer, h, tokens, kept.of({h}));
    }
    compare_retained(layer);
  }
  void compare_retained(std::int64_t layer) {
    for (std::int64_t h = 0; h < cache_.shape().kv_heads; ++h) {
      kvpolicy_range const* ranges = nullptr;
      std::int64_t count = -1;
      ok(kvpolicy_retained(state_.get(), layer, h, &ranges, &count));
      REQUIRE(same(ranges, count, twin_.retained(layer, h)));
    }
  }
  void compare_pages(std::int64_t layer, std::int64_t head, std::int64_t tokens, range_list const& list) {
    rows const& keys = twin_.keys(layer);
    std::vector<std::int32_t> out(static_cast<std::size_t>(tokens));
    std::vector<std::int32_t> expected(out.size());
    std::int64_t count = 0;
    std::int32_t last = 0;
    kvpolicy_status const status = kvpolicy_page_table(state_.get(), layer, head, out.data(), std::ssize(out), &count, &last);
    if (keys.pages == nullptr) {
      REQUIRE(status == KVPOLICY_INVALID);
      return;
    }
    auto const pages = static_cast<std::size_t>((keys.tokens + keys.page_size - 1) / keys.page_size);
    try {
      page_list const written = page_table(list, keys.page_size, {keys.pages, pages}, expected);
      ok(status);
      REQUIRE(count == written.count);
      REQUIRE(last == written.last_page_tokens);
      REQUIRE(std::equal(out.begin(), out.begin() + count, expected.begin()));
    } catch (invalid_value const& e) {
      REQUIRE(status == KVPOLICY_INVALID);
      REQUIRE(std::string(kvpolicy_message()) == e.what());
    }
  }

  random_cache const& cache_;
  model_signals const& said_;
  c_policy policy_;
  twin twin_;
  c_state state_;
  unsigned needs_ = 0;
  std::int64_t window_ = 0;
};

TEST_CASE("every policy chooses through the C ABI what it chooses through the headers: any type, layout and history", "[c]") {
  random_source random(7301);
  for (int round = 0; round < 10; ++round) {
    cache_shape shape = random_shape(random, 200, random.between(1, 3));
    shape.max_tokens = random.between(150, 200);
    shape.head_dim = 2 * random.between(1, 20);
    shape.type = types[static_cast<std::size_t>(round) % types.size()];
    random_cache cache(shape, layouts[static_cast<std::size_t>(round) % layouts.size()],
                       random.pick(std::array<std::int64_t, 4>{1, 8, 16, 7}), random);
    std::vector<std::uint8_t> boundary(vocabulary);
    for (auto& b : boundary) b = random.one_in(8) ? 1 : 0;
    boundary.back() = 1;
    for (std::string const& text : policies(shape)) {
      INFO("round " << round << ", " << text);
      model_signals said(shape, random);
      said.adds = round % 2 == 1;
      pair both(text, cache, said, boundary);
      std::int64_t const first = random.between(1, 60);
      std::int64_t tokens = random.between(80, 120);
      both.prefill(0, first);
      both.prefill(first, tokens);
      if (text.starts_with("kvzip")) {
        both.prefill(tokens, tokens + 9, {0, first});
        both.prefill(tokens, tokens + 12, {first, tokens});
      }
      for (int s = 0; s < 20; ++s) {
        said.step(random);
        if (s == 9) both.cut(tokens -= random.between(1, 5));
        both.step(++tokens);
        if (s % 4 != 3) continue;
        std::int64_t const brought = random.between(1, 6);
        std::int64_t const stay = random.between(1, std::min<std::int64_t>(brought, 3));
        both.several(tokens + brought, brought, stay);
        tokens += stay;
      }
      both.prefill(0, tokens / 2);  // a new prompt in the same state
      said.step(random);
      both.step(tokens / 2 + 1);
    }
  }
}

TEST_CASE("a sequence of a Hugging Face batch is a pointer and strides: a slice by byte offset", "[c]") {
  random_source random(7302);
  constexpr std::int64_t batch = 3;
  cache_shape const shape{1, 4, 2, 8, 64, element_type::f32};
  std::vector<float> const keys = random.reals(batch * 2 * 64 * 8);  // [batch, kv_heads, tokens, head_dim]
  std::vector<float> const values = random.reals(batch * 2 * 64 * 8);
  c_policy const policy = parsed("knorm:tokens=20");
  for (std::int64_t b = 0; b < batch; ++b) {
    c_state const state = started(policy, shape);
    c_tensor k(keys, {2, 64, 8}, {64 * 8, 8, 1});
    c_tensor v(values, {2, 64, 8}, {64 * 8, 8, 1});
    k.t.byte_offset = v.t.byte_offset = static_cast<std::uint64_t>(b * 2 * 64 * 8 * 4);
    REQUIRE(kvpolicy_bind(state.get(), 0, k, v, nullptr) == KVPOLICY_OK);
    kvpolicy_prompt const prompt{};
    REQUIRE(kvpolicy_prefill(state.get(), 0, 50, &prompt) == KVPOLICY_OK);
    for (std::int64_t h = 0; h < 2; ++h) {
      std::vector<std::pair<double, std::int32_t>> norms;  // the definition: the 20 smallest, ties to the lower index
      for (std::int32_t t = 0; t < 50; ++t) {
        double sum = 0;
        for (std::int64_t d = 0; d < 8; ++d) {
          double const x = keys[static_cast<std::size_t>(((b * 2 + h) * 64 + t) * 8 + d)];
          sum += x * x;
        }
        norms.emplace_back(sum, t);
      }
      std::sort(norms.begin(), norms.end());
      std::vector<std::int32_t> expected;
      for (std::size_t i = 0; i < 20; ++i) expected.push_back(norms[i].second);
      std::sort(expected.begin(), expected.end());
      kvpolicy_range const* ranges = nullptr;
      std::int64_t count = 0;
      REQUIRE(kvpolicy_retained(state.get(), 0, h, &ranges, &count) == KVPOLICY_OK);
      std::vector<std::int32_t> kept;
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int32_t t = ranges[i].begin; t < ranges[i].end; ++t) kept.push_back(t);
      }
      REQUIRE(kept == expected);
    }
  }
}

TEST_CASE("every name that is listed parses, says what it needs, and says so again in the header's flags", "[c]") {
  int names = 0;
  for (char const* const* name = kvpolicy_policies(); *name != nullptr; ++name, ++names) {
    c_policy const policy = parsed(*name);
    INFO(*name);
    REQUIRE(policy != nullptr);
    named_host_policy const same_one = known_policies().parse(*name);
    REQUIRE(kvpolicy_policy_needs(policy.get()) == static_cast<unsigned>(needs_of(same_one.policy)));
    REQUIRE(kvpolicy_observation_queries(policy.get()) == observation_queries(same_one.policy));
  }
  REQUIRE(names == static_cast<int>(known_policies().entries().size()));
  REQUIRE(kvpolicy_policy_needs(nullptr) == 0);
  REQUIRE(kvpolicy_observation_queries(nullptr) == 0);
  REQUIRE(std::string(kvpolicy_version()).find('.') != std::string::npos);
}

TEST_CASE("messages belong to a thread, and states on different threads do not meet", "[c]") {
  cache_shape const shape{2, 4, 2, 16, 128, element_type::f32};
  random_source random(7303);
  random_cache const cache(shape, layout::head_major, 8, random);
  model_signals const said(shape, random);
  REQUIRE(parsed("no_such_policy") == nullptr);
  std::string const before = kvpolicy_message();
  REQUIRE(before.find("no_such_policy") != std::string::npos);
  c_policy const policy = parsed("quest:tokens=32,page=8");
  std::vector<std::vector<kvpolicy_range>> found(4);
  std::vector<std::string> messages(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] {
      messages[i] = kvpolicy_message();
      c_state const state = started(policy, shape);
      kvpolicy_prompt const prompt{};
      for (std::int64_t l = 0; l < 2; ++l) bind(state.get(), cache, l);
      for (std::int64_t l = 0; l < 2; ++l) kvpolicy_prefill(state.get(), l, 100, &prompt);
      c_tensor const q(said.current[0], {4, 16});
      kvpolicy_choose(state.get(), 0, 101, q, 1, -1);
      kvpolicy_range const* ranges = nullptr;
      std::int64_t count = 0;
      kvpolicy_list(state.get(), 0, 1, &ranges, &count);
      found[i].assign(ranges, ranges + count);
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(!found[0].empty());
  for (std::size_t i = 0; i < found.size(); ++i) {
    REQUIRE(messages[i].empty());
    REQUIRE(found[i].size() == found[0].size());
    REQUIRE(
        std::equal(found[i].begin(), found[i].end(), found[0].begin(), [](kvpolicy_range const& a, kvpolicy_range const& b) {
          return a.begin == b.begin && a.end == b.end && a.why == b.why;
        }));
  }
  REQUIRE(kvpolicy_message() == before);
}

}  // namespace
}  // namespace kvpolicy_test
