// Lossless decoding gives the logits of dense decoding, whatever tokens the caller takes.
#include "kvpolicy/interop/llama/lossless.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "conformance/rounds.hpp"
#include "decoding.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

constexpr tiny_shape shape{.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 32};

llama_token best_of(std::span<float const> all) {
  return static_cast<llama_token>(std::ranges::max_element(all) - all.begin());
}

/// Two contexts with the same sequences: one decodes losslessly, the other one token at a time, under `full`.
class random_answers {
 public:
  explicit random_answers(std::uint64_t seed) : random_(seed) {
    static model_owner const model = tiny_llama(shape);
    options_ = {.tokens = 0, .sequences = static_cast<std::uint32_t>(between(1, 3)), .unified = between(0, 1) == 0};
    options_.tokens = 256 * (options_.unified ? 1 : options_.sequences);
    options_.micro_batch = between(0, 1) == 0 ? 1024 : 32;
    if (between(0, 1) == 0) drafts_.emplace(presets::quest{.tokens = 24, .page = 4});
    else drafts_.emplace(verified_draft{.tokens = 24, .window = 4, .sinks = 1, .recent = 4});
    ours_.emplace(model.get(), &*drafts_, options_);
    theirs_.emplace(model.get(), &full_, options_);
    fast_.emplace(*drafts_, ours_->context(),
                  lossless_options{.drafts = between(0, 15), .adapt = between(0, 1) == 0, .shortest = 0});
    tokens_.resize(options_.sequences);
  }

  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      auto const of = static_cast<llama_seq_id>(between(0, static_cast<int>(options_.sequences) - 1));
      std::int64_t const count = tokens_[static_cast<std::size_t>(of)];
      switch (between(0, 9)) {
        case 0:
          prompt(of, between(1, 40));
          break;
        case 1:
          if (count > 1) cut(of, between(1, static_cast<int>(count) - 1));
          break;
        default:
          answer();
      }
    }
    for (llama_seq_id of = 0; of < static_cast<llama_seq_id>(options_.sequences); ++of)
      accepted_ += fast_->statistics(of).accepted;
  }
  std::int64_t accepted() const noexcept { return accepted_; }

 private:
  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  std::int64_t room() const {
    std::int64_t const used = std::accumulate(tokens_.begin(), tokens_.end(), std::int64_t{0});
    return 256 - (options_.unified ? used : *std::ranges::max_element(tokens_));
  }

  /// A piece of a prompt, in both contexts.
  void prompt(llama_seq_id of, int count) {
    if (room() < count + 20) return cut(of, 0);
    fast_->settle(of);
    token_list ids(static_cast<std::size_t>(count));
    for (llama_token& id : ids) id = between(0, tiny_vocabulary - 1);
    std::vector<llama_seq_id> const its(ids.size(), of);
    drafts_->set_batch(its, std::vector<std::int8_t>(ids.size(), 0));
    REQUIRE(ours_->status_of(ids, its) == 0);
    full_.set_batch(its, std::vector<std::int8_t>(ids.size(), 0));
    REQUIRE(theirs_->status_of(ids, its) == 0);
    tokens_[static_cast<std::size_t>(of)] += count;
    next_[of] = ids.back();
  }

  void cut(llama_seq_id of, std::int64_t to) {
    fast_->settle(of);
    for (decoder* const it : {&*ours_, &*theirs_})
      REQUIRE(llama_memory_seq_rm(it->memory(), of, static_cast<llama_pos>(to), -1));
    tokens_[static_cast<std::size_t>(of)] = to;
    if (to == 0) next_.erase(of);
  }

  /// A token of some sequences, most often the likeliest.
  void answer() {
    std::vector<lossless_token> tokens;
    for (auto const& [of, next] : next_) {
      if (between(0, 3) != 0 && room() > static_cast<std::int64_t>(next_.size()))
        tokens.push_back({between(0, 3) != 0 ? next : between(0, tiny_vocabulary - 1), of});
    }
    fast_->decode(tokens);
    for (auto const& [token, of] : tokens) {
      std::vector<llama_seq_id> const its{of};
      full_.set_batch(its);
      REQUIRE(theirs_->status_of(token_list{token}, its) == 0);
      float const* const row = llama_get_logits_ith(theirs_->context(), 0);
      logits const want(row, row + tiny_vocabulary);
      std::span const got = fast_->logits(of);
      INFO("sequence " << of << " of " << options_.sequences << ", " << tokens_[static_cast<std::size_t>(of)] << " tokens");
      REQUIRE(difference(logits(got.begin(), got.end()), want) < .02);
      ++tokens_[static_cast<std::size_t>(of)];
      next_[of] = best_of(want);
    }
  }

  std::mt19937_64 random_;
  context_options options_;
  std::optional<session> drafts_;
  session full_{presets::full{}};
  std::optional<decoder> ours_;
  std::optional<decoder> theirs_;
  std::optional<lossless> fast_;
  std::vector<std::int64_t> tokens_;          ///< of each sequence
  std::map<llama_seq_id, llama_token> next_;  ///< the likeliest token of each sequence that has some
  std::int64_t accepted_ = 0;
};

