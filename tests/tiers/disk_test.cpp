#include "kvpolicy/tiers/disk.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>

#include "tiers/conformance.hpp"
#include "tiers/disk_file.hpp"

using namespace kvpolicy_test;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr tiers::disk_options unsynced{.sync = false};

std::string contents_of(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write_file(std::string const& path, std::string const& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::ssize(bytes));
}

/// How a process ends that does this: its exit status, or minus the signal that killed it.
template <class Act>
int ends_with(Act act) {
  pid_t const child = fork();
  if (child == 0) {
    alarm(20);
    _exit(act());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

tiers::block_key numbered(std::int32_t i) { return {3, 1, 2, i, 4}; }

}  // namespace

TEST_CASE("a disk holds what a map does, whatever is put, read, dropped and replaced") {
  CHECK(behaves_as_a_map<of_disk>(quick_build ? 10 : 3, 2000) > 1000);
}
TEST_CASE("no tenant reads another one's block from a disk") { keeps_tenants_apart<of_disk>(quick_build ? 100'000 : 20'000); }
TEST_CASE("a key that differs in one field is a miss on a disk") { tells_every_field<of_disk>(quick_build ? 200 : 50); }
TEST_CASE("a batch is read from or written to a disk whole or not at all") { takes_all_or_nothing<of_disk>(); }
TEST_CASE("a disk tells a ticket once") { tells_every_ticket_once<of_disk>(); }

TEST_CASE("a get from a disk reads what was there when it began") {
  for (int rounds = 0; rounds < 20; ++rounds) {
    of_disk made(1 << 18, 4, 1);
    REQUIRE(put_one(made.tier, numbered(1), 1));
    REQUIRE(put_one(made.tier, numbered(2), 1));
    std::vector<std::byte> to(2 << 18, untouched_byte);
    std::array const reads{tiers::block_read{numbered(1), to.data()}, tiers::block_read{numbered(2), to.data() + (1 << 18)}};
    tiers::ticket const id = made.tier.get(reads);
    drop_one(made.tier, numbered(1));
    CHECK(put_one(made.tier, numbered(2), 2));
    CHECK(put_one(made.tier, numbered(3), 3));
    CHECK(adds_up(made.tier));
    REQUIRE(made.tier.wait(id, soon()) == tiers::status::done);
    CHECK(std::equal(to.begin(), to.begin() + (1 << 18), block_of(numbered(1), 1, 1 << 18).begin()));
    CHECK(std::equal(to.begin() + (1 << 18), to.end(), block_of(numbered(2), 1, 1 << 18).begin()));
    CHECK(is_miss(made.tier, numbered(1)));
    CHECK(reads_as(made.tier, numbered(2), 2));
  }
}

TEST_CASE("a block of which any byte was changed is a miss, and so is a batch with it") {
  constexpr std::int64_t bytes = 1000;
  constexpr std::int32_t stored = disk_file::header_bytes + bytes;
  scratch_folder folder;
  {
    tiers::disk made(folder.file("blocks"), bytes, stored + 1, unsynced);
    for (std::int32_t i = 0; i <= stored; ++i) REQUIRE(put_one(made, numbered(i), 1));
  }
  // Each byte of the header ten times, and 10,000 of the payload.
  for (int const flip : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x55, 0xff}) {
    {
      disk_file file(folder.file("blocks"));
      std::vector<char*> slots;
      for (std::int32_t i = 0; i < stored; ++i) slots.push_back(file.slot_of(numbered(i)));
      for (std::int32_t i = 0; i < stored; ++i) slots[static_cast<std::size_t>(i)][i] ^= static_cast<char>(flip);
    }
    {
      tiers::disk made(folder.file("blocks"), bytes, stored + 1, unsynced);
      for (std::int32_t i = 0; i < stored; ++i) check(is_miss(made, numbered(i)), "a damaged block was read");
      CHECK(reads_as(made, numbered(stored), 1));
      std::vector<std::byte> to(2 * bytes, untouched_byte);
      std::array const reads{tiers::block_read{numbered(stored), to.data()},
                             tiers::block_read{numbered(20), to.data() + bytes}};
      CHECK(made.wait(made.get(reads), soon()) == tiers::status::missed);
      CHECK(untouched(to));
      CHECK(adds_up(made));
      for (std::int32_t i = 0; i < stored; ++i) REQUIRE(put_one(made, numbered(i), 1));  // mended by another put
      CHECK(reads_as(made, numbered(20), 1));
    }
  }
}

