#include "eval/statistics.hpp"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <kvpolicy/error.hpp>
#include <nlohmann/json.hpp>

#include "eval/forms.hpp"
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

TEST_CASE("the table's share is of tasks that dense decoding answers, in the forms in which people ask") {
  std::vector<nlohmann::ordered_json> lines;
  auto const add = [&](char const* form, char const* task, int record, char const* policy, int budget, double score) {
    lines.push_back({{"task", task},
                     {"record", record},
                     {"form", form},
                     {"policy", policy},
                     {"budget", budget},
                     {"score", score},
                     {"ms_per_token", 10.},
                     {"tokens_read", 100.},
                     {"choose_share", .1}});
  };
  for (int record = 0; record < 4; ++record) {
    for (char const* const form : {"chat", "turns", "prefix"}) {
      add(form, "easy", record, "dense", 0, 1);
      add(form, "hard", record, "dense", 0, record == 0 ? 1 : 0);
      add(form, "hard", record, "some", 64, 1);
    }
    add("chat", "easy", record, "some", 64, record == 0 ? 0 : 1);
    add("turns", "easy", record, "some", 64, record < 2 ? 0 : 1);
    add("prefix", "easy", record, "some", 64, 1);
  }
  std::string const table = summary_table(lines);
  INFO(table);
  CHECK(table.find("| some ") != std::string::npos);
  CHECK(table.find(" 62% |") != std::string::npos);  // the mean of 75 and 50 %: neither "hard" nor the prefix counts
  CHECK(table.find(" 75% |") != std::string::npos);
  CHECK(table.find(" 50% |") != std::string::npos);
  CHECK(table.find(" 100% |") != std::string::npos);  // with the prefix
  CHECK(table.find(" 3/0 |") != std::string::npos);
  CHECK(table.find("in that form: easy (chat, turns).") != std::string::npos);
  CHECK(table.find("mean over chat, turns.") != std::string::npos);

  std::erase_if(lines, [](auto const& line) { return line.at("form") != "prefix"; });
  CHECK(summary_table(lines).find("mean over prefix.") != std::string::npos);
}

TEST_CASE("a record is asked in every form that it has words for") {
  auto const write = [](std::span<chat_turn const> turns) {
    std::string text;
    for (chat_turn const& turn : turns) text += std::string("<") + turn.role + ">" + turn.text;
    return text + "<assistant>";
  };
  eval_record record{
      .task = "t", .index = 1, .prompt = "A text.\n\nWho?", .question = "Who?", .answer_prefix = "It was", .outputs = {{"he"}}};
  CHECK(written_as(question_form::chat, record, write) == "<user>A text.\n\nWho?<assistant>");
  CHECK(written_as(question_form::prefix, record, write) == "<user>A text.\n\nWho?<assistant>It was");
  CHECK(written_as(question_form::question_first, record, write) == "<user>Who?\n\nA text.<assistant>");
  std::string const turns = *written_as(question_form::turns, record, write);
  CHECK(turns.starts_with("<user>A text.\n\n"));
  CHECK(turns.ends_with("<user>Who?<assistant>"));
  CHECK(std::ranges::count(turns, '<') == 4);
  std::string const instructed = *written_as(question_form::instructed, record, write);
  CHECK(instructed.starts_with("<user>A text.\n\nWho?\n"));
  record.index = 2;
  CHECK(*written_as(question_form::instructed, record, write) != instructed);  // another instruction

  record.question = record.answer_prefix = "";
  for (question_form const form : {question_form::prefix, question_form::question_first, question_form::turns})
    CHECK(!written_as(form, record, write));
  for (question_form const form : all_forms) CHECK(form_of(name_of(form)) == form);
  CHECK_THROWS_AS(form_of("prefixed"), invalid_value);
}

TEST_CASE("an output counts once, in any of its wordings and in any case") {
  CHECK(score_of("It is 42, I think.", {{"42"}}) == 1);
  CHECK(score_of("The text does NOT mention it.", {{"not in the text", "does not mention"}}) == 1);
  CHECK(score_of("One and two", {{"one"}, {"three", "2"}}) == .5);
}

TEST_CASE("a record's question is its own, or its prompt's last line") {
  std::string const folder = std::filesystem::temp_directory_path() / ("kvpolicy-records-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  auto const of = [&](char const* line) {
    std::ofstream(folder + "/t.jsonl") << line << '\n';
    return read_records(folder, {}, 0, 1).at(0);
  };
  CHECK(of(R"({"prompt": "A text.\nQuestion: who?\n", "outputs": ["a"]})").question == "Question: who?\n");
  CHECK(of(R"({"prompt": "A text. Who? Say it.", "question": "Who? Say it.", "outputs": ["a"]})").question == "Who? Say it.");
  CHECK(of(R"({"prompt": "Who?", "outputs": [["a", "b"]]})").question.empty());
  for (char const* const bad : {R"({"prompt": "A text.", "question": "Who?", "outputs": ["a"]})",
                                R"({"prompt": "A text.", "outputs": []})", R"({"prompt": "A text.", "outputs": [[]]})"}) {
    CHECK_THROWS_AS(of(bad), invalid_value);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvpolicy
