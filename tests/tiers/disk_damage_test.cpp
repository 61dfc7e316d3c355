// A disk tier's file under damage, taken as bytes, whatever is in it. Each case is a process of its own: a signal fails it.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>

#include "kvpolicy/tiers/disk.hpp"
#include "tiers/blocks.hpp"

using namespace kvpolicy_test;

namespace {

constexpr tiers::disk_options unsynced{.sync = false};
constexpr std::int64_t page = 4096;

std::string contents_of(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write_file(std::string const& path, std::string const& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::ssize(bytes));
}
/// Over a file that may be open elsewhere, which keeps its length and its place.
void write_over(std::string const& path, std::string const& bytes) {
  int const file = open(path.c_str(), O_WRONLY);
  REQUIRE(file >= 0);
  CHECK(pwrite(file, bytes.data(), bytes.size(), 0) == std::ssize(bytes));
  close(file);
}
std::string noise(std::size_t size, random_source& random) {
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random.between(-128, 127));
  return bytes;
}
std::string flipped(std::string bytes, std::int64_t count, random_source& random) {
  for (; count > 0; --count) {
    std::int64_t const bit = random.between(0, 8 * std::ssize(bytes) - 1);
    bytes[static_cast<std::size_t>(bit / 8)] ^= static_cast<char>(1 << bit % 8);
  }
  return bytes;
}
std::string const some_text = "Shopping list: bread, salt, two candles.\n";

/// What blocks a file has; some were replaced, some dropped. The small ones share pages, the large ones have their own.
struct filling {
  std::int64_t bytes;
  std::int32_t blocks;
  std::int64_t capacity() const noexcept { return blocks + 8; }
};
constexpr filling fillings[] = {{100, 200}, {3000, 24}};

tiers::block_key numbered(std::int32_t i) { return {3, 1, 2, i, 4}; }

/// The versions that a block may have; none: it was dropped. A miss is allowed always.
using allowed = std::vector<std::vector<std::uint64_t>>;

allowed make_file(std::string const& path, filling const& f) {
  allowed may(static_cast<std::size_t>(f.blocks), {1});
  tiers::disk made(path, f.bytes, f.capacity(), unsynced);
  for (std::int32_t i = 0; i < f.blocks; ++i) REQUIRE(put_one(made, numbered(i), 1));
  for (std::int32_t i = 0; i < f.blocks; i += 7) {
    REQUIRE(put_one(made, numbered(i), 2));
    may[static_cast<std::size_t>(i)] = {2};
  }
  for (std::int32_t i = 3; i < f.blocks; i += 11) {
    drop_one(made, numbered(i));
    may[static_cast<std::size_t>(i)] = {};
  }
  return may;
}

/// Asks everything of a tier whose file may be damaged; remembers the first thing that must not be.
class visit {
 public:
  visit(std::string const& path, filling const& f, allowed const& may) : path_(path), filling_(f), may_(may) {}

  /// Whether it could be opened.
  bool open() {
    made_.reset();
    attempt([&] { made_ = std::make_unique<tiers::disk>(path_, filling_.bytes, filling_.capacity(), unsynced); });
    return made_ != nullptr;
  }
  void close() { made_.reset(); }

  void read_all() {
    for (std::int32_t i = 0; i < filling_.blocks; ++i) read_one(i);
  }
  /// Reads, replaces, adds, drops and counts.
  void do_all() {
    read_all();
    count();
    for (std::int32_t i = 0; i < filling_.blocks; i += 3) put(i, 10);
    for (std::int32_t i = 1; i < filling_.blocks; i += 5) drop(i);
    count();
    read_all();
  }
  std::string const& fault() const noexcept { return fault_; }

 private:
  /// Runs it; an error is right where it has the file's name.
  template <class Act>
  bool attempt(Act act) {
    try {
      act();
      return true;
    } catch (kvpolicy::error const& e) {
      if (std::string(e.what()).find(path_) == std::string::npos)
        blame(std::string("an error without the file's name: ") + e.what());
    } catch (std::exception const& e) {
      blame(std::string("not an error of the library's: ") + e.what());
    }
    return false;
  }
  void blame(std::string const& what) {
    if (fault_.empty()) fault_ = what;
  }