TEST_CASE("a block that was moved to another one's slot is a miss") {
  constexpr std::int64_t bytes = 128;
  constexpr std::int64_t whole = disk_file::header_bytes + bytes;
  scratch_folder folder;
  {
    tiers::disk made(folder.file("blocks"), bytes, 20, unsynced);
    for (std::int32_t i = 0; i < 20; ++i) REQUIRE(put_one(made, numbered(i), 1));
  }
  {
    disk_file file(folder.file("blocks"));
    std::swap_ranges(file.slot_of(numbered(3)), file.slot_of(numbered(3)) + whole, file.slot_of(numbered(4)));
    std::swap_ranges(file.slot_of(numbered(7)) + disk_file::header_bytes, file.slot_of(numbered(7)) + whole,
                     file.slot_of(numbered(8)) + disk_file::header_bytes);
  }
  tiers::disk made(folder.file("blocks"), bytes, 20, unsynced);
  for (std::int32_t i = 0; i < 20; ++i) {
    CAPTURE(i);
    CHECK((i == 3 || i == 4 || i == 7 || i == 8 ? is_miss(made, numbered(i)) : reads_as(made, numbered(i), 1)));
  }
}

TEST_CASE("what was put is there when the file is opened again, and only that") {
  scratch_folder folder;
  {
    tiers::disk made(folder.file("blocks"), 33, 50);
    for (std::int32_t i = 0; i < 20; ++i) REQUIRE(put_one(made, numbered(i), 1));
    for (std::int32_t i = 0; i < 20; i += 2) REQUIRE(put_one(made, numbered(i), 2));
    drop_one(made, numbered(7));
  }
  tiers::disk made(folder.file("blocks"), 33, 50);
  for (std::int32_t i = 0; i < 25; ++i) {
    CHECK((i == 7 || i >= 20 ? is_miss(made, numbered(i)) : reads_as(made, numbered(i), i % 2 == 0 ? 2 : 1)));
  }
  CHECK(made.occupied().resident == 19);
}

TEST_CASE("a full disk refuses a put and changes nothing") {
  of_disk made(5000, 8, 1);
  for (std::int32_t i = 0; i < 8; ++i) REQUIRE(put_one(made.tier, numbered(i), 1));
  CHECK_FALSE(put_one(made.tier, numbered(8), 1));
  auto const bytes = block_of(numbered(0), 2, 5000);
  std::array const writes{tiers::block_write{numbered(0), bytes.data()}, tiers::block_write{numbered(9), bytes.data()}};
  CHECK_FALSE(made.tier.put(writes));
  for (std::int32_t i = 0; i < 8; ++i) CHECK(reads_as(made.tier, numbered(i), 1));
  CHECK(is_miss(made.tier, numbered(8)));
  CHECK(is_miss(made.tier, numbered(9)));
  CHECK(made.tier.occupied().free == 0);
  CHECK(put_one(made.tier, numbered(0), 2));  // in place of itself
  CHECK(reads_as(made.tier, numbered(0), 2));
  drop_one(made.tier, numbered(3));
  CHECK(put_one(made.tier, numbered(8), 1));
  for (std::uint64_t version = 3; version < 2000; ++version) {  // no page is lost
    check(put_one(made.tier, numbered(0), version), "a replacement was refused");
  }
  CHECK(reads_as(made.tier, numbered(0), 1999));
}

TEST_CASE("a file is one tier's at a time") {
  scratch_folder folder;
  tiers::disk made(folder.file("blocks"), 64, 8, unsynced);
  REQUIRE(put_one(made, numbered(1), 1));
  CHECK_THROWS_WITH(tiers::disk(folder.file("blocks"), 64, 8, unsynced), ContainsSubstring("blocks' is open elsewhere"));
  CHECK(reads_as(made, numbered(1), 1));
  CHECK_THROWS_WITH(tiers::disk("/dev/null", 64, 8), ContainsSubstring("'/dev/null' is not a file"));
  CHECK(tiers::describe(made).find(folder.file("blocks")) != std::string::npos);
}

TEST_CASE("a file does not grow by what is replaced and dropped") {
  scratch_folder folder;
  tiers::disk made(folder.file("blocks"), 3000, 20, unsynced);
  std::size_t settled = 0;
  for (std::uint64_t version = 1; version < 400; ++version) {
    for (std::int32_t i = 0; i < 20; ++i) check(put_one(made, numbered(i), version), "a replacement was refused");
    for (std::int32_t i = 0; i < 20; i += 3) drop_one(made, numbered(i));
    if (version == 2) settled = contents_of(folder.file("blocks")).size();
  }
  CHECK(contents_of(folder.file("blocks")).size() == settled);
}

