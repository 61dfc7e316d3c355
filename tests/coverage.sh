#!/usr/bin/env bash
# How much of what `tests/run.sh --full` executes a usual run executes, by lines of include/, src/ and cuda/ (gcov). All tests are the
# usual ones with their usual number of random cases, and those that only --full runs, except packages. Half an hour to an hour.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cmake/bootstrap.sh all-packages programs
export OMP_WAIT_POLICY=passive
cmake --preset coverage >/dev/null
cmake --build --preset coverage --parallel "$(nproc)" >/dev/null
find build/coverage -name '*.gcda' -delete
usual=(--label-regex '^(core|gpu|llama|c|python|tools|package|preload|redis)(-|$)' --label-exclude 'full$')
ctest --preset coverage --parallel "$(nproc)" "${usual[@]}" || true
python3 tests/coverage.py build/coverage build/coverage/usual.json
KVPOLICY_ROUNDS=1 ctest --preset coverage --parallel "$(nproc)" --label-regex '(-full|^ranks)$' \
  --exclude-regex 'packaging|wheel|consumer' || true
python3 tests/coverage.py build/coverage build/coverage/all.json
python3 tests/coverage.py build/coverage/usual.json build/coverage/all.json
