#include "policy_text.hpp"

#include <algorithm>

#include "policy_values.hpp"
#include "profile_file.hpp"

namespace kvpolicy {
namespace {

/// A preset as text knows it: with what text can say beside its own parameters.
template <class Preset>
struct described {
  Preset preset{};
  trigger_choice when{};
  std::string profile{};
};

template <class Preset>
struct parameter {
  std::string_view name;
  value_pointer (*of)(described<Preset>&);
  std::string_view help;
};

template <class Preset>
struct setting {
  std::string_view name;
  Preset preset;
  std::string_view help;
};

/// Everything that text can say of one preset.
template <class Preset>
struct entry {
  std::string_view name;
  std::string_view source;
  std::vector<parameter<Preset>> parameters;
  std::vector<setting<Preset>> settings;
};

/// The parameter at the end of a path of members.
template <auto... Path>
struct at {
  template <class Preset>
  static value_pointer of(described<Preset>& d) {
    return &(d.preset.*....*Path);
  }
};

template <class P>
parameter<P> tokens_of(std::string_view help) {
  return {"tokens", at<&P::tokens>::template of<P>, help};
}
template <class P>
parameter<P> ratio_of() {
  return {"ratio", at<&P::ratio>::template of<P>, "fraction removed, in place of tokens"};
}
template <class P>
parameter<P> dense_of() {
  return {"dense_first", at<&P::layers, &layering::dense_first>::template of<P>, "first layers that keep everything"};
}
template <class P>
parameter<P> reuse_of() {
  return {"reuse", at<&P::layers, &layering::reuse>::template of<P>, "layers that share one choice"};
}
template <class P>
parameter<P> trigger_of() {
  return {"trigger", [](described<P>& d) -> value_pointer { return &d.when; }, "when the choice is made anew"};
}

/// The parameters of policies that look at the prompt's last queries.
template <class P>
std::vector<parameter<P>> window_parameters() {
  return {tokens_of<P>("kept of the prompt for each KV head"),
          ratio_of<P>(),
          {"window", at<&P::window>::template of<P>, "observing queries, always kept"},
          {"kernel", at<&P::smooth, &smoothing::width>::template of<P>, "tokens that one score is smoothed over, odd"},
          {"smooth", at<&P::smooth, &smoothing::how>::template of<P>, "none, average or maximum"},
          dense_of<P>(),
          reuse_of<P>()};
}

template <class P>
std::vector<parameter<P>> joined(std::vector<parameter<P>> a, std::vector<parameter<P>> const& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

template <class Visit>
void each_entry(Visit visit) {
  using namespace presets;
  visit(entry<full>{"full", "reads every token", {}, {}});
  visit(
      entry<chess>{"chess",
                   "hierarchical selection, renewed when the model is unsure (CHESS, Fei et al.)",
                   {{"grids", at<&chess::fractions, &budget::fractions::grids>::of<chess>, "fraction of grids kept"},
                    {"chunks", at<&chess::fractions, &budget::fractions::chunks>::of<chess>, "fraction of live chunks kept"},
                    {"pages", at<&chess::fractions, &budget::fractions::pages>::of<chess>, "fraction of live pages kept"},
                    {"tokens", at<&chess::fractions, &budget::fractions::tokens>::of<chess>, "read in all; 0: the fractions"},
                    {"page", at<&chess::units, &segment::hierarchy::page>::of<chess>, "tokens of a page"},
                    {"pages_per_chunk", at<&chess::units, &segment::hierarchy::pages_per_chunk>::of<chess>, "N_c"},
                    {"chunks_per_grid", at<&chess::units, &segment::hierarchy::chunks_per_grid>::of<chess>, "N_g"},
                    {"sink_pages", at<&chess::sink_pages>::of<chess>, "first pages, always read"},
                    {"recent_pages", at<&chess::recent_pages>::of<chess>, "W: last pages, always read, the anchor"},
                    {"entropy", at<&chess::entropy>::of<chess>, "threshold of a page's mean entropy, nats"},
                    {"varentropy", at<&chess::varentropy>::of<chess>, "threshold of its variance"},
                    {"every", at<&chess::every>::of<chess>, "steps after which the choice is renewed anyway, 0: none"},
                    {"depth", at<&chess::depth>::of<chess>, "levels of the hierarchy, 1 to 3"},
                    {"standardised", at<&chess::standardised>::of<chess>, "rank pages by what sets them apart from each other"},
                    {"paper_literal", at<&chess::paper_literal>::of<chess>, "Algorithm 1 to the letter"},
                    trigger_of<chess>()},
                   {{"paper", chess::paper(), "pages of 32, three levels, W 8, as printed; with the aggressive fractions"},
                    {"conservative", chess::conservative(), "the paper's (.9, .9, .9)"},
                    {"moderate", chess::moderate(), "the paper's (.8, .7, .7)"},
                    {"aggressive", chess::aggressive(), "the paper's (.5, .2, .1)"},
                    {"fixed_interval", chess::fixed_interval(), "renewed every six pages, the trigger's baseline"}}});
  visit(entry<heterocache>{
      "heterocache",
      "each head by its role, fetching when its pivot drifts (HeteroCache, Shi et al.)",
      {{"profile", [](described<heterocache>& d) -> value_pointer { return &d.profile; },
        "the model's, made by kvpolicy-profile"},
       tokens_of<heterocache>("kept of the prompt by a KV head, mean over all"),
       ratio_of<heterocache>(),
       {"full_share", at<&heterocache::full_share>::of<heterocache>, "of the budget, the most for whole heads; 1: the paper"},
       {"window", at<&heterocache::window>::of<heterocache>, "W: steps between two looks at the pivots, odd"},
       {"drift", at<&heterocache::drift>::of<heterocache>, "tau: overlap below which satellites fetch anew"},
       {"chance_corrected", at<&heterocache::chance_corrected>::of<heterocache>, "overlap beyond chance"},
       {"observe", at<&heterocache::observe>::of<heterocache>, "of the prompt's queries, the last ones that say what is kept"},
       {"kernel", at<&heterocache::smooth, &smoothing::width>::of<heterocache>, "tokens that attention is smoothed over, odd"},
       {"smooth", at<&heterocache::smooth, &smoothing::how>::of<heterocache>, "none, average or maximum"},
       {"floor", at<&heterocache::floor>::of<heterocache>, "stability below which a head gets no more"},
       {"least", at<&heterocache::least>::of<heterocache>, "tokens that any head keeps"}},
      {{"paper", heterocache::paper(), "one query, average over 5, every pivot and volatile head whole"}}});
  visit(entry<sentencekv>{
      "sentencekv",
      "sentences near the one that is being generated (SentenceKV, Zhu et al.)",
      {tokens_of<sentencekv>("tau: read by each KV head at each step"),
       ratio_of<sentencekv>(),
       {"keep", at<&sentencekv::keep>::of<sentencekv>, "r: retained of the prompt, in multiples of tokens"},
       {"sinks", at<&sentencekv::sinks>::of<sentencekv>, "first tokens, always read"},
       {"window", at<&sentencekv::window>::of<sentencekv>, "observing queries; as many recent tokens are always read"},
       {"kernel", at<&sentencekv::smooth, &smoothing::width>::of<sentencekv>, "tokens that one score is smoothed over, odd"},
       {"smooth", at<&sentencekv::smooth, &smoothing::how>::of<sentencekv>, "none, average or maximum"},
       {"longest", at<&sentencekv::sentences, &segment::sentences::longest>::of<sentencekv>, "tokens of the longest sentence"},
       {"shortest", at<&sentencekv::sentences, &segment::sentences::shortest>::of<sentencekv>, "tokens of the shortest"},
       {"all_after_boundary", at<&sentencekv::all_after_boundary>::of<sentencekv>, "the authors' code: read all retained then"},
       dense_of<sentencekv>(),
       reuse_of<sentencekv>(),
       trigger_of<sentencekv>()},
      {{"paper", sentencekv::paper(), "r = 2, window 32, maximum over 7"}}});
  visit(entry<chunkkv>{
      "chunkkv",
      "whole chunks of the prompt (ChunkKV, Liu et al. 2025, arXiv 2502.00299)",
      joined(window_parameters<chunkkv>(),
             {{"chunk", at<&chunkkv::chunk>::of<chunkkv>, "tokens of a chunk"},
              {"reduce", at<&chunkkv::reduce>::of<chunkkv>, "of a chunk's scores: mean, sum or maximum"},
              {"window_in_budget", at<&chunkkv::window_in_budget>::of<chunkkv>, "the window competes, as in kvpress"}}),
      {{"paper", chunkkv::paper(), "window 64, average over 5, choices shared by two layers"}}});
  visit(entry<streaming_llm>{"streaming_llm",
                             "attention sinks and recent tokens (Xiao et al. 2024, arXiv 2309.17453)",
                             {tokens_of<streaming_llm>("kept in all"),
                              ratio_of<streaming_llm>(),
                              {"sinks", at<&streaming_llm::sinks>::of<streaming_llm>, "first tokens, among them"},
                              trigger_of<streaming_llm>()},
                             {}});
  visit(
      entry<h2o>{"h2o",
                 "heavy hitters and recent tokens, one evicted at each step (Zhang et al. 2023, arXiv 2306.14048)",
                 {tokens_of<h2o>("kept for each KV head"),
                  ratio_of<h2o>(),
                  {"recent_share", at<&h2o::recent_share>::of<h2o>, "of the budget, for the most recent tokens"},
                  {"reduce", at<&h2o::reduce>::of<h2o>, "of the queries' weights: sum, or mean over those that saw the token"},
                  {"queries", at<&h2o::queries>::of<h2o>, "of the prompt's, the last ones that count"},
                  dense_of<h2o>(),
                  reuse_of<h2o>(),
                  trigger_of<h2o>()},
                 {}});
  visit(entry<tova>{
      "tova",
      "what the last query attends to, one evicted at each step (Oren et al. 2024, arXiv 2401.06104)",
      {tokens_of<tova>("kept in each layer"), ratio_of<tova>(), dense_of<tova>(), reuse_of<tova>(), trigger_of<tova>()},
      {}});
  visit(entry<knorm>{"knorm",
                     "keys of the smallest norms (Devoto et al. 2024, arXiv 2406.11430)",
                     {tokens_of<knorm>("kept of the prompt for each KV head"),
                      ratio_of<knorm>(),
                      {"sinks", at<&knorm::sinks>::of<knorm>, "first tokens, always kept"},
                      {"recent", at<&knorm::recent>::of<knorm>, "last tokens of the prompt, always kept"},
                      dense_of<knorm>(),
                      reuse_of<knorm>()},
                     {}});
  visit(entry<snapkv>{
      "snapkv",
      "what the prompt's last queries attend to (Li et al. 2024, arXiv 2404.14469)",
      joined(window_parameters<snapkv>(),
             {{"sinks", at<&snapkv::sinks>::of<snapkv>, "first tokens, always kept"},
              {"taper", at<&snapkv::taper>::of<snapkv>, "PyramidKV's beta: early layers keep more; 0: all alike"}}),
      {{"paper", snapkv::paper(), "the published setting: window 64, average over 5"}}});
  visit(entry<pyramidkv>{"pyramidkv",
                         "snapkv with more tokens for early layers (Cai et al. 2024, arXiv 2406.02069)",
                         joined(window_parameters<pyramidkv>(), {{"beta", at<&pyramidkv::beta>::of<pyramidkv>,
                                                                  "layer 0 gets 2 - 1/beta of the mean, the last 1/beta"}}),
                         {{"paper", pyramidkv::paper(), "the published setting: window 64, average over 5"}}});
  visit(entry<adakv>{"adakv",
                     "snapkv with a layer's budget shared out over its heads (Feng et al. 2024, arXiv 2407.11550)",
                     joined(window_parameters<adakv>(),
                            {{"alpha", at<&adakv::alpha>::of<adakv>, "share of the budget that each head is sure of"}}),
                     {{"paper", adakv::paper(), "the published setting: window 64, average over 5"}}});
  visit(entry<keydiff>{"keydiff",
                       "keys that resemble the others least (Park et al. 2025, arXiv 2504.15364)",
                       {tokens_of<keydiff>("kept of the prompt for each KV head"),
                        ratio_of<keydiff>(),
                        {"sinks", at<&keydiff::sinks>::of<keydiff>, "first tokens, always kept"},
                        {"recent", at<&keydiff::recent>::of<keydiff>, "last tokens of the prompt, always kept"},
                        dense_of<keydiff>(),
                        reuse_of<keydiff>()},
                       {}});
  visit(entry<quest>{"quest",
                     "pages that could matter most to this step's query (Tang et al. 2024, arXiv 2406.10774)",
                     {tokens_of<quest>("read by each KV head at each step"),
                      ratio_of<quest>(),
                      {"page", at<&quest::page>::of<quest>, "tokens of a page"},
                      {"sink_pages", at<&quest::sink_pages>::of<quest>, "first pages, always read"},
                      {"recent_pages", at<&quest::recent_pages>::of<quest>, "last pages, always read"},
                      {"metadata", at<&quest::metadata>::of<quest>, "of a page: range (min and max) or spread (mean and std)"},
                      {"group", at<&quest::group>::of<quest>, "of a KV head's query heads: mean or maximum"},
                      dense_of<quest>(),
                      reuse_of<quest>(),
                      trigger_of<quest>()},
                     {{"paper", quest::paper(), "the published setting: the first two layers dense"}}});
  visit(entry<infllm>{"infllm",
                      "blocks by their representative tokens, one ranking a layer (Xiao et al. 2024, arXiv 2402.04617)",
                      {tokens_of<infllm>("read in each layer at each step"),
                       ratio_of<infllm>(),
                       {"block", at<&infllm::block>::of<infllm>, "tokens of a block"},
                       {"representatives", at<&infllm::representatives>::of<infllm>, "tokens that stand for a block"},
                       {"local", at<&infllm::local>::of<infllm>, "queries behind a token that say whether it does"},
                       {"sink_blocks", at<&infllm::sink_blocks>::of<infllm>, "first blocks, always read"},
                       {"recent_blocks", at<&infllm::recent_blocks>::of<infllm>, "last blocks, always read"},
                       dense_of<infllm>(),
                       reuse_of<infllm>(),
                       trigger_of<infllm>()},
                      {{"paper", infllm::paper(), "blocks of 128"}}});
  visit(entry<expected_attention>{
      "expected_attention",
      "what queries to come are expected to attend to (Devoto et al. 2025, arXiv 2510.00636)",
      {tokens_of<expected_attention>("kept of the prompt for each KV head"),
       ratio_of<expected_attention>(),
       {"sinks", at<&expected_attention::sinks>::of<expected_attention>, "first tokens, always kept"},
       {"recent", at<&expected_attention::recent>::of<expected_attention>, "last tokens of the prompt, always kept"},
       {"future", at<&expected_attention::future>::of<expected_attention>, "positions that queries are expected at"},
       {"covariance", at<&expected_attention::covariance>::of<expected_attention>, "of the queries, beside their mean"},
       {"value_norm", at<&expected_attention::value_norm>::of<expected_attention>, "times the norms of the values"},
       {"epsilon", at<&expected_attention::epsilon>::of<expected_attention>, "added to the attention before that"},
       dense_of<expected_attention>(),
       reuse_of<expected_attention>()},
      {}});
  visit(entry<lagkv>{"lagkv",
                     "tokens that spread most in the scale of those behind them (Liang et al. 2025, arXiv 2504.04704)",
                     {tokens_of<lagkv>("kept of the prompt for each KV head"),
                      ratio_of<lagkv>(),
                      {"sinks", at<&lagkv::sinks>::of<lagkv>, "first tokens, always kept"},
                      {"lag", at<&lagkv::lag>::of<lagkv>, "tokens of a partition"},
                      {"cross", at<&lagkv::cross>::of<lagkv>, "compare scores across partitions, not just ranks"},
                      dense_of<lagkv>(),
                      reuse_of<lagkv>()},
                     {}});
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t const above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

/// "unknown <what> 'x'; did you mean 'y'? There are: a, b, c"
[[noreturn]] void unknown(std::string const& what, std::string_view given, std::vector<std::string> const& known) {
  std::string message = "unknown " + what + " '" + std::string(given) + "'";
  if (known.empty()) throw invalid_value(message + "; it has none");
  auto const nearest = std::ranges::min_element(known, {}, [&](std::string const& k) { return edit_distance(given, k); });
  if (edit_distance(given, *nearest) <= std::max<std::size_t>(2, nearest->size() / 2))
    message += "; did you mean '" + *nearest + "'?";
  else message += ";";
  message += " There are:";
  for (std::string const& k : known) message += (&k == &known.front() ? " " : ", ") + k;
  throw invalid_value(message);
}

template <class Preset>
std::string parameters_of(entry<Preset> const& e, described<Preset> d) {
  std::string text;
  for (auto const& p : e.parameters) {
    std::string const value = text_of(p.of(d));
    if (!value.empty()) text += (text.empty() ? "" : ",") + std::string(p.name) + "=" + value;
  }
  return text;
}

template <class Preset>
described<Preset> parse_items(entry<Preset> const& e, std::string_view items) {
  described<Preset> d{};
  std::vector<std::string> known;
  for (auto const& p : e.parameters) known.emplace_back(p.name);
  for (auto const& s : e.settings) known.emplace_back(s.name);
  while (!items.empty()) {
    std::size_t const comma = items.find(',');
    std::string_view const item = items.substr(0, comma);
    items = comma == std::string_view::npos ? std::string_view{} : items.substr(comma + 1);
    std::size_t const equals = item.find('=');
    std::string_view const key = item.substr(0, equals);
    if (equals == std::string_view::npos) {
      auto const found = std::ranges::find(e.settings, key, &setting<Preset>::name);
      if (found == e.settings.end()) unknown("parameter of policy " + std::string(e.name), key, known);
      d.preset = found->preset;
      continue;
    }
    auto const found = std::ranges::find(e.parameters, key, &parameter<Preset>::name);
    if (found == e.parameters.end()) unknown("parameter of policy " + std::string(e.name), key, known);
    if (value_pointer const at = found->of(d); !assign(at, item.substr(equals + 1))) {
      throw invalid_value("policy " + std::string(e.name) + ": " + std::string(key) + " is '" +
                          std::string(item.substr(equals + 1)) + "'; it must be " + wanted(at));
    }
  }
  return d;
}

constexpr float never = std::numeric_limits<float>::infinity();

named_trigger named_of(trigger::every_step const&) { return {{.steps = 1}, {.mean = never, .variance = never}}; }

/// The act as one of those that run by name, with the trigger that was named.
template <class Any, class Act>
Any act_by_name(Act const& act, trigger_choice const& when) {
  if constexpr (requires { Any{{act}}; }) {
    if constexpr (requires { act.trigger = *when; }) {
      Act other = act;
      if (when) other.trigger = *when;
      return {{other}};
    } else {
      return {{act}};
    }
  } else {
    typename with_named_trigger<Act>::type named{
        act.segment, act.pool, act.score, act.budget, act.select, act.window, when ? *when : named_of(act.trigger), act.layers};
    return {{named}};
  }
}

named_policy parse_one(std::string_view text, model_facts const& facts) {
  std::size_t const colon = text.find(':');
  std::string_view const name = text.substr(0, colon);
  std::string_view const items = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  named_policy result;
  each_entry([&](auto const& e) {
    if (e.name != name) return;
    auto d = parse_items(e, items);
    if constexpr (requires { d.preset.sentences; }) d.preset.sentences.boundary = facts.boundary;
    if constexpr (requires { d.preset.heads; }) {
      if (!d.profile.empty()) {
        result.heads = std::make_shared<std::vector<head_profile> const>(read_profile(d.profile).heads);
        d.preset.heads = *result.heads;
      }
    }
    if constexpr (requires { d.preset.recent_share; }) {
      if (d.preset.reduce == select::merge::maximum)
        throw invalid_value("policy h2o: reduce is 'maximum'; it must be mean or sum");
    }
    auto const parts = d.preset.parts();
    result.name = name;
    result.text = text;
    result.parameters = parameters_of(e, d);
    result.policy = {act_by_name<any_retain>(parts.retain, d.when), act_by_name<any_retrieve>(parts.retrieve, d.when)};
  });
  if (result.name.empty()) unknown("policy", name, policy_names());
  return result;
}

}  // namespace

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  each_entry([&](auto const& e) { names.emplace_back(e.name); });
  return names;
}

std::vector<std::string> parameter_names(std::string_view policy) {
  std::vector<std::string> names;
  each_entry([&](auto const& e) {
    if (e.name != policy) return;
    for (auto const& p : e.parameters) names.emplace_back(p.name);
  });
  return names;
}

named_policy parse_policy(std::string_view text, model_facts const& facts) {
  std::size_t const plus = text.find('+');
  named_policy first = parse_one(text.substr(0, plus), facts);
  if (plus == std::string_view::npos) return first;
  named_policy const second = parse_one(text.substr(plus + 1), facts);
  auto const refuse = [&](named_policy const& which, char const* what) {
    throw invalid_value("'" + std::string(text) + "': " + which.name + " " + what +
                        "; write a policy that retains (snapkv, h2o, ...), then one that retrieves (quest, chess, ...)");
  };
  if (keeps_all(first.policy.retain)) refuse(first, "retains nothing");
  if (!keeps_all(first.policy.retrieve)) refuse(first, "retrieves by itself");
  if (keeps_all(second.policy.retrieve)) refuse(second, "does not retrieve");
  if (!keeps_all(second.policy.retain)) refuse(second, "retains by itself");
  first.name += "+" + second.name;
  first.text = text;
  first.parameters += " + " + second.parameters;
  first.policy.retrieve = second.policy.retrieve;
  return first;
}

std::string describe_policies() {
  std::string text;
  each_entry([&](auto const& e) {
    text += std::string(e.name) + ": " + std::string(e.source) + "\n";
    decltype(parse_items(e, "")) d{};
    for (auto const& p : e.parameters) {
      std::string const value = std::string(p.name) + "=" + text_of(p.of(d));
      text += "  " + value + std::string(value.size() < 24 ? 24 - value.size() : 1, ' ') + std::string(p.help) + "\n";
    }
    for (auto const& s : e.settings) {
      text += "  " + std::string(s.name) + std::string(24 - s.name.size(), ' ') + std::string(s.help) + "\n";
    }
  });
  return text;
}

}  // namespace kvpolicy
