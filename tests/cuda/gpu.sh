#!/usr/bin/env bash
# The conformance suites on a GPU: builds their program with nvcc, and runs it where there is a device.
#
#   tests/cuda/gpu.sh            build; where there is a GPU: all suites, then under compute-sanitizer's four tools
#   tests/cuda/gpu.sh PROGRAM    run that one instead, built elsewhere
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

program=${1:-}
if [ -z "$program" ]; then
  command -v nvcc >/dev/null || { echo "gpu.sh: no nvcc here; give a program that was built elsewhere" >&2; exit 2; }
  cmake --preset host >/dev/null
  cmake --build --preset host --parallel "$(nproc)" --target kvpolicy_gpu_tests
  program=build/host/tests/cuda/kvpolicy_gpu_tests
fi
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "gpu.sh: no GPU here: $program is built, nothing was run"
  exit 0
fi
nvidia-smi -L
"$program"

sanitizer=$(command -v compute-sanitizer || true)
[ -n "$sanitizer" ] || { echo "gpu.sh: no compute-sanitizer here: skipped"; exit 0; }
# It must see the bug that is planted, or its silence says nothing.
if "$sanitizer" --tool memcheck --error-exitcode 9 "$program" "[.planted]" >/dev/null 2>&1; then
  echo "gpu.sh: compute-sanitizer did not report the planted write" >&2
  exit 1
fi
for tool in memcheck racecheck initcheck synccheck; do
  echo "== $tool"
  "$sanitizer" --tool "$tool" --error-exitcode 9 "$program" "[cuda]"
done
