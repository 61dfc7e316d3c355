// A scorer that records moments of a prompt's queries, and scores nothing.
#pragma once

#include <kvpolicy/compose.hpp>
#include <kvpolicy/scorers/trigonometric.hpp>

#include <cmath>
#include <vector>

namespace kvpolicy {

/// Sums over prompts of what query_moment has the mean of.
class query_sums {
 public:
  /// The queries of one layer's prompt, rotated at positions from `first` on.
  template <class Exec>
  void add(layer_id layer, std::int64_t layers, query_window const& queries, rotation const& rope, std::int64_t first,
           std::int64_t head_dim, Exec& exec) {
    auto const of_layer = static_cast<std::size_t>(queries.heads * rope.pairs);
    sums_.resize(static_cast<std::size_t>(layers) * of_layer);
    pairs_ = rope.pairs;
    std::vector<float> mean(static_cast<std::size_t>(queries.heads * head_dim));
    query_moments(queries, rope, first, table<float>{mean.data(), queries.heads, head_dim, head_dim}, {}, exec);
    auto const count = static_cast<double>(queries.tokens);
    if (layer.value == 0) tokens_ += count;
    bool const halves = rope.how == rotation::pairing::halves;
    for (std::int64_t h = 0; h < queries.heads; ++h) {
      for (std::int64_t f = 0; f < rope.pairs; ++f) {
        std::int64_t const a = halves ? f : 2 * f;
        std::int64_t const b = halves ? f + rope.pairs : 2 * f + 1;
        sum& to = sums_[static_cast<std::size_t>(layer.value) * of_layer + static_cast<std::size_t>(h * rope.pairs + f)];
        to.real += count * static_cast<double>(mean[static_cast<std::size_t>(h * head_dim + a)]);
        to.imaginary += count * static_cast<double>(mean[static_cast<std::size_t>(h * head_dim + b)]);
        for (std::int64_t t = 0; t < queries.tokens; ++t)
          to.length += std::hypot(static_cast<double>(queries.at(t, h)[a]), static_cast<double>(queries.at(t, h)[b]));
      }
    }
  }

  std::int64_t pairs() const noexcept { return pairs_; }
  /// `[layers, q_heads, pairs]` means.
  std::vector<query_moment> moments() const {
    std::vector<query_moment> made;
    for (sum const& one : sums_) {
      made.push_back({static_cast<float>(one.real / tokens_), static_cast<float>(one.imaginary / tokens_),
                      static_cast<float>(one.length / tokens_)});
    }
    return made;
  }

 private:
  struct sum {
    double real = 0;
    double imaginary = 0;
    double length = 0;
  };
  std::vector<sum> sums_;
  double tokens_ = 0;
  std::int64_t pairs_ = 0;
};

struct query_recorder {
  static constexpr signals needs = signals::keys | signals::observation_queries | signals::rotation;
  static constexpr scope granularity = scope::layer;
  static constexpr scored of = scored::tokens;

  query_sums* sums = nullptr;
  std::int32_t window = all_queries;

  struct memory : no_memory {
    static constexpr bool hears_prompts = true;
  };
  static memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void begin(Input const& input, Exec& exec) const {
    cache_shape const shape = input.view.shape();
    query_window const& queries = input.prompt->queries;
    sums->add(input.layer, shape.layers, queries, input.prompt->rope, input.tokens - queries.tokens, shape.head_dim, exec);
  }
  template <class Input, executor Exec>
  void score(Input const&, table<float> out, Exec&) const {
    for (std::int64_t t = 0; t < out.columns; ++t) out(0, t) = 0;
  }
};

static_assert(scorer<query_recorder>);

/// Keeps everything, and records the prompt's queries.
inline auto recording(query_sums& sums) {
  return policy{keep{segments::tokens{}, pools::none{}, query_recorder{&sums}, budgets::tokens{.count = INT32_MAX},
                     selectors::top_of_layer{}, windows::tokens{}, triggers::prefill{}},
                keep_all{}};
}

}  // namespace kvpolicy
