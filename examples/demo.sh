#!/usr/bin/env bash
# The main job, from a fresh machine: a real model in llama.cpp, dense decoding against policies on long prompts that each hide
# one fact: four papers' (chess, heterocache, sentencekv, chunkkv), the best baselines, and a composition of two. Prints the
# table; writes build/demo/compare.json and build/demo/report.html.
#
#   examples/demo.sh            the fact in the middle
#   examples/demo.sh --full     at five depths
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

depths=(0.5)
case "${1:-}" in
  '') ;;
  --full) depths=(0.1 0.3 0.5 0.7 0.9) ;;
  *) echo "demo.sh: unknown option '$1'; there is --full" >&2; exit 2 ;;
esac

cmake/bootstrap.sh packages
cmake/bootstrap.sh engine
cmake --preset release >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
cmake --build --preset release --target kvpolicy-run kvpolicy-profile >build/build.log 2>&1 || { cat build/build.log >&2; exit 1; }

mkdir -p build/demo
prompts=()
for depth in "${depths[@]}"; do
  prompt=build/demo/depth-$depth.txt
  python3 examples/haystack.py --depth "$depth" >"$prompt"
  prompts+=(--prompt-file "$prompt")
done

# The roles of the model's heads, for heterocache: from other text than the prompts'.
if [ ! -s build/demo/profile.json ]; then
  python3 examples/haystack.py --seed 9 --words 2500 --depth 0.4 >build/demo/calibration.txt
  build/release/tools/kvpolicy-profile --model build/engine/model.gguf --prompt-file build/demo/calibration.txt --chat --steps 60 \
    --out build/demo/profile.json
fi

build/release/tools/kvpolicy-run --model build/engine/model.gguf --compare "${prompts[@]}" \
  --answer-prefix $'\nThe special magic number for Oslo mentioned in the provided text is' \
  --mark "$(grep -om1 'One of the special magic numbers for Oslo is: [0-9]*' build/demo/depth-0.5.txt)" \
  --policy full --policy streaming_llm --policy snapkv --policy quest \
  --policy chess --policy heterocache:profile=build/demo/profile.json --policy sentencekv --policy chunkkv \
  --policy snapkv:tokens=1024+quest:tokens=512 \
  --json build/demo/compare.json
python3 examples/report.py build/demo/compare.json build/demo/report.html
echo
echo "build/demo/compare.json holds every step; build/demo/report.html shows them."
