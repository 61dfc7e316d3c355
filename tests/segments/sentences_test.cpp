#include "kvpolicy/segments/sentences.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

TEST_CASE("a sentence ends at a mark, with quotes and blanks behind it, or at a line's end", "[segment]") {
  for (char const* const text :
       {".", "!", "?", " end.", ".\"", ".)", "?' ", "\xe2\x80\xa6", ".\n", "\n", "word\n", ".\xe2\x80\x9d"}) {
    INFO('\'' << text << '\'');
    CHECK(segments::ends_sentence(text));
  }
  // An ideographic full stop, full-width ! and ?, a closing corner bracket behind one.
  for (char const* const text : {"\xe3\x80\x82", "\xe5\xa5\xbd\xe3\x80\x82", "\xef\xbc\x81", "\xef\xbc\x9f", "\xef\xbd\xa1",
                                 "\xe3\x80\x82\xe3\x80\x8d"}) {
    INFO('\'' << text << '\'');
    CHECK(segments::ends_sentence(text));
  }
  for (char const* const text : {"\xe3\x80\x81", "\xe3\x80\x8d", "\xe5\xa5\xbd"}) CHECK_FALSE(segments::ends_sentence(text));
  for (char const* const text : {"", " ", "word", ",", ":", "\"", ")", ".5", "e.g", "\xe2\x80\x9d"}) {
    INFO('\'' << text << '\'');
    CHECK_FALSE(segments::ends_sentence(text));
  }
}

TEST_CASE("the authors' lookup knows tokens that are a mark and nothing else", "[segment]") {
  CHECK(segments::ends_sentence(".", true));
  CHECK(segments::ends_sentence("\n", true));
  CHECK(segments::ends_sentence("\xe3\x80\x82", true));
  CHECK_FALSE(segments::ends_sentence(".\n", true));
  CHECK_FALSE(segments::ends_sentence(" end.", true));
}

TEST_CASE("a sentence is no shorter and no longer than it may be, and unknown tokens end none", "[segment]") {
  std::array<std::uint8_t, 3> const boundary{0, 1, 0};
  segments::sentences const sentences{.boundary = boundary, .longest = 6, .shortest = 3};
  CHECK_FALSE(sentences.ends(1, 2));
  CHECK(sentences.ends(1, 3));
  CHECK_FALSE(sentences.ends(0, 5));
  CHECK(sentences.ends(0, 6));
  for (std::int32_t const id : {-1, 3, INT32_MAX, INT32_MIN}) CHECK_FALSE(sentences.ends(id, 5));
  CHECK(sentences.ends(-1, 6));
}

}  // namespace
}  // namespace kvpolicy
