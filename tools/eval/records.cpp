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

/// The record's own, or the prompt's last line where lines stand before it.
std::string question_of(nlohmann::json const& json, std::string const& prompt) {
  if (json.contains("question")) {
    std::string question = json["question"].get<std::string>();
    if (!prompt.ends_with(question)) throw invalid_value("its prompt does not end with its question");
    return question;
  }
  std::size_t const end = prompt.find_last_not_of('\n');
  std::size_t const newline = end == std::string::npos ? end : prompt.rfind('\n', end);
  return newline == std::string::npos ? "" : prompt.substr(newline + 1);
}

std::vector<std::vector<std::string>> outputs_of(nlohmann::json const& json) {
  std::vector<std::vector<std::string>> outputs;
  for (auto const& output : json) {
    outputs.push_back(output.is_array() ? output.get<std::vector<std::string>>() : std::vector{output.get<std::string>()});
    if (outputs.back().empty()) throw invalid_value("one of its outputs has no wording");
  }
  if (outputs.empty()) throw invalid_value("it has no outputs");
  return outputs;
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
        std::string const prompt = json.at("prompt").get<std::string>();
        records.push_back({.task = task,
                           .index = i,
                           .prompt = prompt,
                           .question = question_of(json, prompt),
                           .answer_prefix = json.value("answer_prefix", ""),
                           .outputs = outputs_of(json.at("outputs"))});
      } catch (std::exception const& e) {
        throw invalid_value("'" + path + "', line " + std::to_string(i + 1) + ": " + e.what());
      }
    }
  }
  if (records.empty())
    throw invalid_value("no records: there are fewer than " + std::to_string(first + 1) + " in '" + directory + "'");
  return records;
}

double score_of(std::string const& answer, std::vector<std::vector<std::string>> const& outputs) {
  std::string const text = lower(answer);
  auto const is_there = [&](std::string const& wording) { return text.find(lower(wording)) != std::string::npos; };
  auto const found =
      std::ranges::count_if(outputs, [&](auto const& wordings) { return std::ranges::any_of(wordings, is_there); });
  return static_cast<double>(found) / static_cast<double>(outputs.size());
}

}  // namespace kvpolicy
