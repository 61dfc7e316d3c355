// After any public calls around an attached session, on models with recurrent layers and with latent rows: `full` gives the
// engine's own logits, and `quest` chooses what a fresh state does. KVPOLICY_SEEDS and KVPOLICY_FIRST_SEED as
// random_calls_test.
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "families.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "random_calls.hpp"
#include "seeds.hpp"

namespace kvpolicy::llama::testing {
namespace {

template <class Policy>
class family_calls : public random_calls {
  static constexpr bool dense = std::is_same_v<Policy, presets::full>;

 public:
  family_calls(std::string const& architecture, llama_model* model, Policy const& preset, std::uint64_t seed)
      : random_calls(seed, {.cuts = !llama_model_is_hybrid(model), .three_streams = architecture != "kimi-linear"}),
        preset_(preset),
        tells_positions_(architecture != "kimi-linear"),
        steps_(sequences()) {
    auto const before = [this](llama_seq_id of, layer_id layer, layer_table_view const& view, query_heads const& queries,
                               simd_exec&) {
      step& mine = steps_[static_cast<std::size_t>(of)];
      mine.view = view;
      layer_step& made = mine.layers[layer.value];
      made.scale = queries.scale;
      made.queries.clear();
      for (std::int64_t h = 0; h < queries.heads; ++h) {
        float const* const row = queries.data + h * queries.head_stride;
        made.queries.insert(made.queries.end(), row, row + view.shape().head_dim);
      }
    };
    auto const after = [this](llama_seq_id of, layer_id layer, std::int64_t tokens, selection const& kept) {
      step& mine = steps_[static_cast<std::size_t>(of)];
      std::vector<range_list>& lists = mine.layers[layer.value].lists;
      lists.assign(kept.lists().begin(), kept.lists().end());
      for (range_list& list : lists) {  // the drafts of a step of several tokens are read, and not chosen
        if (list.back().end != tokens) return wrong(of, "drafts are not read");
        truncate(list, mine.view.tokens());
      }
      ++mine.choices;
    };
    open(model, std::make_unique<session>(preset, session_options{.on_choice = after, .on_queries = before}), dense);
  }

 private:
  struct layer_step {
    float scale = 1;
    std::vector<float> queries;
    std::vector<range_list> lists;
  };
  struct step {
    layer_table_view view;
    std::map<std::int64_t, layer_step> layers;
    std::int64_t choices = 0;
  };

  void use(session& by) override { by.use(preset_); }
  void begins(llama_seq_id of) override {
    steps_[static_cast<std::size_t>(of)].choices = 0;
    at(of).restarted = at(of).replaced = false;
  }

  void ended(llama_seq_id of, std::int64_t before, decoded_as what) override {
    modelled& s = at(of);
    step const& mine = steps_[static_cast<std::size_t>(of)];
    if (detached()) {
      s.blind = std::min(s.blind, before);
      return s.replace();
    }
    bool const prompt = what == decoded_as::prompt || (what == decoded_as::either && mine.choices == 0);
    if (mine.choices != (prompt ? 0 : std::ssize(mine.layers)))
      throw fault(std::to_string(mine.choices) + " choices for sequence " + std::to_string(of));
    s.known = s.tokens;
    s.blind = never;
    if (!prompt) return check_step(of, before);
    s.prompted = true;
    s.see(attached().save(of));
    s.heard = s.seen;
  }

  void check_step(llama_seq_id of, std::int64_t before) {
    step& mine = steps_[static_cast<std::size_t>(of)];
    if (mine.view.tokens() != before + 1)
      throw fault("the view has " + std::to_string(mine.view.tokens()) + " tokens of " + std::to_string(before + 1));
    cache_shape const shape = mine.view.shape();
    simd_exec exec(shape);
    auto fresh = start(preset_, shape);
    layer_table_view prompt = mine.view;
    --prompt.count;
    for (std::int64_t l = 0; l < shape.layers && prompt.tokens() > 0; ++l) fresh.prefill(prompt, {l}, {.first = 0}, exec);
    for (auto const& [l, made] : mine.layers) {
      query_heads const queries{made.queries.data(), shape.q_heads, shape.head_dim, made.scale};
      if (!std::ranges::equal(fresh.choose(mine.view, {l}, {queries}, exec).lists(), made.lists))
        throw fault("layer " + std::to_string(l) + " chose otherwise than a fresh state");
    }
  }

  /// A token behind a hole, or one that the session did not see written; tokens of one or two sequences that are the same, of a
  /// model whose graph has no positions.
  bool may_refuse(std::string const& what, modelled const& of) const override {
    return (what.find("positions have holes (llama_memory_seq_rm from the middle, ") != what.npos && of.hole != never) ||
           (what.find("holds a token that it did not see written") != what.npos && of.blind != never) ||
           (what.find("tokens may be of 1 or of 2 sequences") != what.npos && !tells_positions_);
  }

  Policy preset_;
  bool tells_positions_;
  std::vector<step> steps_;
};

/// The seeds take turns at the models.
template <class Policy>
void check_models(Policy const& preset, std::vector<std::string> const& architectures) {
  std::vector<model_owner> models;
  for (std::string const& each : architectures) models.push_back(tiny_model_of(each));
  check_seeds(100, [&](std::uint64_t seed) {
    std::size_t const which = seed % models.size();
    std::string const failed = family_calls(architectures[which], models[which].get(), preset, seed).run(40);
    return failed.empty() ? failed : architectures[which] + "\n" + failed;
  });
}

std::vector<std::string> const recurrent{"qwen3next", "granitehybrid", "lfm2",
                                         "smollm3"};                // linear attention, Mamba, a convolution
std::vector<std::string> const latent{"deepseek2", "kimi-linear"};  // the second one beside linear attention

TEST_CASE("after any calls full gives a hybrid model's own logits") { check_models(presets::full{}, recurrent); }

TEST_CASE("after any calls full gives a latent model's own logits") { check_models(presets::full{}, latent); }

TEST_CASE("after any calls quest chooses as a fresh state, of a hybrid model") {
  check_models(presets::quest{.tokens = 24, .page = 4}, recurrent);
}

TEST_CASE("after any calls quest chooses as a fresh state, of a latent model") {
  check_models(presets::quest{.tokens = 24, .page = 4}, latent);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
