// What is written is read back; what is cut or of another make is refused.
#include "kvpolicy/archive.hpp"

#include <catch2/catch_test_macros.hpp>
#include <random>

namespace kvpolicy {
namespace {

struct part_of {
  std::vector<float> table;
  std::vector<std::vector<std::int32_t>> lists;
  std::int64_t count = 0;
  bool flag = false;

  template <class Archive>
  void archive(Archive& a) {
    a(table, lists, count, flag);
  }
  bool operator==(part_of const&) const = default;
};

/// Tables with runs of zeros of any length, which are not written.
part_of random_part(std::mt19937& random) {
  part_of made{.table = std::vector<float>(random() % 300),
               .lists = {},
               .count = static_cast<std::int64_t>(random()),
               .flag = random() % 2 == 0};
  for (std::size_t at = 0; at < made.table.size();) {
    std::size_t const end = std::min<std::size_t>(made.table.size(), at + random() % 40);
    bool const zeros = random() % 2 == 0;
    for (; at < end; ++at) made.table[at] = zeros ? 0.0f : static_cast<float>(random() % 3);
  }
  made.lists.resize(random() % 5);
  for (auto& list : made.lists) {
    for (std::size_t i = random() % 9; i > 0; --i) list.push_back(static_cast<std::int32_t>(random()));
  }
  return made;
}

}  // namespace

TEST_CASE("what a state holds is read back as it was") {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    part_of here = random_part(random);
    part_of more = random_part(random);
    std::vector<std::byte> bytes;
    state_writer w(bytes);
    w(here, more);
    part_of there{.table = std::vector<float>(here.table.size(), 7.0f), .lists = {}, .count = 0, .flag = false};
    part_of also{};
    also.table.reserve(300);
    state_reader r(bytes);
    r(there, also);
    REQUIRE(there == here);
    REQUIRE(also == more);
    REQUIRE(r.rest().empty());
  }
}

TEST_CASE("a state that is cut is refused wherever that is") {
  std::mt19937 random(2);
  part_of here = random_part(random);
  while (here.table.size() < 50 || here.lists.size() < 2) here = random_part(random);
  std::vector<std::byte> bytes;
  state_writer w(bytes);
  w(here);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    part_of there{.table = std::vector<float>(here.table.size()), .lists = {}, .count = 0, .flag = false};
    state_reader r(std::span<std::byte const>(bytes).first(size));
    CHECK_THROWS_AS(r(there), invalid_value);
  }
}

TEST_CASE("zeros take no room") {
  std::vector<float> zeros(10'000);
  std::vector<std::byte> bytes;
  state_writer w(bytes);
  w(zeros);
  CHECK(bytes.size() < 64);
}

TEST_CASE("bytes that are no state are refused, and ask for no memory") {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    part_of there{};
    state_reader r(bytes);
    try {
      r(there);
    } catch (invalid_value const&) {
    }
    CHECK(there.table.size() <= 200);
  }
}

}  // namespace kvpolicy
