// Names and descriptions of parameters that several presets share.
#pragma once

namespace kvpolicy::presets {

/// Visits the parameters `tokens` and `ratio`.
/// @param p  the preset
/// @param visit  called as visit(name, member, description)
/// @param tokens  the description of `tokens`
template <class Preset, class Visit>
constexpr void budget_parameters(Preset& p, Visit visit, char const* tokens) {
  visit("tokens", p.tokens, tokens);
  visit("ratio", p.ratio, "fraction removed, in place of tokens");
}

/// Visits the parameter `keep_prompt` of a preset that evicts while decoding.
/// @param p  the preset
/// @param visit  called as visit(name, member, description)
template <class Preset, class Visit>
constexpr void prompt_parameters(Preset& p, Visit visit) {
  visit("keep_prompt", p.keep_prompt, "keep every prompt, beside the budget, which is then for what is generated");
}

/// Visits the parameters `dense_first`, `reuse` and `leaders`.
/// @param p  the preset
/// @param visit  called as visit(name, member, description)
template <class Preset, class Visit>
constexpr void layer_parameters(Preset& p, Visit visit) {
  visit("dense_first", p.layers.dense_first, "first layers that keep everything");
  visit("reuse", p.layers.reuse, "layers that share one choice");
  visit("leaders", p.layers.leaders, "layers whose choice those behind them share, in place of reuse, such as 2/8/18");
}

/// Visits the parameters of a preset that reads pages by bounds of their keys, without budget and layers.
/// @param p  the preset
/// @param visit  called as visit(name, member, description)
template <class Preset, class Visit>
constexpr void page_parameters(Preset& p, Visit visit) {
  visit("page", p.page, "tokens of a page");
  visit("sink_pages", p.sink_pages, "first pages, always read");
  visit("recent_pages", p.recent_pages, "last pages, always read; the open page is one");
  visit("metadata", p.metadata, "summary of a page: range (minimum and maximum) or mean_deviation");
  visit("group", p.group, "how a KV head's query heads are merged to score pages: mean or maximum");
}

/// Visits the parameter `after` of a preset that can choose late.
/// @param p  the preset
/// @param visit  called as visit(name, member, description)
template <class Preset, class Visit>
constexpr void waiting_parameters(Preset& p, Visit visit) {
  visit("after", p.after,
        "tokens of the answer before the choice; until then every token is read, and the choice observes their queries");
}

/// Visits the parameter `next_step` of a preset whose choice can serve the step after.
/// @param p  the preset
/// @param visit  called as visit(name, member, description)
template <class Preset, class Visit>
constexpr void next_step_parameters(Preset& p, Visit visit) {
  visit("next_step", p.next_step,
        "a choice serves the step after the one that made it; its rows can come from a tier meanwhile");
}

/// Visits the parameters of a preset that observes the prompt's last queries, budget, `after` and layers included.
/// @param p  the preset
/// @param visit  called as visit(name, member, description)
template <class Preset, class Visit>
constexpr void observation_parameters(Preset& p, Visit visit) {
  budget_parameters(p, visit, "kept of the prompt for each KV head, the window included");
  visit("window", p.window, "observing queries, always kept");
  visit("kernel", p.smooth.width, "neighbouring tokens to smooth a score over; odd");
  visit("smooth", p.smooth.how, "none, average or maximum");
  visit("merge", p.smooth.queries, "how the observing queries are merged: mean or maximum");
  waiting_parameters(p, visit);
  layer_parameters(p, visit);
}

}  // namespace kvpolicy::presets
