// A scorer of a user's own at every step of a decoder: its kernel, and the unit_scores that launches it.
#include <catch2/catch_test_macros.hpp>

#include "cuda/batch_run.hpp"
#include "cuda/emulator/emulated_launch.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

/// Pages from the end backwards for even heads, from the beginning for odd ones.
struct by_age {
  static constexpr signals needs = signals::none;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::units;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }
  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec&) const {
    for (std::int64_t h = 0; h < input.heads.count; ++h) {
      float const sign = (input.heads.first + h) % 2 == 0 ? 1.f : -1.f;
      for (std::int64_t u = 0; u < out.columns; ++u) out(h, u) = sign * static_cast<float>(u);
    }
  }
};
static_assert(scorer<by_age>);

}  // namespace

struct by_age_body : kvpolicy::gpu::no_shared {
  static constexpr unsigned threads = 32;
  static constexpr char const* name = "by_age";
  struct arguments {
    gpu::buffer<float> scores;  ///< `[sequences, kv_heads, units]`
    std::int64_t units = 0;
    std::int32_t heads = 1;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const unit = kvpolicy::gpu::index_in_grid(block);
    if (unit >= a.units) return;
    float const sign = block.y() % static_cast<unsigned>(a.heads) % 2 == 0 ? 1.f : -1.f;
    block.global(a.scores)[block.y() * a.units + unit] = sign * static_cast<float>(unit);
  }
};
KVPOLICY_EMULATE(by_age_body)

}  // namespace kvpolicy_test

namespace kvpolicy::gpu {

template <class Rule, owning_device D>
  requires std::same_as<typename Rule::score_type, kvpolicy_test::by_age>
class unit_scores<Rule, D> {
 public:
  static constexpr bool by_index = false;
  unit_scores(decode_context<Rule, D> const& context, std::int64_t units) : context_(context), units_(units) {}
  template <class View, class Exec>
  void prefill(prompt_piece<View> const&, Exec&) {}
  void score(decode_step const&, unit_candidates const&, buffer<float> scores) {
    using body = kvpolicy_test::by_age_body;
    context_.device->template launch<body>({divided_up(units_, body::threads), context_.heads(), 1},
                                           {scores, units_, static_cast<std::int32_t>(context_.shape.kv_heads)});
  }

 private:
  decode_context<Rule, D> context_;
  std::int64_t units_;
};

}  // namespace kvpolicy::gpu

namespace kvpolicy_test {
namespace {

TEST_CASE("a decoder's steps choose what the four verbs choose: a scorer with a kernel of one's own", "[cuda]") {
  auto const made = [](std::int32_t page, std::int32_t tokens) {
    return policy{keep_all{}, keep{segments::pages{page}, pools::none{}, by_age{}, budgets::tokens{tokens}, selectors::top{},
                                   windows::pages{.size = page, .recent_pages = 1}, triggers::every_step{}}};
  };
  run_batches<decltype(made(1, 1))>(36, 12, [&](random_source& random, cache_shape const&) {
    auto const page = static_cast<std::int32_t>(random.between(2, 8));
    return made(page, static_cast<std::int32_t>(random.between(3 * page, 60)));
  });
}

}  // namespace
}  // namespace kvpolicy_test
