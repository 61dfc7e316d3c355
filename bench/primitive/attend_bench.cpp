// Attention of one token in a layer: over all 8192 tokens, and over 32 scattered pages of 16 for each KV head.
#include <kvpolicy/primitive/attend.hpp>

#include <algorithm>
#include <numeric>

#include "executors.hpp"

namespace kvpolicy::bench {
namespace {

using namespace smollm2;

void attend_to(auto& exec, std::size_t turn, selection const& kept) {
  static output const out(shape.q_heads, shape.head_dim);
  attend(queries(), cache().keys(layer_of(turn)), cache().values(layer_of(turn)), kept, out, std::span<float>{}, exec);
}

bool const all_registered = register_on_each("attend to 8192", 2 * layer_bytes, [](auto& exec, std::size_t turn) {
  static range_list const all{{0, static_cast<std::int32_t>(shape.max_tokens), reason::open}};
  attend_to(exec, turn, {scope::request, std::span(&all, 1), shape.kv_heads});
});

constexpr std::size_t choices = 8 * shape.layers;  // so many that their pages do not all stay in the cache

/// `[choices, kv_heads]` lists of `count` pages each.
std::vector<range_list> scattered(std::size_t count) {
  std::vector<range_list> lists(choices * static_cast<std::size_t>(shape.kv_heads));
  std::vector<std::int32_t> pages(static_cast<std::size_t>(shape.max_tokens / 16));
  std::iota(pages.begin(), pages.end(), 0);
  std::minstd_rand random{3};
  for (range_list& list : lists) {
    std::ranges::shuffle(pages, random);
    std::sort(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(count));
    for (std::size_t i = 0; i < count; ++i) append(list, pages[i] * 16, pages[i] * 16 + 16, reason::scored);
  }
  return lists;
}

constexpr std::int64_t few = 512;
bool const few_registered =
    register_on_each("attend to 512", 2 * shape.kv_heads * few * row_bytes, [](auto& exec, std::size_t turn) {
      static std::vector<range_list> const lists = scattered(few / 16);
      auto const heads = static_cast<std::size_t>(shape.kv_heads);
      attend_to(exec, turn, {scope::head, std::span(lists).subspan(turn % choices * heads, heads), shape.kv_heads});
    });

}  // namespace
}  // namespace kvpolicy::bench
