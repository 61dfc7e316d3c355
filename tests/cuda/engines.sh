#!/usr/bin/env bash
# engines.sh transformers|steps|llama: models on this GPU, for lease.sh, in whose package or repository this lies. What is printed is the
# stage's outcome; 77 where there is no such engine here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
if [ -d "$here/bin" ]; then  # a package
  bin=$here/bin python=$here test=$here/transformers_device_test.py steps=$here/steps.py
else
  bin=$root/build/lease/bin python=$root/python:$root/tests/python test=$root/tests/python/transformers_device_test.py
  steps=$root/bench/transformers/steps.py
fi
missing() { echo "no $1 here"; exit 77; }

with_torch() {
  export PYTHONPATH=$python KVPOLICY_LIBRARY=$bin/libkvpolicy.so LD_LIBRARY_PATH=$bin
  python3 -c 'import torch, transformers; assert torch.cuda.is_available()' 2>/dev/null || missing "transformers on a GPU"
  python3 -W ignore -B "$@"
}

# The same steps without a policy and with some, behind 32K and 128K tokens.
llama() {
  [ -e "$bin/llama_steps" ] || missing llama.cpp
  local model=/dev/shm/kvpolicy-8b.gguf cuda context policy
  cuda=$(find /usr/local/cuda*/ "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" -name libcublas.so.13 2>/dev/null | head -n 1)
  [ -n "$cuda" ] || missing libcublas.so.13
  export LD_LIBRARY_PATH=$bin:$(dirname "$cuda")
  trap "rm -f $model $model.log" EXIT
  PYTHONPATH=$bin python3 "$bin/random_gguf.py" "$model"
  for context in 32000 130000; do
    for policy in none full snapkv:tokens=1024,after=0 quest:tokens=1024,after=0; do
      if [ $policy = none ]; then unset GGML_BACKEND_PATH; else export GGML_BACKEND_PATH=$bin/libkvpolicy-ggml.so KVPOLICY=$policy; fi
      "$bin/llama_steps" "$model" $context 96 2>"$model.log" | tail -n 1 || { tail -n 1 "$model.log"; exit 1; }
    done
  done
}

case ${1:-} in
  transformers) with_torch "$test" ;;
  steps) with_torch "$steps" --device cuda --sizes 8b --dtype bfloat16 --tokens 120000 --budget 1024 --steps 20 --only compiled --only kvpolicy ;;
  llama) llama ;;
  *) echo "engines.sh: '${1:-}' is no stage; there are transformers, steps and llama" >&2; exit 2 ;;
esac
