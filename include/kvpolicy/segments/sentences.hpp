// Segment: sentences, which end at tokens whose text ends a sentence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::segments {

/// Cuts a sequence into sentences, by the ids of the tokens that end them (SentenceKV, section 4.1).
struct sentences {
  static constexpr bool ragged = true;

  std::span<std::uint8_t const> boundary{};  ///< `[vocabulary]`, not 0 for a token that ends a sentence; not owned
  std::int32_t longest = 256;                ///< tokens; a sentence of this length ends in any case
  std::int32_t shortest = 4;                 ///< tokens; a shorter sentence does not end

  constexpr std::int64_t unit_size() const noexcept { return longest; }
  void check() const {
    KVPOLICY_EXPECTS(shortest >= 1 && longest >= shortest,
                     "sentences of " + std::to_string(shortest) + " to " + std::to_string(longest) +
                         " tokens; shortest must be at least 1, longest at least shortest");
    KVPOLICY_EXPECTS(
        !boundary.empty(),
        "`boundary` is empty; it needs one entry for each token of the vocabulary, not 0 if the token ends a sentence "
        "(in C: the second argument of kvpolicy_policy_parse)");
  }

  /// Returns whether a token ends its sentence. An id outside of the table ends none before `longest`.
  /// @param token_id  the token's id
  /// @param length  tokens of the sentence, this one included
  /// @return true if the sentence ends
  constexpr bool ends(std::int32_t token_id, std::int64_t length) const noexcept {
    if (length >= longest) return true;
    auto const at = static_cast<std::size_t>(token_id);
    return token_id >= 0 && at < boundary.size() && boundary[at] != 0 && length >= shortest;
  }
};

/// The ends of a sequence's sentences. A sentence closes when the next token arrives.
struct sentence_marks {
  std::int64_t most = 0;             ///< capacity, in sentences
  std::vector<std::int32_t> ends;    ///< first token after each closed sentence
  std::int64_t tokens = 0;           ///< tokens whose ids are known
  std::vector<std::uint8_t> closes;  ///< `[max_tokens]` 1 if the token ends a sentence, which closes with the next token

  sentence_marks() = default;
  /// Allocates for one sequence.
  /// @param segment  the rule; its shortest sentence sets `most`
  /// @param max_tokens  the longest sequence
  sentence_marks(sentences const& segment, std::int64_t max_tokens)
      : most(max_tokens / segment.shortest + 1), closes(static_cast<std::size_t>(max_tokens)) {
    ends.reserve(static_cast<std::size_t>(most));
  }

  /// The first token of the open sentence.
  std::int64_t open_begin() const noexcept { return ends.empty() ? 0 : ends.back(); }
  /// The number of closed sentences.
  std::int64_t units() const noexcept { return std::ssize(ends); }
  /// Whether the last token ends its sentence.
  bool last_closes() const noexcept { return tokens > 0 && closes[static_cast<std::size_t>(tokens - 1)] != 0; }

  /// Takes the ids of the tokens from `first` on. Tokens that were known from `first` on are forgotten before, with the
  /// sentences that held any of them.
  /// @param segment  the rule
  /// @param first  index of the first token
  /// @param ids  their ids
  void extend(sentences const& segment, std::int64_t first, std::span<std::int32_t const> ids) {
    forget(first);
    for (std::int32_t const id : ids) {
      if (tokens > open_begin() && last_closes() && units() < most) ends.push_back(static_cast<std::int32_t>(tokens));
      ++tokens;
      closes[static_cast<std::size_t>(tokens - 1)] = segment.ends(id, tokens - open_begin()) ? 1 : 0;
    }
  }
  /// Forgets every token from a position on, and the sentences that held any.
  /// @param from  first token that is forgotten
  void forget(std::int64_t from) noexcept {
    tokens = std::min(tokens, from);
    while (!ends.empty() && ends.back() > from) ends.pop_back();
  }
};

/// Returns whether a token with this text ends a sentence. The text ends one if it holds a line's end, or if it ends with a
/// mark: . ! ? or an ellipsis, full-width and ideographic forms included. Closing quotes and brackets may follow the mark, and
/// blanks may follow those.
/// @param text  of one token, UTF-8
/// @param exact  only a text that is one mark, or one line feed, ends a sentence, as in the method's public code; that code
///               misses `.\n` and the like
/// @return true if the token ends a sentence
constexpr bool ends_sentence(std::string_view text, bool exact = false) noexcept {
  // . ! ? and the ellipsis; the ideographic full stop, and its half-width form; full-width ! and ?
  constexpr std::string_view marks[] = {".",           "!", "?", "\xe2\x80\xa6", "\xe3\x80\x82", "\xef\xbd\xa1", "\xef\xbc\x81",
                                        "\xef\xbc\x9f"};
  // Quotes and brackets; the corner brackets, and the full-width parenthesis.
  constexpr std::string_view closing[] = {
      "\"", "'", ")", "]", "\xe2\x80\x9d", "\xe2\x80\x99", "\xc2\xbb", "\xe3\x80\x8d", "\xe3\x80\x8f", "\xef\xbc\x89"};
  if (exact) return text == "\n" || std::ranges::find(marks, text) != std::end(marks);
  if (text.find('\n') != std::string_view::npos) return true;
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  for (bool more = true; more;) {
    more = false;
    for (std::string_view const mark : closing) {
      if (text.size() > mark.size() && text.ends_with(mark)) {
        text.remove_suffix(mark.size());
        more = true;
      }
    }
  }
  return std::ranges::any_of(marks, [&](std::string_view mark) { return text.ends_with(mark); });
}

static_assert(segmenter<sentences>);

}  // namespace kvpolicy::segments
