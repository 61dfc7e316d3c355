#!/usr/bin/env bash
# What one request takes: a process for each way to hold its rows, one after the other. A table of the whole process's peak, what
# it has in the end, the rows' own count, time to the first token, ms/token, and whether the fact was found.
#
#   [ONLY=PATTERN] bench/memory/run.sh MODEL WORDS [PREDICT]     a haystack of so many words (6000: 7,000 tokens; 13800: 16,000 of Qwen2.5)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
model=$1 words=$2 predict=${3:-64}
cmake --build --preset release --target kvpolicy-run >build/build.log 2>&1 || { cat build/build.log >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 examples/haystack.py --words "$words" >"$folder/prompt.txt"
slots=$((words * 7 / 6 / 8)) # an eighth of the prompt

way() { # NAME ARGUMENT...
  local name=$1
  shift
  [[ $name =~ $only ]] || return 0
  build/release/tools/kvpolicy-run --model "$model" --chat --prompt-file "$folder/prompt.txt" --predict "$predict" --threads 2 \
    --json "$folder/$((++runs)).json" \
    "$@" >/dev/null 2>&1
  echo "$name" >"$folder/$runs.name"
}
runs=0
only=${ONLY:-.*} # a pattern of names
way "full, the engine's rows" --policy full
way "full, the engine's rows, q8_0" --policy full --cache-type-k q8_0 --cache-type-v q8_0
way "full, managed cache" --policy full --managed-cache
way "snapkv, the engine's rows" --policy snapkv
way "snapkv, managed cache" --policy snapkv --managed-cache
way "snapkv, managed cache, keydiff:tokens=4096 between pieces" --policy snapkv --managed-cache --between-pieces keydiff:tokens=4096
way "streaming_llm, managed cache" --policy streaming_llm --managed-cache
way "quest, managed cache" --policy quest --managed-cache
way "quest, managed cache, a host tier, an eighth in memory" --policy quest --tier host --tier-slots "$slots"
way "quest, managed cache, a host tier with q8_0 rows, an eighth in memory" --policy quest --tier host:q8_0 --tier-slots "$slots"
way "quest, managed cache, a host tier with q4_0 rows, an eighth in memory" --policy quest --tier host:q4_0 --tier-slots "$slots"
python3 - "$folder" "$runs" <<'PYTHON'
import json, statistics, sys
folder, runs = sys.argv[1], int(sys.argv[2])
print("| | peak, MB | in the end, MB | rows at most, MB | rows in the end, MB | first token, s | ms/token | fact |")
print("|---|--:|--:|--:|--:|--:|--:|---|")
for run in range(1, runs + 1):
    d = json.load(open(f"{folder}/{run}.json"))
    own = d["rows"] is not None
    end = d["memory"][-1]
    print("| {} | {:.0f} | {:.0f} | {} | {} | {:.1f} | {:.2f} | {} |".format(
        open(f"{folder}/{run}.name").read().strip(), d["peak_memory_bytes"] / 1e6, end["process_bytes"] / 1e6,
        f"{d['rows']['most_bytes'] / 1e6:.1f}" if own else "", f"{d['rows']['bytes'] / 1e6:.1f}" if own else "",
        d["first_token_ms"] / 1e3, statistics.median(s["ms"] for s in d["steps"][1:]),
        "yes" if "3254257" in d["answer"] else "no"))
    if d["tier"]:
        print("tier: {:.0%} of the rows that steps named were in memory, {:.1f} MB moved".format(
            d["tier"]["hit_rate"], d["tier"]["bytes_fetched"] / 1e6), file=sys.stderr)
PYTHON
