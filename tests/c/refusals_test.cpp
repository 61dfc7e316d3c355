// What kvpolicy.h refuses: the status, the words that name what was wrong, and a state that goes on as if nothing had been
// asked.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <limits>
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif

#include "c/c_api.hpp"

namespace kvpolicy_test {
namespace {

#ifdef DLPACK_DLPACK_H_
static_assert(sizeof(kvpolicy_tensor) == sizeof(DLTensor) && alignof(kvpolicy_tensor) == alignof(DLTensor));
static_assert(offsetof(kvpolicy_tensor, data) == offsetof(DLTensor, data) &&
              offsetof(kvpolicy_tensor, device) == offsetof(DLTensor, device) &&
              offsetof(kvpolicy_tensor, ndim) == offsetof(DLTensor, ndim) &&
              offsetof(kvpolicy_tensor, dtype) == offsetof(DLTensor, dtype) &&
              offsetof(kvpolicy_tensor, shape) == offsetof(DLTensor, shape) &&
              offsetof(kvpolicy_tensor, strides) == offsetof(DLTensor, strides) &&
              offsetof(kvpolicy_tensor, byte_offset) == offsetof(DLTensor, byte_offset));
static_assert(sizeof(kvpolicy_device) == sizeof(DLDevice) && sizeof(kvpolicy_dtype) == sizeof(DLDataType) &&
              offsetof(kvpolicy_device, id) == offsetof(DLDevice, device_id) &&
              offsetof(kvpolicy_dtype, bits) == offsetof(DLDataType, bits) &&
              offsetof(kvpolicy_dtype, lanes) == offsetof(DLDataType, lanes));
static_assert(kDLCPU == 1 && kDLCUDA == 2 && kDLCUDAHost == 3 && kDLInt == 0 && kDLFloat == 2 && kDLBfloat == 4);
#endif

void refused(kvpolicy_status status, std::string const& words, kvpolicy_status wanted = KVPOLICY_INVALID) {
  INFO("wanted '" << words << "', was told '" << kvpolicy_message() << "'");
  CHECK(status == wanted);
  CHECK(std::string(kvpolicy_message()).find(words) != std::string::npos);
}

/// Two layers of 2 KV heads x 8 channels with room for 64 tokens, f32, and one of everything that a call takes.
struct world {
  cache_shape shape{2, 4, 2, 8, 64, element_type::f32};
  random_source random{7401};
  std::vector<float> rows = random.reals(2 * 64 * 8);
  std::vector<float> value_rows = random.reals(2 * 64 * 8);
  std::vector<float> rows_of_1 = random.reals(2 * 64 * 8);
  std::vector<float> value_rows_of_1 = random.reals(2 * 64 * 8);
  std::vector<float> vectors = random.reals(64 * 4 * 8);
  std::vector<float> outputs = std::vector<float>(4 * 8);
  std::vector<std::int32_t> ids = std::vector<std::int32_t>(64, 3);
  std::vector<std::int32_t> table{3, 1, 0, 2};

  c_tensor keys{rows, {2, 64, 8}};
  c_tensor values{value_rows, {2, 64, 8}};
  c_tensor keys_of_1{rows_of_1, {2, 64, 8}};
  c_tensor values_of_1{value_rows_of_1, {2, 64, 8}};
  c_tensor paged{rows, {4, 2, 16, 8}};
  c_tensor pages{table.data(), c_int, {4}};
  c_tensor queries{vectors, {4, 8}};
  c_tensor observation_queries{vectors, {40, 4, 8}};
  c_tensor frequencies{vectors, {4}};
  c_tensor out{outputs, {4, 8}};
  c_tensor token_ids{ids.data(), c_int, {40}};
  c_tensor logits{vectors, {20}};

  kvpolicy_prompt prompt() const { return {0, observation_queries, .5f, KVPOLICY_HALVES, frequencies, token_ids, 0, 0}; }

