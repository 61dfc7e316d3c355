// kvpolicy-exec POLICY -- PROGRAM ...: runs a program of llama.cpp's, or one that links libllama, with a policy in its
// contexts.
#include <kvpolicy/error.hpp>

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "published.hpp"
#include "settings.hpp"
#include "tool_main.hpp"
#include "waits.hpp"

namespace kvpolicy {
namespace {

namespace fs = std::filesystem;

/// The library of this name beside this program: installed, or in the folder where it was built. `where` says what it needs.
std::string library_of(std::string const& name, char const* built, std::string const& where) {
  fs::path const here = fs::read_symlink("/proc/self/exe").parent_path();
  for (char const* const folder : {KVPOLICY_LIBRARIES, built})
    if (fs::path const found = here / folder / name; fs::exists(found)) return fs::canonical(found).string();
  throw error(name + " is not in " + (here / KVPOLICY_LIBRARIES).lexically_normal().string() + "; it is built where " + where);
}

/// Has the loader put a library before the program's others.
void load_before(std::string const& library) {
  if (library.find_first_of(" :") != std::string::npos)
    throw error("'" + library + "' has a space or a colon in its path, which LD_PRELOAD can't hold; move it");
  // Where it can't load one, the loader says so, and runs the program without.
  if (dlopen(library.c_str(), RTLD_LAZY) == nullptr) throw error("'" + library + "' can't be loaded: " + dlerror());
  char const* const before = std::getenv("LD_PRELOAD");
  setenv("LD_PRELOAD", (library + (before != nullptr && *before != '\0' ? ":" + std::string(before) : "")).c_str(), 1);
}

/// Where the shell would find it.
fs::path program_of(std::string const& name) {
  if (name.find('/') != std::string::npos) {
    if (access(name.c_str(), X_OK) == 0) return name;
    throw invalid_value("'" + name + "' can't be run: " + std::strerror(errno));
  }
  char const* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    fs::path const found = fs::path(folder) / name;
    if (access(found.c_str(), X_OK) == 0) return found;
  }
  throw invalid_value("there is no program '" + name + "' in PATH");
}

/// What ldd says of it, which names the libraries that it would load; empty for what is no such program, a script say.
std::string libraries_of(fs::path const& program) {
  std::string quoted;
  for (char const c : program.string()) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  std::FILE* const pipe = popen(("ldd '" + quoted + "' 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return {};
  std::string said;
  std::array<char, 4096> some{};
  while (std::size_t const count = std::fread(some.data(), 1, some.size(), pipe)) said.append(some.data(), count);
  pclose(pipe);
  return said.find("=>") == std::string::npos ? std::string{} : said;
}

/// Standard error says what runs; nothing where nothing is known of the program.
void check_program(fs::path const& program) {
  std::string const libraries = libraries_of(program);
  if (libraries.empty() || libraries.find("libllama.so") != std::string::npos) return;
  throw invalid_value("'" + program.string() +
                      "' does not load libllama as a shared library, and can't be reached; build llama.cpp with "
                      "BUILD_SHARED_LIBS=ON, its default");
}

void explain(named_host_policy const& policy) {
  std::istringstream names(policy.name);
  host_policy_list const known = known_policies();
  for (std::string name; std::getline(names, name, '+');) std::cout << name << ": " << known.find(name)->source << "\n";
  std::cout << "with " << policy.parameters << "\n";
}

}  // namespace
}  // namespace kvpolicy

int main(int argc, char** argv) {
  using namespace kvpolicy;
  CLI::App app(
      "Runs a program that loads libllama with a policy in its contexts, llama-server, llama-cli or llama-bench for instance:\n"
      "  kvpolicy-exec snapkv:tokens=1024 -- llama-server -m MODEL.gguf",
      "kvpolicy-exec");
  std::string policy;
  std::string log;
  std::string prompts;
  std::string tier;
  std::string drafts;
  bool lossless = false;
  bool strict = false;
  bool managed_cache = false;
  bool compact = false;
  bool gpu = false;
  bool only_explain = false;
  app.add_option("policy", policy, "NAME[:parameter=value,...][+NAME...]; kvpolicy-run --list-policies lists them");
  app.add_flag(
      "--lossless", lossless,
      "every answer stays dense decoding's: the policy only guesses tokens (default: by what the last ones attend to)");
  app.add_option("--drafts", drafts, "with --lossless, guess always so many tokens (default: as many as pay, up to 7)");
  app.add_option("--prompts", prompts, "the prompt policy: pages[:share=.3,...] (default: prompts read all of themselves)");
  app.add_flag("--managed-cache", managed_cache, "the library holds the cache, and frees the rows that the policy drops");
  app.add_flag("--compact", compact,
               "the engine's cache gets what the policy retains of each prompt; also with layers on a GPU");
  app.add_option("--tier", tier,
                 "where a managed cache stores the rows that steps do not read: host, host:q8_0, host:q4_0, disk:FILE or "
                 "redis:HOST:PORT,... (default: memory)");
  app.add_option("--log", log, "file for the library's messages, or none (default: standard error)");
  app.add_flag("--strict", strict, "fail if a request can't be served, instead of leaving it to the engine");
  app.add_flag("--gpu", gpu,
               "the layers are on a CUDA device, whose steps read what the policy chooses; prompts are the engine's")
      ->excludes("--lossless", "--drafts", "--prompts", "--managed-cache", "--compact", "--strict", "--tier");
  app.add_flag("--explain", only_explain, "print the policy, and run nothing");
  app.prefix_command();
  // What is behind -- is the program's.
  char** const program_begins = std::find(argv, argv + argc, std::string_view("--"));
  return tool_main(app, static_cast<int>(program_begins - argv), argv, [&] {
    KVPOLICY_EXPECTS(!policy.empty() || lossless,
                     "no policy is given; full reads everything, and --help lists what else there is");
    std::string const drafted = (lossless && !policy.empty() ? ";lossless" : "") + (drafts.empty() ? "" : ";drafts=" + drafts);
    std::string said = (policy.empty() ? "lossless" : policy) + drafted + (strict ? ";strict" : "") +
                       (managed_cache ? ";managed-cache" : "") + (compact ? ";compact" : "") +
                       (prompts.empty() ? "" : ";prompts=" + prompts) + (tier.empty() ? "" : ";tier=" + tier);
    preload::parse_settings(said);
    if (only_explain) {
      if (policy.empty() || policy == "lossless")
        std::cout << "lossless: drafts read what the last verified tokens attended to (docs/lossless.md)\n";
      else explain(known_policies().parse(policy, inputs_for()));
      return;
    }
    std::vector<std::string> command = app.remaining();
    // A program without -- before it may have one of its own.
    if (program_begins != argv + argc) command.insert(command.end(), program_begins + (command.empty() ? 1 : 0), argv + argc);
    KVPOLICY_EXPECTS(!command.empty(), "no program to run; write it behind --, as in: kvpolicy-exec " +
                                           (policy.empty() ? "--lossless" : policy) + " -- llama-server -m MODEL.gguf");
    fs::path const program = program_of(command.front());
    check_program(program);
    load_before(gpu ? library_of("libkvpolicy-ggml.so", "../src/adapters/ggml",
                                 "nvcc, llama.cpp and ggml's inner headers are (cmake/bootstrap.sh programs)")
                    : library_of("libkvpolicy-llama.so", "../src/adapters/preload", "libllama is a shared library"));
    setenv("KVPOLICY", said.c_str(), 1);
    if (!log.empty()) setenv("KVPOLICY_LOG", log.c_str(), 1);
    if (compact) setenv("LLAMA_ARG_KV_UNIFIED", "1", 0);  // what a compaction frees is for all sequences
    spin_for_a_moment();
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    execv(program.c_str(), arguments.data());
    throw error("'" + program.string() + "' can't be run: " + std::strerror(errno));
  });
}
