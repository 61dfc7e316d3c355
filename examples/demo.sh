#!/usr/bin/env bash
# The main job, from a fresh Debian or Ubuntu machine: a real model in llama.cpp decodes densely and under policies, on long prompts
# that each hide one fact. Prints a first table (full, snapkv and quest on 4,000 tokens), then one of more policies on 7,000: four
# papers' (chess, heterocache, sentencekv, chunkkv), the best baselines, and a composition of two. Writes build/demo/compare.json and
# build/demo/report.html.
#
#   examples/demo.sh            the fact in the middle
#   examples/demo.sh --full     the second table of five prompts, with the fact at five depths
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. cmake/watched.sh

depths=(0.5)
case "${1:-}" in
  '') ;;
  --full) depths=(0.1 0.3 0.5 0.7 0.9) ;;
  *) echo "demo.sh: unknown option '$1'; there is --full" >&2; exit 2 ;;
esac

install_steps packages engine
mkdir -p build/demo
cmake --preset release >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
watched "building" build/build.log cmake --build --preset release --target kvpolicy-run

# compare ARGUMENTS...: dense decoding beside policies, asked as a chat asks.
compare() { build/release/tools/kvpolicy-run --model build/engine/model.gguf --compare --chat "$@"; }
python3 examples/haystack.py --words 3400 --depth 0.5 >build/demo/first.txt
compare --prompt-file build/demo/first.txt --policy full --policy snapkv --policy quest:after=16
echo "The next table has more policies, on a longer prompt."

watched "building" build/build.log cmake --build --preset release --target kvpolicy-profile
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
compare "${prompts[@]}" --mark "$(grep -om1 'One of the special magic numbers for Oslo is: [0-9]*' build/demo/depth-0.5.txt)" \
  --policy full --policy streaming_llm --policy snapkv --policy quest:after=16 \
  --policy chess --policy heterocache:profile=build/demo/profile.json --policy sentencekv --policy chunkkv \
  --policy snapkv:tokens=1024+quest:tokens=512 \
  --json build/demo/compare.json
python3 examples/report.py build/demo/compare.json build/demo/report.html
echo
echo "build/demo/compare.json holds every step; build/demo/report.html shows them."
