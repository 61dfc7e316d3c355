// Decoders behind the C ABI, on a CUDA device or what stands for one: the lists and outputs of captured steps are those of the
// library's states in host memory.
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "c/c_api.hpp"
#include "cuda/batch_run.hpp"

namespace kvpolicy_test {
namespace {

constexpr std::int64_t sequences = 2;
constexpr std::int64_t page = 8;
constexpr cache_shape decoder_shape{
    .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .max_tokens = 160, .type = element_type::f16};
constexpr float scale = .125f;

struct frees_decoder {
  void operator()(kvpolicy_decoder* decoder) const { kvpolicy_decoder_free(decoder); }
};
using c_decoder = std::unique_ptr<kvpolicy_decoder, frees_decoder>;

c_decoder decoding(std::string const& text, std::vector<std::uint8_t> const& boundary = {}, std::int32_t step_tokens = 0,
                   std::int64_t rows = 0) {
  kvpolicy_shape const sizes = c_shape(decoder_shape);
  kvpolicy_decoder_options const options{
      .sequences = sequences, .rows = rows, .workspace = 0, .stream = test_stream(), .device = 0, .step_tokens = step_tokens};
  kvpolicy_decoder* made = nullptr;
  kvpolicy_decoder_start(parsed(text, boundary).get(), &sizes, &options, &made);
  return c_decoder(made);
}

/// A tensor on the device.
template <class T>
c_tensor there(shared_vector<T> const& shared, kvpolicy_dtype dtype, std::vector<std::int64_t> extents, std::int64_t first = 0,
               std::vector<std::int64_t> steps = {}) {
  return {on_device(shared).data + first, dtype, std::move(extents), std::move(steps), {2, 0}};
}

/// Caches on the device and the host, keys `[layers][pages][kv_heads][page][head_dim]`, values `[layers][pages][page][kv_heads]
/// [head_dim]`, and page tables in any order.
struct engine_memory {
  static constexpr std::int64_t pages = sequences * 20;
  static constexpr std::int64_t of_layer = pages * decoder_shape.kv_heads * page * decoder_shape.head_dim;
  shared_vector<std::uint16_t> keys = shared_vector<std::uint16_t>(decoder_shape.layers * of_layer), values = keys;
  shared_vector<std::int32_t> tables = shared_vector<std::int32_t>(pages);  ///< `[sequences, 20]`
  std::int64_t rows;
  shared_vector<std::int32_t> tables_of_rows;  ///< `[rows, 20]`
  random_source random{77};

