// Kills a process that writes to a disk tier, again and again, and looks at what it left.
// Usage: kill_loop FOLDER KILLS SEED. Exit status 0: every acknowledged block was there, and no byte was wrong.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>

#include "kvpolicy/tiers/disk.hpp"
#include "tiers/blocks.hpp"

using namespace kvpolicy_test;

namespace {

constexpr std::int64_t bytes = 1000;
constexpr std::int64_t batch = 8;    // blocks of a put
constexpr std::int64_t groups = 24;  // batches that there are; each is replaced when its turn comes again
constexpr std::int64_t capacity = batch * groups;

tiers::block_key key_of(std::int64_t group, std::int64_t i) {
  return {static_cast<std::uint64_t>(group % 5), static_cast<std::int32_t>(group), static_cast<std::int32_t>(i % 2),
          static_cast<std::int32_t>(i), 1};
}
/// The batch that write number n replaces.
std::int64_t group_of(std::uint64_t n) { return static_cast<std::int64_t>(n * 7 % groups); }

[[noreturn]] void write_until_killed(std::string const& path, std::uint64_t first, int acknowledge) {
  try {
    tiers::disk made(path, bytes, capacity, {.sync = false});
    std::vector<std::vector<std::byte>> sources(batch);
    std::vector<tiers::block_write> writes(batch);
    for (std::uint64_t n = first;; ++n) {
      for (std::int64_t i = 0; i < batch; ++i) {
        auto const at = static_cast<std::size_t>(i);
        tiers::block_key const key = key_of(group_of(n), i);
        sources[at] = block_of(key, n, bytes);
        writes[at] = {key, sources[at].data()};
      }
      if (!made.put(writes)) _exit(3);
      if (write(acknowledge, &n, sizeof n) != sizeof n) _exit(4);
    }
  } catch (std::exception const& e) {
    std::fprintf(stderr, "kill_loop: the writer failed: %s\n", e.what());
    _exit(5);
  }
}

/// The write that a whole batch is of, 0 where none of it is there, or -1.
std::int64_t version_of(tiers::disk& made, std::int64_t group, std::uint64_t known, std::uint64_t next) {
  std::vector<std::byte> to(static_cast<std::size_t>(batch * bytes), untouched_byte);
  std::vector<tiers::block_read> reads;
  for (std::int64_t i = 0; i < batch; ++i) reads.push_back({key_of(group, i), to.data() + i * bytes});
  if (made.wait(made.get(reads), soon()) != tiers::status::done) {
    for (std::int64_t i = 0; i < batch; ++i) {
      if (!is_miss(made, key_of(group, i))) return -1;
    }
    return untouched(to) ? 0 : -1;
  }
  for (std::uint64_t const n : {known, next}) {
    bool all = true;
    std::vector<std::byte> scratch(static_cast<std::size_t>(bytes));
    for (std::int64_t i = 0; i < batch; ++i) all = all && holds_block(to.data() + i * bytes, key_of(group, i), n, scratch);
    if (all) return static_cast<std::int64_t>(n);
  }
  return -1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  std::string const path = std::string(arguments[1]) + "/blocks";
  std::int64_t const kills = std::stoll(arguments[2]);
  random_source random(std::stoull(arguments[3]));
  std::map<std::int64_t, std::uint64_t> known;  // of each batch, the write that must be there
  std::uint64_t last = 0;                       // the last write that is known to have been made
  std::int64_t unacknowledged = 0;
  std::int64_t blocks = 0;
  for (std::int64_t round = 0; round < kills; ++round) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) return 2;
    pid_t const child = fork();
    if (child < 0) return 2;
    if (child == 0) {
      close(ends[0]);
      write_until_killed(path, last + 1, ends[1]);
    }
    close(ends[1]);
    // Most are killed while they write, some while they open the file.
    if (std::uint64_t n = 0; !random.one_in(10) && read(ends[0], &n, sizeof n) == sizeof n) {
      last = n;
      known[group_of(n)] = n;
    }
    usleep(static_cast<useconds_t>(random.between(0, random.one_in(4) ? 20'000 : 3000)));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    for (std::uint64_t n = 0; read(ends[0], &n, sizeof n) == sizeof n;) {
      last = n;
      known[group_of(n)] = n;
    }
    close(ends[0]);
    if (!WIFSIGNALED(status)) {
      std::fprintf(stderr, "kill_loop: kill %lld: the writer ended by itself, status %d\n", static_cast<long long>(round),
                   status);
      return 1;
    }
    tiers::disk made(path, bytes, capacity, {.sync = false});
    std::uint64_t const next = last + 1;  // may have been made; was not acknowledged
    bool found_next = false;
    std::int64_t there = 0;
    for (std::int64_t group = 0; group < groups; ++group) {
      std::uint64_t const must = known.contains(group) ? known[group] : 0;
      bool const may_be_next = group_of(next) == group;
      std::int64_t const found = version_of(made, group, must, may_be_next ? next : must);
      if (found != static_cast<std::int64_t>(must) && !(may_be_next && found == static_cast<std::int64_t>(next))) {
        std::fprintf(stderr, "kill_loop: kill %lld: batch %lld is of write %lld; write %llu was acknowledged\n",
                     static_cast<long long>(round), static_cast<long long>(group), static_cast<long long>(found),
                     static_cast<unsigned long long>(must));
        return 1;
      }
      if (found == 0) continue;
      there += batch;
      blocks += batch;
      found_next = found_next || found == static_cast<std::int64_t>(next);
    }
    if (made.occupied().resident != there || !adds_up(made)) {
      std::fprintf(stderr, "kill_loop: kill %lld: there is more than was written\n", static_cast<long long>(round));
      return 1;
    }
    if (found_next) {
      ++unacknowledged;
      last = next;
      known[group_of(next)] = next;
    }
  }
  std::printf("kill_loop: %lld kills, %llu writes, %lld found that were not acknowledged; %lld blocks read, 0 wrong bytes\n",
              static_cast<long long>(kills), static_cast<unsigned long long>(last), static_cast<long long>(unacknowledged),
              static_cast<long long>(blocks));
  return 0;
}
