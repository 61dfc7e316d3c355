#include "eval/statistics.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/results.hpp"

namespace kvpolicy {
namespace {

bool near(double a, double b) { return std::abs(a - b) < 1e-9; }

// Means .5 and 1 of dense's 1 and 1, whatever the number of records.
TEST_CASE("a share of dense is of means over tasks, not over records") {
  paired_scores const scores{{"a", {{1, 1}, {0, 1}}}, {"b", {{1, 1}, {1, 1}, {1, 1}, {1, 1}}}};
  CHECK(near(share_of_dense(scores), .75));
  CHECK(share_of_dense({{"a", {{1, 0}}}}) == 0);
}

TEST_CASE("an interval holds the share, is one point where all records are alike, and narrows with records") {
  paired_scores few{{"a", {}}};
  paired_scores many{{"a", {}}};
  for (int i = 0; i < 10; ++i) few["a"].push_back({i % 5 == 0 ? 0 : 1, 1});
  for (int i = 0; i < 1000; ++i) many["a"].push_back({i % 5 == 0 ? 0 : 1, 1});
  for (paired_scores const& scores : {few, many}) {
    interval const found = bootstrap_interval(scores);
    CHECK(found.low < .8);
    CHECK(found.high > .8);
  }
  // A binomial's deviation: sqrt(.8 x .2 / n) is .126 and .0126.
  CHECK(bootstrap_interval(few).high - bootstrap_interval(few).low > .35);
  interval const narrow = bootstrap_interval(many);
  CHECK((narrow.high - narrow.low > .04 && narrow.high - narrow.low < .06));
  interval const point = bootstrap_interval({{"a", {{1, 1}, {1, 1}}}});
  CHECK((point.low == 1 && point.high == 1));
}

// Of 5 records that differ 0 are better: 2 / 2^5. Of 4, 1: 2 (1 + 4) / 2^4. Of 2, 1: all splits are at least as uneven.
TEST_CASE("a sign test counts records that differ, both ways") {
  auto const test = [](int worse, int better, int same) {
    paired_scores scores{{"a", {}}};
    for (int i = 0; i < worse; ++i) scores["a"].push_back({.5, 1});
    for (int i = 0; i < better; ++i) scores["a"].push_back({1, .5});
    for (int i = 0; i < same; ++i) scores["a"].push_back({1, 1});
    return signs_against_dense(scores);
  };
  CHECK(test(5, 0, 7).worse == 5);
  CHECK(near(test(5, 0, 7).p, 2 / 32.));
  CHECK(near(test(1, 3, 0).p, 10 / 16.));
  CHECK(near(test(1, 1, 0).p, 1));
  CHECK(near(test(0, 0, 3).p, 1));
  CHECK(test(1000, 0, 0).p < 1e-100);
}

TEST_CASE("the table's share is of tasks that dense decoding answers, with its interval and its test") {
  std::vector<nlohmann::ordered_json> lines;
  auto const add = [&](char const* task, int record, char const* policy, int budget, double score) {
    lines.push_back({{"task", task},
                     {"record", record},
                     {"policy", policy},
                     {"budget", budget},
                     {"score", score},
                     {"ms_per_token", 10.},
                     {"tokens_read", 100.},
                     {"choose_share", .1}});
  };
  for (int record = 0; record < 4; ++record) {
    add("easy", record, "dense", 0, 1);
    add("easy", record, "some", 64, record == 0 ? 0 : 1);
    add("hard", record, "dense", 0, record == 0 ? 1 : 0);
    add("hard", record, "some", 64, 1);
  }
  std::string const table = summary_table(lines);
  INFO(table);
  CHECK(table.find("| some ") != std::string::npos);
  CHECK(table.find(" 75% |") != std::string::npos);  // of "easy" alone
  CHECK(table.find(" 1/0 |") != std::string::npos);
  CHECK(table.find("at least half: easy.") != std::string::npos);
  CHECK(table.find("100.0") != std::string::npos);
}

}  // namespace
}  // namespace kvpolicy
