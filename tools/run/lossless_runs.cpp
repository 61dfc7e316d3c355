#include "lossless_runs.hpp"

#include <algorithm>
#include <limits>

#include "text_model.hpp"
#include "text_table.hpp"

namespace kvpolicy {

nlohmann::ordered_json lossless_json(llama::lossless_statistics const& of) {
  return {{"tokens", of.tokens},
          {"rounds", of.rounds},
          {"drafted", of.drafted},
          {"accepted", of.accepted},
          {"draft_ms", 1e3 * of.draft_seconds},
          {"verify_ms", 1e3 * of.verify_seconds}};
}

void lossless_runs::begin(llama_token first) {
  full_.assign(1, first);
  gaps_.assign(1, 0);
}

void lossless_runs::expect(std::span<float const> logits) {
  full_.push_back(likeliest(logits));
  auto const best = static_cast<std::size_t>(full_.back());
  float second = -std::numeric_limits<float>::infinity();
  for (std::size_t t = 0; t < logits.size(); ++t) {
    if (t != best) second = std::max(second, logits[t]);
  }
  gaps_.push_back(logits[best] - second);
}

void lossless_runs::add(double ms, llama::lossless_statistics const& statistics) {
  ms_.push_back(ms);
  last_ = statistics;
}

void lossless_runs::compare(std::span<llama_token const> tokens) {
  std::int64_t const equal = std::ranges::mismatch(tokens, full_).in1 - tokens.begin();
  compared_ += std::ssize(tokens);
  equal_ += equal;
  if (equal < std::ssize(tokens)) apart_at_.push_back(gaps_[static_cast<std::size_t>(equal)]);
}

nlohmann::ordered_json lossless_runs::result(double baseline) const {
  double const ms = quantile(ms_, .5);
  nlohmann::ordered_json made = lossless_json(last_);
  made.update({{"ms_per_token", ms},
               {"ms_p10", quantile(ms_, .1)},
               {"ms_p90", quantile(ms_, .9)},
               {"speedup", baseline / ms},
               {"compared", compared_},
               {"equal", equal_},
               {"gaps", apart_at_}});
  return made;
}

}  // namespace kvpolicy
