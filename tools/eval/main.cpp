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
  app.add_option("--data", o.data,
                 "folder of TASK.jsonl files with prompt and outputs, and optionally question and answer_prefix")
      ->required();
  app.add_option(
         "--out", o.out,
         "folder for results.jsonl; another run continues where this one stopped, kvpolicy-eval-report makes tables of it")
      ->required()
      ->check(file_name());
  app.add_option("--policy", o.policies,
                 "NAME[:key=value,...][+NAME...]; repeat for several; kvpolicy-run --list-policies lists them")
      ->take_all();
  app.add_option("--plugin", o.plugins, "shared object with your policies; repeat for several");
  app.add_option("--prompt-policy", o.prompt_policy, "pages[:key=value,...], the prompt policy; give each its own --out");
  app.add_option("--budgets", o.budgets,
                 "budgets in tokens; each policy runs with tokens=N for each, unless its text sets a share of the cache")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--tasks", o.tasks, "tasks to run (default: all)")->delimiter(',');
  app.add_option(
         "--forms", o.forms,
         "how to ask each record: chat; instructed (with a sentence on how to answer after the question); question_first; "
         "turns (after another question and its answer); prefix (with the beginning of the answer, as benchmarks do)")
      ->delimiter(',')
      ->capture_default_str();
  app.add_flag(
      "--one-chat", o.one_chat,
      "ask records that share a text one after the other in one chat, with a managed cache, in place of --forms: what a "
      "policy drops for one question is gone for the next");
  app.add_option("--first", o.first, "first record of each task, from 0")->capture_default_str()->check(count_from(0));
  app.add_option("--records", o.records, "records of each task")->capture_default_str()->check(count_from(1));
  app.add_option("--predict", o.predict, "the most tokens to decode; decoding ends earlier once an answer has all references")
      ->capture_default_str()
      ->check(between(2, 1 << 20));
  add_threads(app, o.threads);
  return kvpolicy::tool_main(app, argc, argv, [&] { kvpolicy::evaluate(o); });
}