  explicit engine_memory(std::int64_t of_batch = sequences) : rows(of_batch) {
    for (std::size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<std::int32_t>(i * 13 % pages);
    tables_of_rows = tables;
    tables_of_rows.resize(static_cast<std::size_t>(rows * 20), -1);
  }
  /// Each sequence's table moves to a row.
  void arrange(std::vector<std::int64_t> const& row_of) {
    std::ranges::fill(tables_of_rows, -1);
    for (std::size_t s = 0; s < row_of.size(); ++s)
      std::copy_n(tables.begin() + static_cast<std::int64_t>(s) * 20, 20, tables_of_rows.begin() + row_of[s] * 20);
  }
  void write(std::int64_t sequence, std::int64_t token) {
    std::int64_t const at = tables[static_cast<std::size_t>(sequence * 20 + token / page)];
    for (std::int64_t l = 0; l < decoder_shape.layers; ++l) {
      for (std::int64_t h = 0; h < decoder_shape.kv_heads; ++h) {
        std::int64_t const key =
            l * of_layer + ((at * decoder_shape.kv_heads + h) * page + token % page) * decoder_shape.head_dim;
        std::int64_t const value =
            l * of_layer + ((at * page + token % page) * decoder_shape.kv_heads + h) * decoder_shape.head_dim;
        for (std::int64_t d = 0; d < decoder_shape.head_dim; ++d) {
          keys[static_cast<std::size_t>(key + d)] = float_to_half(static_cast<float>(random.between(-2, 2)));
          values[static_cast<std::size_t>(value + d)] = float_to_half(static_cast<float>(random.between(-2, 2)));
        }
      }
    }
  }
  static std::vector<std::int64_t> extents() { return {pages, decoder_shape.kv_heads, page, decoder_shape.head_dim}; }
  static std::vector<std::int64_t> value_steps() {
    constexpr std::int64_t token = decoder_shape.kv_heads * decoder_shape.head_dim;
    return {page * token, decoder_shape.head_dim, token, 1};
  }
  /// A state's rows of one sequence, on the host.
  void bind(kvpolicy_state* state, std::int64_t sequence) {
    for (std::int64_t l = 0; l < decoder_shape.layers; ++l) {
      c_tensor const k(keys.data() + l * of_layer, c_dtype(decoder_shape.type), extents());
      c_tensor const v(values.data() + l * of_layer, c_dtype(decoder_shape.type), extents(), value_steps());
      c_tensor const table(tables.data() + sequence * 20, c_int, {20});
      REQUIRE(kvpolicy_bind(state, l, &k.t, &v.t, &table.t) == KVPOLICY_OK);
    }
  }
  kvpolicy_status bind(kvpolicy_decoder* decoder, std::int64_t layer) {
    c_tensor const k = there(keys, c_dtype(decoder_shape.type), extents(), layer * of_layer);
    c_tensor const v = there(values, c_dtype(decoder_shape.type), extents(), layer * of_layer, value_steps());
    c_tensor const table = there(tables_of_rows, c_int, {rows, 20});
    return kvpolicy_decoder_bind(decoder, layer, &k.t, &v.t, &table.t);
  }
};

/// Tokens of a list on the device, and of one of a state.
std::vector<std::int64_t> listed(gpu_device const& device, kvpolicy_device_lists const& lists, std::int64_t slot,
                                 std::int64_t head) {
  std::int64_t const at = slot * lists.lists + (lists.lists == 1 ? 0 : head);
  auto const number = [&](std::int32_t const* from, std::int64_t i) {
    return device.read(gpu::buffer<std::int32_t const>{from, 0}, i, 1)[0];
  };
  std::vector<std::int64_t> made;
  for (std::int32_t i = 0, count = lists.named == nullptr ? 0 : number(lists.named, at); i < count; ++i)
    made.push_back(number(lists.units, at * lists.stride + i / lists.unit_size) * lists.unit_size + i % lists.unit_size);
  std::int64_t const tail = lists.tail == nullptr ? lists.tail_of_all : number(lists.tail, lists.tails == 1 ? slot : at);
  for (std::int64_t t = tail; t < number(lists.tokens, slot); ++t) made.push_back(t);
  return made;
}
std::vector<std::int64_t> listed(kvpolicy_state* state, std::int64_t layer, std::int64_t head) {
  kvpolicy_range const* ranges = nullptr;
  std::int64_t count = 0;
  REQUIRE(kvpolicy_list(state, layer, head, &ranges, &count) == KVPOLICY_OK);
  std::vector<std::int64_t> made;
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t t = ranges[i].begin; t < ranges[i].end; ++t) made.push_back(t);
  }
  return made;
}

/// Steps of up to so many tokens a sequence; `moves`: rows are other ones at every step, and one of them is nobody's; `adds`:
/// the model has a soft cap, slopes and sinks.
void decode_beside_states(std::string const& text, std::int32_t step_tokens = 1, bool moves = false, bool adds = false) {
  CAPTURE(text, step_tokens, moves);
  constexpr std::int64_t vocabulary = 30;
  std::int64_t const rows = sequences + (moves ? 1 : 0);
  std::vector<std::uint8_t> const boundary{0, 0, 1};
  engine_memory memory(rows);
  random_source& random = memory.random;
  gpu_device device;
  c_decoder const decoder = decoding(text, boundary, step_tokens, moves ? rows : 0);
  INFO(kvpolicy_message());
  REQUIRE(decoder != nullptr);
  for (std::int64_t l = 0; l < decoder_shape.layers; ++l) REQUIRE(memory.bind(decoder.get(), l) == KVPOLICY_OK);
  shared_vector<float> const slopes{-.5f, .25f, 0, 1}, sinks{1, -2, 3, 0};
  c_tensor const slopes_there = there(slopes, c_float, {decoder_shape.q_heads});
  c_tensor const sinks_there = there(sinks, c_float, {decoder_shape.q_heads});
  kvpolicy_terms const terms_there{2.5f, &slopes_there.t, &sinks_there.t};
  if (adds) REQUIRE(kvpolicy_decoder_bind_terms(decoder.get(), 1, &terms_there) == KVPOLICY_OK);

  std::int64_t const size = decoder_shape.q_heads * decoder_shape.head_dim;
  std::int64_t const of_layer = rows * step_tokens * size;
  shared_vector<float> queries(static_cast<std::size_t>(decoder_shape.layers * of_layer)), out(queries.size(), 7);
  shared_vector<float> logits(static_cast<std::size_t>(rows * step_tokens * vocabulary));
  shared_vector<std::int32_t> ids(static_cast<std::size_t>(rows * step_tokens));
  std::vector<kvpolicy_device_lists> lists(decoder_shape.layers);
  auto const axes = [&](std::vector<std::int64_t> others) {
    if (step_tokens > 1) others.insert(others.begin(), step_tokens);
    others.insert(others.begin(), rows);
    return others;
  };
  auto const heads = [&](shared_vector<float> const& of, std::int64_t layer) {
    return there(of, c_float, axes({decoder_shape.q_heads, decoder_shape.head_dim}), layer * of_layer);
  };
  std::int32_t asked = 0;
  bool stands = false;
  auto const enqueue = [&] {
    bool fine = true;
    bool const decides = (asked & KVPOLICY_STEP_DECIDES) != 0;
    c_tensor const token_ids = there(ids, c_int, axes({}));
    for (std::int64_t l = 0; l < decoder_shape.layers; ++l) {
      c_tensor const q = heads(queries, l), o = heads(out, l);
      auto* const into = &lists[static_cast<std::size_t>(l)];
      fine = fine && (!decides || kvpolicy_decoder_decide(decoder.get(), l, &q.t, scale) == KVPOLICY_OK);
      kvpolicy_status const chosen = stands ? kvpolicy_decoder_standing(decoder.get(), l, into)
                                            : kvpolicy_decoder_choose(decoder.get(), l, &q.t, scale, &token_ids.t, into);
      fine = fine && chosen == KVPOLICY_OK && kvpolicy_decoder_attend(decoder.get(), l, &q.t, scale, &o.t) == KVPOLICY_OK;
      fine = fine && (stands || kvpolicy_decoder_renew(decoder.get(), l, &q.t, scale) == KVPOLICY_OK);
    }
    c_tensor const all = there(logits, c_float, axes({vocabulary}));
    INFO(kvpolicy_message());
    REQUIRE(fine);
    REQUIRE(kvpolicy_decoder_observe(decoder.get(), &all.t) == KVPOLICY_OK);
  };
  auto const settle = [&] { REQUIRE(kvpolicy_decoder_settle(decoder.get(), scale) == KVPOLICY_OK); };
  bool const later = text.find("next_step=1") != std::string::npos;  // lists are the next step's once renew() was enqueued
  captured_step step, idle_step, settled;
  std::vector<std::int32_t> tokens(sequences, 0), brought(sequences, 1);
  std::vector<std::int64_t> row_of(sequences);
  for (std::int64_t s = 0; s < sequences; ++s) row_of[static_cast<std::size_t>(s)] = s;
  auto const plan = [&] {
    if (!moves) return kvpolicy_decoder_plan(decoder.get(), rows, tokens.data(), brought.data(), nullptr, &asked);
    std::vector<std::int32_t> slots, lengths, new_ones;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::size_t s = 0; s < tokens.size(); ++s) {
        if (row_of[s] != r || tokens[s] == 0) continue;
        row_of[s] = std::ssize(slots);  // nobody's is the last
        slots.push_back(static_cast<std::int32_t>(s));
        lengths.push_back(tokens[s]);
        new_ones.push_back(brought[s]);
      }
    }
    memory.arrange(row_of);
    return kvpolicy_decoder_plan(decoder.get(), std::ssize(slots), lengths.data(), new_ones.data(), slots.data(), &asked);
  };
  REQUIRE(plan() == KVPOLICY_OK);
  device.send();
  step.run(test_stream(), enqueue);  // captured before anybody is there
  if (step_tokens > 1) settled.run(test_stream(), settle);

  std::vector<c_state> states;
  std::vector<float> const frequencies(decoder_shape.head_dim / 2);  // keys that turn are no whole numbers
  for (std::int64_t s = 0; s < sequences; ++s) {
    auto const n = static_cast<std::int32_t>(90 + 30 * s);
    for (std::int64_t t = 0; t < n; ++t) memory.write(s, t);
    if (moves) row_of[static_cast<std::size_t>(s)] = rows - 1 - s;
    memory.arrange(row_of);
    device.send();
    states.push_back(started(parsed(text, boundary), decoder_shape));
    memory.bind(states.back().get(), s);
    c_tensor const slopes_here(slopes.data(), c_float, {decoder_shape.q_heads});
    c_tensor const sinks_here(sinks.data(), c_float, {decoder_shape.q_heads});
    kvpolicy_terms const terms{2.5f, &slopes_here.t, &sinks_here.t};
    if (adds) REQUIRE(kvpolicy_bind_terms(states.back().get(), 1, &terms) == KVPOLICY_OK);
    std::vector<float> window(static_cast<std::size_t>(n * size));
    for (float& x : window) x = static_cast<float>(random.between(-1, 1));
    shared_vector<std::uint16_t> halves;  // the decoder's second piece has them like this, on the device
    for (float const x : window) halves.push_back(float_to_bfloat(x));
    device.send();
    std::vector<std::int32_t> prompt_ids(static_cast<std::size_t>(n));
    for (std::int32_t& id : prompt_ids) id = static_cast<std::int32_t>(random.between(0, 9));
    c_tensor const turns(frequencies, {decoder_shape.head_dim / 2});
    for (std::int64_t first : {0, 50}) {  // in two pieces
      std::int64_t const last = first == 0 ? 50 : n;
      c_tensor const q(window, {last, decoder_shape.q_heads, decoder_shape.head_dim});
      c_tensor const of_piece(prompt_ids.data() + first, c_int, {last - first});
      kvpolicy_prompt const prompt{first, &q.t, scale, KVPOLICY_HALVES, &turns.t, &of_piece.t, 0, 0};
      c_tensor const narrow = there(halves, c_dtype(element_type::bf16), {last, decoder_shape.q_heads, decoder_shape.head_dim});
      kvpolicy_prompt of_decoder = prompt;
      if (first > 0) of_decoder.queries = &narrow.t;
      for (std::int64_t l = 0; l < decoder_shape.layers; ++l) {
        std::int64_t const row = moves ? row_of[static_cast<std::size_t>(s)] : -1;
        REQUIRE(kvpolicy_decoder_prefill(decoder.get(), s, row, l, last, &of_decoder) == KVPOLICY_OK);
        REQUIRE(kvpolicy_prefill(states.back().get(), l, last, &prompt) == KVPOLICY_OK);
      }
    }
    tokens[static_cast<std::size_t>(s)] = n;
  }
  for (int round = 0; round < 6; ++round) {
    bool const pauses = round == 3;  // the second one
    std::int32_t const before = tokens[1];
    for (std::size_t s = 0; s < sequences; ++s) {
      brought[s] = static_cast<std::int32_t>(random.between(1, step_tokens));
      for (std::int32_t i = 0; i < brought[s]; ++i) memory.write(static_cast<std::int64_t>(s), tokens[s] + i);
      tokens[s] += brought[s];
    }
    if (pauses) tokens[1] = gpu::paused;
    for (float& x : queries) x = static_cast<float>(random.between(-2, 2));
    for (float& x : logits) x = random.real();
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.between(0, 9));
    if (moves) std::swap(row_of[0], row_of[1]);
    REQUIRE(plan() == KVPOLICY_OK);
    device.send();
    stands = (asked & KVPOLICY_STEP_IDLE) != 0 && round % 2 == 1;
    if ((asked & KVPOLICY_STEP_UNSETTLED) != 0) settled.run(test_stream(), settle);
    if ((asked & KVPOLICY_STEP_DECIDES) != 0) enqueue();
    else (stands ? idle_step : step).run(test_stream(), enqueue);
    device.wait();
    for (std::int64_t s = 0; s < sequences; ++s) {
      std::int64_t const row = row_of[static_cast<std::size_t>(s)] * step_tokens;
      if (pauses && s == 1) {
        REQUIRE(out[static_cast<std::size_t>(row * size)] == 0);
        tokens[1] = before;
        continue;
      }
      kvpolicy_state* const state = states[static_cast<std::size_t>(s)].get();
      std::int32_t& now = tokens[static_cast<std::size_t>(s)];
      std::int32_t const first_new = now - brought[static_cast<std::size_t>(s)];
      auto const stay = static_cast<std::int32_t>(random.between(1, brought[static_cast<std::size_t>(s)]));
      // The first token chooses; what stays of the others teaches the policy.
      for (std::int32_t i = 0; i < stay; ++i) {
        for (std::int64_t l = 0; l < decoder_shape.layers; ++l) {
          std::int64_t const first = l * of_layer + (row + i) * size;
          c_tensor const q(queries.data() + first, c_float, {decoder_shape.q_heads, decoder_shape.head_dim});
          REQUIRE(kvpolicy_choose(state, l, first_new + i + 1, &q.t, scale, ids[static_cast<std::size_t>(row + i)]) ==
                  KVPOLICY_OK);
          if (i > 0) continue;
          std::vector<float> want(static_cast<std::size_t>(size));
          c_tensor const to(want, {decoder_shape.q_heads, decoder_shape.head_dim});
          REQUIRE(kvpolicy_attend(state, l, &q.t, scale, &to.t) == KVPOLICY_OK);
          for (std::int64_t h = 0; h < decoder_shape.kv_heads && !later; ++h) {
            std::vector<std::int64_t> read = listed(state, l, h);
            for (std::int64_t t = first_new + 1; t < now; ++t) read.push_back(t);
            REQUIRE(listed(device, lists[static_cast<std::size_t>(l)], s, h) == read);
          }
          for (std::int64_t at = 0; at < size; ++at)
            REQUIRE(std::abs(out[static_cast<std::size_t>(first + at)] - want[static_cast<std::size_t>(at)]) <= 1e-4f);
        }
        c_tensor const last(logits.data() + (row + i) * vocabulary, c_float, {vocabulary});
        REQUIRE(kvpolicy_observe(state, &last.t) == KVPOLICY_OK);
      }
      now = first_new + stay;
    }
  }
}

