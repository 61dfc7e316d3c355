// Which tokens end a sentence, by their text: whole marks, and the pieces of marks that a tokenizer splits into bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvpolicy::segments {

/// As a state behind a token: the token ends a sentence.
inline constexpr std::uint16_t mark_ends = 1;

/// Says whether bytes are a mark of several bytes that ends a sentence, in UTF-8.
/// @param bytes  the first byte is the most significant
/// @return true for the ellipsis, and for the marks of Chinese and Japanese (also half-width and full-width), Arabic, Urdu,
///         Hindi and Armenian
constexpr bool is_wide_mark(std::uint32_t bytes) noexcept {
  switch (bytes) {
    case 0xe280a6:  // U+2026, the ellipsis
    case 0xe38082:  // U+3002, the ideographic full stop
    case 0xefbda1:  // U+FF61, its half-width form
    case 0xefbc81:  // U+FF01, a full-width !
    case 0xefbc8e:  // U+FF0E, a full-width .
    case 0xefbc9f:  // U+FF1F, a full-width ?
    case 0xd89f:    // U+061F, an Arabic question mark
    case 0xdb94:    // U+06D4, an Arabic full stop
    case 0xe0a5a4:  // U+0964, a danda
    case 0xd689:    // U+0589, an Armenian full stop
      return true;
    default:
      return false;
  }
}

/// The pieces of such marks that are no whole marks: first bytes, last bytes, and the bytes between. In a boundary table,
/// 2 + i stands for piece i.
inline constexpr std::array<std::uint16_t, 33> mark_fragments{
    0xe2,   0xe280, 0xe3,   0xe380, 0xef,   0xefbd, 0xefbc, 0xd8, 0xdb, 0xe0, 0xe0a5, 0xd6,  // first bytes
    0x80,   0xbd,   0xbc,   0xa5,                                                            // bytes between
    0x80a6, 0x8082, 0xbda1, 0xbc81, 0xbc8e, 0xbc9f, 0xa5a4,                                  // the last two bytes
    0xa6,   0x82,   0xa1,   0x81,   0x8e,   0x9f,   0x94,   0xa4, 0x89};                     // the last byte

/// Returns what an entry of a boundary table stands for.
/// @param entry  the entry
/// @return the bytes of a piece, mark_ends for a token that ends a sentence by itself, or 0
constexpr std::uint16_t fragment_of_mark(std::uint8_t entry) noexcept {
  std::size_t const piece = entry - std::size_t{2};
  return entry < 2 ? entry : piece < mark_fragments.size() ? mark_fragments[piece] : mark_ends;
}

/// Joins a token's piece to the bytes before it.
/// @param before  the bytes of a mark that has begun, mark_ends, or 0
/// @param fragment  the token's: fragment_of_mark()
/// @return mark_ends if the token ends a sentence; else the bytes of a mark that has begun, or 0
constexpr std::uint16_t joined_mark(std::uint16_t before, std::uint16_t fragment) noexcept {
  if (fragment <= mark_ends) return fragment;
  int const size = fragment > 0xff ? 2 : 1;
  bool const begins = (fragment >> (8 * (size - 1)) & 0xff) >= 0xc0;
  if (begins) return fragment;
  if (before <= mark_ends) return 0;
  std::uint32_t const bytes = std::uint32_t{before} << (8 * size) | fragment;
  if (is_wide_mark(bytes)) return mark_ends;
  return size == 1 && before <= 0xff ? static_cast<std::uint16_t>(bytes) : std::uint16_t{0};
}

namespace detail {

/// Takes away blanks at a text's end, then quotes and brackets.
constexpr std::string_view without_closing(std::string_view text) noexcept {
  // Quotes and brackets; the corner brackets, and the full-width parenthesis.
  constexpr std::string_view closing[] = {
      "\"", "'", ")", "]", "\xe2\x80\x9d", "\xe2\x80\x99", "\xc2\xbb", "\xe3\x80\x8d", "\xe3\x80\x8f", "\xef\xbc\x89"};
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
  return text;
}

/// The last bytes of a text, the first of them most significant.
constexpr std::uint32_t last_bytes(std::string_view text, std::size_t count) noexcept {
  std::uint32_t bytes = 0;
  for (char const c : text.substr(text.size() - count)) bytes = bytes << 8 | static_cast<unsigned char>(c);
  return bytes;
}

}  // namespace detail

/// Returns whether a token with this text ends a sentence. The text ends one if it holds a line's end, or if it ends with a
/// mark: . ! ? or a mark of is_wide_mark(). Closing quotes and brackets may follow the mark, and blanks may follow those.
/// @param text  of one token, UTF-8
/// @param exact  only a text that is one mark, or one line feed, ends a sentence, as in the method's public code; that code
///               misses `.\n` and the like
/// @return true if the token ends a sentence
constexpr bool ends_sentence(std::string_view text, bool exact = false) noexcept {
  auto const ends = [](std::string_view with, bool whole) {
    for (char const mark : {'.', '!', '?'}) {
      if (with.ends_with(mark) && (!whole || with.size() == 1)) return true;
    }
    for (std::size_t const size : {std::size_t{2}, std::size_t{3}}) {
      if (with.size() >= size && is_wide_mark(detail::last_bytes(with, size)) && (!whole || with.size() == size)) return true;
    }
    return false;
  };
  if (exact) return text == "\n" || ends(text, true);
  return text.find('\n') != std::string_view::npos || ends(detail::without_closing(text), false);
}

/// Returns a token's entry in a boundary table. A tokenizer may split a mark into bytes, so that no token ends a sentence by
/// itself: then the entry says which piece of a mark the token is, and the sentence ends where the pieces make a mark.
/// @param text  the bytes of one token
/// @return 1 if the token ends a sentence, 2 and more for a piece of a mark, else 0
constexpr std::uint8_t sentence_mark(std::string_view text) noexcept {
  if (ends_sentence(text)) return 1;
  auto const entry_of = [](std::uint32_t bytes) {
    auto const found = std::ranges::find(mark_fragments, bytes);
    return static_cast<std::uint8_t>(found == mark_fragments.end() ? 0 : 2 + (found - mark_fragments.begin()));
  };
  for (std::size_t const size : {std::size_t{2}, std::size_t{1}}) {  // a mark begins at the text's end
    if (text.size() < size || static_cast<unsigned char>(text[text.size() - size]) < 0xc0) continue;
    if (std::uint8_t const entry = entry_of(detail::last_bytes(text, size)); entry != 0) return entry;
  }
  std::string_view const rest = detail::without_closing(text);
  bool const goes_on = !rest.empty() && rest.size() <= 2 && (static_cast<unsigned char>(rest.front()) & 0xc0) == 0x80;
  return goes_on ? entry_of(detail::last_bytes(rest, rest.size())) : std::uint8_t{0};
}

}  // namespace kvpolicy::segments
