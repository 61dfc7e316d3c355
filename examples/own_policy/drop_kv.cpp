// DropKV: of a prompt those tokens stay without which the attention of its last queries would change most.
#include <kvpolicy/compose.hpp>
#include <kvpolicy/scorers/window_attention.hpp>
#include <kvpolicy/text/plugin.hpp>

namespace kv = kvpolicy;

/// Scores a token by what attention's outputs lose if it alone is dropped: the sum, over the prompt's last queries and the KV
/// head's query heads, of the squared distance between the output with it and the output without. With p its weight, v its
/// value and o the output this is (p / (1 - p))^2 |v - o|^2 (kvpress, pull request 285). What has all of the weight is kept in
/// any case.
struct output_change {
  static constexpr kv::signals needs = kv::signals::keys | kv::signals::values | kv::signals::observation_queries;
  static constexpr kv::scope granularity = kv::scope::head;
  static constexpr kv::scored of = kv::scored::tokens;
  static constexpr kv::no_memory start(kv::cache_shape const&) noexcept { return {}; }

  std::int32_t window = 8;  ///< queries that count; their own tokens get no score
  std::int32_t kernel = 1;  ///< a token's score is the largest of so many neighbours'

  template <class Window>
  void check(Window const& of_rule, kv::cache_shape const& shape) const {
    kv::check_protected(of_rule, window, shape);
    if (kernel < 1 || kernel % 2 == 0)
      throw kv::invalid_value("a neighbourhood of " + std::to_string(kernel) + " tokens; it must be odd");
  }

  template <class Input, kv::executor Exec>
  void score(Input const& input, kv::table<float> out, Exec&) const {
    static_assert(kv::on_host<Exec>, "output_change reads rows on the host");
    std::int64_t const group = input.view.shape().group();
    kv::query_window const queries = kv::last_queries(input.prompt, window).of(input.heads, group);
    kv::rows const keys = input.keys();
    kv::rows const values = input.values();
    std::vector<float> key(static_cast<std::size_t>(keys.head_dim));
    std::vector<std::vector<float>> all(static_cast<std::size_t>(values.tokens));  // the values of a head
    for (std::vector<float>& value : all) value.resize(static_cast<std::size_t>(values.head_dim));
    std::vector<double> weights(all.size());
    std::vector<float> sums(static_cast<std::size_t>(out.columns));
    for (std::int64_t h = 0; h < out.rows; ++h) {
      for (std::int64_t t = 0; t < values.tokens; ++t) values.load({h}, {t}, all[static_cast<std::size_t>(t)]);
      std::ranges::fill(sums, 0.0f);
      for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
        for (std::int64_t w = 0; w < queries.tokens; ++w) {
          std::span const seen = std::span(weights).first(static_cast<std::size_t>(keys.tokens - queries.tokens + w + 1));
          kv::host::softmax_row(queries.at(w, q), queries.scale, keys, {h}, seen, key);
          add_changes(all, seen, sums);
        }
      }
      kv::smooth_row(sums, {.how = kv::smoothing::kind::maximum, .width = kernel}, {out.row(h), sums.size()});
    }
  }

 private:
  static void add_changes(std::vector<std::vector<float>> const& values, std::span<double const> weights,
                          std::span<float> sums) {
    std::vector<double> output(values.front().size());
    for (std::size_t t = 0; t < weights.size(); ++t) {
      for (std::size_t c = 0; c < output.size(); ++c) output[c] += weights[t] * static_cast<double>(values[t][c]);
    }
    for (std::size_t t = 0; t < sums.size(); ++t) {
      double distance = 0;
      for (std::size_t c = 0; c < output.size(); ++c) distance += std::pow(static_cast<double>(values[t][c]) - output[c], 2);
      double const others = 1 - weights[t];
      sums[t] += others > 1e-9 ? static_cast<float>(std::pow(weights[t] / others, 2) * distance) : HUGE_VALF;
    }
  }
};

struct drop_kv {
  std::int32_t tokens = 512;
  std::int32_t window = 8;
  std::int32_t kernel = 1;
  std::int32_t after = 0;

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("tokens", p.tokens, "kept of the prompt for each KV head, window included");
    visit("window", p.window, "last queries that count, whose tokens are always kept");
    visit("kernel", p.kernel, "neighbours, of which the largest score counts; odd");
    visit("after", p.after, "tokens of the answer that the choice waits for");
  }

  constexpr auto parts() const {
    return kv::policy{
        kv::keep{kv::segments::tokens{}, kv::pools::none{}, output_change{window, kernel}, kv::budgets::tokens{.count = tokens},
                 kv::selectors::top{}, kv::windows::tokens{.recent = window}, kv::triggers::prefill{after}},
        kv::keep_all{}};
  }
};

KVPOLICY_PLUGIN(kv::named<drop_kv>("drop_kv",
                                   "the tokens whose loss would change attention most (DropKV, kvpress pull request 285)"))
