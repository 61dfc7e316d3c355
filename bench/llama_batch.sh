#!/usr/bin/env bash
# Several sequences in one llama.cpp context: the tables of docs/results/speed.md, "Several sequences". About 30 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cmake/bootstrap.sh packages engine
cmake --preset release >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
cmake --build --preset release --target llama_batch >build/build.log 2>&1 || { cat build/build.log >&2; exit 1; }

mkdir -p build/batch
# Writes prompts of so many words each, a fact hidden deeper by `step` tenths in each.
prompts() {
  local name=$1 seed=$2 step=$3 i=0
  shift 3
  for words in "$@"; do
    i=$((i + 1))
    python3 examples/haystack.py --words "$words" --depth "0.$((step * i))" --seed $((seed + i)) >"build/batch/$name-$i.txt"
  done
}
prompts long 40 2 2850 2850 2850 2850
prompts request 20 1 400 600 800 1000 1200 1400 500 900

export OMP_NUM_THREADS=2
first=()  # other processes' work would be measured too
if chrt -f 1 true 2>/dev/null; then first=(chrt -f 1); fi
"${first[@]}" build/release/examples/llama_batch build/engine/model.gguf --slots 4 --new 48 --every 0 build/batch/long-?.txt
echo
"${first[@]}" build/release/examples/llama_batch build/engine/model.gguf --slots 4 --new 48 --every 8 build/batch/request-?.txt
