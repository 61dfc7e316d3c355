#!/usr/bin/env bash
# Builds the benchmarks and prints one table: each primitive on each executor, and its share of this machine's reading speed.
# Arguments go to the benchmark program, such as --benchmark_filter='ceiling|attend'.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cmake/bootstrap.sh all-packages
cmake --preset release -DKVPOLICY_BUILD_BENCHMARKS=ON >/dev/null  # whatever a former use of the folder said
cmake --build --preset release --target kvpolicy_bench >/dev/null
build/release/bench/kvpolicy_bench --benchmark_format=json --benchmark_min_time=0.1 --benchmark_repetitions=7 \
  --benchmark_enable_random_interleaving=true "$@" | python3 bench/table.py
