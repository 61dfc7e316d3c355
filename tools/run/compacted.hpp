// A run whose prompt is compacted once it was decoded; steps are the engine's own.
#pragma once

#include "options.hpp"

namespace kvpolicy {

void generate_compacted(run_options const& options);

}  // namespace kvpolicy
