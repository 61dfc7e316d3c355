#!/usr/bin/env bash
# plugin.sh PROJECT BUILD PREFIX MODEL TEXT TOOLS LIBKVPOLICY CMAKE_ARGUMENTS...: a policy of somebody else's project, by name.
set -euo pipefail
project=$1 build=$2 model=$4 text=$5 tools=$6 library=$7
cmake --fresh -S "$project" -B "$build" "${@:8}"
cmake --build "$build"
plugin=$build/libown_policy.so

"$tools/kvpolicy-run" --plugin "$plugin" --list-policies | grep '^value_recency: large, recent values' >/dev/null
python3 - "$library" "$plugin" <<'PY'
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.kvpolicy_message.restype = ctypes.c_char_p
library.kvpolicy_policies.restype = ctypes.POINTER(ctypes.c_char_p)
policy, state = ctypes.c_void_p(), ctypes.c_void_p()
parse = lambda: library.kvpolicy_policy_parse(b"value_recency", None, ctypes.c_int64(0), ctypes.byref(policy))
assert parse() == 1 and b"unknown policy 'value_recency'" in library.kvpolicy_message()
assert library.kvpolicy_plugin_load(b"/nowhere.so") == 1 and b"nowhere.so" in library.kvpolicy_message()
assert library.kvpolicy_plugin_load(sys.argv[1].encode()) == 1 and b"is no plugin" in library.kvpolicy_message()
assert library.kvpolicy_plugin_load(sys.argv[2].encode()) == 0
assert library.kvpolicy_plugin_load(sys.argv[2].encode()) == 1 and b"already" in library.kvpolicy_message()
names, listed = [], library.kvpolicy_policies()
while listed[len(names)] is not None:
    names.append(listed[len(names)])
assert names[-1] == b"value_recency" and names[0] == b"full"
assert parse() == 0
assert library.kvpolicy_policy_needs(policy) == 1 | 2 | 4  # keys, values, queries
class shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("layers", "q_heads", "kv_heads", "head_dim", "max_tokens")] + [("type", ctypes.c_int32), ("value_dim", ctypes.c_int64)]
assert library.kvpolicy_start(policy, ctypes.byref(shape(2, 4, 2, 8, 4096, 0, 0)), ctypes.byref(state)) == 0
library.kvpolicy_state_free(state)
library.kvpolicy_policy_free(policy)
PY

[ -e "$model" ] || { echo "no model: the tools were not run"; exit 0; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
head -c 7000 "$text" >"$out/prompt"
"$tools/kvpolicy-run" --plugin "$plugin" --policy value_recency --model "$model" --prompt-file "$out/prompt" --predict 4 --json "$out/run.json"
for eps in .4 .001; do
  "$tools/kvpolicy-run" --plugin "$build/libquest_by_mass.so" --policy "quest_by_mass:eps=$eps,least=32" --model "$model" \
    --prompt-file "$out/prompt" --predict 4 --json "$out/mass$eps.json"
done
"$tools/kvpolicy-run" --plugin "$build/libdrop_kv.so" --policy drop_kv:tokens=100 --model "$model" --prompt-file "$out/prompt" --predict 4 \
  --json "$out/drop.json"
python3 - "$out" <<'PY'
import json, sys
dropped = json.load(open(f"{sys.argv[1]}/drop.json"))
assert [round(step["tokens_read"]) for step in dropped["steps"]] == [101, 102, 103], dropped["steps"]
read = lambda eps: [step["tokens_read"] for step in json.load(open(f"{sys.argv[1]}/mass{eps}.json"))["steps"]]
few, many = read(".4"), read(".001")
assert all(32 <= a < b <= 1032 for a, b in zip(few, many)) and few, (few, many)
PY
mkdir "$out/data"
python3 - "$out" <<'PY'
import json, sys
out = sys.argv[1]
run = json.load(open(out + "/run.json"))
assert run["policy"] == "value_recency" and run["prompt_tokens"] > 1100, run
assert all(step["tokens_read"] <= 256 for step in run["steps"]) and len(run["steps"]) >= 2, run["steps"]
with open(out + "/data/license.jsonl", "w") as records:
    records.write(json.dumps({"prompt": open(out + "/prompt").read(), "answer_prefix": "", "outputs": ["License"]}) + "\n")
PY
"$tools/kvpolicy-eval" --plugin "$plugin" --policy value_recency --model "$model" --data "$out/data" --out "$out/eval" --records 1 --predict 8
grep -q '"policy":"value_recency"' "$out/eval/results.jsonl"
