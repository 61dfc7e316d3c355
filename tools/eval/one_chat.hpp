// Records that share a text, asked one after the other in one chat.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "evaluation.hpp"
#include "published.hpp"
#include "records.hpp"
#include "results.hpp"
#include "text_model.hpp"

namespace kvpolicy {

/// One way to decode: a policy at a budget, or dense.
struct variant_of_policy {
  std::string label;        ///< as it was asked for, without the budget; "dense"
  std::int64_t budget = 0;  ///< tokens; 0: the policy has none
  std::optional<named_host_policy> policy{};
};
inline std::string parameters_of(variant_of_policy const& v) { return v.policy ? v.policy->parameters : ""; }

/// Asks neighbouring records with the same text in one chat, a turn for each, under every variant. The rows are in a managed
/// cache, so what a policy drops is gone for later turns. A text that a policy has repeated is compressed before the first
/// question. Throws invalid_value for a record without a question of its own. done() after each record.
void one_chat(eval_options const& options, text_model const& model, std::vector<variant_of_policy> const& variants,
              std::vector<eval_record> const& records, eval_results& results, std::function<void()> const& done);

}  // namespace kvpolicy