TEST_CASE("a decoder behind the C ABI chooses and attends as states in host memory do", "[c]") {
  for (char const* const text : {"full", "quest:paper,tokens=64,page=8", "snapkv:tokens=40,after=0", "snapkv:tokens=40,after=2",
                                 "streaming_llm:tokens=50", "h2o:tokens=60", "tova:tokens=60", "infllm:tokens=64",
                                 "sentencekv:tokens=40,after=0", "chess:tokens=64", "quest:tokens=40,page=8,after=3",
                                 "chess:tokens=64,after=2", "snapkv:tokens=64,after=0+quest:paper,tokens=40,page=8",
                                 "sentencekv:tokens=40,after=2", "twilight:tokens=40", "rkv:tokens=40,window=4,every=3",
                                 "rocketkv:tokens=24,kept=48,after=2", "snapkv:tokens=64,after=3+quest:tokens=40,page=8"})
    decode_beside_states(text);
  decode_beside_states("duoattention:tokens=40,sinks=2,recent=8,heads=" + profile_path(decoder_shape));
  decode_beside_states("heterocache:tokens=60,after=2,profile=" + profile_path(decoder_shape));
  for (char const* const serves : {"0", "1"})
    decode_beside_states("heterocache:tokens=60,window=3,every=3,after=0,next_step=" + std::string(serves) +
                         ",profile=" + profile_path(decoder_shape));
}