  kvpolicy_status bind(kvpolicy_state* state, std::int64_t layer) const {
    return kvpolicy_bind(state, layer, layer == 0 ? keys : keys_of_1, layer == 0 ? values : values_of_1, nullptr);
  }
  c_state ready(std::string const& text) {
    c_state state = started(parsed(text), shape);
    kvpolicy_prompt const all = prompt();
    for (std::int64_t l = 0; l < 2; ++l) REQUIRE(bind(state.get(), l) == KVPOLICY_OK);
    for (std::int64_t l = 0; l < 2; ++l) REQUIRE(kvpolicy_prefill(state.get(), l, 40, &all) == KVPOLICY_OK);
    return state;
  }
};

TEST_CASE("policy text that can't be is refused as on the command line", "[c]") {
  kvpolicy_policy* made = nullptr;
  refused(kvpolicy_policy_parse("qest", nullptr, 0, &made), "did you mean 'quest'");
  refused(kvpolicy_policy_parse("", nullptr, 0, &made), "unknown policy ''");
  refused(kvpolicy_policy_parse("quest:tokens=many", nullptr, 0, &made), "it must be a whole number");
  refused(kvpolicy_policy_parse("quest+snapkv", nullptr, 0, &made), "quest retains nothing");
  refused(kvpolicy_policy_parse("heterocache:profile=/none.json", nullptr, 0, &made), "can't be read");
  refused(kvpolicy_policy_parse("chess:pages=.1", nullptr, 0, &made), "in place of the fractions, pages too; set tokens=0");
  refused(kvpolicy_policy_parse(nullptr, nullptr, 0, &made), "text is NULL");
  refused(kvpolicy_policy_parse("full", nullptr, 0, nullptr), "policy is NULL");
  refused(kvpolicy_policy_parse("full", nullptr, 5, &made), "a boundary table of 5 tokens that is NULL");
  std::uint8_t const byte = 0;
  refused(kvpolicy_policy_parse("full", &byte, -1, &made), "a boundary table of -1 tokens");
  std::string const longest(5000, 'x');  // a message is cut, not overrun
  refused(kvpolicy_policy_parse(longest.c_str(), nullptr, 0, &made), "unknown policy 'xxx");
  CHECK(made == nullptr);
  kvpolicy_policy_free(nullptr);
  kvpolicy_state_free(nullptr);
}

TEST_CASE("shapes and policies that can't be together are refused at the start", "[c]") {
  c_policy const policy = parsed("snapkv:tokens=32,window=8");
  kvpolicy_state* state = nullptr;
  kvpolicy_shape const good{2, 4, 2, 8, 64, KVPOLICY_F32, 0};
  refused(kvpolicy_start(nullptr, &good, &state), "policy is NULL");
  refused(kvpolicy_start(policy.get(), nullptr, &state), "shape is NULL");
  refused(kvpolicy_start(policy.get(), &good, nullptr), "state is NULL");
  auto const with = [&](auto change) {
    kvpolicy_shape bad = good;
    change(bad);
    return kvpolicy_start(policy.get(), &bad, &state);
  };
  refused(with([](auto& s) { s.layers = 0; }), "got 0 layers");
  refused(with([](auto& s) { s.kv_heads = -2; }), "4/-2 heads");
  refused(with([](auto& s) { s.q_heads = 5; }), "5 query heads are no multiple of 2");
  refused(with([](auto& s) { s.max_tokens = 0; }), "max_tokens is 0");
  refused(with([](auto& s) { s.max_tokens = INT64_MAX; }), "max_tokens is 9223372036854775807");
  refused(with([](auto& s) { s.layers = std::int64_t{1} << 40; }), "that there may be");
  refused(with([](auto& s) { s.q_heads = s.kv_heads = s.head_dim = 65536; }), "that there may be");
  refused(with([](auto& s) { s.type = 3; }), "type is 3");
  kvpolicy_state* pair = nullptr;
  refused(kvpolicy_start(parsed("snapkv:tokens=32+chess").get(), &good, &pair), "would not have the chosen tokens",
          KVPOLICY_UNSUPPORTED);
  CHECK(state == nullptr);
  CHECK(pair == nullptr);
}

TEST_CASE("a CUDA sequence is refused in one message: built without, or no device", "[c]") {
  c_policy const policy = parsed("full");
  kvpolicy_shape const shape{2, 4, 2, 8, 64, KVPOLICY_F16, 0};
  auto const checked = [](kvpolicy_status status) {
    INFO(kvpolicy_message());
    if (status == KVPOLICY_UNSUPPORTED) refused(status, "this library was built without CUDA", KVPOLICY_UNSUPPORTED);
    else if (status == KVPOLICY_FAILED) refused(status, "needs one, and there is none that can be used", KVPOLICY_FAILED);
    else REQUIRE(status == KVPOLICY_OK);  // there is one
  };
  kvpolicy_state* made = nullptr;
  checked(kvpolicy_start_cuda(policy.get(), &shape, 0, nullptr, &made));
  c_state const state(made);
  kvpolicy_decoder* decoder = nullptr;
  kvpolicy_decoder_options options{};
  options.sequences = 1;
  checked(kvpolicy_decoder_start(policy.get(), &shape, &options, &decoder));
  kvpolicy_decoder_free(decoder);
}

TEST_CASE("every fault of a tensor is refused with the tensor's name", "[c]") {
  world w;
  c_state const state = started(parsed("quest:tokens=24,page=8"), w.shape);
  auto const bad_keys = [&](std::function<void(kvpolicy_tensor&, c_tensor&)> const& change) {
    c_tensor keys(w.rows, {2, 64, 8}, {512, 8, 1});
    change(keys.t, keys);
    return kvpolicy_bind(state.get(), 1, keys, w.keys, nullptr);
  };
  refused(kvpolicy_bind(state.get(), 1, nullptr, w.keys, nullptr),
          "keys of layer 1: no tensor was given; it must be [kv_heads, tokens, head_dim] of float32");
  refused(bad_keys([](auto& t, auto&) {
            t.device = {2, 0};
          }),
          "keys of layer 1: on device type 2, id 0; it must be in host memory");
  refused(bad_keys([](auto& t, auto&) { t.device = {13, 0}; }), "keys of layer 1: on device type 13");
  refused(bad_keys([](auto& t, auto&) { t.dtype = {2, 64, 1}; }), "keys of layer 1: of type float64; it must be float32");
  refused(bad_keys([](auto& t, auto&) { t.dtype = {4, 16, 1}; }), "keys of layer 1: of type bfloat16; it must be float32");
  refused(bad_keys([](auto& t, auto&) { t.dtype = {0, 32, 1}; }), "keys of layer 1: of type int32; it must be float32");
  refused(bad_keys([](auto& t, auto&) { t.dtype = {77, 8, 1}; }), "keys of layer 1: of type type code 77 of 8 bits");
  refused(bad_keys([](auto& t, auto&) { t.dtype.lanes = 4; }), "keys of layer 1: of type float32 in 4 lanes");
  refused(bad_keys([](auto& t, auto&) { t.ndim = 4; }),
          "keys of layer 1: 4 axes; it must have 3: [kv_heads, tokens, head_dim]");
  refused(bad_keys([](auto& t, auto&) { t.ndim = -1; }), "keys of layer 1: -1 axes");
  refused(bad_keys([](auto& t, auto&) { t.shape = nullptr; }), "keys of layer 1: its shape is NULL");
  refused(bad_keys([](auto&, auto& c) { c.shape[0] = 3; }),
          "keys of layer 1: axis 0 (kv_heads) has 3 elements; it must have 2");
  refused(bad_keys([](auto&, auto& c) { c.shape[2] = 16; }),
          "keys of layer 1: axis 2 (head_dim) has 16 elements; it must have 8");
  refused(bad_keys([](auto&, auto& c) { c.shape[1] = -1; }), "keys of layer 1: axis 1 (tokens) has -1 elements");
  refused(bad_keys([](auto&, auto& c) { c.strides[1] = -8; }),
          "keys of layer 1: the stride of tokens is -8; it can't be negative");
  refused(bad_keys([](auto&, auto& c) { c.strides[0] = 0; }),
          "keys of layer 1: its strides of 0, 8, 1 elements let elements overlap");
  refused(bad_keys([](auto&, auto& c) { c.strides[1] = 7; }),
          "keys of layer 1: its strides of 512, 7, 1 elements let elements overlap");
  for (std::int64_t const far : {INT64_MAX, INT64_MAX / 4, INT64_MAX / 200}) {
    refused(bad_keys([&](auto&, auto& c) { c.strides[1] = far; }),
            "keys of layer 1: its strides or byte offset reach past the end");
  }
  refused(bad_keys([](auto& t, auto& c) {
            t.strides = nullptr;
            c.shape[1] = INT64_MAX / 8;
          }),
          "keys of layer 1: its strides or byte offset reach past the end");
  refused(bad_keys([](auto& t, auto&) { t.byte_offset = UINT64_MAX - 15; }), "keys of layer 1: its strides or byte offset");
  refused(bad_keys([](auto& t, auto&) { t.byte_offset = 2; }), "which is not aligned to its elements of 4 bytes");
  refused(bad_keys([](auto& t, auto&) { t.data = static_cast<char*>(t.data) + 1; }), "keys of layer 1: its data begins at 0x");
  refused(bad_keys([](auto& t, auto&) { t.data = nullptr; }), "keys of layer 1: its data is NULL");

  c_tensor const short_values(w.rows, {2, 64, 7});
  refused(kvpolicy_bind(state.get(), 0, w.keys, short_values, nullptr), "values of layer 0: axis 2 (head_dim) has 7");
  refused(kvpolicy_bind(state.get(), 2, w.keys, w.values, nullptr), "layer 2; there are 0 to 1");
  refused(kvpolicy_bind(state.get(), -1, w.keys, w.values, nullptr), "layer -1; there are 0 to 1");
  refused(kvpolicy_bind(nullptr, 0, w.keys, w.values, nullptr), "state is NULL");

  refused(kvpolicy_bind(state.get(), 0, w.keys, w.keys, w.pages),
          "keys of layer 0: 3 axes; it must have 4: [pages, kv_heads, page_size");
  c_tensor const no_rows(w.rows, {4, 2, 0, 8});
  refused(kvpolicy_bind(state.get(), 0, no_rows, nullptr, w.pages), "keys of layer 0: axis 2 (page_size) has 0 elements");
  c_tensor const smaller(w.rows, {4, 2, 8, 8});
  refused(kvpolicy_bind(state.get(), 0, w.paged, smaller, w.pages),
          "values of layer 0: page_size (axis 2) has 8 elements; the keys' pages have 16");
  c_tensor const wide(w.table.data(), {0, 64, 1}, {2});
  refused(kvpolicy_bind(state.get(), 0, w.paged, nullptr, wide), "pages of layer 0: of type int64; it must be int32");
  c_tensor on_device(w.table.data(), c_int, {4});
  on_device.t.device = {2, 0};
  refused(kvpolicy_bind(state.get(), 0, w.paged, nullptr, on_device), "pages of layer 0: on device type 2");
  c_tensor const every_other(w.table.data(), c_int, {2}, {2});
  refused(kvpolicy_bind(state.get(), 0, w.paged, nullptr, every_other),
          "pages of layer 0: the stride of pages is 2; it must be 1");
}

TEST_CASE("strides of axes with one element say nothing, and pinned host memory is host memory", "[c]") {
  cache_shape const shape{1, 1, 1, 8, 64, element_type::f32};
  random_source random(7402);
  std::vector<float> const rows = random.reals(64 * 8);
  c_state const state = started(parsed("quest:tokens=24,page=8"), shape);
  c_tensor keys(rows, {1, 64, 8}, {INT64_MIN, 8, 1});
  keys.t.device = {3, 0};
  CHECK(kvpolicy_bind(state.get(), 0, keys, nullptr, nullptr) == KVPOLICY_OK);
}

TEST_CASE("prompts are refused where they do not fit: order, room, pages, and each signal by its name", "[c]") {
  world w;
  c_state const state = started(parsed("expected_attention:ratio=0.5"), w.shape);
  kvpolicy_prompt all = w.prompt();
  auto const prefill = [&](std::int64_t layer, std::int64_t tokens) {
    return kvpolicy_prefill(state.get(), layer, tokens, &all);
  };
  refused(prefill(0, 40), "keys of layer 0: none are bound; call bind first");
  REQUIRE(kvpolicy_bind(state.get(), 0, w.keys, nullptr, nullptr) == KVPOLICY_OK);
  refused(prefill(0, 40), "values of layer 0: none are bound; call bind with values first");
  REQUIRE(kvpolicy_bind(state.get(), 0, w.keys, w.values, nullptr) == KVPOLICY_OK);
  REQUIRE(w.bind(state.get(), 1) == KVPOLICY_OK);
  refused(kvpolicy_prefill(state.get(), 0, 40, nullptr), "prompt is NULL");
  refused(prefill(0, 0), "a prompt of tokens 0..0");
  refused(prefill(0, 65), "this request was started for 1 to 64");
  refused(prefill(1, 40), "prefill of layer 1, tokens 0..40, after 0 layers");
  all.first = 3;
  refused(prefill(0, 40), "begins at token 3, of those before only 0 are known");
  all.first = -1;
  refused(prefill(0, 40), "a prompt of tokens -1..40");
  all.first = 0;

  all.queries = nullptr;
  refused(prefill(0, 40), "prompt queries of layer 0: no tensor was given; it must be [tokens, q_heads, head_dim] of float32");
  c_tensor const eight(w.vectors, {8, 4, 8});
  all.queries = eight;
  refused(prefill(0, 40), "prompt_signals::queries are of 8 tokens; the policy reads those of the prompt's last 40");
  c_tensor const spread(w.vectors, {40, 4, 8}, {8, 1, 4});
  all.queries = spread;
  refused(prefill(0, 40), "prompt queries of layer 0: the stride of head_dim is 4; it must be 1");
  all.queries = w.observation_queries;
  all.scale = std::numeric_limits<float>::quiet_NaN();
  refused(prefill(0, 40), "scale is nan");
  all.scale = 1;
  all.inverse_frequencies = nullptr;
  refused(prefill(0, 40), "inverse frequencies of layer 0: no tensor was given");
  c_tensor const many(w.vectors, {5});
  all.inverse_frequencies = many;
  refused(prefill(0, 40), "inverse frequencies of layer 0: axis 0 (pairs) has 5 elements; rows of 8 channels have at most 4");
  all.inverse_frequencies = w.frequencies;
  all.pairing = 2;
  refused(prefill(0, 40), "pairing is 2");
  all.pairing = KVPOLICY_NEIGHBOURS;
  CHECK(prefill(0, 40) == KVPOLICY_OK);
  refused(prefill(1, 39), "prefill of layer 1, tokens 0..39, after 1 layers of tokens 0..40");
  CHECK(prefill(1, 40) == KVPOLICY_OK);

  std::vector<std::uint8_t> const boundary{0, 1, 0};
  c_state const sentences = started(parsed("sentencekv:tokens=24,window=4,after=0", boundary), w.shape);
  for (std::int64_t l = 0; l < 2; ++l) w.bind(sentences.get(), l);
  all = w.prompt();
  refused(kvpolicy_prefill(sentences.get(), 0, 41, &all),
          "token ids: axis 0 (tokens - first) has 40 elements; it must have 41");
  all.token_ids = nullptr;
  refused(kvpolicy_prefill(sentences.get(), 0, 40, &all), "token ids: no tensor was given");
}

TEST_CASE("a short piece is refused without the queries of those before", "[c]") {
  world w;
  kvpolicy_prompt prompt = w.prompt();
  c_state const state = w.ready("snapkv:tokens=20,window=8,after=0");
  c_tensor const three(w.vectors, {3, 4, 8});
  prompt.first = 40;
  prompt.queries = three;
  refused(kvpolicy_prefill(state.get(), 0, 43, &prompt), "of 3 tokens; the policy reads those of the prompt's last 8");
  refused(kvpolicy_observed_from(state.get(), -1), "queries from token -1 on");
  CHECK(kvpolicy_observed_from(state.get(), 40) == KVPOLICY_OK);
  for (std::int64_t l = 0; l < 2; ++l) CHECK(kvpolicy_prefill(state.get(), l, 43, &prompt) == KVPOLICY_OK);
  prompt.first = 43;
  refused(kvpolicy_prefill(state.get(), 0, 46, &prompt), "of 3 tokens; the policy reads those of the prompt's last 8");
}

TEST_CASE("attention with another scale than the policy's queries had is refused, and a page table of a step that repeats",
          "[c]") {
  world w;
  for (char const* const text : {"snapkv:tokens=20,window=8,after=0", "quest:tokens=32,page=8"}) {
    c_state const state = w.ready(text);  // prompts have a scale of .5
    REQUIRE(kvpolicy_choose(state.get(), 0, 41, w.queries, .5f, -1) == KVPOLICY_OK);
    refused(kvpolicy_attend(state.get(), 0, w.queries, 1, w.out), "attention of layer 0 with a scale of 1.0");
    CHECK(kvpolicy_attend(state.get(), 0, w.queries, .5f, w.out) == KVPOLICY_OK);
  }
  c_state const full = started(parsed("full"), w.shape);
  REQUIRE(kvpolicy_bind(full.get(), 0, w.paged, w.paged, w.pages) == KVPOLICY_OK);
  kvpolicy_prompt const prompt{};
  REQUIRE(kvpolicy_prefill(full.get(), 0, 40, &prompt) == KVPOLICY_OK);
  w.table[2] = w.table[0];
  REQUIRE(kvpolicy_choose(full.get(), 0, 41, nullptr, 0, -1) == KVPOLICY_OK);
  std::int32_t pages[4];
  std::int64_t count = 0;
  std::int32_t last = 0;
  refused(kvpolicy_page_table(full.get(), 0, 0, pages, 4, &count, &last), "have page 3 at entries 0 and 2 of the page table");
}

TEST_CASE("rows that do not reach are refused: short tensors, short page tables, pages that are not there", "[c]") {
  world w;
  c_tensor const few(w.rows, {2, 39, 8}, {512, 8, 1});
  kvpolicy_prompt const all = w.prompt();
  c_state const state = started(parsed("quest:tokens=24,page=8"), w.shape);
  REQUIRE(kvpolicy_bind(state.get(), 0, few, nullptr, nullptr) == KVPOLICY_OK);
  refused(kvpolicy_prefill(state.get(), 0, 40, &all), "of layer 0: they have room for 39 tokens, the sequence has 40");
  REQUIRE(kvpolicy_bind(state.get(), 0, w.keys, few, nullptr) == KVPOLICY_OK);
  refused(kvpolicy_prefill(state.get(), 0, 40, &all), "room for 39 tokens");

  c_tensor const nothing(w.rows, {2, 0, 8});
  REQUIRE(kvpolicy_bind(state.get(), 0, nothing, w.keys, nullptr) == KVPOLICY_OK);
  refused(kvpolicy_prefill(state.get(), 0, 40, &all), "room for 0 tokens");

  c_tensor const three(w.table.data(), c_int, {3});
  REQUIRE(kvpolicy_bind(state.get(), 0, w.paged, nullptr, three) == KVPOLICY_OK);
  refused(kvpolicy_prefill(state.get(), 0, 49, &all),
          "pages of layer 0: axis 0 (pages) has 3 elements; 49 tokens in pages of 16 need 4");
  REQUIRE(kvpolicy_bind(state.get(), 0, w.paged, nullptr, w.pages) == KVPOLICY_OK);
  for (std::int32_t const wrong : {-1, 4, INT32_MIN, INT32_MAX}) {
    w.table[2] = wrong;
    refused(kvpolicy_prefill(state.get(), 0, 33, &all),
            "pages of layer 0: entry 2 is page " + std::to_string(wrong) + "; keys and values have 0 to 3");
    CHECK(kvpolicy_prefill(state.get(), 0, 32, &all) == KVPOLICY_OK);  // which does not read it
  }
  c_tensor const two_pages(w.rows, {2, 2, 16, 8});
  w.table = {0, 1, 2, 3};
  c_tensor const again(w.table.data(), c_int, {4});
  REQUIRE(kvpolicy_bind(state.get(), 0, w.paged, two_pages, again) == KVPOLICY_OK);
  refused(kvpolicy_prefill(state.get(), 0, 40, &all), "entry 2 is page 2; keys and values have 0 to 1");
}

TEST_CASE("one choice for all layers wants all of their rows", "[c]") {
  world w;
  c_state const state = started(parsed("chess:page=8,tokens=32,sink_pages=1,recent_pages=1"), w.shape);
  kvpolicy_prompt const all = w.prompt();
  for (std::int64_t l = 0; l < 2; ++l) {
    REQUIRE(kvpolicy_bind(state.get(), l, l == 0 ? w.keys : w.keys_of_1, nullptr, nullptr) == KVPOLICY_OK);
    REQUIRE(kvpolicy_prefill(state.get(), l, 40, &all) == KVPOLICY_OK);
  }
  c_tensor const few(w.rows_of_1, {2, 39, 8}, {512, 8, 1});
  REQUIRE(kvpolicy_bind(state.get(), 1, few, nullptr, nullptr) == KVPOLICY_OK);
  refused(kvpolicy_choose(state.get(), 0, 41, nullptr, 1, -1), "of layer 1: they have room for 39 tokens, the sequence has 40");
  REQUIRE(kvpolicy_bind(state.get(), 1, w.keys_of_1, nullptr, nullptr) == KVPOLICY_OK);
  CHECK(kvpolicy_choose(state.get(), 0, 41, nullptr, 1, -1) == KVPOLICY_OK);
  CHECK(kvpolicy_choose(state.get(), 1, 41, nullptr, 1, -1) == KVPOLICY_OK);
  refused(kvpolicy_observe(state.get(), nullptr), "logits: no tensor was given");
  c_tensor const none(w.vectors, {0});
  refused(kvpolicy_observe(state.get(), none), "logits: axis 0 (vocabulary) has 0 elements");
  CHECK(kvpolicy_observe(state.get(), w.logits) == KVPOLICY_OK);
}

TEST_CASE("steps out of order are refused, and what they ask for by its name", "[c]") {
  world w;
  c_state const fresh = started(parsed("quest:tokens=24,page=8"), w.shape);
  refused(kvpolicy_choose(fresh.get(), 0, 2, w.queries, 1, -1),
          "a step on 2 tokens, the current one included, where 0 are known");
  c_state const state = w.ready("quest:tokens=24,page=8");
  kvpolicy_range const* ranges = nullptr;
  std::int64_t count = 0;
  std::int32_t page[8];
  std::int32_t last = 0;
  refused(kvpolicy_list(state.get(), 0, 0, &ranges, &count), "layer 0 has made no choice in this step");
  refused(kvpolicy_attend(state.get(), 0, w.queries, 1, w.out), "layer 0 has made no choice in this step");
  refused(kvpolicy_observe(state.get(), w.logits), "observe after 0 of 2 layers of a step");
  refused(kvpolicy_choose(state.get(), 1, 41, w.queries, 1, -1), "choose for layer 1 on 41 tokens, after 0 layers");
  refused(kvpolicy_choose(state.get(), 0, 42, w.queries, 1, -1),
          "a step on 42 tokens, the current one included, where 40 are known; it must be on 41: prefill what else came");
  refused(kvpolicy_choose(state.get(), 0, 0, w.queries, 1, -1), "a step on 0 tokens");
  refused(kvpolicy_choose(state.get(), 0, 41, nullptr, 1, -1), "queries of layer 0: no tensor was given");
  refused(kvpolicy_choose(state.get(), 0, 41, w.observation_queries, 1, -1),
          "queries of layer 0: 3 axes; it must have 2: [q_heads, head_dim]");
  for (float const scale : {0.f, -1.f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    refused(kvpolicy_choose(state.get(), 0, 41, w.queries, scale, -1), "scale is ");
    refused(kvpolicy_choose(state.get(), 0, 41, w.queries, scale, -1),
            "; set it to the factor of q.k, in most models 1 / sqrt");
  }
  refused(
      kvpolicy_choose(state.get(), 0, 40, w.queries, 1, -1),
      "a step on 40 tokens, the current one included, where 40 are known; it must be on 41: count the step's own tokens, or "
      "call cut() after");
  refused(kvpolicy_cut(state.get(), -1), "a cut to -1 tokens; it can't be negative");
  refused(kvpolicy_cut(nullptr, 10), "state is NULL");
  REQUIRE(kvpolicy_choose(state.get(), 0, 41, w.queries, 1, -1) == KVPOLICY_OK);
  refused(kvpolicy_choose(state.get(), 1, 40, w.queries, 1, -1),
          "choose for layer 1 on 40 tokens, after 1 layers of a step on 41");
  refused(kvpolicy_list(state.get(), 1, 0, &ranges, &count), "layer 1 has made no choice");
  refused(kvpolicy_list(state.get(), 0, 2, &ranges, &count), "KV head 2; there are 0 to 1");
  refused(kvpolicy_list(state.get(), 0, 0, nullptr, &count), "ranges is NULL");
  refused(kvpolicy_retained(state.get(), 0, 0, &ranges, nullptr), "count is NULL");
  refused(kvpolicy_retained(fresh.get(), 0, 0, &ranges, &count), "layer 0 has no prompt yet");
  refused(kvpolicy_page_table(state.get(), 0, 0, page, 8, &count, &last), "layer 0 has no page table; bind it with one");
  refused(kvpolicy_page_table(state.get(), 0, 0, page, -1, &count, &last), "room for -1 pages");
  refused(kvpolicy_page_table(state.get(), 0, 0, nullptr, 8, &count, &last), "room for 8 pages at NULL");
  refused(kvpolicy_attend(state.get(), 0, w.queries, 1, nullptr), "out of layer 0: no tensor was given");
  c_tensor const shared(w.outputs, {4, 8}, {0, 1});
  refused(kvpolicy_attend(state.get(), 0, w.queries, 1, shared),
          "out of layer 0: its strides of 0, 1 elements let elements overlap");
  c_tensor const close(w.outputs, {4, 8}, {7, 1});
  refused(kvpolicy_attend(state.get(), 0, w.queries, 1, close),
          "out of layer 0: its strides of 7, 1 elements let elements overlap");
  REQUIRE(kvpolicy_bind(state.get(), 0, w.keys, nullptr, nullptr) == KVPOLICY_OK);
  refused(kvpolicy_attend(state.get(), 0, w.queries, 1, w.out), "values of layer 0: none are bound");
  std::vector<float> const numbers(4);
  c_tensor const of_three(numbers, {3}), of_four(numbers, {4});
  kvpolicy_terms const negative{-1, nullptr, nullptr}, short_slopes{0, &of_three.t, nullptr}, wrong_sinks{0, &of_four.t, w.out};
  refused(kvpolicy_bind_terms(state.get(), 0, nullptr), "terms is NULL");
  refused(kvpolicy_bind_terms(state.get(), 2, &negative), "layer 2; there are 0 to 1");
  refused(kvpolicy_bind_terms(state.get(), 0, &negative), "a soft cap of -1.000000; give 0 for none, or more than that");
  refused(kvpolicy_bind_terms(state.get(), 0, &short_slopes), "slopes of layer 0: axis 0 (q_heads) has 3 elements");
  refused(kvpolicy_bind_terms(state.get(), 0, &wrong_sinks), "sinks of layer 0: 2 axes; it must have 1: [q_heads]");
}

TEST_CASE("a cut lets a step begin behind what is left, and a copy goes on by itself", "[c]") {
  world w;
  c_state const state = w.ready("tova:tokens=20");
  kvpolicy_state* made = nullptr;
  refused(kvpolicy_state_copy(nullptr, &made), "state is NULL");
  refused(kvpolicy_state_copy(state.get(), nullptr), "NULL");
  REQUIRE(kvpolicy_state_copy(state.get(), &made) == KVPOLICY_OK);
  c_state const copy(made);
  for (kvpolicy_state* const one : {state.get(), copy.get()}) {
    for (std::int64_t l = 0; l < 2; ++l) REQUIRE(kvpolicy_choose(one, l, 41, w.queries, 1, -1) == KVPOLICY_OK);
  }
  REQUIRE(kvpolicy_cut(copy.get(), 30) == KVPOLICY_OK);
  for (std::int64_t l = 0; l < 2; ++l) REQUIRE(kvpolicy_choose(copy.get(), l, 31, w.queries, 1, -1) == KVPOLICY_OK);
  for (std::int64_t l = 0; l < 2; ++l) REQUIRE(kvpolicy_choose(state.get(), l, 42, w.queries, 1, -1) == KVPOLICY_OK);
  refused(kvpolicy_choose(copy.get(), 0, 42, w.queries, 1, -1), "where 31 are known");
}

TEST_CASE("a state that refused a hundred calls goes on as its twin that was asked none of them", "[c]") {
  world w;
  for (std::string const text : {"quest:tokens=24,page=8", "h2o:tokens=20", "snapkv:tokens=20,window=4", "tova:tokens=20"}) {
    c_state const one = w.ready(text);
    c_state const other = w.ready(text);
    kvpolicy_prompt bad = w.prompt();
    bad.first = 60;
    kvpolicy_range const* ranges = nullptr;
    std::int64_t count = 0;
    c_tensor const queries_of_f64(w.vectors.data(), {2, 64, 1}, {4, 8});
    for (std::int64_t tokens = 41; tokens <= 60; ++tokens) {
      for (std::int64_t l = 0; l < 2; ++l) {
        CHECK(kvpolicy_prefill(one.get(), l, 63, &bad) != KVPOLICY_OK);
        CHECK(kvpolicy_bind(one.get(), l, w.queries, w.keys, nullptr) != KVPOLICY_OK);
        CHECK(kvpolicy_choose(one.get(), l, tokens + 1, w.queries, 1, -1) != KVPOLICY_OK);
        CHECK(kvpolicy_choose(one.get(), 1 - l, 64, w.queries, 1, -1) != KVPOLICY_OK);
        if (text[0] != 's') CHECK(kvpolicy_choose(one.get(), l, tokens, queries_of_f64, 1, -1) != KVPOLICY_OK);
        CHECK(kvpolicy_attend(one.get(), l, queries_of_f64, 1, w.out) != KVPOLICY_OK);
        c_tensor const now(w.vectors.data() + tokens, c_float, {4, 8});
        REQUIRE(kvpolicy_choose(one.get(), l, tokens, now, 1, -1) == KVPOLICY_OK);
        REQUIRE(kvpolicy_choose(other.get(), l, tokens, now, 1, -1) == KVPOLICY_OK);
        for (std::int64_t h = 0; h < 2; ++h) {
          REQUIRE(kvpolicy_list(one.get(), l, h, &ranges, &count) == KVPOLICY_OK);
          std::vector<kvpolicy_range> const mine(ranges, ranges + count);
          REQUIRE(kvpolicy_list(other.get(), l, h, &ranges, &count) == KVPOLICY_OK);
          REQUIRE(count == std::ssize(mine));
          for (std::size_t i = 0; i < mine.size(); ++i)
            REQUIRE((mine[i].begin == ranges[i].begin && mine[i].end == ranges[i].end));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvpolicy_test
