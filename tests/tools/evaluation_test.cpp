#include "eval/forms.hpp"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <fstream>
#include <kvpolicy/error.hpp>

#include "eval/records.hpp"

namespace kvpolicy {
namespace {

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
