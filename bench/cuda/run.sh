#!/usr/bin/env bash
# Builds the benchmarks of the CUDA kernels, or takes them from the folder that is named first, runs them and prints their tables.
# Lines, tables and the roofline stay in build/bench_cuda. Other arguments go to all programs, such as --batch 1 --context 32768
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
  cmake --build --preset release --target kvpolicy_cuda_{primitives,steps,claims} >/dev/null
  programs=build/release/bench/cuda
fi

out=build/bench_cuda
mkdir -p "$out"
failed=0 fitting=0
for what in primitives steps claims; do
  status=0
  "$programs/kvpolicy_cuda_$what" "$@" >"$out/$what.jsonl" 2>"$out/$what.txt" || status=$?
  case $status in
    0) fitting=1 ;;
    2) ;;  # none of its cases is wanted
    77) echo "no GPU here: built, not measured"; exit 0 ;;
    *) cat "$out/$what.txt" >&2; failed=$status fitting=1 ;;
  esac
done
[[ $fitting -eq 1 ]] || { cat "$out/primitives.txt" >&2; exit 2; }
# Cases that failed are in the tables, too.
python3 "$here/report.py" --roofline "$out/roofline.svg" "$out/primitives.jsonl" "$out/steps.jsonl" "$out/claims.jsonl" | tee "$out/tables.md"
exit "$failed"
