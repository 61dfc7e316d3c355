// Evaluation records: prompts with reference answers, and how an answer is scored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvpolicy {

struct eval_record {
  std::string task;                               ///< the file's name without .jsonl
  std::int64_t index = 0;                         ///< its line, from 0
  std::string prompt;                             ///< the user's turn
  std::string question;                           ///< with which the prompt ends; empty where it can't be told from the text
  std::string answer_prefix;                      ///< how the answer begins
  std::vector<std::vector<std::string>> outputs;  ///< references; each of them in one of several wordings
};

/// Records [first, first + count) of DIR/TASK.jsonl for each task; of every file there without tasks. Throws invalid_value that
/// names file and line.
std::vector<eval_record> read_records(std::string const& directory, std::vector<std::string> const& tasks, std::int64_t first,
                                      std::int64_t count);

/// The fraction of the outputs of which a wording is a case-insensitive substring of the answer, in 0..1.
double score_of(std::string const& answer, std::vector<std::vector<std::string>> const& outputs);

}  // namespace kvpolicy
