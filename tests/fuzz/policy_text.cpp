// Any text is a policy or a message; a policy starts on a small cache or says why not, and then serves a request.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "kvpolicy.h"

namespace {

constexpr std::int64_t layers = 2, q_heads = 4, kv_heads = 2, dim = 8, most = 96;

struct frees {
  void operator()(kvpolicy_policy* policy) const { kvpolicy_policy_free(policy); }
  void operator()(kvpolicy_state* state) const { kvpolicy_state_free(state); }
};

void require(bool holds) {
  if (!holds) std::abort();
}

kvpolicy_tensor tensor(void* data, std::vector<std::int64_t> const& shape, std::uint8_t code = 2) {
  return {data, {1, 0}, static_cast<std::int32_t>(shape.size()), {code, 32, 1}, shape.data(), nullptr, 0};
}

/// Whether it names a file that is there: whatever that holds is no business of this test.
bool reads_a_file(std::string const& text) {
  constexpr char const* key = "profile=";
  for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    std::string const rest = text.substr(at + 8);
    std::error_code error;
    if (std::filesystem::exists(rest.substr(0, rest.find_first_of(",+")), error)) return true;
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string const text(reinterpret_cast<char const*>(data), size);
  if (reads_a_file(text.c_str())) return 0;
  kvpolicy_policy* parsed = nullptr;
  constexpr std::uint8_t boundary[4] = {1};
  if (kvpolicy_policy_parse(text.c_str(), boundary, 4, &parsed) != KVPOLICY_OK) {
    require(parsed == nullptr && kvpolicy_message()[0] != '\0');
    return 0;
  }
  std::unique_ptr<kvpolicy_policy, frees> const policy(parsed);
  kvpolicy_shape const shape{layers, q_heads, kv_heads, dim, most, KVPOLICY_F32, 0};
  kvpolicy_state* started = nullptr;
  if (kvpolicy_start(policy.get(), &shape, &started) != KVPOLICY_OK) return 0;
  std::unique_ptr<kvpolicy_state, frees> const state(started);

  std::vector<float> values(most * q_heads * dim);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7919 % 1009) / 1009 - .5f;
  std::vector<float> others = values;
  std::vector<std::int32_t> ids(most, 1);
  std::vector<float> out(q_heads * dim);
  std::vector<std::int64_t> const row_shape{kv_heads, most, dim}, head_shape{q_heads, dim}, pair_shape{dim / 2},
      logit_shape{50};
  kvpolicy_tensor const rows = tensor(values.data(), row_shape);
  kvpolicy_tensor const value_rows = tensor(others.data(), row_shape);
  kvpolicy_tensor const heads = tensor(values.data(), head_shape);
  kvpolicy_tensor const pairs = tensor(values.data(), pair_shape);
  kvpolicy_tensor const logits = tensor(values.data(), logit_shape);
  kvpolicy_tensor const to = tensor(out.data(), head_shape);
  for (std::int64_t l = 0; l < layers; ++l) require(kvpolicy_bind(state.get(), l, &rows, &value_rows, nullptr) == KVPOLICY_OK);
  for (std::int64_t const prompt : {60, 3}) {
    std::int64_t const window = std::min(kvpolicy_observation_queries(policy.get()), prompt);
    std::vector<std::int64_t> const query_shape{window, q_heads, dim}, id_shape{prompt};
    kvpolicy_tensor const queries = tensor(values.data(), query_shape);
    kvpolicy_tensor const tokens = tensor(ids.data(), id_shape, 0);
    kvpolicy_prompt const said{0, &queries, .4f, KVPOLICY_HALVES, &pairs, &tokens, 0, 0};
    for (std::int64_t l = 0; l < layers; ++l) {
      if (kvpolicy_prefill(state.get(), l, prompt, &said) != KVPOLICY_OK) return 0;
    }
    for (std::int64_t n = prompt + 1; n < prompt + 20; ++n) {
      for (std::int64_t l = 0; l < layers; ++l) {
        if (kvpolicy_choose(state.get(), l, n, &heads, .4f, 1) != KVPOLICY_OK) return 0;
        for (std::int64_t h = 0; h < kv_heads; ++h) {
          kvpolicy_range const* ranges = nullptr;
          std::int64_t count = 0;
          require(kvpolicy_list(state.get(), l, h, &ranges, &count) == KVPOLICY_OK);
          std::int64_t end = 0;
          for (std::int64_t i = 0; i < count; ++i) {
            require(ranges[i].begin >= end && ranges[i].begin < ranges[i].end && ranges[i].end <= n);
            end = ranges[i].end;
          }
        }
        require(kvpolicy_attend(state.get(), l, &heads, .4f, &to) == KVPOLICY_OK);
      }
      require(kvpolicy_observe(state.get(), &logits) == KVPOLICY_OK);
    }
  }
  return 0;
}
