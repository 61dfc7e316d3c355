// kvpolicy-run --compare: dense against policies, on the same prompts, in interleaved runs.
#pragma once

#include "options.hpp"

namespace kvpolicy {

/// Measures, prints the table, writes --json and --trace.
void compare(run_options const& options);

}  // namespace kvpolicy
