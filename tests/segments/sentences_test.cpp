#include "kvpolicy/segments/sentences.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

namespace kvpolicy {
namespace {

/// The states behind the pieces of a text, one token each.
std::vector<std::uint16_t> behind(std::vector<std::string> const& pieces) {
  std::vector<std::uint8_t> boundary;
  for (std::string const& piece : pieces) boundary.push_back(segments::sentence_mark(piece));
  segments::sentences const by{.boundary = boundary, .longest = 100, .shortest = 1};
  std::vector<std::uint16_t> states;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    states.push_back(by.behind(i == 0 ? std::uint16_t{0} : states.back(), static_cast<std::int32_t>(i), 1));
  return states;
}

TEST_CASE("a mark that a tokenizer splits ends a sentence where its pieces are together", "[segment]") {
  int split = 0;
  for (std::string const mark : {"\xe2\x80\xa6", "\xe3\x80\x82", "\xef\xbd\xa1", "\xef\xbc\x81", "\xef\xbc\x8e", "\xef\xbc\x9f",
                                 "\xd8\x9f", "\xdb\x94", "\xe0\xa5\xa4", "\xd6\x89"}) {
    for (unsigned cuts = 1; cuts < 1u << (mark.size() - 1); ++cuts) {  // every way to cut it
      std::vector<std::string> pieces{""};
      for (std::size_t i = 0; i < mark.size(); ++i) {
        pieces.back() += mark[i];
        if (cuts >> i & 1u) pieces.emplace_back();
      }
      for (bool const with_text : {false, true}) {
        if (with_text)
          pieces.front() = "\xe5\xa5\xbd" + pieces.front(),
          pieces.back() += "\xe3\x80\x8d ";  // a character before it, a bracket behind
        std::vector<std::uint16_t> const states = behind(pieces);
        for (std::size_t i = 0; i + 1 < states.size(); ++i) CHECK(states[i] > segments::mark_ends);
        CHECK(states.back() == segments::mark_ends);
        ++split;
      }
    }
  }
  CHECK(split == 2 * (7 * 3 + 3));
  CHECK(behind({"\xe3", "\x80", "\x81"}).back() == 0);              // an ideographic comma
  CHECK(behind({"\xe3", "x", "\x80", "\x82"}).back() == 0);         // something stands between
  CHECK(behind({"\x80", "\x82"}).back() == 0);                      // the first byte lacks
  CHECK(behind({"\xef", "\xbc", "\xe3\x80", "\x82"}).back() == 1);  // one mark begins, and another is there
  CHECK(behind({"\xe4\xb8", "\x82"}).back() == 0);                  // of another character
}

TEST_CASE("what a table held before ends a sentence still", "[segment]") {
  CHECK(segments::fragment_of_mark(0) == 0);
  CHECK(segments::fragment_of_mark(1) == segments::mark_ends);
  CHECK(segments::fragment_of_mark(255) == segments::mark_ends);
}

TEST_CASE("a sentence is no shorter and no longer than it may be, and unknown tokens end none", "[segment]") {
  std::array<std::uint8_t, 3> const boundary{0, 1, 0};
  segments::sentences const sentences{.boundary = boundary, .longest = 6, .shortest = 3};
  auto const ends = [&](std::int32_t id, std::int64_t length) {
    return sentences.behind(0, id, length) == segments::mark_ends;
  };
  CHECK_FALSE(ends(1, 2));
  CHECK(ends(1, 3));
  CHECK_FALSE(ends(0, 5));
  CHECK(ends(0, 6));
  for (std::int32_t const id : {-1, 3, INT32_MAX, INT32_MIN}) CHECK_FALSE(ends(id, 5));
  CHECK(ends(-1, 6));
}

TEST_CASE("a cut in the middle of a mark leaves its beginning", "[segment]") {
  std::array<std::uint8_t, 3> const boundary{0, segments::sentence_mark("\xe3\x80"), segments::sentence_mark("\x82")};
  segments::sentences const by{.boundary = boundary, .longest = 100, .shortest = 1};
  segments::sentence_marks marks(by);
  std::array<std::int32_t, 5> const ids{0, 0, 1, 0, 2};
  marks.extend(by, 0, ids);
  CHECK(marks.units() == 0);
  std::array<std::int32_t, 2> const others{2, 0};
  marks.extend(by, 3, others);
  CHECK(marks.ends == std::vector<std::int32_t>{4});
}

TEST_CASE("a table by which no sentence would ever end is refused", "[segment]") {
  std::array<std::uint8_t, 3> const zeros{};
  CHECK_THROWS_AS((segments::sentences{.boundary = zeros}.check()), invalid_value);
  std::array<std::uint8_t, 3> const one{0, 0, 1};
  CHECK_NOTHROW((segments::sentences{.boundary = one}.check()));
}

}  // namespace
}  // namespace kvpolicy
