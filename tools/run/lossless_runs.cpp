#include "lossless_runs.hpp"

#include <algorithm>
#include <limits>

#include "text_model.hpp"
#include "text_table.hpp"

namespace kvpolicy {

llama::lossless_options lossless_options_of(std::optional<int> drafts) {
  llama::lossless_options made{};
  if (drafts) made.drafts = *drafts, made.adapt = false;
  return made;
}

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

void lossless_runs::compare(std::span<llama_token const> tokens, llama::lossless_statistics const& statistics) {
  compared_ += std::ssize(tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != full_[i]) apart_at_.push_back(gaps_[i]);
  }
  all_.tokens += statistics.tokens;
  all_.rounds += statistics.rounds;
  all_.drafted += statistics.drafted;
  all_.accepted += statistics.accepted;
  all_.draft_seconds += statistics.draft_seconds;
  all_.verify_seconds += statistics.verify_seconds;
}

nlohmann::ordered_json lossless_runs::result(double baseline) const {
  double const ms = quantile(ms_, .5);
  nlohmann::ordered_json made = lossless_json(all_);
  made.update({{"ms_per_token", ms},
               {"ms_p10", quantile(ms_, .1)},
               {"ms_p90", quantile(ms_, .9)},
               {"speedup", baseline / ms},
               {"compared", compared_},
               {"equal", compared_ - std::ssize(apart_at_)},
               {"gaps", apart_at_}});
  return made;
}

}  // namespace kvpolicy
