#!/usr/bin/env bash
# run.sh [SECONDS [TARGET...]]: builds the fuzz targets with clang, libFuzzer, ASan and UBSan under build/fuzz, and runs each for so
# long (600). New inputs are kept in build/fuzz/found/TARGET; what fails is written there too, and ends the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${1:-600}
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(policy_text profile safetensors tensors)
clang=$(command -v clang++ || command -v clang++-14) || { echo "run.sh: no clang++ here, which libFuzzer comes with" >&2; exit 77; }
cmake -G Ninja -S . -B build/fuzz -DCMAKE_CXX_COMPILER="$clang" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DKVPOLICY_FUZZ=ON \
  -DCMAKE_CXX_FLAGS='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer' \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='-O1 -g1' -DKVPOLICY_BUILD_GPU=OFF -DKVPOLICY_BUILD_LLAMA=OFF -DKVPOLICY_BUILD_BENCHMARKS=OFF >/dev/null
cmake --build build/fuzz --parallel "$(nproc)" --target "${targets[@]/#/kvpolicy_fuzz_}"
for target in "${targets[@]}"; do
  found=build/fuzz/found/$target
  mkdir -p "$found"
  echo "== $target, $seconds s"
  build/fuzz/tests/fuzz/kvpolicy_fuzz_"$target" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=4096 -max_len=4096 \
    -artifact_prefix="$found/" -print_final_stats=1 "$found" tests/fuzz/corpus/"$target" 2>"$found.log" || { tail -60 "$found.log"; exit 1; }
  grep -E 'stat::number_of_executed_units|stat::new_units_added' "$found.log"
done
