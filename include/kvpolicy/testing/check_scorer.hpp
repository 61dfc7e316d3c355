// Checks that a scorer, with the pool that it reads, keeps its promises.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/score_input.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/testing/random_cache.hpp"

namespace kvpolicy::testing {

/// How a scorer is checked.
struct scorer_options {
  int rounds = 60;  ///< random caches
  std::uint64_t seed = 1;
  bool gathered = true;       ///< whether scores depend on the rows alone; false for a scorer that looks at their positions
  std::int64_t unscored = 0;  ///< last tokens for which the scorer is not asked, because its rule's window protects them
};

/// Checks one scorer and pool on random caches; see check_scorer().
template <class Score, class Pool, class Segment>
class scorer_check {
  using memory_type = memory_of<Score>;
  using summaries_type = summaries_of<Pool, Segment>;

 public:
  /// Prepares a check.
  /// @param score,pool,segment  the scorer, with the pool and segmenter that it goes with
  /// @param options  how to check it
  scorer_check(Score const& score, Pool const& pool, Segment const& segment, scorer_options const& options)
      : score_(score), pool_(pool), segment_(segment), options_(options), random_(options.seed) {}

  /// Runs the check.
  /// @throws broken_promise at the first promise that is not kept
  void run() {
    for (int round = 0; round < options_.rounds; ++round) {
      shape_ = random_.shape(70);
      content const what = static_cast<content>(round % 3);
      random_cache cache(shape_, random_, what);
      random_signals const inputs(shape_, random_);
      // At prefill and at a step, if the scorer can score there.
      constexpr bool by_prompt = contains(Score::needs, signals::observation_queries);
      constexpr bool by_step = contains(Score::needs, signals::queries);
      if (by_prompt || !by_step) one(cache, inputs, true, what);
      if (by_step || !by_prompt) one(cache, inputs, false, what);
    }
  }

 private:
  void one(random_cache& cache, random_signals const& inputs, bool at_prompt, content what) {
    std::int64_t const tokens = random_.between(1, shape_.max_tokens);
    std::int64_t const choosing = at_prompt ? tokens : random_.between(1, tokens);
    layer_id const layer{random_.between(0, shape_.layers - 1)};
    where_ = name_of(shape_, tokens) + (at_prompt ? ", at the prompt's end" : ", at a step") + ", layer " +
             std::to_string(layer.value) + ", seed " + std::to_string(options_.seed);
    head_range const all{0, shape_.kv_heads};
    auto const want = scores(cache.view(tokens), layer, all, choosing, inputs, at_prompt);
    if (scores(cache.view(tokens), layer, all, choosing, inputs, at_prompt) != want) {
      fail("the same input has other scores the second time");
    }
    // For one head alone, it reads that head's rows and writes one list.
    for (std::int64_t h = 0; h < shape_.kv_heads && Score::granularity == scope::head; ++h) {
      auto const alone = scores(cache.view(tokens), layer, {h, 1}, choosing, inputs, at_prompt);
      if (alone.front() != want[static_cast<std::size_t>(h)]) {
        fail("asked for KV head " + std::to_string(h) +
             " alone, it gives other scores than asked for all: score input.keys(), " + "whose heads are input.heads");
      }
    }
    // Tokens after those that the choice is made among don't count.
    if (choosing < tokens) {
      random_cache other = cache;
      other.replace(choosing, random_, what);
      if (scores(other.view(tokens), layer, all, choosing, inputs, at_prompt) != want) {
        fail("tokens from " + std::to_string(choosing) + " on change the scores of those before: the choice is made among " +
             "input.tokens");
      }
    }
    // A pool forgets the tokens that are cut.
    if constexpr (!Segment::ragged) {
      removed const gone{random_.between(0, choosing / 2), cache, random_, what};
      if (scores(cache.view(tokens), layer, all, choosing, inputs, at_prompt, &gone) != want) {
        fail("tokens that were cut from " + std::to_string(gone.first) +
             " on change the scores of those that took their place: the pool's cut() forgets every token from there on");
      }
    }
    // Gathered tokens score as if no others existed.
    if (!options_.gathered) return;
    std::vector<std::int32_t> const few = random_.few(tokens);
    auto const count = std::ssize(few);
    indexed_view<strided_view<>> const gathered{cache.view(tokens), count, few.data(), 0};
    random_cache const compact = cache.compacted(few);
    if (scores(gathered, layer, all, count, inputs, at_prompt) !=
        scores(compact.view(count), layer, all, count, inputs, at_prompt)) {
      fail(
          "gathered tokens have other scores than the same rows side by side: read rows by load() or a primitive, not by "
          "their strides");
    }
  }

  /// Tokens from `first` on that a pool took in, and that others replaced then.
  struct removed {
    removed(std::int64_t from, random_cache const& as, random_source& random, content what) : first(from), cache(as) {
      cache.replace(from, random, what);
    }
    std::int64_t first;
    random_cache cache;
  };

