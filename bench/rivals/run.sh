#!/usr/bin/env bash
# One request in llama.cpp, in llama.cpp with kvpolicy, and in other engines for CPUs: one after the other on the same text, each in a
# process of its own. The prompt asks for eight numbers that stand in a long text; the Markdown table says how many an answer gives to
# the right city. About 5 minutes on 2 cores.
#
#   bench/rivals/run.sh [--tokens N] [--generate N] [--turns N] [--model FILE] [--leave-out NAME] [--json FILE]
#     --tokens N     length of the prompt, about (default 7000)
#     --generate N   tokens that follow (default 64; the eight numbers take about 100)
#     --turns N      the engines take turns, N times; medians are shown (default 1)
#     --model FILE   a GGUF file (default: SmolLM2-135M-Instruct in Q8_0, made from build/engine/model.gguf by requantise.py, which
#                    makes one that all engines read of others too)
#     --leave-out NAME   an engine, such as "vLLM for CPUs"; repeat for several
#     --json FILE    every number and every answer
#
# `cmake/bootstrap.sh rivals` brings OpenVINO GenAI, `vllm` vLLM; what is not there is left out. vLLM gets the weights in bf16.
# Settings: llama.cpp has a cache in f16, pieces of 512 and the better of flash attention on and off; vLLM runs eagerly and without prefix
# caching; OpenVINO's eviction keeps 672 tokens. ms/token is the median step.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

complain() { echo "rivals/run.sh: $*" >&2; exit 2; }

tokens=7000 model=build/rivals/smollm2-135m-q8_0.gguf options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --tokens|--generate|--turns|--model|--leave-out|--json) [ $# -gt 1 ] || complain "$1 needs a value" ;;
    *) complain "unknown option '$1'; there are --tokens, --generate, --turns, --model, --leave-out and --json" ;;
  esac
  case "$1" in
    --tokens) tokens=$2 ;;
    --model) model=$2 ;;
    *) options+=("$1" "$2") ;;
  esac
  shift 2
done
[[ $tokens =~ ^[1-9][0-9]{2,6}$ && $tokens -ge 600 ]] || complain "--tokens must be a number from 600, not '$tokens'"
[ -e "$model" ] || [ "$model" = build/rivals/smollm2-135m-q8_0.gguf ] || complain "there is no model '$model'"

cmake/bootstrap.sh packages engine
cmake --preset release >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
cmake --build --preset release --target kvpolicy-run >build/build.log 2>&1 || { cat build/build.log >&2; exit 1; }

mkdir -p build/rivals
[ -e "$model" ] || build/engine/bin/python bench/rivals/requantise.py build/engine/model.gguf "$model"
asked=build/rivals/asked-$tokens
# About 8 tokens for 7 words, and 250 around them.
python3 examples/haystack.py --long --records 1 --words $(((tokens - 250) * 7 / 8)) --out "$asked"

threads=$(nproc)
[ "$threads" -lt 2 ] || threads=2
build/engine/bin/python bench/rivals/table.py --kvpolicy-run build/release/tools/kvpolicy-run --model "$model" \
  --record "$asked/list.jsonl" --threads "$threads" ${options[@]+"${options[@]}"}
