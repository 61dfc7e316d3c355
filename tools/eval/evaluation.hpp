// Runs an evaluation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvpolicy {

struct eval_options {
  std::string model;
  std::string data;
  std::string out;
  std::vector<std::string> policies;
  std::vector<std::string> plugins;
  std::string prompt_policy;  ///< empty: prompts are read whole
  std::vector<std::int64_t> budgets{128, 256, 512, 1024};
  std::vector<std::string> tasks;
  std::vector<std::string> forms{"chat", "instructed", "question_first", "turns", "prefix"};
  bool one_chat = false;  ///< records that share a text are turns of one chat, in place of `forms`
  std::int64_t first = 0;
  std::int64_t records = 10;
  int predict = 64;
  int threads = 1;
};

/// Appends to OUT/results.jsonl, and says how many results are there.
void evaluate(eval_options const& options);

}  // namespace kvpolicy
