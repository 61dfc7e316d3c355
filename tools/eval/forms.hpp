// The forms in which one record is asked: as a benchmark asks, and as people do.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chat_turn.hpp"
#include "records.hpp"

namespace kvpolicy {

enum class question_form : std::uint8_t {
  chat,            ///< one user's turn: the text, then the question
  instructed,      ///< the same with a sentence behind the question: how to answer
  question_first,  ///< the question stands before the text
  turns,           ///< the question is a second turn, behind one that was answered
  prefix,          ///< the benchmark's: as chat, and the answer's beginning is given
};
inline constexpr std::array all_forms{question_form::chat, question_form::instructed, question_form::question_first,
                                      question_form::turns, question_form::prefix};
constexpr auto names_of(question_form) noexcept {
  return std::array{"chat", "instructed", "question_first", "turns", "prefix"};
}
std::string name_of(question_form form);
/// Throws invalid_value for a name that no form has.
question_form form_of(std::string const& name);

/// Writes turns as the model's chat template has them, up to where the assistant's answer begins.
using chat_writer = std::function<std::string(std::span<chat_turn const>)>;

/// What the model is given of a record; nothing where the record has no question to move (question_first, turns), or no
/// answer's beginning (prefix).
std::optional<std::string> written_as(question_form form, eval_record const& record, chat_writer const& write);

}  // namespace kvpolicy
