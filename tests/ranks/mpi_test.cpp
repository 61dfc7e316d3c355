// Started by mpirun, every rank runs this. See usage below.
#include "kvpolicy/interop/mpi.hpp"

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "captured_request.hpp"
#include "conformance/communicator.hpp"
#include "kvpolicy/exec/ranked.hpp"
#include "split_request.hpp"

namespace kvpolicy_test::ranks {
namespace {

using std::chrono::milliseconds;

constexpr char const* usage =
    "mpi_test cases COUNT SEED     what the ranks choose of random requests, against what one rank does\n"
    "mpi_test captured FILE        the same of a real model's keys (capture.cpp)\n"
    "mpi_test killed DEADLINE      rank 2 is killed behind the second choice; the others wait DEADLINE ms\n"
    "mpi_test late DEADLINE LATE   rank 2 comes LATE ms late to the second choice\n";

/// On this rank's standard output, in one piece.
void say(std::string const& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

std::string at(int rank) { return "rank " + std::to_string(rank) + ": "; }

/// Collective. Whether this rank chose what one rank would, and so, as all ask this, all the same.
bool agrees(request const& r, mpi_communicator& all, std::string const& name) {
  host_exec whole;
  choices const want = run(r, {}, whole);
  ranked<host_exec, mpi_communicator> exec(all);
  choices const got = run(r, static_cast<std::size_t>(all.rank()), exec);
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    say(at(all.rank()) + name + ", step " + std::to_string(i) + ": other pages than one rank's");
    return false;
  }
  return true;
}

/// Collective: how often it does not hold, on all ranks together.
int failures(bool holds) {
  int mine = holds ? 0 : 1;
  int all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return all;
}

int run_cases(mpi_communicator& all, std::int64_t count, std::uint64_t seed) {
  check_communicator(all);
  int failed = 0;
  std::int64_t narrow = 0;
  random_source random(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    request const r = draw_request(i % 2 == 0 ? keys_are::whole_numbers : keys_are::gaussian, all.size(), random);
    failed += failures(agrees(r, all, "case " + std::to_string(i)));
    host_exec whole;
    choices const want = run(r, {}, whole);
    for (std::size_t s = 0; s < want.size(); ++s) narrow += token_count(want[s]) < r.steps[s] ? 1 : 0;
  }
  if (narrow < count) {
    say(at(all.rank()) + "hardly any case reads less than everything");
    ++failed;
  }
  if (all.rank() == 0)
    say(std::to_string(count) + " cases on " + std::to_string(all.size()) + " ranks: " + std::to_string(failed) + " failures");
  return failed;
}

int run_captured(mpi_communicator& all, std::string const& path) {
  if (!std::filesystem::exists(path)) {
    say(at(all.rank()) + "no " + path + ": nothing was captured");
    return 77;
  }
  std::vector<request> const drawn = captured_requests(path, all.size());
  int failed = 0;
  for (std::size_t i = 0; i < drawn.size(); ++i) failed += failures(agrees(drawn[i], all, "split " + std::to_string(i)));
  if (all.rank() == 0)
    say(std::to_string(drawn.size()) + " splits of a real model on " + std::to_string(all.size()) +
        " ranks: " + std::to_string(failed) + " failures");
  return failed;
}

/// Chooses at every step; rank 2 does `odd` before the second choice.
template <class Odd>
int run_faulty(milliseconds deadline, Odd odd) {
  mpi_communicator all(MPI_COMM_WORLD, deadline);
  random_source random(99);
  request r = draw_request(keys_are::whole_numbers, all.size(), random);
  r.policy.every = 1;
  r.policy.fractions.tokens = 0;
  r.prompt = r.shape.max_tokens / 2;
  r.logits.clear();
  r.steps = {r.prompt + 1, r.prompt + 2, r.prompt + 3};
  r.logits.assign(3, {1, 2});
  auto const rank = static_cast<std::size_t>(all.rank());
  auto const view = [&](std::int64_t tokens) { return r.view_of(rank, tokens); };
  ranked<host_exec, mpi_communicator> exec(all);
  auto state = start(r.policy, view(0).shape());
  for (std::int64_t l = 0; l < view(0).shape().layers; ++l) state.prefill(view(r.prompt), {l}, r.told(), exec);
  choices made;
  try {
    for (std::size_t i = 0; i < r.steps.size(); ++i) {
      if (i == 1 && rank == 2) odd();
      state.choose(view(r.steps[i]), {0}, {}, exec);
      made.push_back(state.kept({0}).of({0}));
    }
  } catch (ranks_error const& e) {
    say(e.what());
    bool again = false;
    try {
      state.choose(view(r.steps[made.size()]), {0}, {}, exec);
    } catch (ranks_error const&) {
      again = true;
    }
    bool const stands = !made.empty() && state.kept({0}).of({0}) == made.back();
    if (!again || !stands) say(at(all.rank()) + "the communicator is not broken, or the choice did not stand");
    std::this_thread::sleep_for(4 * deadline);  // the one that is late has its own message
    std::_Exit(3);                              // MPI_Finalize would wait for who is lost
  }
  host_exec whole;
  if (made == run(r, {}, whole)) {
    say(at(all.rank()) + "same choices");
    return 0;
  }
  say(at(all.rank()) + "other choices than one rank's");
  return 1;
}

int run_test(std::vector<std::string> const& words) {
  auto const number = [&](std::size_t i) { return std::stoll(words.at(i)); };
  if (words.size() == 3 && words[0] == "cases") {
    mpi_communicator all(MPI_COMM_WORLD, std::chrono::minutes(2));
    return run_cases(all, number(1), static_cast<std::uint64_t>(number(2)));
  }
  if (words.size() == 2 && words[0] == "captured") {
    mpi_communicator all(MPI_COMM_WORLD, std::chrono::minutes(2));
    return run_captured(all, words[1]);
  }
  if (words.size() == 2 && words[0] == "killed") return run_faulty(milliseconds(number(1)), [] { std::raise(SIGKILL); });
  if (words.size() == 3 && words[0] == "late")
    return run_faulty(milliseconds(number(1)), [&] { std::this_thread::sleep_for(milliseconds(number(2))); });
  std::fputs(usage, stderr);
  return 2;
}

}  // namespace
}  // namespace kvpolicy_test::ranks

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int status = 1;
  try {
    status = kvpolicy_test::ranks::run_test({argv + 1, argv + argc});
  } catch (std::exception const& e) {
    std::fprintf(stderr, "mpi_test: %s\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return status == 77 ? 77 : status == 0 ? 0 : 1;
}
