// How far an evaluation's scores can be trusted: intervals of a mean over tasks, and a paired sign test.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvpolicy {

/// A policy's score and dense decoding's of the same records, by task.
using paired_scores = std::map<std::string, std::vector<std::pair<double, double>>>;

/// The policy's mean over tasks, each the mean of its records, as a share of dense decoding's; 0 where that is 0.
double share_of_dense(paired_scores const& scores);

struct interval {
  double low = 0;
  double high = 0;
};
/// The middle 95 % of `share_of_dense` over `draws` evaluations whose records are drawn anew from these, task by task, with
/// replacement. The draws are the same in every run.
interval bootstrap_interval(paired_scores const& scores, int draws = 2000);

struct sign_test {
  std::int64_t worse = 0;   ///< records with a lower score than dense
  std::int64_t better = 0;  ///< with a higher one
  double p = 1;             ///< of a split at least as uneven, were both as likely; two-sided
};
sign_test signs_against_dense(paired_scores const& scores);

}  // namespace kvpolicy
