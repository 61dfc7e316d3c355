#include "kvpolicy/segments/sentence_mark.hpp"

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

TEST_CASE("marks of other scripts end a sentence", "[segment]") {
  // A full-width full stop; Arabic ? and full stop; a danda; an Armenian full stop.
  for (char const* const text :
       {"\xef\xbc\x8e", "\xd8\x9f", "\xdb\x94", "\xe0\xa5\xa4", "\xd6\x89", " \xd8\xa7\xd8\x9f ", "\xe0\xa5\xa4\""}) {
    INFO('\'' << text << '\'');
    CHECK(segments::ends_sentence(text));
    CHECK(segments::sentence_mark(text) == 1);
  }
  for (char const* const text : {"\xd8\x8c", "\xe0\xa5\xa5x", "\xd6\x8a"}) CHECK(segments::sentence_mark(text) == 0);
}

}  // namespace
}  // namespace kvpolicy
