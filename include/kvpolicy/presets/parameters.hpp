// Parameters that several presets have, said once: their names, and what they are.
#pragma once

namespace kvpolicy::presets {

template <class Preset, class Visit>
constexpr void budget_parameters(Preset& p, Visit visit, char const* tokens) {
  visit("tokens", p.tokens, tokens);
  visit("ratio", p.ratio, "fraction removed, in place of tokens");
}

template <class Preset, class Visit>
constexpr void layer_parameters(Preset& p, Visit visit) {
  visit("dense_first", p.layers.dense_first, "first layers that keep everything");
  visit("reuse", p.layers.reuse, "layers that share one choice");
}

/// Of policies that can choose late.
template <class Preset, class Visit>
constexpr void waiting_parameters(Preset& p, Visit visit) {
  visit("after", p.after,
        "tokens of the answer that the choice waits for, all being read; where queries are observed, theirs are, too");
}

/// Of policies that look at the prompt's last queries.
template <class Preset, class Visit>
constexpr void observation_parameters(Preset& p, Visit visit) {
  budget_parameters(p, visit, "kept of the prompt for each KV head, the window included");
  visit("window", p.window, "observing queries, always kept");
  visit("kernel", p.smooth.width, "tokens that one score is smoothed over, odd");
  visit("smooth", p.smooth.how, "none, average or maximum");
  visit("merge", p.smooth.queries, "how the observing queries are merged: mean or maximum");
  waiting_parameters(p, visit);
  layer_parameters(p, visit);
}

}  // namespace kvpolicy::presets
