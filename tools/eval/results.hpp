// What an evaluation measured, one JSON line for each record, form, policy and budget; and how it is continued.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace kvpolicy {

/// What one line is of.
struct measured_case {
  std::string task;
  std::int64_t record = 0;
  std::string form;  ///< name of a question_form
  std::string policy;
  std::int64_t budget = 0;
  auto operator<=>(measured_case const&) const = default;
};

/// results.jsonl of one folder: lines are appended as they are measured, and those that are there need no second run.
class eval_results {
 public:
  /// Reads what an earlier run left; a last line that was cut is dropped. `about` is what all lines have in common: the model,
  /// say. Throws invalid_value for anything else, and for lines that are about something else.
  eval_results(std::string const& directory, nlohmann::ordered_json about);

  /// Throws invalid_value where it was measured with other parameters.
  bool has(measured_case const& what, std::string const& parameters) const;
  /// Throws error where the line can't be written whole.
  void add(nlohmann::ordered_json line);
  /// How many lines there are.
  std::size_t lines() const noexcept { return parameters_.size(); }

 private:
  std::string path_;
  std::ofstream file_;
  nlohmann::ordered_json about_;
  std::map<measured_case, std::string> parameters_;  ///< of what is there
};

}  // namespace kvpolicy