  void read_one(std::int32_t i) {
    std::vector<std::byte> to(static_cast<std::size_t>(filling_.bytes), untouched_byte);
    tiers::block_read const read{numbered(i), to.data()};
    tiers::status result = tiers::status::missed;
    if (!attempt([&] { result = made_->wait(made_->get({&read, 1}), soon()); })) return;
    if (result == tiers::status::pending) blame("a get that did not end");
    if (result == tiers::status::missed && !untouched(to)) blame("a miss that wrote to its destination");
    if (result != tiers::status::done) return;
    auto const& versions = may_[static_cast<std::size_t>(i)];
    bool const right =
        std::ranges::any_of(versions, [&](std::uint64_t v) { return to == block_of(numbered(i), v, filling_.bytes); });
    if (!right) blame("block " + std::to_string(i) + " has bytes that it must not have");
  }
  void put(std::int32_t i, std::uint64_t version) {
    auto& versions = may_[static_cast<std::size_t>(i)];
    bool accepted = false;
    bool const quiet = attempt([&] { accepted = put_one(*made_, numbered(i), version); });
    if (accepted) versions.clear();
    versions.push_back(version);
    // A refusal without an error says that there is no room: then there must be none.
    if (quiet && !accepted) {
      attempt([&] {
        if (made_->occupied().free > 0) blame("a put was refused as if there were no room, and occupied() says that there is");
      });
    }
  }
  void drop(std::int32_t i) {
    if (attempt([&] { drop_one(*made_, numbered(i)); })) may_[static_cast<std::size_t>(i)].clear();
  }
  void count() {
    attempt([&] {
      if (!adds_up(*made_)) blame("free, resident and in flight do not add up to the capacity");
    });
  }

  std::string path_;
  filling filling_;
  allowed may_;
  std::unique_ptr<tiers::disk> made_;
  std::string fault_;
};

/// What went wrong in a child that runs this, which returns what it saw go wrong; or nothing. `meanwhile` runs in the parent.
std::string fault_of(std::function<std::string()> const& act, std::function<void()> const& meanwhile = {}) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  pid_t const child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(quick_build ? 20 : 120);
    dup2(ends[1], STDERR_FILENO);  // what an assertion says
    std::string const fault = act();
    static_cast<void>(!write(ends[1], fault.data(), fault.size()));
    _exit(fault.empty() ? 0 : 1);
  }
  close(ends[1]);
  if (meanwhile) meanwhile();
  std::string said;
  char buffer[512];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  return (WIFSIGNALED(status) ? std::string("killed by ") + strsignal(WTERMSIG(status)) + ". " : "") + said.substr(0, 300);
}

/// Faults of many cases, told at once.
class tally {
 public:
  void add(std::string const& which, std::string const& fault) {
    ++cases_;
    if (fault.empty()) return;
    ++bad_;
    if (bad_ <= 6) first_ += "\n  " + which + ": " + fault;
  }
  /// Empty where all was well.
  std::string text() const {
    return bad_ == 0 ? "" : std::to_string(bad_) + " of " + std::to_string(cases_) + " cases, first:" + first_;
  }
  std::int64_t cases() const noexcept { return cases_; }

 private:
  std::int64_t cases_ = 0;
  std::int64_t bad_ = 0;
  std::string first_;
};

std::string title(filling const& f, std::string const& what) {
  return "blocks of " + std::to_string(f.bytes) + " bytes, " + what;
}

/// A file that was damaged while no process had it open: opened, used, and opened again.
std::string used_after(std::string const& path, filling const& f, allowed const& may) {
  return fault_of([&] {
    visit v(path, f, may);
    if (v.open()) v.do_all();
    if (v.open()) v.read_all();
    return v.fault();
  });
}

/// damage(whole, use) for a file of each filling: use(what, bytes) uses a file of these bytes.
template <class Damage>
tally require_used(Damage damage) {
  tally faults;
  for (filling const& f : fillings) {
    scratch_folder folder;
    allowed const may = make_file(folder.file("blocks"), f);
    damage(contents_of(folder.file("blocks")), [&](std::string const& what, std::string const& bytes) {
      scratch_folder other;
      write_file(other.file("blocks"), bytes);
      faults.add(title(f, what), used_after(other.file("blocks"), f, may));
    });
  }
  CHECK(faults.text() == "");
  return faults;
}

/// The lengths that a file of that size is cut to.
std::vector<std::int64_t> cuts(std::int64_t size) {
  std::vector<std::int64_t> lengths{0, 1, page / 2, page - 1, page + 1, size / 2, size - page, size - 1};
  for (std::int64_t whole = page; whole < size; whole += whole < 8 * page ? page : 5 * page) lengths.push_back(whole);
  return lengths;
}

}  // namespace