  /// Returns `[lists][columns]` scores as bits, so that NaN equals itself.
  /// @throws broken_promise if the scorer writes elsewhere, or not everything
  template <class View>
  std::vector<std::vector<std::uint32_t>> scores(View const& view, layer_id layer, head_range heads, std::int64_t choosing,
                                                 random_signals const& inputs, bool at_prompt, removed const* gone = nullptr) {
    summaries_type summaries = pool_.start(shape_, segment_);
    memory_type memory = score_.start(shape_);
    make_room(summaries, shape_.max_tokens);
    make_room(memory, shape_.max_tokens);
    prompt_signals const prompt = inputs.prompt(0, view.tokens());
    if constexpr (Segment::ragged) summaries.extend(segment_, 0, prompt.token_ids);
    if (gone != nullptr) {
      pool_.update(summaries, gone->cache.view(choosing), layer, heads, choosing, exec_);
      summaries.cut(layer, heads, gone->first);
    }
    for (std::int64_t piece = choosing / 2; piece <= choosing; piece += std::max<std::int64_t>(1, choosing - choosing / 2)) {
      if (piece > 0) pool_.update(summaries, view, layer, heads, piece, exec_);
    }
    score_input<View, summaries_type, memory_type> input{view, layer, heads, choosing, view.tokens(), summaries, memory};
    if (at_prompt) input.prompt = &prompt;
    else input.queries = inputs.step(view.tokens()).queries.of(heads, shape_.group());
    if constexpr (memory_type::hears_prompts) {  // of the tokens that the choice is made among
      View const known = with_tokens(view, choosing);
      prompt_signals const before = inputs.prompt(0, choosing);
      score_input<View, summaries_type, memory_type> begun{known, layer, heads, choosing, choosing, summaries, memory};
      begun.prompt = &before;
      score_.begin(begun, exec_);
    }
    if constexpr (memory_type::hears_steps) {
      if (!at_prompt) score_.watch(input, exec_);
    }
    return written(input, Score::granularity == scope::head ? heads.count : 1);
  }

  template <class Input>
  std::vector<std::vector<std::uint32_t>> written(Input& input, std::int64_t lists) {
    std::int64_t columns = input.tokens;
    if constexpr (Segment::ragged) columns = input.summaries.units();
    else if (Score::of == scored::units) columns = (input.tokens + segment_.unit_size() - 1) / segment_.unit_size();
    columns = std::max<std::int64_t>(0, columns - options_.unscored);
    constexpr std::int64_t margin = 3;
    std::int64_t const stride = columns + margin;
    std::vector<float> room(static_cast<std::size_t>((lists + 2 * margin) * stride), untouched());
    score_.score(input, table<float>{room.data() + margin * stride, lists, columns, stride}, exec_);
    std::vector<std::vector<std::uint32_t>> made(static_cast<std::size_t>(lists));
    for (std::int64_t row = 0; row < lists + 2 * margin; ++row) {
      bool const own = row >= margin && row < margin + lists;
      for (std::int64_t c = 0; c < stride; ++c) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &room[static_cast<std::size_t>(row * stride + c)], sizeof bits);
        if (own && c < columns && bits == untouched_bits) {
          fail("it leaves column " + std::to_string(c) + " of " + std::to_string(columns) + " unwritten");
        }
        if (own && c < columns) made[static_cast<std::size_t>(row - margin)].push_back(ordered(bits));
        else if (!own && bits != untouched_bits)
          fail("it writes row " + std::to_string(row - margin) + " of " + std::to_string(lists) +
               "; write only the rows of input.heads, of which there are out.rows");
      }
    }
    return made;
  }

  static strided_view<> with_tokens(strided_view<> view, std::int64_t tokens) noexcept {
    view.token_count = tokens;
    return view;
  }
  static indexed_view<strided_view<>> with_tokens(indexed_view<strided_view<>> view, std::int64_t tokens) noexcept {
    view.count = tokens;
    return view;
  }

  static constexpr std::uint32_t untouched_bits = 0x7fe5a5a5u;  // a NaN that no arithmetic makes
  /// All NaN are alike: none ranks before another.
  static std::uint32_t ordered(std::uint32_t bits) noexcept {
    return std::isnan(std::bit_cast<float>(bits)) ? 0x7fc00000u : bits;
  }
  static float untouched() noexcept { return std::bit_cast<float>(untouched_bits); }
  [[noreturn]] void fail(std::string const& what) const { throw broken_promise("a scorer: " + what + " (" + where_ + ")"); }

  Score score_;
  Pool pool_;
  Segment segment_;
  scorer_options options_;
  random_source random_;
  host_exec exec_;
  cache_shape shape_{};
  std::string where_;
};

/// Checks a scorer on random shapes and rows, ties, NaN and infinity among them. Pools are updated in pieces.
/// The same input must give the same scores. A head alone must get the scores that it gets among all heads, and gathered tokens
/// those of the same rows side by side. Tokens after those that the choice is made among must not matter, nor those that were
/// cut from a pool. The scorer must write its table, and nothing else.
/// @param score  the scorer
/// @param pool,segment  its pool and segmenter; a scorer of ragged units, or of a hierarchy, needs its own
/// @param options  how to check it
/// @throws broken_promise at the first promise that is not kept
template <scorer Score, class Pool = pools::none, class Segment = segments::tokens>
  requires writes_scores<Score, Pool, Segment>
void check_scorer(Score const& score = {}, Pool const& pool = {}, Segment const& segment = {},
                  scorer_options const& options = {}) {
  scorer_check<Score, Pool, Segment>(score, pool, segment, options).run();
}

}  // namespace kvpolicy::testing