TEST_CASE("a decoder behind the C ABI takes several tokens a step, in rows that move", "[c]") {
  for (char const* const text : {"quest:paper,tokens=64,page=8", "sentencekv:tokens=40,after=0", "h2o:tokens=60"})
    decode_beside_states(text, 3, true);
  for (char const* const text : {"full", "chess:tokens=64"}) decode_beside_states(text, 2);
  decode_beside_states("snapkv:tokens=40,after=2", 1, true);
}

TEST_CASE("a decoder behind the C ABI adds to attention what a model adds", "[c]") {
  decode_beside_states("full", 2, true, true);
  decode_beside_states("quest:paper,tokens=64,page=8", 1, false, true);
}

TEST_CASE("a decoder behind the C ABI takes 16-bit queries with strides, and slots that come and go", "[c]") {
  engine_memory memory;
  gpu_device device;
  c_decoder const decoder = decoding("full");
  for (std::int64_t l = 0; l < decoder_shape.layers; ++l) REQUIRE(memory.bind(decoder.get(), l) == KVPOLICY_OK);
  std::int64_t const heads = decoder_shape.q_heads, dim = decoder_shape.head_dim;
  shared_vector<std::uint16_t> queries(static_cast<std::size_t>(sequences * (heads + 1) * dim)), out(queries.size());
  shared_vector<float> whole(static_cast<std::size_t>(sequences * heads * dim)), exact(whole.size());
  for (std::int64_t i = 0; i < std::ssize(whole); ++i) {
    std::int64_t const s = i / (heads * dim);
    whole[static_cast<std::size_t>(i)] = static_cast<float>(memory.random.between(-2, 2));
    queries[static_cast<std::size_t>(i + s * dim)] = float_to_bfloat(whole[static_cast<std::size_t>(i)]);
  }
  std::vector<std::int64_t> const extents{sequences, heads, dim}, steps{(heads + 1) * dim, dim, 1};
  c_tensor const narrow = there(queries, c_dtype(element_type::bf16), extents, 0, steps);
  c_tensor const narrow_out = there(out, c_dtype(element_type::bf16), extents, 0, steps);
  c_tensor const wide = there(whole, c_float, extents), wide_out = there(exact, c_float, extents);
  kvpolicy_prompt const prompt{};
  std::vector<std::int32_t> tokens(sequences);
  for (std::int32_t const first : {60, 30}) {  // the second prompt takes the slot of the first
    for (std::int32_t t = 0; t <= first; ++t) memory.write(0, t);
    device.send();
    for (std::int64_t l = 0; l < decoder_shape.layers; ++l)
      REQUIRE(kvpolicy_decoder_prefill(decoder.get(), 0, -1, l, first, &prompt) == KVPOLICY_OK);
    tokens[0] = first + 1;
    REQUIRE(kvpolicy_decoder_plan(decoder.get(), sequences, tokens.data(), nullptr, nullptr, nullptr) == KVPOLICY_OK);
    REQUIRE(kvpolicy_decoder_choose(decoder.get(), 0, nullptr, scale, nullptr, nullptr) == KVPOLICY_OK);
    REQUIRE(kvpolicy_decoder_attend(decoder.get(), 0, &narrow.t, scale, &narrow_out.t) == KVPOLICY_OK);
    REQUIRE(kvpolicy_decoder_attend(decoder.get(), 0, &wide.t, scale, &wide_out.t) == KVPOLICY_OK);
    device.wait();
    float largest = 0;
    for (std::int64_t i = 0; i < heads * dim; ++i) {
      float const want = exact[static_cast<std::size_t>(i)];
      largest = std::max(largest, std::abs(want));
      REQUIRE(std::abs(bfloat_to_float(out[static_cast<std::size_t>(i)]) - want) <= std::abs(want) / 128 + 1e-6f);
    }
    REQUIRE(largest > .1f);
    REQUIRE(out[static_cast<std::size_t>((heads + 1) * dim)] == 0);  // nobody is in the second slot
    tokens[0] = 0;
    REQUIRE(kvpolicy_decoder_plan(decoder.get(), sequences, tokens.data(), nullptr, nullptr, nullptr) == KVPOLICY_OK);
  }
}