TEST_CASE("a disk's file that was cut to any length is an error with its name, or its blocks are right or missed") {
  tally const faults = require_used([](std::string const& whole, auto const& use) {
    for (std::int64_t const size : cuts(std::ssize(whole))) {
      use("cut to " + std::to_string(size) + " of " + std::to_string(whole.size()),
          whole.substr(0, static_cast<std::size_t>(size)));
    }
  });
  CHECK(faults.cases() > 20);
}

TEST_CASE("a disk's file with 200 or 3,000 flipped bits is an error with its name, or its blocks are right or missed") {
  random_source random(11);
  require_used([&](std::string const& whole, auto const& use) {
    for (std::int64_t const bits : {1, 20, 200, 3000}) {
      for (int tries = 0; tries < (quick_build ? 15 : 3); ++tries)
        use(std::to_string(bits) + " flips, try " + std::to_string(tries), flipped(whole, bits, random));
    }
  });
}

TEST_CASE("a disk's file of which any one byte was changed is an error with its name, or its blocks are right or missed") {
  require_used([](std::string const& whole, auto const& use) {
    // The first bytes of each page densely: headers stand there in most formats.
    for (std::int64_t at = 0; at < std::ssize(whole);
         at += at % page < 32 ? (quick_build ? 5 : 13) : (quick_build ? 677 : 2111)) {
      std::string damaged = whole;
      damaged[static_cast<std::size_t>(at)] ^= static_cast<char>(at % 2 == 0 ? 0xff : 0x04);
      use("byte " + std::to_string(at), damaged);
    }
  });
}

TEST_CASE("a disk's file of which a part was overwritten is an error with its name, or its blocks are right or missed") {
  random_source random(12);
  require_used([&](std::string const& whole, auto const& use) {
    for (int tries = 0; tries < (quick_build ? 20 : 4); ++tries) {
      std::string damaged = whole;
      std::int64_t const from = random.between(0, std::ssize(whole) - 1);
      std::int64_t const length = random.between(1, std::ssize(whole) - from);
      std::string const bytes = tries % 3 == 0 ? std::string(static_cast<std::size_t>(length), '\0')
                                               : noise(static_cast<std::size_t>(length), random);
      damaged.replace(static_cast<std::size_t>(from), bytes.size(), bytes);
      use(std::to_string(length) + " bytes from " + std::to_string(from), damaged);
    }
  });
}

TEST_CASE("a file that a disk did not write is refused by its name, and left as it was") {
  random_source random(13);
  scratch_folder folder;
  allowed const may = make_file(folder.file("blocks"), fillings[0]);
  auto const size = static_cast<std::size_t>(contents_of(folder.file("blocks")).size());
  for (std::string const& bytes :
       {some_text, std::string("x"), std::string(2 * size, 'a'), noise(size, random), noise(100, random)}) {
    CAPTURE(bytes.size());
    write_file(folder.file("blocks"), bytes);
    CHECK(fault_of([&] {
            visit v(folder.file("blocks"), fillings[0], may);
            return v.open() ? std::string("it was opened") : v.fault();
          }) == "");
    CHECK(contents_of(folder.file("blocks")) == bytes);
  }
}

namespace {

/// A file that is damaged while a child has it open and has read all of it; which then goes on, and opens it again.
std::string used_during(std::string const& path, filling const& f, allowed const& may, std::function<void()> const& damage) {
  int ready[2];
  int go[2];
  REQUIRE((pipe(ready) == 0 && pipe(go) == 0));
  std::string const fault = fault_of(
      [&] {
        close(go[1]);
        visit v(path, f, may);
        if (!v.open()) return std::string("it could not be opened before it was damaged");
        v.read_all();
        char byte = 'r';
        if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) < 0) return std::string("the pipes failed");
        v.do_all();
        v.close();
        if (v.open()) v.do_all();
        return v.fault();
      },
      [&] {
        close(ready[1]);
        char byte = 0;
        if (read(ready[0], &byte, 1) == 1) damage();
        close(go[1]);
      });
  close(ready[0]);
  close(go[0]);
  return fault;
}

}  // namespace

TEST_CASE("a disk's file that is cut while a process has it open never kills that process") {
  tally faults;
  for (filling const& f : fillings) {
    std::int64_t size = 0;
    {
      scratch_folder folder;
      make_file(folder.file("blocks"), f);
      size = std::ssize(contents_of(folder.file("blocks")));
    }
    for (std::int64_t const length : cuts(size)) {
      scratch_folder folder;
      std::string const path = folder.file("blocks");
      allowed const may = make_file(path, f);
      faults.add(title(f, "cut to " + std::to_string(length) + " of " + std::to_string(size)),
                 used_during(path, f, may, [&] { CHECK(truncate(path.c_str(), length) == 0); }));
    }
  }
  CHECK(faults.text() == "");
}

