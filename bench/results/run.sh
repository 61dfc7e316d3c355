#!/usr/bin/env bash
# Measures what the documents' tables show, as shipped, and writes every table and picture from docs/results/data.
#
#   bench/results/run.sh            writes the tables from what is stored
#   bench/results/run.sh NAME...    measures these before, on two quiet cores:
#     requests         whole requests of 4K, 16K and 32K tokens beside other engines; README's table and picture (90 minutes, AVX-512)
#     avx2             the same of 4K and 16K tokens on a CPU with AVX2 alone (50 minutes)
#     prompts          prompts of 8K and 16K tokens that read pages, and their answers (60 minutes)
#     answers          answers of about 100 tokens by the share of the cache that a step reads (100 minutes)
#     short_answers    answers of about 26 tokens to chats of 3,000, of two models (40 minutes)
#     written_answers  answers of 1,000 tokens behind short prompts (45 minutes)
#     steps            steps of 21 policies behind one prompt (10 minutes)
#     budgets          steps behind 8,000 tokens by how many of them they read (12 minutes)
#     cache_types      a request with caches of 16 and 8 bits (15 minutes)
#     processes        memory of processes, by how they hold rows (10 minutes)
#     larger           the same of Qwen2.5-Coder-0.5B behind 15,900 tokens (20 minutes)
#     server           four requests at once of a llama-server (15 minutes)
#     batches          several sequences in one context (30 minutes)
#     programs         llama-bench with a policy in front of it (15 minutes)
#     models           a request of 2,000 tokens on several models (10 minutes)
#     transformers     steps in Hugging Face transformers (10 minutes)
#     kvpress          selection when a prompt ends, beside kvpress (5 minutes)
#     sparse           attention under the mask of a model that was trained sparse (5 minutes)
#     demo             what the demo prints, and what its policies did (12 minutes)
#     pages            pages of the cache that an engine may free (1 minute)
#
# The first six, budgets, larger and models read Qwen2.5-Coder-0.5B from the file that KVPOLICY_QWEN names; models also reads those that
# KVPOLICY_MODELS lists. Other engines: cmake/bootstrap.sh rivals vllm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. cmake/watched.sh

if [ $# -gt 0 ]; then
  needed=(packages engine)
  [[ ! " $* " =~ \ (server|programs)\  ]] || needed+=(programs)
  [[ ! " $* " =~ \ (kvpress|transformers|sparse)\  ]] || needed+=(all-packages)
  [[ ! " $* " =~ \ (kvpress|transformers)\  ]] || needed+=(kvpress)
  install_steps "${needed[@]}"
  mkdir -p build
  cmake --preset release >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
  watched "building" build/build.log cmake --build --preset release --target kvpolicy-run kvpolicy-eval kvpolicy-profile kvpolicy-exec kvpolicy_preload
  [[ ! " $* " =~ \ transformers\  ]] || build/kvpress/bin/python -m pip install --quiet .
  python3 bench/results/results.py measure "$@"
fi
python3 bench/results/results.py write
