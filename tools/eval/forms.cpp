#include "forms.hpp"

#include <kvpolicy/error.hpp>

#include <algorithm>

namespace kvpolicy {
namespace {

/// Each record has one of these behind its question, by its number.
constexpr std::array instructions{"Answer in one short sentence, in plain English.",
                                  "Give the answer first, then explain step by step how you found it.",
                                  "Reply with one line of JSON that has a single key, \"answer\"."};

std::string of_text(eval_record const& record) {
  return record.prompt.substr(0, record.prompt.size() - record.question.size());
}

std::string without_last_newlines(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

std::string name_of(question_form form) { return names_of(form)[static_cast<std::size_t>(form)]; }

question_form form_of(std::string const& name) {
  std::string known;
  for (question_form const form : all_forms) {
    if (name_of(form) == name) return form;
    known += (known.empty() ? "" : ", ") + name_of(form);
  }
  throw invalid_value("'" + name + "' is no form of a question; there are " + known);
}

std::optional<std::string> written_as(question_form form, eval_record const& record, chat_writer const& write) {
  auto const one = [&](std::string text) {
    std::array const turn{chat_turn{"user", std::move(text)}};
    return write(turn);
  };
  switch (form) {
    case question_form::chat:
      return one(record.prompt);
    case question_form::instructed:
      return one(without_last_newlines(record.prompt) + "\n" +
                 instructions[static_cast<std::size_t>(record.index) % instructions.size()]);
    case question_form::question_first:
      if (record.question.empty()) return std::nullopt;
      return one(without_last_newlines(record.question) + "\n\n" + without_last_newlines(of_text(record)));
    case question_form::turns: {
      if (record.question.empty()) return std::nullopt;
      std::array const turns{
          chat_turn{"user", without_last_newlines(of_text(record)) + "\n\nWhich language is this text written in?"},
          chat_turn{"assistant", "This text is written in English."}, chat_turn{"user", record.question}};
      return write(turns);
    }
    case question_form::prefix:
      if (record.answer_prefix.empty()) return std::nullopt;
      return one(record.prompt) + record.answer_prefix;
  }
  return std::nullopt;
}

}  // namespace kvpolicy
