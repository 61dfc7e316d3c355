// kvpolicy-eval: policies and budgets over evaluation records, each record prefilled once.
#include <algorithm>
#include <iostream>
#include <string>

#include "evaluation.hpp"
#include "tool_main.hpp"
#include "waits.hpp"

int main(int argc, char** argv) {
  kvpolicy::restart_to_spin_for_a_moment(argv);
  CLI::App app{"Score KV-cache policies on evaluation records (RULER's format), asked in several forms, beside dense decoding.",
               "kvpolicy-eval"};
  using namespace kvpolicy;
  eval_options o;
  app.add_option("--model", o.model, "GGUF file")->required();
  app.add_option("--data", o.data, "folder of TASK.jsonl files: prompt, outputs; question, answer_prefix where there are")
      ->required();
  app.add_option("--out", o.out, "folder for results.jsonl, summary.md and report.html; a second run goes on where one stopped")
      ->required()
      ->check(file_name());
  app.add_option("--policy", o.policies, "NAME[:key=value,...][+NAME...], several; see kvpolicy-run --list-policies")
      ->take_all();
  app.add_option("--plugin", o.plugins, "shared object with policies of one's own; there may be several");
  app.add_option("--prompt-policy", o.prompt_policy,
                 "pages[:key=value,...]: what prompts read while they are read; give each its own --out");
  app.add_option("--budgets", o.budgets, "tokens, given to each policy as tokens=")->delimiter(',')->capture_default_str();
  app.add_option("--tasks", o.tasks, "which files (default: all)")->delimiter(',');
  app.add_option(
         "--forms", o.forms,
         "how each record is asked: chat; instructed (a sentence on how to answer behind the question); question_first; "
         "turns (behind an answered question); prefix (the answer's beginning is given, as benchmarks do)")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--first", o.first, "first record of each task, from 0")->capture_default_str()->check(count_from(0));
  app.add_option("--records", o.records, "records of each task")->capture_default_str()->check(count_from(1));
  app.add_option("--predict", o.predict, "tokens to decode, at most; the last is the one that completes the references")
      ->capture_default_str()
      ->check(between(2, 1 << 20));
  add_threads(app, o.threads);
  return kvpolicy::tool_main(app, argc, argv, [&] { kvpolicy::evaluate(o); });
}
