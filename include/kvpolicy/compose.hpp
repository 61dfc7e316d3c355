// Policies in a line: a scorer, how many tokens, what is kept in any case. The seven-part form is policy{keep{...}, keep{...}}.
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

struct retain_options {
  std::int32_t tokens = 512;      ///< kept of the prompt for each KV head; later tokens are all kept
  std::optional<double> ratio{};  ///< fraction removed, in place of `tokens`
  std::int32_t sinks = 0;         ///< first tokens, always kept
  std::int32_t recent = 0;        ///< last tokens of the prompt, always kept
  layering layers{};              ///< how layers differ
};

/// Keeps the best tokens of the prompt, for each KV head.
template <class Score>
constexpr auto retain(Score const& score, retain_options const& o = {}) {
  return policy{keep{segments::tokens{}, pools::none{}, score, budgets::tokens{.count = o.tokens, .ratio = o.ratio},
                     selectors::top{}, windows::tokens{.sinks = o.sinks, .recent = o.recent}, triggers::prefill{}, o.layers},
                keep_all{}};
}

struct retrieve_options {
  std::int32_t tokens = 512;      ///< read by each KV head at each step
  std::optional<double> ratio{};  ///< fraction not read, in place of `tokens`
  std::int32_t page = 1;          ///< tokens that are read together, by their mean score
  std::int32_t sinks = 0;         ///< first tokens, always read
  std::int32_t recent = 1;        ///< last tokens, always read; at least the current one
};

/// Reads the best pages at each step, for each KV head, by a scorer of tokens; or of pages, with the pool that it reads.
template <class Score, class Pool = pools::none>
constexpr auto retrieve(Score const& score, retrieve_options const& o = {}, Pool const& pool = {}) {
  return policy{keep_all{},
                keep{segments::pages{o.page}, pool, score, budgets::tokens{.count = o.tokens, .ratio = o.ratio},
                     selectors::top{}, windows::tokens{.sinks = o.sinks, .recent = o.recent}, triggers::every_step{}}};
}

}  // namespace kvpolicy
