// kvpolicy-profile: how a model's heads behave on some prompts, as files that heterocache, duoattention and triattention need.
#include <kvpolicy/interop/llama.hpp>
#include <kvpolicy/primitive/attended_set.hpp>
#include <kvpolicy/primitive/list_attention.hpp>

#include <algorithm>
#include <array>
#include <iostream>
#include <map>
#include <optional>
#include <string>

#include "moments_file.hpp"
#include "output_file.hpp"
#include "profile_file.hpp"
#include "progress.hpp"
#include "query_recorder.hpp"
#include "text_model.hpp"
#include "tool_main.hpp"
#include "waits.hpp"

namespace {

using namespace kvpolicy;

struct options {
  std::string model;
  std::vector<std::string> prompts;
  bool chat = false;
  int steps = 100;
  std::int64_t top = 1024;
  int smooth = 5;
  role_thresholds thresholds{};
  group_merge group = group_merge::mean;
  std::int64_t sinks = 4;
  std::int64_t recent = 64;
  std::string out;
  std::string moments;
  int threads = 1;
};

/// Watches a session's queries: at each step, every head's set of most attended prompt tokens, and how much it retrieves.
class watcher {
 public:
  watcher(options const& o, std::int64_t layers, std::int64_t heads)
      : options_(o), calibration_(layers, heads), retrieved_(static_cast<std::size_t>(layers * heads)) {}

  /// Steps from now on belong to a prompt of so many tokens whose last queries are `saved`'s.
  void begin(std::int64_t tokens, llama::saved_prompt saved) {
    tokens_ = tokens;
    count_ = std::min(options_.top, std::max<std::int64_t>(1, tokens / 5));
    saved_ = std::move(saved);
    prompt_sets_.clear();
    pending_.clear();
    scratch_ = attended_set_scratch(tokens);
  }

  void operator()(layer_id layer, layer_table_view const& view, query_heads const& queries, simd_exec& exec) {
    cache_shape const shape = view.shape();
    bool const first = std::ssize(prompt_sets_) < shape.layers * shape.kv_heads;
    if (first) {  // the prompt's own last queries, of the same layer
      float const* const last = saved_.queries.data() + layer.value * saved_.window * shape.q_heads * shape.head_dim +
                                (saved_.window - 1) * shape.q_heads * shape.head_dim;
      sets_of({last, shape.q_heads, shape.head_dim, queries.scale}, view.keys(layer), shape, exec);
      prompt_sets_.insert(prompt_sets_.end(), sets_.begin(), sets_.end());
    }
    sets_of(queries, view.keys(layer), shape, exec);
    add_retrieved(layer, view, queries, exec);
    if (!first) {
      calibration_.add(layer.value, sets_);
      return;
    }
    pending_.push_back(sets_);  // the first step: the calibration begins when all layers' prompt sets are there
    if (layer.value + 1 < shape.layers) return;
    calibration_.begin(prompt_sets_);
    for (std::size_t l = 0; l < pending_.size(); ++l) calibration_.add(static_cast<std::int64_t>(l), pending_[l]);
  }

  void end() { calibration_.end(); }
  std::vector<head_profile> profile() const { return calibration_.profile(options_.thresholds); }
  /// `[layers * kv_heads]`: of a head's attention, the share beside the first and the last tokens, mean over all steps.
  std::vector<float> retrieval() const {
    std::vector<float> made;
    for (double const sum : retrieved_) made.push_back(static_cast<float>(sum / static_cast<double>(steps_)));
    return made;
  }

 private:
  void add_retrieved(layer_id layer, layer_table_view const& view, query_heads const& queries, simd_exec& exec) {
    cache_shape const shape = view.shape();
    std::int64_t const tokens = view.tokens();
    weights_.resize(static_cast<std::size_t>(shape.kv_heads * tokens));
    range_list all;
    append(all, 0, tokens, reason::scored);
    table<float> const weights{weights_.data(), shape.kv_heads, tokens, tokens};
    list_attention(queries, view.keys(layer), std::span<range_list const>(&all, 1), weights, exec);
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      double& sum = retrieved_[static_cast<std::size_t>(layer.value * shape.kv_heads + h)];
      for (std::int64_t t = options_.sinks; t < tokens - options_.recent; ++t) sum += static_cast<double>(weights(h, t));
    }
    steps_ += layer.value == 0 ? 1 : 0;
  }
  void sets_of(query_heads const& queries, rows const& keys, cache_shape const& shape, simd_exec& exec) {
    sets_.resize(static_cast<std::size_t>(shape.kv_heads));
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      auto const set = attended_set(queries.of({h, 1}, shape.group()), keys.of({h, 1}), tokens_, count_, options_.smooth,
                                    options_.group, scratch_, exec);
      sets_[static_cast<std::size_t>(h)].assign(set.begin(), set.end());
    }
  }

  options const& options_;
  head_calibration calibration_;
  std::int64_t tokens_ = 0;
  std::int64_t count_ = 0;
  llama::saved_prompt saved_;
  attended_set_scratch scratch_;
  std::vector<std::vector<std::int32_t>> sets_;
  std::vector<std::vector<std::int32_t>> prompt_sets_;
  std::vector<std::vector<std::vector<std::int32_t>>> pending_;
  std::vector<float> weights_;
  std::vector<double> retrieved_;
  std::int64_t steps_ = 0;
};

