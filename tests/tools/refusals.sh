#!/usr/bin/env bash
# refusals.sh KVPOLICY_RUN MODEL: each case must exit 2, say one line on stderr that holds the words expected, and leave no file.
set -uo pipefail
run=$1 model=$2
[ -s "$model" ] || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
head -c 3000000 "$model" >"$work/truncated.gguf"
echo 'not a model' >"$work/text.gguf"
python3 -c 'print("word " * 9000)' >"$work/long.txt"
: >"$work/empty.txt"
printf '0.5\t0.1\n0.2\n' >"$work/uneven.tsv"
printf '0.5\tno\n' >"$work/words.tsv"
printf '0.5\t0.1\n' >"$work/other.tsv"
echo '{"format": "kvpolicy-moments/1"}' >"$work/short.json"
before=$(ls "$work")
failures=0

refused() {  # EXPECTED ARGUMENT...
  local expected=$1 status
  shift
  timeout 120 "$run" "$@" </dev/null >"$work/.out" 2>"$work/.err"
  status=$?
  if [ $status -ne 2 ] || [ "$(wc -l <"$work/.err")" -ne 1 ] || ! grep -qF -- "$expected" "$work/.err"; then
    echo "FAILED: $* -> status $status, wanted 2 and '$expected':"
    cat "$work/.err"
    failures=$((failures + 1))
  fi
}
with_model() { refused "$1" --model "$model" "${@:2}"; }

refused '--model is missing'
with_model '--tier-async requires --tier' --prompt x --tier-async
with_model '--tier-slots requires --tier' --prompt x --tier-slots 8
with_model '--gpu-layers requires --compact' --prompt x --gpu-layers 4
with_model '--compact needs a policy that drops tokens' --prompt x --compact
with_model 'at each step it chooses what to read' --prompt x --compact --policy quest
with_model 'it waits for 16 tokens of the answer; set its after to 0' --prompt x --compact --policy snapkv
with_model '--compact leaves prompts and steps to llama.cpp' --prompt x --compact --policy knorm --managed-cache
with_model "unknown tier 'floppy'" --prompt x --policy sentencekv --tier floppy
with_model "there are host, host:q8_0, host:q4_0, disk:FILE" --prompt x --policy sentencekv --tier host:q5_0
with_model 'needs a profile' --prompt x --policy heterocache
with_model 'one choice for each request' --prompt x --policy snapkv:tokens=64+chess
refused 'does not exist' --model "$work/none.gguf" --prompt x
refused 'is a folder' --model "$work" --prompt x
refused 'not a GGUF file' --model "$work/text.gguf" --prompt x
refused 'truncated' --model "$work/truncated.gguf" --prompt x
with_model "did you mean 'quest'" --prompt x --policy qest
with_model "'q8' is no type of a KV cache; there are f16," --prompt x --cache-type-k q8
with_model "'Q8_0' is no type" --prompt x --cache-type-v Q8_0
with_model "unknown prompt policy 'page'; did you mean 'pages'" --prompt x --prompt-policy page
with_model "did you mean 'share'" --prompt x --prompt-policy pages:shar=.2
with_model "share is 2.000000; it must be above 0 and at most 1" --prompt x --prompt-policy pages:share=2
with_model 'from is 100000; it must be below the context' --prompt x --prompt-policy pages:from=100000
with_model 'There are: full, chess, heterocache, sentencekv, chunkkv, streaming_llm, h2o, tova, knorm, snapkv, pyramidkv, adakv,' \
           --prompt x --policy unheard-of
