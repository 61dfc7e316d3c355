// What a test begins with that can't do without a server.
#pragma once

#include <catch2/catch_test_macros.hpp>

#include "redis/server.hpp"

namespace kvpolicy_test::redis {

/// Skips the test where no server can run, and says why.
inline void needs_server() {
  if (auto const why = why_no_server(); !why.empty()) SKIP(why);
}

}  // namespace kvpolicy_test::redis