TEST_CASE("a file that is opened fresh has none of its blocks, and room for as many, also of a smaller capacity") {
  scratch_folder folder;
  for (std::int64_t const capacity : {8, 3}) {
    std::string const path = folder.file("blocks of " + std::to_string(capacity));
    {
      tiers::disk made(path, 100, 8, unsynced);
      for (std::int32_t i = 0; i < 8; ++i) REQUIRE(put_one(made, numbered(i), 1));
    }
    tiers::disk made(path, 100, capacity, {.sync = false, .fresh = true});
    for (std::int32_t i = 0; i < 8; ++i) CHECK(is_miss(made, numbered(i)));
    CHECK(made.occupied().resident == 0);
    for (std::int32_t i = 0; i < capacity; ++i) REQUIRE(put_one(made, numbered(20 + i), 2));
    CHECK(reads_as(made, numbered(20), 2));
    CHECK(adds_up(made));
  }
  tiers::disk made(folder.file("blocks of 3"), 100, 8, unsynced);
  CHECK(made.occupied().resident == 3);
}

TEST_CASE("a file of another block size is refused") {
  scratch_folder folder;
  { CHECK(put_one(*std::make_unique<tiers::disk>(folder.file("blocks"), 64, 8, unsynced), {}, 1)); }
  CHECK_THROWS_AS(tiers::disk(folder.file("blocks"), 65, 8, unsynced), kvpolicy::invalid_value);
  CHECK_THROWS_AS(tiers::disk(folder.file("blocks"), 0, 8, unsynced), kvpolicy::invalid_value);
  CHECK_THROWS_AS(tiers::disk(folder.file("blocks"), 64, 0, unsynced), kvpolicy::invalid_value);
  CHECK_THROWS_AS(tiers::disk(folder.file("no such folder") + "/blocks", 64, 8, unsynced), kvpolicy::error);
  tiers::disk again(folder.file("blocks"), 64, 8, unsynced);
  CHECK(reads_as(again, {}, 1));
}

TEST_CASE("a file with more blocks than its capacity allows counts none below zero") {
  scratch_folder folder;
  {
    tiers::disk made(folder.file("blocks"), 64, 8, unsynced);
    for (std::int32_t i = 0; i < 8; ++i) REQUIRE(put_one(made, numbered(i), 1));
  }
  try {
    tiers::disk made(folder.file("blocks"), 64, 4, unsynced);
    CHECK(adds_up(made));
    CHECK_FALSE(put_one(made, numbered(9), 1));
  } catch (kvpolicy::error const&) {
    SUCCEED("refused");
  }
}

TEST_CASE("a file of garbage is refused") {
  random_source random(5);
  for (std::int64_t const size : {1, 15, 16, 100, 4095, 4096, 8191, 8192, 8193, 100'000}) {
    for (int const kind : {0, 1, 2}) {
      scratch_folder folder;
      std::string bytes(static_cast<std::size_t>(size), kind == 0 ? '\0' : '\xff');
      if (kind == 2) {
        for (char& c : bytes) c = static_cast<char>(random.between(-128, 127));
      }
      write_file(folder.file("blocks"), bytes);
      CAPTURE(size, kind);
      CHECK(ends_with([&] {
              try {
                tiers::disk(folder.file("blocks"), 64, 8, unsynced);
              } catch (kvpolicy::error const&) {
                return 0;
              }
              return 1;
            }) == 0);
      CHECK(contents_of(folder.file("blocks")) == bytes);  // it may be somebody's
    }
  }
}

TEST_CASE("a file that was cut is refused, or every block in it is right or a miss") {
  scratch_folder folder;
  {
    tiers::disk made(folder.file("blocks"), 3000, 50, unsynced);
    for (std::int32_t i = 0; i < 50; ++i) REQUIRE(put_one(made, numbered(i), 1));
  }
  std::string const whole = contents_of(folder.file("blocks"));
  for (std::size_t size = 0; size < whole.size(); size += size < 20'000 ? 1024 : 16 * 1024) {
    std::string const path = folder.file("cut" + std::to_string(size));
    write_file(path, whole.substr(0, size));
    CAPTURE(size, whole.size());
    int const end = ends_with([&] {
      try {
        tiers::disk made(path, 3000, 50, unsynced);
        for (std::int32_t i = 0; i < 50; ++i) {
          if (!reads_as(made, numbered(i), 1) && !is_miss(made, numbered(i))) return 1;
        }
      } catch (kvpolicy::error const&) {
      }
      return 0;
    });
    CHECK(end == 0);
  }
}
