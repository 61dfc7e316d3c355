#!/usr/bin/env bash
# The conformance suites on a GPU: builds their program with nvcc, and runs it where there is a device.
#
#   tests/cuda/gpu.sh            build; where there is a GPU: all suites, then under compute-sanitizer's four tools
#   tests/cuda/gpu.sh PROGRAM    run that one instead, built elsewhere
#
# Exits 0 only where all of that ran and passed, 3 where there was no GPU or no compute-sanitizer to run it with.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

program=${1:-}
if [ -z "$program" ]; then
  command -v nvcc >/dev/null || { echo "gpu.sh: no nvcc here; give a program that was built elsewhere" >&2; exit 2; }
  cmake --preset host >/dev/null
  cmake --build --preset host --parallel "$(nproc)" --target kvpolicy_gpu_tests
  program=build/host/tests/cuda/kvpolicy_gpu_tests
fi
[ -x "$program" ] || { echo "gpu.sh: '$program' is no program" >&2; exit 2; }
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "gpu.sh: no GPU here: $program was not run" >&2
  exit 3
fi
nvidia-smi -L
"$program"

sanitizer=$(command -v compute-sanitizer || true)
[ -n "$sanitizer" ] || { echo "gpu.sh: the suites passed; no compute-sanitizer here: its tools were not run" >&2; exit 3; }
# It must see the bug that is planted, or its silence says nothing: by what it reports, as a program can fail for other reasons.
if ! "$sanitizer" --tool memcheck "$program" "[.planted]" 2>&1 | grep "Invalid __global__ write" >/dev/null; then
  echo "gpu.sh: compute-sanitizer did not report the planted write" >&2
  exit 1
fi
for tool in memcheck racecheck initcheck synccheck; do
  echo "== $tool"
  "$sanitizer" --tool "$tool" --error-exitcode 9 "$program" "[cuda]"
done
