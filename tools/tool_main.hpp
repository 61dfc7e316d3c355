// What every command's main does around its work.
#pragma once

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

namespace kvpolicy {

/// Parses and runs; 0, or one line on standard error and 2.
template <class Run>
int tool_main(CLI::App& app, int argc, char** argv, Run run) {
  try {
    app.parse(argc, argv);
    run();
    return 0;
  } catch (CLI::CallForHelp const&) {
    std::cout << app.help();
    return 0;
  } catch (CLI::ParseError const& e) {
    std::cerr << app.get_name() << ": " << e.what() << " (--help lists the options)\n";
  } catch (std::exception const& e) {
    std::cerr << app.get_name() << ": " << e.what() << '\n';
  }
  return 2;
}

}  // namespace kvpolicy
