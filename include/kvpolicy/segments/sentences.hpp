// Segment: sentences, which end at tokens whose text ends a sentence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/segments/sentence_mark.hpp"

namespace kvpolicy::segments {

/// Cuts a sequence into sentences, by the ids of the tokens that end them (SentenceKV, section 4.1).
struct sentences {
  static constexpr bool ragged = true;

  std::span<std::uint8_t const> boundary{};  ///< `[vocabulary]`, each token's sentence_mark(); not owned
  std::int32_t longest = 256;                ///< tokens; a sentence of this length ends in any case
  std::int32_t shortest = 4;                 ///< tokens; a shorter sentence does not end
  bool prompt_ends = false;                  ///< a prompt's last token ends its sentence, whatever it is

  constexpr std::int64_t unit_size() const noexcept { return longest; }
  void check() const {
    KVPOLICY_EXPECTS(shortest >= 1 && longest >= shortest,
                     "sentences of " + std::to_string(shortest) + " to " + std::to_string(longest) +
                         " tokens; shortest must be at least 1, longest at least shortest");
    KVPOLICY_EXPECTS(
        !boundary.empty(),
        "`boundary` is empty; it needs one entry for each token of the vocabulary, not 0 if the token ends a sentence "
        "(in C: the second argument of kvpolicy_policy_parse)");
    KVPOLICY_EXPECTS(std::ranges::any_of(boundary, [](std::uint8_t mark) { return mark != 0; }),
                     "`boundary` has " + std::to_string(boundary.size()) +
                         " entries, all 0, so no sentence would end; fill it with sentence_mark() of each token's text");
  }

  /// Returns what is known of a sentence behind a token: whether it ends there, and else the bytes of a mark that has begun.
  /// @param before  the same behind the token before; 0 for the first
  /// @param token_id  the token's id; one outside of the table ends no sentence before `longest`
  /// @param length  tokens of the sentence, this one included
  /// @return mark_ends, or the bytes of a mark's beginning, or 0
  constexpr std::uint16_t behind(std::uint16_t before, std::int32_t token_id, std::int64_t length) const noexcept {
    if (length >= longest) return mark_ends;
    auto const at = static_cast<std::size_t>(token_id);
    if (token_id < 0 || at >= boundary.size()) return 0;
    std::uint16_t const now = joined_mark(before, fragment_of_mark(boundary[at]));
    return now == mark_ends && length < shortest ? std::uint16_t{0} : now;
  }
};

/// The ends of a sequence's sentences. A sentence closes when the next token arrives.
struct sentence_marks {
  std::int64_t shortest = 1;          ///< tokens of the shortest sentence
  std::int64_t most = 0;              ///< sentences that there is room for
  std::vector<std::int32_t> ends;     ///< first token after each closed sentence
  std::int64_t tokens = 0;            ///< tokens whose ids are known
  std::vector<std::uint16_t> closes;  ///< `[room]` of each token what sentences::behind() says; mark_ends: it ends a sentence
  std::int64_t prompt = 0;            ///< tokens up to the end of a prompt that ended its sentence
  std::uint16_t behind_prompt = 0;    ///< what sentences::behind() says of its last token

  sentence_marks() = default;
  /// Marks of an empty sequence.
  /// @param segment  the rule
  explicit sentence_marks(sentences const& segment) : shortest(segment.shortest) {}

  /// Makes room for so many tokens.
  void reserve(std::int64_t count) {
    if (count <= std::ssize(closes)) return;
    most = count / shortest + 1;
    closes.resize(static_cast<std::size_t>(count));
    ends.reserve(static_cast<std::size_t>(most));
  }

  /// The first token of the open sentence.
  std::int64_t open_begin() const noexcept { return ends.empty() ? 0 : ends.back(); }
  /// The number of closed sentences.
  std::int64_t units() const noexcept { return std::ssize(ends); }
  /// What sentences::behind() says of the last token.
  std::uint16_t last() const noexcept { return tokens > 0 ? closes[static_cast<std::size_t>(tokens - 1)] : std::uint16_t{0}; }
  /// Whether the last token ends its sentence.
  bool last_closes() const noexcept { return last() == mark_ends; }

  /// Takes the ids of the tokens from `first` on. Tokens that were known from `first` on are forgotten before, with the
  /// sentences that held any of them.
  /// @param segment  the rule
  /// @param first  index of the first token
  /// @param ids  their ids
  /// @param of_prompt  whether they are a prompt's, or a piece's, and not a step's
  void extend(sentences const& segment, std::int64_t first, std::span<std::int32_t const> ids, bool of_prompt = false) {
    forget(first);
    reserve(first + std::ssize(ids));
    if (of_prompt && first > 0 && first == prompt) closes[static_cast<std::size_t>(first - 1)] = behind_prompt;  // it goes on
    for (std::int32_t const id : ids) {
      if (tokens > open_begin() && last_closes()) ends.push_back(static_cast<std::int32_t>(tokens));
      std::uint16_t const before = last();
      ++tokens;
      closes[static_cast<std::size_t>(tokens - 1)] = segment.behind(before, id, tokens - open_begin());
    }
    if (!of_prompt || !segment.prompt_ends || tokens == 0) return;
    prompt = tokens;
    behind_prompt = std::exchange(closes[static_cast<std::size_t>(tokens - 1)], mark_ends);
  }
  /// Forgets every token from a position on, and the sentences that held any.
  /// @param from  first token that is forgotten
  void forget(std::int64_t from) noexcept {
    tokens = std::min(tokens, from);
    while (!ends.empty() && ends.back() > from) ends.pop_back();
  }
};

static_assert(segmenter<sentences>);

}  // namespace kvpolicy::segments
