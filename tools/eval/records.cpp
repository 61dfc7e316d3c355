#include "records.hpp"

#include <kvpolicy/error.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "read_file.hpp"

namespace kvpolicy {
namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

std::vector<eval_record> read_records(std::string const& directory, std::vector<std::string> const& tasks, std::int64_t first,
                                      std::int64_t count) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) throw invalid_value("--data '" + directory + "' is no folder");
  std::vector<std::string> names = tasks;
  if (names.empty()) {
    for (auto const& file : std::filesystem::directory_iterator(directory)) {
      if (file.path().extension() == ".jsonl") names.push_back(file.path().stem().string());
    }
    std::ranges::sort(names);
  }
  if (names.empty()) throw invalid_value("--data '" + directory + "' holds no .jsonl file");
  std::vector<eval_record> records;
  for (std::string const& task : names) {
    std::string const path = (std::filesystem::path(directory) / (task + ".jsonl")).string();
    std::istringstream lines(read_file(path));
    std::string line;
    for (std::int64_t i = 0; std::getline(lines, line) && i < first + count; ++i) {
      if (i < first) continue;
      try {
        auto const json = nlohmann::json::parse(line);
        eval_record record{.task = task,
                           .index = i,
                           .prompt = json.at("prompt").get<std::string>(),
                           .answer_prefix = json.value("answer_prefix", ""),
                           .outputs = json.at("outputs").get<std::vector<std::string>>()};
        if (record.outputs.empty()) throw invalid_value("'" + path + "', line " + std::to_string(i + 1) + " has no outputs");
        records.push_back(std::move(record));
      } catch (nlohmann::json::exception const& e) {
        throw invalid_value("'" + path + "', line " + std::to_string(i + 1) + ": " + e.what());
      }
    }
  }
  if (records.empty())
    throw invalid_value("no records: there are fewer than " + std::to_string(first + 1) + " in '" + directory + "'");
  return records;
}

double score_of(std::string const& answer, std::vector<std::string> const& outputs) {
  std::string const text = lower(answer);
  auto const found =
      std::ranges::count_if(outputs, [&](std::string const& o) { return text.find(lower(o)) != std::string::npos; });
  return static_cast<double>(found) / static_cast<double>(outputs.size());
}

}  // namespace kvpolicy