TEST_CASE("whatever tokens a caller takes, lossless decoding gives the logits of full") {
  std::int64_t accepted = 0;
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(kvpolicy_test::rounds_of(300)); ++seed) {
    INFO("seed " << seed);
    random_answers one(seed);
    one.run(30);
    accepted += one.accepted();
  }
  REQUIRE(accepted > 100);
}

TEST_CASE("drafts read a part of the tokens, and every one that the caller takes costs no decode") {
  model_owner const model = tiny_llama(shape);
  std::int64_t sparse = 0;
  std::int64_t whole = 0;
  session drafts(verified_draft{.tokens = 64, .window = 8, .sinks = 4, .recent = 16},
                 {.on_choice = [&](llama_seq_id, layer_id layer, std::int64_t tokens, selection const& kept) {
                   if (layer.value != 0) return;
                   if (kept.tokens() == tokens * shape.kv_heads) ++whole;
                   else if (kept.tokens() < 110 * shape.kv_heads) ++sparse;
                 }});
  decoder ours(model.get(), &drafts);
  logits last = ours.feed(random_tokens(400));
  lossless fast(drafts, ours.context(), {.drafts = 5, .adapt = false});
  llama_token token = best_of(last);
  for (int i = 0; i < 40; ++i) token = best_of(fast.decode(token));
  lossless_statistics const did = fast.statistics();
  CHECK(did.tokens == 40);
  CHECK(did.drafted == did.rounds * 5);
  CHECK(did.rounds + did.accepted == 40);
  CHECK(did.accepted > 0);
  // Each draft reads what was chosen and the tokens since; each verification that is not a prompt's piece, everything.
  CHECK(sparse == did.drafted);
  CHECK(whole == did.rounds - 1);
  fast.settle();
  CHECK(llama_memory_seq_pos_max(ours.memory(), 0) == 439);
}

TEST_CASE("a context that is nearly full gets fewer drafts, and its last token") {
  model_owner const model = tiny_llama(shape);
  session drafts(verified_draft{.tokens = 64, .window = 4, .sinks = 1, .recent = 8});
  decoder ours(model.get(), &drafts, {.tokens = 256});
  logits last = ours.feed(random_tokens(250));
  lossless fast(drafts, ours.context(), {.drafts = 15, .adapt = false});
  llama_token token = best_of(last);
  for (int i = 0; i < 6; ++i) token = best_of(fast.decode(token));
  fast.settle();
  CHECK(llama_memory_seq_pos_max(ours.memory(), 0) == 255);
  CHECK_THROWS_AS(fast.decode(token), error);
  CHECK(llama_memory_seq_pos_max(ours.memory(), 0) == 255);
}

TEST_CASE("lossless decoding refuses by name what it can't do") {
  model_owner const model = tiny_llama(shape);
  auto const refused = [&](session& with, lossless_options const& options, char const* why) {
    decoder ours(model.get(), &with);
    REQUIRE_THROWS_MATCHES(lossless(with, ours.context(), options), error, MessageMatches(ContainsSubstring(why)));
  };
  session fine(presets::quest{.tokens = 64});
  refused(fine, {.drafts = 16}, "with 16 drafts; there can be 0 to 15");
  session negative(presets::quest{.tokens = 64});
  refused(negative, {.drafts = -1}, "with -1 drafts");
  session drops(presets::snapkv{.tokens = 64});
  refused(drops, {}, "the policy drops some");
  session managed(presets::full{}, {.cache = managed_cache{}});
  refused(managed, {}, "has a managed cache");
  session apart(presets::full{});
  decoder ours(model.get(), nullptr);
  REQUIRE_THROWS_MATCHES(lossless(apart, ours.context()), error, MessageMatches(ContainsSubstring("call attach() first")));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
