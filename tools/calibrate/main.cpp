// kvpolicy-calibrate: how unsure a model is while it generates, as the thresholds that chess renews its choice by.
#include <kvpolicy/exec/simd.hpp>
#include <kvpolicy/primitive/entropy.hpp>
#include <kvpolicy/triggers/entropy.hpp>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "output_file.hpp"
#include "progress.hpp"
#include "text_model.hpp"
#include "tool_main.hpp"
#include "waits.hpp"

namespace {

using namespace kvpolicy;

struct options {
  std::string model;
  std::vector<std::string> prompts;
  bool chat = false;
  int steps = 512;
  int page = 16;
  double quantile = .99;
  std::string out;
  int threads = 1;
};

void calibrate(options const& o) {
  std::optional<output_file> file;
  if (!o.out.empty()) file.emplace(o.out);
  text_model const model(o.model);
  calibration_prompts const prompts = read_prompts(model, o.prompts, o.chat, o.steps);
  context_ptr const context = model.context(model.parameters(prompts.context, o.threads, true));
  simd_exec exec(model.cache(256));
  std::vector<triggers::page_uncertainty> pages;
  progress_bar bar("calibrating, tokens", prompts.total);
  std::size_t done = 0;
  for (std::vector<llama_token> const& prompt : prompts.tokens) {
    llama_memory_clear(llama_get_memory(context.get()), true);
    decode_prompt(
        context.get(), prompt, [&](std::size_t of_prompt) { bar.show(done + of_prompt); }, [] {});
    done += prompt.size();
    triggers::page_statistics statistics;
    auto tokens = static_cast<std::int64_t>(prompt.size());
    for (int step = 0; step < o.steps; ++step, bar.show(++done)) {
      llama_token const next = likeliest(last_logits(context.get(), model));
      if (model.ends(next)) break;
      decode_token(context.get(), next, [] {});
      bool const closes = statistics.add(entropy(last_logits(context.get(), model), exec).entropy, ++tokens, o.page);
      if (closes) pages.push_back(statistics.last());
    }
  }
  if (pages.empty()) {
    throw invalid_value("no page of " + std::to_string(o.page) + " tokens was generated; give longer answers or more steps");
  }
  triggers::entropy const found = triggers::calibrate(pages, o.page, o.quantile);
  if (file) {
    nlohmann::ordered_json of_pages = nlohmann::ordered_json::array();
    for (triggers::page_uncertainty const& page : pages) of_pages.push_back({page.entropy, page.varentropy});
    file->stream() << nlohmann::ordered_json{{"model", o.model.substr(o.model.rfind('/') + 1)},
                                             {"page", o.page},
                                             {"quantile", o.quantile},
                                             {"entropy", found.mean},
                                             {"varentropy", found.variance},
                                             {"pages", of_pages}}
                          .dump(1)
                   << '\n';
    file->commit();
  }
  std::cout << "chess:page=" << o.page << ",entropy=" << found.mean << ",varentropy=" << found.variance << "  (" << pages.size()
            << " pages; a page in " << static_cast<int>(1 / std::max(1e-9, 1 - o.quantile) + .5) << " passes each)\n";
}

}  // namespace

int main(int argc, char** argv) {
  kvpolicy::restart_to_spin_for_a_moment(argv);
  CLI::App app{"Find the thresholds of uncertainty by which the policy chess renews its choice.", "kvpolicy-calibrate"};
  options o;
  app.add_option("--model", o.model, "GGUF file")->required();
  app.add_option("--prompt-file", o.prompts, "text for the model to continue; repeat for several")->required();
  app.add_flag("--chat", o.chat, "wrap each in the model's chat template");
  app.add_option("--steps", o.steps, "the most tokens to decode after each text")
      ->capture_default_str()
      ->check(between(1, 1 << 16));
  app.add_option("--page", o.page, "tokens of chess's pages")->capture_default_str()->check(between(1, 4096));
  app.add_option("--quantile", o.quantile, "share of the pages that do not renew the choice; the paper: 0.99")
      ->capture_default_str()
      ->check(between(0.0, 1.0));
  add_threads(app, o.threads);
  app.add_option("--out", o.out, "file for the thresholds and each page's mean and variance of entropy, JSON")
      ->check(file_name());
  return kvpolicy::tool_main(app, argc, argv, [&] { calibrate(o); });
}
