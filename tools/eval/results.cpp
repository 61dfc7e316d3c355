#include "results.hpp"

#include <kvpolicy/error.hpp>

#include <filesystem>

#include "read_file.hpp"

namespace kvpolicy {

using nlohmann::ordered_json;

namespace {

measured_case case_of(ordered_json const& line) {
  return {line.at("task"), line.at("record"), line.at("form"), line.at("policy"), line.at("budget")};
}

}  // namespace

eval_results::eval_results(std::string const& directory, ordered_json about)
    : path_((std::filesystem::path(directory) / "results.jsonl").string()), about_(std::move(about)) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw invalid_value("--out '" + directory + "' can't be made: " + error.message());
  std::size_t whole = 0;
  if (std::filesystem::exists(path_)) {
    std::string const text = read_file(path_);
    std::size_t line = 1;
    for (std::size_t at = 0; at < text.size(); ++line) {
      std::size_t const end = text.find('\n', at);
      if (end == std::string::npos) break;  // cut while it was written
      try {
        ordered_json const one = ordered_json::parse(text.substr(at, end - at));
        for (auto const& [name, value] : about_.items()) {
          if (one.at(name) != value) {
            throw invalid_value("'" + path_ + "' was measured with " + name + " " + one.at(name).dump() + ", not " +
                                value.dump() + "; give another --out");
          }
        }
        parameters_[case_of(one)] = one.at("parameters").get<std::string>();
      } catch (nlohmann::json::exception const& e) {
        throw invalid_value("'" + path_ + "', line " + std::to_string(line) + " is no result: " + e.what());
      }
      at = whole = end + 1;
    }
    std::filesystem::resize_file(path_, whole, error);
  }
  file_.open(path_, std::ios::app | std::ios::binary);
  if (!file_ || error) throw invalid_value("'" + path_ + "' can't be written");
}

bool eval_results::has(measured_case const& what, std::string const& parameters) const {
  auto const found = parameters_.find(what);
  if (found == parameters_.end()) return false;
  if (found->second != parameters) {
    throw invalid_value("'" + path_ + "' was measured with " + what.policy + " being '" + found->second + "', not '" +
                        parameters + "'; give another --out");
  }
  return true;
}

void eval_results::add(ordered_json line) {
  line.update(about_);
  file_ << line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << '\n' << std::flush;
  if (!file_) throw error("'" + path_ + "' could not be written whole");
  parameters_[case_of(line)] = line.at("parameters").get<std::string>();
}

}  // namespace kvpolicy
