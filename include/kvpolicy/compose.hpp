// Policies in one line, from a scorer and a few numbers. The form with all seven parts is policy{keep{...}, keep{...}}.
#pragma once

#include <optional>

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/scorers/by_token.hpp"
#include "kvpolicy/segments/pages.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/triggers/prefill.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy {

/// Options of retain().
struct retain_options {
  std::int32_t tokens = 512;      ///< tokens of the prompt that each KV head keeps; later tokens are all kept
  std::optional<double> ratio{};  ///< fraction of the prompt to remove, instead of `tokens`
  std::int32_t sinks = 0;         ///< first tokens, always kept
  std::int32_t recent = 0;        ///< last tokens of the prompt, always kept
  layering layers{};              ///< how layers differ
};

/// Makes a policy that keeps the best tokens of the prompt, for each KV head.
/// @param score  a scorer of tokens, such as score_tokens() makes
/// @param o  how many tokens to keep
/// @return a policy that retains when the prompt ends, and reads every retained token
template <class Score>
constexpr auto retain(Score const& score, retain_options const& o = {}) {
  return policy{keep{segments::tokens{}, pools::none{}, score, budgets::tokens{.count = o.tokens, .ratio = o.ratio},
                     selectors::top{}, windows::tokens{.sinks = o.sinks, .recent = o.recent}, triggers::prefill{}, o.layers},
                keep_all{}};
}

/// Options of retrieve().
struct retrieve_options {
  std::int32_t tokens = 512;      ///< tokens that each KV head reads at each step
  std::optional<double> ratio{};  ///< fraction not to read, instead of `tokens`
  std::int32_t page = 1;          ///< tokens of a page; pages are read whole, by the mean score of their tokens
  std::int32_t sinks = 0;         ///< first tokens, always read
  std::int32_t recent = 1;        ///< last tokens, always read; at least the current one
};

/// Makes a policy that reads the best pages at each step, for each KV head.
/// @param score  a scorer of tokens, or of pages
/// @param o  how many tokens to read, and the pages' size
/// @param pool  the pool whose summaries a scorer of pages reads
/// @return a policy that keeps every token and chooses at every step
template <class Score, class Pool = pools::none>
constexpr auto retrieve(Score const& score, retrieve_options const& o = {}, Pool const& pool = {}) {
  return policy{keep_all{},
                keep{segments::pages{o.page}, pool, score, budgets::tokens{.count = o.tokens, .ratio = o.ratio},
                     selectors::top{}, windows::tokens{.sinks = o.sinks, .recent = o.recent}, triggers::every_step{}}};
}

}  // namespace kvpolicy