void profile(options const& o) {
  if (o.smooth % 2 == 0) throw invalid_value("--kernel " + std::to_string(o.smooth) + " is even; it must be odd");
  output_file file(o.out);
  std::optional<output_file> moments;
  if (!o.moments.empty()) moments.emplace(o.moments);
  text_model const model(o.model);
  calibration_prompts const prompts = read_prompts(model, o.prompts, o.chat, o.steps);
  cache_shape const shape = model.cache(prompts.context);
  std::int64_t const layers = shape.layers;
  std::int64_t const heads = shape.kv_heads;
  watcher watch(o, layers, heads);
  bool on = false;
  query_sums sums;
  auto const chosen = moments ? erase<layer_table_view, simd_exec>(recording(sums))
                              : erase<layer_table_view, simd_exec>(parts_of(presets::full{}));
  llama::session session(chosen, {.observation_queries = 1,
                                  .on_choice = {},
                                  .on_queries = [&](llama_seq_id, layer_id layer, layer_table_view const& view,
                                                    query_heads const& queries, simd_exec& exec) {
                                    if (on) watch(layer, view, queries, exec);
                                  }});
  llama_context_params params = model.parameters(prompts.context, o.threads, true);
  session.attach(params, model.get());
  context_ptr const context = model.context(params);
  auto const failed = [&] { session.check(); };
  progress_bar bar("profiling, tokens", prompts.total);
  std::size_t done = 0;
  for (std::vector<llama_token> const& prompt : prompts.tokens) {
    on = false;
    llama_memory_clear(llama_get_memory(context.get()), true);
    decode_prompt(
        context.get(), prompt, [&](std::size_t of_prompt) { bar.show(done + of_prompt); }, failed);
    done += prompt.size();
    watch.begin(static_cast<std::int64_t>(prompt.size()), session.save());
    on = true;
    for (int step = 0; step < o.steps; ++step, bar.show(++done)) {
      decode_token(context.get(), likeliest(last_logits(context.get(), model)), failed);
    }
    watch.end();
  }
  profile_file const result{.model = o.model.substr(o.model.rfind('/') + 1),
                            .layers = layers,
                            .kv_heads = heads,
                            .thresholds = o.thresholds,
                            .heads = watch.profile(),
                            .retrieval = watch.retrieval()};
  file.stream() << to_json(result) << '\n';
  if (moments) {
    moments->stream() << to_json(moments_file{.model = result.model,
                                              .layers = layers,
                                              .q_heads = shape.q_heads,
                                              .pairs = sums.pairs(),
                                              .moments = sums.moments()})
                      << '\n';
    moments->commit();
  }
  file.commit();
  std::array<int, 4> counts{};
  for (head_profile const& head : result.heads) ++counts[static_cast<std::size_t>(head.role)];
  std::cout << result.heads.size() << " heads:";
  for (head_role const role : {head_role::anchor, head_role::shifting, head_role::pivot, head_role::satellite}) {
    std::cout << ' ' << counts[static_cast<std::size_t>(role)] << ' ' << name_of(role);
  }
  std::cout << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  kvpolicy::restart_to_spin_for_a_moment(argv);
  CLI::App app{
      "Profile a model's attention heads on some prompts, for the policies heterocache, duoattention and triattention.",
      "kvpolicy-profile"};
  options o;
  app.add_option("--model", o.model, "GGUF file")->required();
  app.add_option("--prompt-file", o.prompts, "text to calibrate on, some thousand tokens; repeat for several")->required();
  app.add_flag("--chat", o.chat, "wrap each in the model's chat template");
  app.add_option("--steps", o.steps, "T: tokens to decode after each text")->capture_default_str()->check(between(1, 1 << 16));
  app.add_option("--top", o.top, "K: most attended tokens that are compared; at most a fifth of the prompt")
      ->capture_default_str()
      ->check(count_from(1));
  app.add_option("--kernel", o.smooth, "tokens to average attention over; odd")->capture_default_str()->check(between(1, 999));
  app.add_option("--tau-stable", o.thresholds.stable, "the least stability of an anchor")
      ->capture_default_str()
      ->check(between(0.0, 1.0));
  app.add_option("--tau-sim", o.thresholds.similar, "the least overlap of a pivot and its satellites")
      ->capture_default_str()
      ->check(between(0.0, 1.0));
  app.add_option("--similar", o.thresholds.by,
                 "which heads are similar: those with a neighbour (neighbours), or by S_sim, eqs. 3 and 4 (scores)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, similar_heads>{{"neighbours", similar_heads::neighbours}, {"scores", similar_heads::scores}}));
  app.add_option("--group", o.group, "how a KV head's query heads are merged: mean or maximum")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, group_merge>{{"mean", group_merge::mean}, {"maximum", group_merge::maximum}}));
  app.add_option("--sinks", o.sinks, "first tokens that a head without retrieval would read")
      ->capture_default_str()
      ->check(count_from(0));
  app.add_option("--recent", o.recent, "last tokens that a head without retrieval would read")
      ->capture_default_str()
      ->check(count_from(0));
  add_threads(app, o.threads);
  app.add_option("--out", o.out, "file for the profile, JSON")->required()->check(file_name());
  app.add_option("--moments", o.moments, "file for moments of the model's queries, JSON, which triattention needs")
      ->check(file_name());
  return kvpolicy::tool_main(app, argc, argv, [&] { profile(o); });
}
