#!/usr/bin/env bash
# Builds the benchmarks of the CUDA kernels, or takes them from the folder that is named first, runs them and prints their tables.
# Lines, tables and the roofline stay in build/bench_cuda. Other arguments go to both programs, such as --batch 1 --context 32768
# (bench/cuda/gpu.hpp has them all). Without a GPU it builds, and says so.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$here/../.."

if [[ $# -gt 0 && -d "$1" ]]; then
  programs="$1"
  shift
else
  [[ ! -x cmake/bootstrap.sh ]] || cmake/bootstrap.sh all-packages
  cmake --preset release -DKVPOLICY_BUILD_BENCHMARKS=ON -DKVPOLICY_BUILD_GPU=ON >/dev/null
  cmake --build --preset release --target kvpolicy_cuda_primitives kvpolicy_cuda_steps >/dev/null
  programs=build/release/bench/cuda
fi

out=build/bench_cuda
mkdir -p "$out"
failed=0
for what in primitives steps; do
  status=0
  "$programs/kvpolicy_cuda_$what" "$@" >"$out/$what.jsonl" || status=$?
  if [[ $status -eq 77 ]]; then
    echo "no GPU here: built, not measured"
    exit 0
  fi
  [[ $status -eq 0 ]] || failed=$status
done
# Cases that failed are in the tables, too.
python3 "$here/report.py" --html "$out/roofline.html" "$out/primitives.jsonl" "$out/steps.jsonl" | tee "$out/tables.md"
exit "$failed"