TEST_CASE("a decoder behind the C ABI refuses what it can't take, and says why", "[c]") {
  auto const why = [](kvpolicy_status status, kvpolicy_status want) {
    INFO(kvpolicy_message());
    REQUIRE(status == want);
    return std::string(kvpolicy_message());
  };
  auto const says = [](std::string const& message, std::string const& part) {
    INFO(message);
    REQUIRE(message.find(part) != std::string::npos);
  };
  kvpolicy_shape const sizes = c_shape(decoder_shape);
  kvpolicy_decoder* made = nullptr;
  auto const start = [&](std::string const& text, std::int64_t count = sequences, std::int32_t device = 0,
                         std::int64_t workspace = 0, std::int32_t step_tokens = 0) {
    kvpolicy_decoder_options const options{.sequences = count,
                                           .rows = 0,
                                           .workspace = workspace,
                                           .stream = test_stream(),
                                           .device = device,
                                           .step_tokens = step_tokens};
    return kvpolicy_decoder_start(parsed(text).get(), &sizes, &options, &made);
  };
  says(why(start("quest:tokens=64,trigger=every:4"), KVPOLICY_UNSUPPORTED), "trigger");
  says(why(start("h2o:tokens=64+quest:tokens=40"), KVPOLICY_UNSUPPORTED), "has no decoder");
  says(why(start("quest:tokens=64", 0), KVPOLICY_INVALID), "0 sequences");
  says(why(start("quest:tokens=64", 2, 1), KVPOLICY_INVALID), "device 1");
  says(why(start("quest:tokens=64", 2, 0, -1), KVPOLICY_INVALID), "workspace");
  says(why(start("quest:tokens=64", 2, 0, 0, 17), KVPOLICY_INVALID), "up to 17 tokens");
  says(why(start("snapkv:tokens=64,after=2", 2, 0, 0, 4), KVPOLICY_UNSUPPORTED), "waits for 2 tokens");
  REQUIRE(made == nullptr);
  REQUIRE(kvpolicy_decoder_plan(nullptr, 0, nullptr, nullptr, nullptr, nullptr) == KVPOLICY_INVALID);

  engine_memory memory;
  for (std::int64_t t = 0; t < 20; ++t) memory.write(0, t);
  gpu_device().send();
  c_decoder const decoder = decoding("quest:tokens=64,page=8");
  kvpolicy_decoder* const d = decoder.get();
  kvpolicy_prompt const prompt{};
  std::vector<std::int32_t> const tokens{21, 0};
  says(why(kvpolicy_decoder_prefill(d, 0, -1, 0, 20, &prompt), KVPOLICY_INVALID), "none are bound");
  c_tensor const on_host(memory.keys.data(), c_dtype(decoder_shape.type), engine_memory::extents());
  says(why(kvpolicy_decoder_bind(d, 0, &on_host.t, &on_host.t, nullptr), KVPOLICY_INVALID), "it must be on CUDA device 0");
  for (std::int64_t l = 0; l < decoder_shape.layers; ++l) REQUIRE(memory.bind(d, l) == KVPOLICY_OK);
  REQUIRE(memory.bind(d, 2) == KVPOLICY_INVALID);
  std::vector<float> const numbers(4);
  c_tensor const sinks_here(numbers.data(), c_float, {decoder_shape.q_heads});
  kvpolicy_terms const terms{0, nullptr, &sinks_here.t};
  says(why(kvpolicy_decoder_bind_terms(d, 0, &terms), KVPOLICY_INVALID),
       "sinks of layer 0: on device type 1, id 0; it must be on CUDA device 0");
  says(why(kvpolicy_decoder_plan(d, sequences, tokens.data(), nullptr, nullptr, nullptr), KVPOLICY_INVALID), "");
  says(why(kvpolicy_decoder_prefill(d, 2, -1, 0, 20, &prompt), KVPOLICY_INVALID), "2");
  says(why(kvpolicy_decoder_prefill(d, 0, -1, 0, 161, &prompt), KVPOLICY_INVALID), "161");
  for (std::int64_t l = 0; l < decoder_shape.layers; ++l)
    REQUIRE(kvpolicy_decoder_prefill(d, 0, -1, l, 20, &prompt) == KVPOLICY_OK);
  REQUIRE(kvpolicy_decoder_plan(d, sequences, tokens.data(), nullptr, nullptr, nullptr) == KVPOLICY_OK);
  shared_vector<float> queries(sequences * 256);
  c_tensor const q = there(queries, c_float, {sequences, 4, 64});
  c_tensor const narrow = there(queries, c_float, {sequences, 4, 32});
  says(why(kvpolicy_decoder_attend(d, 0, &q.t, scale, &q.t), KVPOLICY_INVALID), "has chosen nothing yet");
  says(why(kvpolicy_decoder_choose(d, 0, &narrow.t, scale, nullptr, nullptr), KVPOLICY_INVALID), "head_dim");
  says(why(kvpolicy_decoder_choose(d, 0, nullptr, scale, nullptr, nullptr), KVPOLICY_INVALID), "queries");
  says(why(kvpolicy_decoder_choose(d, 0, &q.t, std::nanf(""), nullptr, nullptr), KVPOLICY_INVALID), "scale is nan; set it");
  REQUIRE(kvpolicy_decoder_choose(d, 0, &q.t, scale, nullptr, nullptr) == KVPOLICY_OK);
  says(why(kvpolicy_decoder_standing(d, 0, nullptr), KVPOLICY_INVALID), "not idle");
  c_tensor const few = there(memory.tables, c_int, {sequences, 2});
  c_tensor const keys = there(memory.keys, c_dtype(decoder_shape.type), engine_memory::extents());
  REQUIRE(kvpolicy_decoder_bind(d, 0, &keys.t, &keys.t, &few.t) == KVPOLICY_OK);
  says(why(kvpolicy_decoder_choose(d, 0, &q.t, scale, nullptr, nullptr), KVPOLICY_INVALID), "room for 16 tokens");
  REQUIRE(memory.bind(d, 0) == KVPOLICY_OK);
  REQUIRE(kvpolicy_decoder_choose(d, 0, &q.t, scale, nullptr, nullptr) == KVPOLICY_OK);
  kvpolicy_prompt gap{};
  gap.first = 30;
  says(why(kvpolicy_decoder_prefill(d, 1, -1, 0, 40, &gap), KVPOLICY_INVALID), "prefill them first");
  gap.first = 21;
  REQUIRE(kvpolicy_decoder_prefill(d, 0, -1, 0, 30, &gap) == KVPOLICY_OK);
  says(why(kvpolicy_decoder_prefill(d, 0, -1, 1, 29, &gap), KVPOLICY_INVALID), "layers go in order, with the same tokens");
  REQUIRE(kvpolicy_decoder_prefill(d, 0, -1, 1, 30, &gap) == KVPOLICY_OK);
  REQUIRE(kvpolicy_decoder_observe(d, nullptr) == KVPOLICY_OK);  // quest needs none
  says(why(kvpolicy_decoder_cut(d, 0, 30), KVPOLICY_UNSUPPORTED), "learns from steps");
  says(why(kvpolicy_decoder_settle(d, std::nanf("")), KVPOLICY_INVALID), "scale");
  says(why(kvpolicy_decoder_end(d, 2), KVPOLICY_INVALID), "sequence 2");
  std::vector<std::int32_t> const slots{1, 1};
  says(why(kvpolicy_decoder_plan(d, sequences, tokens.data(), nullptr, slots.data(), nullptr), KVPOLICY_INVALID),
       "without rows that move");
  says(why(kvpolicy_decoder_plan(d, 1, tokens.data(), nullptr, nullptr, nullptr), KVPOLICY_INVALID), "a plan for 1 sequences");
  REQUIRE(kvpolicy_decoder_end(d, 0) == KVPOLICY_OK);
  REQUIRE(kvpolicy_decoder_on(d, test_stream()) == KVPOLICY_OK);
  REQUIRE(kvpolicy_decoder_on(nullptr, test_stream()) == KVPOLICY_INVALID);

  c_decoder const moving = decoding("full", {}, 0, 2);
  for (std::int64_t l = 0; l < decoder_shape.layers; ++l) REQUIRE(memory.bind(moving.get(), l) == KVPOLICY_OK);
  auto const plan = [&](std::vector<std::int32_t> const& lengths, std::vector<std::int32_t> const& of) {
    return kvpolicy_decoder_plan(moving.get(), std::ssize(lengths), lengths.data(), nullptr, of.empty() ? nullptr : of.data(),
                                 nullptr);
  };
  says(why(kvpolicy_decoder_prefill(moving.get(), 0, -1, 0, 20, &prompt), KVPOLICY_INVALID), "rows move");
  says(why(kvpolicy_decoder_prefill(moving.get(), 0, 2, 0, 20, &prompt), KVPOLICY_INVALID), "row 2");
  for (std::int64_t l = 0; l < decoder_shape.layers; ++l)
    REQUIRE(kvpolicy_decoder_prefill(moving.get(), 0, 0, l, 20, &prompt) == KVPOLICY_OK);
  says(why(plan({21}, {}), KVPOLICY_INVALID), "no slots");
  says(why(plan({21, 21}, {0, 0}), KVPOLICY_INVALID), "both have slot 0");
  says(why(plan({21}, {2}), KVPOLICY_INVALID), "slot 2");
  REQUIRE(plan({21}, {0}) == KVPOLICY_OK);
  REQUIRE(kvpolicy_decoder_cut(moving.get(), 0, 20) == KVPOLICY_OK);
}

}  // namespace
}  // namespace kvpolicy_test
