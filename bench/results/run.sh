#!/usr/bin/env bash
# Measures what the documents' tables show, as shipped, and writes every table and picture from docs/results/data.
#
#   bench/results/run.sh            writes the tables from what is stored
#   bench/results/run.sh NAME...    measures these before, on two quiet cores:
#     requests   whole requests of 4K, 16K and 32K tokens beside other engines; README's table and picture (90 minutes)
#     answers    answers of about 100 tokens by the share of the cache that a step reads (100 minutes)
#     avx2       a request where llama.cpp and kvpolicy have AVX2 alone (7 minutes; KVPOLICY_SIMD=AVX2, in a clone of its own)
#     demo       what the demo prints (12 minutes)
#     pages      pages of the cache that an engine may free (1 minute)
#
# The first two read the model from the file that KVPOLICY_QWEN names. Other engines: cmake/bootstrap.sh rivals vllm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. cmake/watched.sh

if [ $# -gt 0 ]; then
  install_steps packages engine
  mkdir -p build
  cmake --preset release >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
  watched "building" build/build.log cmake --build --preset release --target kvpolicy-run kvpolicy-eval
  python3 bench/results/results.py measure "$@"
fi
python3 bench/results/results.py write
