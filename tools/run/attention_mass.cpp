#include "attention_mass.hpp"

#include <kvpolicy/primitive/list_attention.hpp>

#include <numeric>

#include "text_table.hpp"

namespace kvpolicy {

void attention_mass::start() {
  shares_.clear();
  on_ = true;
}

void attention_mass::see(layer_id layer, layer_table_view const& view, query_heads const& queries, simd_exec& exec) {
  if (!on_) return;
  tokens_ = view.tokens();
  std::int64_t const heads = view.shape().kv_heads;
  weights_.resize(static_cast<std::size_t>(heads * tokens_));
  range_list const all{{0, static_cast<std::int32_t>(tokens_)}};
  list_attention(queries, view.keys(layer), std::span<range_list const>(&all, 1),
                 table<float>{weights_.data(), heads, tokens_, tokens_}, exec);
}

void attention_mass::choose(selection const& kept) {
  if (!on_) return;
  for (std::int64_t h = 0; h < kept.kv_heads(); ++h) {
    double read = 0;
    for (token_range const& range : kept.of({h})) {
      auto const of_head = weights_.begin() + h * tokens_;
      read = std::accumulate(of_head + range.begin, of_head + range.end, read);
    }
    shares_.push_back(read);
  }
}

nlohmann::ordered_json attention_mass::result() const {
  double const sum = std::accumulate(shares_.begin(), shares_.end(), 0.);
  return {{"mean", shares_.empty() ? 0 : sum / static_cast<double>(shares_.size())}, {"p10", quantile(shares_, .1)}};
}

}  // namespace kvpolicy
