// Random requests on two sessions, one with a managed cache and cells that are given back, a part of them in a tier perhaps,
// one on the engine's cells: the same logits, bit for bit, under policies that choose. A tenth of KVPOLICY_SEEDS is how many
// seeds a policy gets (6 in a full run), KVPOLICY_FIRST_SEED the first.
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "conformance/rounds.hpp"
#include "decoding.hpp"
#include "kvpolicy/interop/llama.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "kvpolicy/tiers/host.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

constexpr tiny_shape shape{.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 32};
constexpr std::int64_t longest = 120;

int seeds() {
  char const* const set = std::getenv("KVPOLICY_SEEDS");
  if (set == nullptr) return std::max(3, kvpolicy_test::rounds_of(6));
  return std::max(1, std::atoi(set) / 10);  // fewer than of random_calls: each has several policies
}

int first_seed() {
  char const* const set = std::getenv("KVPOLICY_FIRST_SEED");
  return set == nullptr ? 1 : std::atoi(set);
}

/// A context with its session.
struct side {
  template <class Policy>
  side(llama_model* model, Policy const& chosen, context_options const& context, session_options options)
      : policy(chosen, std::move(options)), engine(model, &policy, context) {}
  session policy;
  decoder engine;
};

class random_requests {
 public:
  template <class Policy>
  random_requests(Policy const& policy, std::uint64_t seed, bool tiered, std::int64_t slots)
      : drops_(!requirements_of(parts_of(policy).retain).keeps_all || observation_queries(policy) > 0),
        random_(seed),
        sequences_(static_cast<std::size_t>(between(1, 3))),
        unified_(below(2) == 0),
        tells_(below(2) == 0),
        model_(tiny_llama(shape)),
        tier_(tiers::any_tier::of<tiers::host>(2 * bytes_of(*context_type(), shape.head_dim),
                                               3 * shape.layers * shape.kv_heads * 512)),
        own_(model_.get(), policy, context(),
             {.cache = managed_cache{.longest = 512, .tier = tiered ? &tier_ : nullptr, .resident = {.slots = slots}}}),
        engines_(model_.get(), policy, context(), {}) {}

  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      auto const of = static_cast<llama_seq_id>(below(sequences_.size()));
      sequence& s = at(of);
      switch (below(8)) {
        case 0:
          end(of);
          break;
        case 1:
          cut(of);
          break;
        case 2:
          copy(of);
          break;
        default:
          s.tokens == 0 || (!drops_ && s.tokens < longest && below(6) == 0) ? prompt(of) : steps();
          break;
      }
      check_tokens();
    }
    INFO(said_);
    CHECK(own_.policy.memory().most_bytes > 0);
    for (llama_seq_id of = 0; of < std::ssize(sequences_); ++of) fetched_ += own_.policy.tier_statistics(of).bytes_fetched;
    for (llama_seq_id of = 0; of < std::ssize(sequences_); ++of) {
      llama_memory_t const memory = own_.engine.memory();
      CHECK(llama_memory_seq_pos_max(memory, of) - llama_memory_seq_pos_min(memory, of) < 8);
    }
  }
  std::int64_t fetched() const { return fetched_; }

  void check_tokens() const {
    if (!tells_) return;
    for (llama_seq_id of = 0; of < std::ssize(sequences_); ++of) {
      sequence const& s = sequences_[static_cast<std::size_t>(of)];
      REQUIRE(own_.policy.tokens(of) == s.tokens);
      if (!drops_ || s.tokens <= s.prompt) REQUIRE(own_.policy.goes_on_from(of) == 0);
    }
  }

 private:
  struct sequence {
    std::int64_t tokens = 0;
    std::int64_t prompt = 0;
    int prompts = 0;
    bool stepped = false;
    int text = 0;  ///< the first prompt's number, also when it has ended
  };

  context_options context() {
    if (!context_) {
      context_ = context_options{.tokens = unified_ ? 1024u : 256u * static_cast<std::uint32_t>(sequences_.size()),
                                 .batch = 512,
                                 .micro_batch = below(2) == 0 ? 32u : 512u,
                                 .type = below(3) == 0 ? GGML_TYPE_Q8_0 : GGML_TYPE_F16,
                                 .sequences = static_cast<std::uint32_t>(sequences_.size()),
                                 .unified = unified_};
    }
    return *context_;
  }
  std::optional<element_type> context_type() {
    return context().type == GGML_TYPE_F16 ? element_type::f16 : element_type::q8_0;
  }
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(last - first + 1)));
  }
  sequence& at(llama_seq_id of) { return sequences_[static_cast<std::size_t>(of)]; }
  void say(std::string const& what) { said_ += what + "\n"; }
  template <class Use>
  void each(Use use) {
    use(own_.engine.memory());
    use(engines_.engine.memory());
  }

  /// The same tokens, one batch; the last token of each sequence has an output.
  void decode(std::vector<std::pair<llama_seq_id, std::int64_t>> const& counts) {
    std::vector<llama_token> ids;
    std::vector<llama_pos> positions;
    std::vector<llama_seq_id> owners;
    std::vector<std::int8_t> outputs;
    for (auto const& [of, count] : counts) {
      for (std::int64_t i = 0; i < count; ++i) {
        ids.push_back(static_cast<llama_token>(below(tiny_vocabulary)));
        positions.push_back(static_cast<llama_pos>(at(of).tokens++));
        owners.push_back(of);
        outputs.push_back(i + 1 == count);
      }
    }
    std::vector<std::int32_t> ones(ids.size(), 1);
    std::vector<llama_seq_id*> of_token;
    for (llama_seq_id& owner : owners) of_token.push_back(&owner);
    llama_batch const all{static_cast<std::int32_t>(ids.size()),
                          ids.data(),
                          nullptr,
                          positions.data(),
                          ones.data(),
                          of_token.data(),
                          outputs.data()};
    INFO(said_);
    int const status = tells_ ? engines_decode(all) : own_.policy.decode(own_.engine.context(), all);
    REQUIRE_NOTHROW(own_.policy.check());
    REQUIRE(status == 0);
    engines_.policy.set_batch(all);
    REQUIRE(llama_decode(engines_.engine.context(), all) == 0);
    for (std::int32_t i = 0; i < std::ssize(ids); ++i) {
      if (outputs[static_cast<std::size_t>(i)] == 0) continue;
      float const* const ours = llama_get_logits_ith(own_.engine.context(), i);
      float const* const theirs = llama_get_logits_ith(engines_.engine.context(), i);
      CAPTURE(owners[static_cast<std::size_t>(i)], positions[static_cast<std::size_t>(i)]);
      REQUIRE(std::equal(ours, ours + tiny_vocabulary, theirs));
    }
  }

  /// As a program that knows llama_decode alone, with somebody around it who knows the session.
  int engines_decode(llama_batch const& all) {
    std::vector<llama_seq_id> of;
    for (std::int32_t i = 0; i < all.n_tokens; ++i) of.push_back(all.seq_id[i][0]);
    own_.policy.set_batch(of);
    int const status = llama_decode(own_.engine.context(), all);
    own_.policy.give_back(own_.engine.context(), of);
    return status;
  }

  void prompt(llama_seq_id of) {
    std::int64_t const count = between(2, longest);
    say("prompt " + std::to_string(of) + ": " + std::to_string(count));
    at(of).prompt = at(of).tokens + count;
    if (at(of).tokens == 0) at(of).text = ++texts_;
    ++at(of).prompts;
    decode({{of, count}});
  }
  void steps() {
    std::vector<std::pair<llama_seq_id, std::int64_t>> counts;
    for (llama_seq_id of = 0; of < std::ssize(sequences_); ++of) {
      if (at(of).tokens > 0 && at(of).tokens < 2 * longest && below(3) != 0) counts.push_back({of, 1});
    }
    for (auto const& count : counts) at(count.first).stepped = true;
    if (counts.empty()) return;
    say("steps of " + std::to_string(counts.size()));
    decode(counts);
  }
  void end(llama_seq_id of) {
    say("end " + std::to_string(of));
    each([&](llama_memory_t memory) { llama_memory_seq_rm(memory, of, -1, -1); });
    if (tells_) own_.policy.end(of);
    at(of) = {.text = at(of).text};
  }
  /// Not into a prompt that is not whole: what of it was dropped would come back in the engine's cells.
  void cut(llama_seq_id of) {
    sequence& s = at(of);
    std::int64_t const least = drops_ ? s.prompt + 1 : 1;
    if (s.tokens <= least) return;
    s.tokens = between(least, s.tokens - 1);
    s.prompt = std::min(s.prompt, s.tokens);
    say("cut " + std::to_string(of) + " to " + std::to_string(s.tokens));
    each([&](llama_memory_t memory) { llama_memory_seq_rm(memory, of, static_cast<llama_pos>(s.tokens), -1); });
    if (tells_) own_.policy.cut(of, s.tokens);
  }
  /// Of a first prompt that no step has followed: the engine's cells have no more of what the policy knows. To a sequence of
  /// another text: over the same one, a session on the engine's cells takes it for a cut.
  void copy(llama_seq_id from) {
    auto const to = static_cast<llama_seq_id>(below(sequences_.size()));
    if (at(to).text == at(from).text || at(from).prompts != 1 || at(from).stepped) return;
    say("copy " + std::to_string(from) + " to " + std::to_string(to));
    each([&](llama_memory_t memory) {
      llama_memory_seq_rm(memory, to, -1, -1);
      llama_memory_seq_cp(memory, from, to, -1, -1);
    });
    own_.policy.copy(from, to);
    at(to) = at(from);
  }

  bool drops_;  ///< the policy; or it has to see a prompt whole
  std::mt19937_64 random_;
  std::vector<sequence> sequences_;
  bool unified_;
  int texts_ = 0;
  bool tells_;  ///< the session each call, and decodes without it
  std::optional<context_options> context_;
  model_owner model_;
  tiers::any_tier tier_;
  side own_;
  side engines_;
  std::string said_;
  std::int64_t fetched_ = 0;
};

