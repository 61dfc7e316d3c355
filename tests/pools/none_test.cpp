#include "kvpolicy/pools/none.hpp"

#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"

namespace kvpolicy {
namespace {

TEST_CASE("no pool asks for nothing and reads nothing", "[pool]") {
  STATIC_REQUIRE(pools::none::needs == signals::none);
  auto summaries = pools::none{}.start({}, segments::tokens{});
  host_exec exec;
  pools::none{}.update(summaries, strided_view<>{}, {0}, {0, 2}, 100, exec);  // a view of nothing: reading it would crash
  summaries.cut({0}, {0, 2}, 3);
  SUCCEED();
}

}  // namespace
}  // namespace kvpolicy