TEST_CASE("a disk's file that is overwritten, replaced or removed while a process has it open never kills that process") {
  tally faults;
  random_source random(14);
  using damaging = std::function<void(std::string const&)>;
  std::vector<std::pair<std::string, damaging>> const ways{
      {"random bytes over all", [&](auto const& path) { write_over(path, noise(contents_of(path).size(), random)); }},
      {"zeros over all", [](auto const& path) { write_over(path, std::string(contents_of(path).size(), '\0')); }},
      {"random bytes over the second half",
       [&](auto const& path) {
         std::string bytes = contents_of(path);
         std::string const half = noise(bytes.size() / 2, random);
         write_over(path, bytes.replace(bytes.size() - half.size(), half.size(), half));
       }},
      {"200 flips", [&](auto const& path) { write_over(path, flipped(contents_of(path), 200, random)); }},
      {"3,000 flips", [&](auto const& path) { write_over(path, flipped(contents_of(path), 3000, random)); }},
      {"a text in its place, shorter", [](auto const& path) { write_file(path, some_text); }},
      {"another file under its name",
       [](auto const& path) {
         write_file(path + ".new", some_text);
         std::filesystem::rename(path + ".new", path);
       }},
      {"removed", [](auto const& path) { std::filesystem::remove(path); }},
  };
  for (filling const& f : fillings) {
    for (auto const& [what, damage] : ways) {
      scratch_folder folder;
      std::string const path = folder.file("blocks");
      allowed const may = make_file(path, f);
      faults.add(title(f, what), used_during(path, f, may, [&] { damage(path); }));
    }
  }
  CHECK(faults.text() == "");
}

TEST_CASE("what a disk keeps beside its file can be cut or overwritten too, while it is open and while it is not") {
  tally faults;
  random_source random(15);
  filling const& f = fillings[0];
  for (bool const open : {true, false}) {
    for (std::string const what : {"cut", "random bytes", "removed"}) {
      scratch_folder folder;
      std::string const path = folder.file("blocks");
      allowed const may = make_file(path, f);
      auto const damage = [&] {
        std::vector<std::string> beside;
        for (auto const& entry : std::filesystem::directory_iterator(std::filesystem::path(path).parent_path())) {
          if (entry.path().string() != path) beside.push_back(entry.path().string());
        }
        for (std::string const& other : beside) {
          if (what == "cut") CHECK(truncate(other.c_str(), 0) == 0);
          else if (what == "removed") std::filesystem::remove(other);
          else write_over(other, noise(contents_of(other).size(), random));
        }
      };
      if (!open) damage();
      faults.add(what + (open ? " while open" : " between runs"),
                 open ? used_during(path, f, may, damage) : used_after(path, f, may));
    }
  }
  CHECK(faults.text() == "");
}

TEST_CASE("a disk's file that is cut again and again while gets are under way never kills who reads it") {
  tally faults;
  for (filling const& f : fillings) {
    for (int rounds = 0; rounds < 3; ++rounds) {
      scratch_folder folder;
      std::string const path = folder.file("blocks");
      allowed const may = make_file(path, f);
      std::string const whole = contents_of(path);
      int ready[2];
      REQUIRE(pipe(ready) == 0);
      faults.add(title(f, "round " + std::to_string(rounds)),
                 fault_of(
                     [&] {
                       visit v(path, f, may);
                       if (!v.open()) return std::string("it could not be opened before it was damaged");
                       char byte = 'r';
                       if (write(ready[1], &byte, 1) != 1) return std::string("the pipe failed");
                       for (auto const end = tiers::clock::now() + std::chrono::milliseconds(300); tiers::clock::now() < end;) {
                         v.read_all();
                       }
                       return v.fault();
                     },
                     [&] {
                       close(ready[1]);
                       char byte = 0;
                       if (read(ready[0], &byte, 1) != 1) return;
                       random_source random(static_cast<std::uint64_t>(rounds) + 16);
                       for (int times = 0; times < 50; ++times) {  // cut, and whole again: the same bytes in the same place
                         CHECK(truncate(path.c_str(), random.between(0, std::ssize(whole))) == 0);
                         usleep(1000);
                         write_over(path, whole);
                         usleep(1000);
                       }
                     }));
      close(ready[0]);
    }
  }
  CHECK(faults.text() == "");
}