template <class Policy>
void same_logits(Policy const& policy, bool tiered = false, std::int64_t slots = 0) {
  std::int64_t fetched = 0;
  for (int seed = first_seed(); seed < first_seed() + seeds(); ++seed) {
    CAPTURE(seed);
    random_requests requests(policy, static_cast<std::uint64_t>(seed), tiered, slots);
    requests.run(60);
    fetched += requests.fetched();
  }
  CHECK((fetched > 0) == tiered);
}

// A pivot with its satellite, and heads that need everything or little.
constexpr std::array profile{head_profile{.role = head_role::pivot, .stability = .3f},
                             head_profile{.role = head_role::satellite, .pivot = 0, .stability = .3f},
                             head_profile{.role = head_role::anchor, .stability = .9f},
                             head_profile{.role = head_role::shifting, .stability = .2f},
                             head_profile{.role = head_role::satellite, .pivot = 1, .stability = .1f},
                             head_profile{.role = head_role::pivot, .stability = .6f}};

presets::sentencekv sentencekv() {
  return {.tokens = 24, .keep = 2, .sentences = {.boundary = ends_by_length(), .longest = 12}, .after = 0};
}

}  // namespace

TEST_CASE("random requests on a managed cache: policies that retain") {
  SECTION("snapkv") { same_logits(presets::snapkv{.tokens = 24, .after = 0}); }
  SECTION("pyramidkv") { same_logits(presets::pyramidkv{.tokens = 24, .after = 0}); }
  SECTION("adakv") { same_logits(presets::adakv{.tokens = 24, .after = 0}); }
  SECTION("chunkkv") { same_logits(presets::chunkkv{.tokens = 24, .chunk = 4, .after = 0}); }
  SECTION("lagkv") { same_logits(presets::lagkv{.tokens = 24, .lag = 8}); }
  SECTION("expected_attention") { same_logits(presets::expected_attention{.tokens = 24}); }
}
TEST_CASE("random requests on a managed cache: policies that evict") {
  SECTION("streaming_llm") { same_logits(presets::streaming_llm{.tokens = 24}); }
  SECTION("tova") { same_logits(presets::tova{.tokens = 24}); }
  SECTION("h2o") { same_logits(presets::h2o{.tokens = 24}); }
}
TEST_CASE("random requests on a managed cache: policies that retrieve") {
  SECTION("full") { same_logits(presets::full{}); }
  SECTION("quest") { same_logits(presets::quest{.tokens = 24, .page = 4}); }
  SECTION("sentencekv") { same_logits(sentencekv()); }
  SECTION("snapkv, then quest") {
    same_logits(presets::snapkv{.tokens = 48, .after = 0} + presets::quest{.tokens = 24, .page = 4});
  }
}

TEST_CASE("random requests on a managed cache: a part of its rows in a tier") {
  SECTION("quest") { same_logits(presets::quest{.tokens = 24, .page = 4}, true, 30); }
  SECTION("quest as in its paper") {
    presets::quest paper = presets::quest::paper();
    paper.tokens = 48;
    same_logits(paper, true, 80);
  }
  SECTION("sentencekv") { same_logits(sentencekv(), true, 30); }
  SECTION("infllm") { same_logits(presets::infllm{.tokens = 32, .block = 8, .representatives = 2, .local = 12}, true); }
  SECTION("chess") {
    same_logits(presets::chess{.fractions = {.tokens = 32}, .units = {.page = 4, .pages_per_chunk = 4}, .rest = 0, .every = 2},
                true, 70);
  }
  SECTION("snapkv, then quest") {
    same_logits(presets::snapkv{.tokens = 60, .after = 0} + presets::quest{.tokens = 24, .page = 4}, true, 30);
  }
  SECTION("heterocache") {
    same_logits(
        presets::heterocache{.heads = profile, .tokens = 40, .window = 3, .every = 3, .drift = .9f, .observe = 4, .after = 0},
        true);
  }
}

}  // namespace kvpolicy::llama::testing