with_model "did you mean 'tokens'" --prompt x --policy quest:token=5
with_model 'there are none' --prompt x --policy full:tokens=5
with_model "it must be a whole number" --prompt x --policy quest:tokens=many
with_model 'a budget of 0 tokens' --prompt x --policy quest:tokens=0
with_model 'raise the budget or shrink the window' --prompt x --policy snapkv:tokens=7
with_model 'a page size of 0 tokens' --prompt x --policy quest:page=0
with_model "did you mean 'paper'" --prompt x --policy snapkv:papr
with_model 'a fraction removed, from 0 to below 1' --prompt x --policy snapkv:ratio=1.5
with_model 'it must be range or mean_deviation' --prompt x --policy quest:metadata=median
with_model 'it must be mean or maximum' --prompt x --policy quest:group=sum
with_model "reduce is 'maximum'" --prompt x --policy h2o:reduce=maximum
with_model 'every_step, every:STEPS or entropy:NATS' --prompt x --policy quest:trigger=sometimes
with_model 'it must have 1 to 3' --prompt x --policy chess:depth=4
with_model 'needs a profile' --prompt x --policy heterocache
with_model "can't be read" --prompt x --policy heterocache:profile="$work/none.json"
with_model "give DuoAttention's file of the model" --prompt x --policy duoattention
with_model "line 2 has 1 numbers, and the first has 2" --prompt x --policy duoattention:heads="$work/uneven.tsv"
with_model "line 1: 'no'; it must be a table of numbers" --prompt x --policy duoattention:heads="$work/words.tsv"
with_model 'a file of 1 layers x 2 heads for a model of' --prompt x --policy duoattention:heads="$work/other.tsv"
with_model "make a file of their moments" --prompt x --policy triattention
with_model "can't be read as JSON of moments" --prompt x --policy triattention:moments="$work/short.json"
with_model 'layers from 0 on, such as 2/8/18' --prompt x --policy quest:leaders=2-8
with_model 'of a model with 30 layers' --prompt x --policy omnikv:reuse=1,leaders=2/30
with_model 'above 0, at most 1' --prompt x --policy twilight:mass=0
with_model 'quest retains nothing' --prompt x --policy quest+snapkv
with_model 'h2o does not retrieve' --prompt x --policy snapkv+h2o
with_model 'sentencekv retrieves by itself' --prompt x --policy sentencekv+quest
with_model 'use a coarser retain, or a retrieve by head' --prompt x --policy snapkv+chess
with_model 'set `reuse` to 1' --prompt x --policy snapkv+quest:reuse=2
with_model 'use a retain that decides once' --prompt x --policy tova+infllm
with_model "unknown policy ''" --prompt x --policy snapkv+
with_model 'an odd whole number' --prompt x --policy snapkv:kernel=4
with_model 'above 0 and at most 1' --prompt x --policy chess:tokens=0,grids=0
with_model "can't be read" --prompt-file "$work/none.txt"
with_model 'is a folder' --prompt-file "$work"
with_model 'has no tokens' --prompt-file "$work/empty.txt"
with_model 'has no tokens'
with_model "the model's context" --prompt-file "$work/long.txt"
with_model '--ctx gives 4' --prompt 'one two three four five six seven' --ctx 4 --predict 2
with_model "above the model's context" --prompt x --ctx 100000
with_model "can't be written" --prompt x --json "$work/none/out.json"
with_model 'is a folder' --prompt x --trace "$work"
with_model 'could not be written whole' --prompt x --predict 3 --json /dev/full
with_model 'could not be written whole' --prompt x --predict 3 --trace /dev/full
with_model 'must be a number from' --prompt x --predict 0
with_model 'exclude each other' --prompt x --prompt-file "$work/long.txt"
with_model 'need --compare' --prompt x --policy quest --policy full
with_model 'too few to compare' --prompt x --compare --predict 2
with_model 'not expected' --prompt x --no-such-option
with_model 'keeps nothing' --prompt x --compare --predict 3 --policy quest:tokens=0 --json "$work/half.json"

rm -f "$work/.out" "$work/.err"
if [ "$(ls "$work")" != "$before" ]; then
  echo "FAILED: files were left behind: $(ls "$work")"
  failures=$((failures + 1))
fi
exit $((failures > 0))
