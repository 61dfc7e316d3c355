#!/usr/bin/env bash
# All tests, from a fresh machine: sets up what they need, builds, runs, and ends with a summary.
#
#   tests/run.sh            everything: the optimised build with the real model, then ASan and UBSan, then TSan where threads are
#   tests/run.sh --quick    the optimised build alone
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stages=(host asan tsan)
case "${1:-}" in
  '') ;;
  --quick) stages=(host) ;;
  *) echo "run.sh: unknown option '$1'; there is --quick" >&2; exit 2 ;;
esac

# The engine's threads would spin against whatever else runs here: several times slower on a machine that is not idle.
export OMP_WAIT_POLICY=passive

cmake/bootstrap.sh packages
cmake/bootstrap.sh engine

if command -v nvcc >/dev/null; then
  cmake/bootstrap.sh nccl
  cmake/bootstrap.sh nvdisasm
else
  echo "run.sh: no nvcc here: kvpolicy::cuda is not built; its kernels are tested on the checked model of a GPU alone"
fi

passed=0 failed=0 skipped=0
failures=build/failures.txt
: >"$failures"
for stage in "${stages[@]}"; do
  echo "== $stage"
  cmake --preset "$stage" >"build/$stage.log" 2>&1 || { cat "build/$stage.log"; exit 1; }
  targets=() only=()
  case $stage in
    asan)
      targets=(--target kvpolicy_tests kvpolicy_tier_tests kvpolicy_tier_io_tests kvpolicy_llama_tests kvpolicy_c_tests
               kvpolicy_fuzz_policy_text kvpolicy_fuzz_profile kvpolicy_fuzz_safetensors kvpolicy_fuzz_tensors)
      only=(--tests-regex "^(kvpolicy|tier|llama|c|fuzz):" --exclude-regex "500 kills" --label-exclude model) ;;
    tsan)
      targets=(--target kvpolicy_tier_tests kvpolicy_redis_tests kvpolicy_c_tests)
      only=(--tests-regex "^(tier|redis|c):" --exclude-regex "500 kills") ;;
  esac
  cmake --build --preset "$stage" --parallel "$(nproc)" "${targets[@]}" >"build/$stage.log" 2>&1 || { cat "build/$stage.log"; exit 1; }
  report=build/$stage/ctest.xml
  [ "$stage" = host ] || export KVPOLICY_SEEDS=60  # of llama.cpp's random calls: a fifth, five times slower
  rm -f "$report"
  # What wants both cores says so (PROCESSORS 2) and runs alone.
  ctest --preset "$stage" --parallel 2 "${only[@]}" --output-junit "$PWD/$report" || true
  read -r total bad without < <(python3 - "$report" "$stage" "$failures" <<'PY'
import sys, xml.etree.ElementTree as tree
report, stage, failures = sys.argv[1:]
suite = tree.parse(report).getroot()
with open(failures, "a") as out:
    for case in suite.iter("testcase"):
        if case.get("status") == "fail":
            said = (case.findtext("system-out") or "").strip().splitlines()
            print(f"{stage}: {case.get('name')}", *said[-25:], sep="\n    ", file=out)
print(suite.get("tests"), suite.get("failures"), int(suite.get("skipped")) + int(suite.get("disabled")))
PY
)
  passed=$((passed + total - bad - without)) failed=$((failed + bad)) skipped=$((skipped + without))
done
echo
cat "$failures"
echo "tests: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
