#!/usr/bin/env bash
# Selection when a prompt ends, kvpolicy against kvpress on tensors of one shape, one thread each: sets both up, prints a table.
#
#   bench/kvpress/run.sh [ROUNDS]     the programs take turns, ROUNDS times (default 5)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cmake/bootstrap.sh all-packages kvpress
cmake --preset release -DKVPOLICY_BUILD_BENCHMARKS=ON >/dev/null  # whatever a former use of the folder said
cmake --build --preset release --target kvpolicy_kvpress_bench >/dev/null
python3 bench/kvpress/table.py build/release/bench/kvpolicy_kvpress_bench build/kvpress/bin/python "${1:-5}"
