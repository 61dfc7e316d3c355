// Segment: sentences, by the text of the tokens that end them (SentenceKV, sec. 4.1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::segments {

struct sentences {
  static constexpr bool ragged = true;

  std::span<std::uint8_t const> boundary{};  ///< `[vocabulary]`, not 0 where a token ends a sentence; not owned
  std::int32_t longest = 256;                ///< tokens; a sentence ends there at the latest
  std::int32_t shortest = 4;                 ///< tokens; it does not end before

  constexpr std::int64_t unit_size() const noexcept { return longest; }
  void check() const {
    KVPOLICY_EXPECTS(shortest >= 1 && longest >= shortest, "sentences of " + std::to_string(shortest) + " to " +
                                                               std::to_string(longest) +
                                                               " tokens; give at least 1, and no less than that");
    KVPOLICY_EXPECTS(!boundary.empty(),
                     "sentences without a boundary table, which says of each token of the vocabulary whether it ends one; set "
                     "`boundary` (kvpolicy_policy_parse's second argument)");
  }

  /// Whether a sentence that has `length` tokens with this last one ends. An id outside of the table ends none.
  constexpr bool ends(std::int32_t token_id, std::int64_t length) const noexcept {
    if (length >= longest) return true;
    auto const at = static_cast<std::size_t>(token_id);
    return token_id >= 0 && at < boundary.size() && boundary[at] != 0 && length >= shortest;
  }
};

/// Where a sequence's sentences end. One is closed when the next token comes.
struct sentence_marks {
  std::int64_t most = 0;             ///< sentences
  std::vector<std::int32_t> ends;    ///< token behind each closed sentence
  std::int64_t tokens = 0;           ///< whose ids are known
  std::vector<std::uint8_t> closes;  ///< `[max_tokens]` whether the token ends a sentence; it does so for the next one

  sentence_marks() = default;
  sentence_marks(sentences const& segment, std::int64_t max_tokens)
      : most(max_tokens / segment.shortest + 1), closes(static_cast<std::size_t>(max_tokens)) {
    ends.reserve(static_cast<std::size_t>(most));
  }

  /// First token of the sentence that is still open.
  std::int64_t open_begin() const noexcept { return ends.empty() ? 0 : ends.back(); }
  std::int64_t units() const noexcept { return std::ssize(ends); }
  bool last_closes() const noexcept { return tokens > 0 && closes[static_cast<std::size_t>(tokens - 1)] != 0; }

  /// Ids of the tokens from `first` on; what was known behind that is forgotten, and every sentence that held one of those.
  void extend(sentences const& segment, std::int64_t first, std::span<std::int32_t const> ids) {
    forget(first);
    for (std::int32_t const id : ids) {
      if (tokens > open_begin() && last_closes() && units() < most) ends.push_back(static_cast<std::int32_t>(tokens));
      ++tokens;
      closes[static_cast<std::size_t>(tokens - 1)] = segment.ends(id, tokens - open_begin()) ? 1 : 0;
    }
  }
  void forget(std::int64_t from) noexcept {
    tokens = std::min(tokens, from);
    while (!ends.empty() && ends.back() > from) ends.pop_back();
  }
};

/// Whether a token with this text ends a sentence: it ends with . ! ? or an ellipsis, their full-width and ideographic forms
/// included, or with a closing quote or bracket after one, blanks behind that aside; or it holds a line's end. `exact`: only
/// tokens that are such a mark and nothing else, as in the method's public code, which misses ".\n" and the like.
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
