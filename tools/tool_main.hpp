// What every command's main does around its work.
#pragma once

#include <kvpolicy/error.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <thread>

#include "output_file.hpp"

namespace kvpolicy {

/// A number that an option may be: finite, and in this range.
template <class Number>
CLI::Validator between(Number least, Number most) {
  auto const check = [=](std::string& text) -> std::string {
    Number value{};
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return {};
    return "'" + text + "' must be a number from " + CLI::detail::to_string(least) + " to " + CLI::detail::to_string(most);
  };
  return CLI::Validator(check, CLI::detail::to_string(least) + " to " + CLI::detail::to_string(most));
}
inline CLI::Validator count_from(std::int64_t least) { return between(least, std::int64_t{1} << 40); }

/// The name of a file to write.
inline CLI::Validator file_name() {
  return CLI::Validator([](std::string& text) { return text.empty() ? "it is empty; name a file" : std::string{}; }, "FILE");
}

/// Threads that run at once here.
inline int machine_threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

/// "--threads", up to as many as the machine has, which is the default.
inline void add_threads(CLI::App& app, int& threads) {
  threads = machine_threads();
  app.add_option("--threads", threads, "threads (default: all cores)")->check(between(1, threads));
}

/// Parses and runs; 0, or one line on standard error and 2.
template <class Run>
int tool_main(CLI::App& app, int argc, char** argv, Run run) {
  output_file::remove_on_signals();
  try {
    try {
      app.parse(argc, argv);
      run();
    } catch (CLI::CallForHelp const&) {
      std::cout << app.help();
    }
    if (!std::cout.flush()) throw error("standard output could not be written whole");
    return 0;
  } catch (CLI::ParseError const& e) {
    std::cerr << app.get_name() << ": " << e.what() << " (--help lists the options)\n";
  } catch (std::exception const& e) {
    std::cerr << app.get_name() << ": " << e.what() << '\n';
  }
  return 2;
}

}  // namespace kvpolicy
