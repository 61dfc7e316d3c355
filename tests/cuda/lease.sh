#!/usr/bin/env bash
# All that a GPU is to be asked, in one command: the suites, compute-sanitizer, the benchmarks. It needs no compiler and no network.
#
#   lease.sh --pack FILE.tar.xz   in the repository: build the programs, and put them and this into a package
#   lease.sh OUT                  run everything; in the repository the programs are built first
#   lease.sh --dry OUT            the same but for the device: each program is started and ends before it would need one
#
# After OUT, for a machine that limits a command's time, or the number of files that come back:
#   --within SECONDS        starts only stages whose limits end by then; call it again with the same OUT for the others
#   --archive FILE.tar.gz   at the end, packs everything in OUT into this file
#
# Each stage has so many seconds, and adds a JSON line to OUT/lease.jsonl; what has passed is not run again, so a run that was cut
# off goes on. Exits 0 only where every stage ran and passed, 1 where one failed or was cut off, 2 for bad arguments, and 3 where
# something was not run: no GPU, no compute-sanitizer or one that can't attach, no time left, a dry run. bench/cuda/results.py makes
# docs/results/gpu.md of OUT.
set -euo pipefail
shopt -s inherit_errexit
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() { echo "lease.sh: $*" >&2; exit 2; }

# The programs, in a folder: those of a package, or built. With llama.cpp and its CUDA backend (cmake/bootstrap.sh programs ggml-cuda) also
# what runs it: its libraries, a backend before its CUDA devices, and the package's own library for Python.
programs() {
  [ -d "$here/bin" ] && { echo "$here/bin"; return; }
  local root="$here/../.." made engine=() targets=(kvpolicy_gpu_tests kvpolicy_cuda_{primitives,steps,claims} kvpolicy_c)
  made=$root/build/lease/bin
  if [ -e "$root/build/ggml-cuda/libggml-cuda.so" ]; then
    engine=(-DKVPOLICY_BUILD_LLAMA=ON -DKVPOLICY_BUILD_PRELOAD=ON -DCMAKE_PREFIX_PATH="$(cd "$root" && pwd)/build/engine/prefix")
    targets+=(kvpolicy_ggml kvpolicy_llama_steps)
  fi
  command -v nvcc >/dev/null || die "no nvcc here, and no bin/ beside this: run what --pack made on another machine"
  (cd "$root" && cmake -S . -B build/lease/cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES=90 \
      -DKVPOLICY_BUILD_GPU=ON -DKVPOLICY_BUILD_BENCHMARKS=ON "${engine[@]}" >/dev/null &&
    cmake --build build/lease/cmake --parallel "$(nproc)" --target "${targets[@]}") >&2 ||
    die "the programs were not built"
  mkdir -p "$made"
  local program
  for program in tests/cuda/kvpolicy_gpu_tests bench/cuda/kvpolicy_cuda_{primitives,steps,claims}; do
    strip -o "$made/$(basename "$program")" "$root/build/lease/cmake/$program" || die "'$program' can't be stripped"
  done
  strip -o "$made/libkvpolicy.so" "$root/build/lease/cmake/src/c/libkvpolicy.so" || die "libkvpolicy.so can't be stripped"
  cp -L "$(ldd "$made/libkvpolicy.so" | awk '/libhwy/ {print $3}')" "$made/" || die "libkvpolicy.so needs Highway's library"
  if [ ${#engine[@]} -gt 0 ]; then
    strip -o "$made/libkvpolicy-ggml.so" "$root/build/lease/cmake/src/adapters/ggml/libkvpolicy-ggml.so"
    strip -o "$made/llama_steps" "$root/build/lease/cmake/bench/cuda/kvpolicy_llama_steps"
    cp -L "$root"/build/engine/prefix/lib/lib{llama,ggml,ggml-base,ggml-cpu}.so.0 "$root/build/ggml-cuda/libggml-cuda.so" "$made/"
    cp -L "$(ldd "$made/libggml-cpu.so.0" | awk '/libgomp/ {print $3}')" "$made/" || die "llama.cpp needs OpenMP's library"
    cp -r "$root/build/ggml-cuda/gguf" "$root/bench/cuda/random_gguf.py" "$made/"
  fi
  echo "$made"
}

pack() {
  local file=$1 root="$here/../.." folder bytes
  folder=$(mktemp -d)
  local bin libc
  bin=$(programs)
  libc=$(find "$bin" -maxdepth 1 -type f ! -name "*.py" -exec objdump -T {} + | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
  mkdir "$folder/lease"
  cp -r "$bin" "$folder/lease/bin"
  cp "$here/lease.sh" "$here/engines.sh" "$root/bench/cuda/sdpa.py" "$root/bench/transformers/steps.py" "$folder/lease/"
  cp -r "$root/python/kvpolicy" "$root/tests/python/transformers_device_test.py" "$root/tests/python/on_device.py" "$folder/lease/"
  # The machine may have none of its own.
  local sanitizer
  sanitizer=$(readlink -f "$root/build/sanitizer/compute-sanitizer" || true)
  if [ -x "$sanitizer" ]; then
    mkdir "$folder/lease/sanitizer"
    find "$(dirname "$sanitizer")" -maxdepth 1 -type f -exec cp {} "$folder/lease/sanitizer" ';'
  fi
  tar -C "$folder" -cf - lease | xz -T0 -4 >"$file.part"
  bytes=$(stat -c %s "$file.part")
  rm -rf "$folder"
  [ "$bytes" -lt $((64 << 20)) ] || { rm "$file.part"; die "a package of $bytes bytes; it must stay under 64 MiB"; }
  mv "$file.part" "$file"
  echo "$file: $bytes bytes, for systems that have $libc"
}

dry= out= within= archive=
case "${1:-}" in
  --pack) [ $# -eq 2 ] || die "--pack FILE.tar.xz"; pack "$2"; exit 0 ;;
  --dry) dry=1; shift ;;
  -*) die "unknown option '$1'; there are --pack and --dry, and after OUT --within and --archive" ;;
esac
out=${1:-}
[ $# -eq 0 ] || shift
while [ $# -gt 0 ]; do
  case $1 in
    --within) within=${2:-}; [[ $within =~ ^[1-9][0-9]*$ ]] || die "--within wants seconds, at least 1, not '$within'" ;;
    --archive) archive=${2:-}; [[ $archive == *.tar.gz ]] || die "--archive wants a file that ends in .tar.gz, not '$archive'" ;;
    *) die "unknown option '$1'; after OUT there are --within SECONDS and --archive FILE.tar.gz" ;;
  esac
  shift 2
done
[ -n "$out" ] || die "give a folder for what is found"
mkdir -p "$out" || die "'$out' can't be made"
out=$(cd "$out" && pwd)
bin=$(programs)
lines=$out/lease.jsonl
if [ -n "$dry" ]; then export CUDA_VISIBLE_DEVICES=; fi
exec 9>"$out/lock"
flock -n 9 || die "another lease.sh is at work in '$out'"
if [ -z "$dry" ] && ! nvidia-smi -L >/dev/null 2>&1; then
  echo "lease.sh: no GPU here: nothing was run" >&2
  exit 3
fi
# A program that was built beside a newer C library does not start here. Say so once, not in every stage.
if refusal=$({ "$bin/kvpolicy_gpu_tests" --list-tests 2>&1 >/dev/null || true; } | grep -m 1 "version .GLIBC.* not found"); then
  die "this system's C library is older than the package's: ${refusal##*: }; pack on this release of the system or an older one"
fi
sanitizer=$(command -v compute-sanitizer || true)
for own in "$here/sanitizer/compute-sanitizer" "$here/../../build/sanitizer/compute-sanitizer"; do
  [ -n "$sanitizer" ] || [ ! -x "$own" ] || sanitizer=$own
done

outcome=$out/outcome  # of this call: a word for each stage that failed, or was not run
: >"$outcome"
# line STAGE STATUS SECONDS WHY
line() {
  local why
  why=$(printf %s "$4" | tr '\n\t' '  ' | LC_ALL=C tr -cd '[:print:]' | tr -d '"\\' | cut -c1-300)
  printf '{"stage": "%s", "status": "%s", "seconds": %s, "at": "%s", "why": "%s"}\n' "$1" "$2" "$3" "$(date -u +%FT%TZ)" "$why" >>"$lines"
  echo "$1: $2${why:+ ($why)}"
}
# stage NAME SECONDS DRY-COMMAND COMMAND: bash's; what it prints goes to OUT/NAME.txt.
stage() {
  local name=$1 seconds=$2 command=$4 began status=0
  if [ -n "$dry" ]; then command=$3; fi
  if grep -qs "\"stage\": \"$name\", \"status\": \"passed\"" "$lines"; then echo "$name: passed before"; return; fi
  if [ -n "$within" ] && [ $((SECONDS + seconds)) -gt "$within" ]; then
    echo missing >>"$outcome"
    echo "$name: left for a later call (it may take $seconds seconds)"
    return
  fi
  began=$(date +%s)
  (cd "$out" && timeout -k 5 "$seconds" bash -c "set -eo pipefail; $command") >"$out/$name.txt" 2>&1 || status=$?
  local took=$(($(date +%s) - began))
  case $status in
    0) if [ -n "$dry" ]; then line "$name" dry "$took" ""; else line "$name" passed "$took" ""; fi ;;
    77) echo missing >>"$outcome"; line "$name" missing "$took" "$(tail -n 1 "$out/$name.txt")" ;;
    124 | 137) echo failed >>"$outcome"; line "$name" cut "$took" "not done after $seconds seconds" ;;
    *) echo failed >>"$outcome"; line "$name" failed "$took" "exit $status: $(tail -n 1 "$out/$name.txt")" ;;
  esac
}
# Where there is no such program a stage is missing, not passed.
needs() { echo "[ -n '$1' ] || { echo 'no $2 here'; exit 77; };"; }

tests=$bin/kvpolicy_gpu_tests
starts="$tests --list-tests >/dev/null"
stage facts 20 "uname -sr; nproc" \
  "nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit,ecc.mode.current,mig.mode.current --format=csv,noheader"
# Nothing is timed in the suites, so they and their checks run beside each other. A shard that the device stops takes no other along.
stage suite 120 "$starts" "export KVPOLICY_ROUNDS=1; shards=() status=0
  for i in 0 1 2 3; do
    $tests '~[.]' --shard-count 4 --shard-index \$i --durations yes --reporter console --reporter junit::out=suite-\$i.xml >suite-\$i.txt 2>&1 &
    shards+=(\$!)
  done
  for i in 0 1 2 3; do wait \${shards[i]} || status=\$?; tail -n 4 suite-\$i.txt; done
  exit \$status" &

# Each tool must see the bug that is planted for it, or its silence says nothing: by what it reports, as a program fails for other
# reasons, too. What runs under it is a twentieth of the suite's random cases.
check() {  # check TOOL REPORT [VARIABLE=VALUE]
  local look="$sanitizer --tool $1"
  stage "$1" 240 "$(needs "$sanitizer" compute-sanitizer) $sanitizer --version" \
    "$(needs "$sanitizer" compute-sanitizer)
     $look '$tests' 'planted for $1' >planted-$1.txt 2>&1 || true
     why=\$(grep -m 1 -E 'before first instrumented API call|No attachable process|Device not supported' planted-$1.txt) &&
       { echo \"compute-sanitizer can't attach: \$why\"; exit 77; }
     grep -q '$2' planted-$1.txt || { echo 'the planted bug was not reported'; exit 1; }
     KVPOLICY_ROUNDS=.05 ${3:-} $look --error-exitcode 9 '$tests' '[cuda]' --durations yes" &
}
check memcheck 'Invalid __global__ write'
check initcheck 'Uninitialized __global__ memory read' KVPOLICY_UNPOISONED=1
check racecheck 'Race reported'
check synccheck 'Barrier error detected'
wait

# Without a device they end with 77, and say so: that is what a dry run sees.
ends() { echo "{ $bin/$1 && false; } || [ \$? -eq 77 ]"; }
stage primitives 40 "$(ends kvpolicy_cuda_primitives)" "$bin/kvpolicy_cuda_primitives --context 32768 --context 131072 --batch 1 --batch 16 --replays 9 | tee primitives.jsonl
  $bin/kvpolicy_cuda_primitives --only '2048' --context 16384 --replays 9 | tee -a primitives.jsonl"
stage steps-128k 50 "$(ends kvpolicy_cuda_steps)" "$bin/kvpolicy_cuda_steps --context 131072 --batch 1 --replays 9 | tee steps-128k.jsonl"
stage steps-32k 40 "$(ends kvpolicy_cuda_steps)" "$bin/kvpolicy_cuda_steps --context 32768 --batch 1 --replays 9 | tee steps-32k.jsonl"
sdpa=$here/sdpa.py
[ -e "$sdpa" ] || sdpa=$here/../../bench/cuda/sdpa.py
python=$(command -v python3 || true)
stage sdpa 30 "$(needs "$python" python3) $python -c 'compile(open(\"$sdpa\").read(), \"sdpa\", \"exec\")'" \
  "$(needs "$python" python3) $python '$sdpa' | tee sdpa.jsonl"
# Models: a policy's steps beside the engine's own.
stage transformers 90 "bash -n '$here/engines.sh'" "'$here/engines.sh' transformers"
stage transformers-steps 170 "bash -n '$here/engines.sh'" "'$here/engines.sh' steps"
stage llama 200 "bash -n '$here/engines.sh'" "'$here/engines.sh' llama | tee llama.jsonl"
stage steps-batch 180 "$(ends kvpolicy_cuda_steps)" "$bin/kvpolicy_cuda_steps --context 131072 --batch 16 --only '1%' --replays 9 | tee steps-batch.jsonl"
stage claims 150 "$(ends kvpolicy_cuda_claims)" "$bin/kvpolicy_cuda_claims --replays 5 | tee claims.jsonl"
# Six kernels, each where a benchmark launches it first.
stage ncu 60 "true" "command -v ncu >/dev/null || { echo 'no ncu here'; exit 77; }
  while IFS=: read -r kernel only; do
    ncu -k regex:\"\$kernel\" --kernel-name-base demangled --launch-count 1 --clock-control none --section SpeedOfLight --section MemoryWorkloadAnalysis --csv \\
      '$bin/kvpolicy_cuda_primitives' --only \"\$only\" --context 131072 --context 32768 --batch 1 --replays 1 >ncu-\$kernel.csv 2>&1 || {
      grep -q ERR_NVGPUCTRPERM ncu-\$kernel.csv && { echo 'ncu may not read counters here'; exit 77; }
      cat ncu-\$kernel.csv; exit 1; }
  done <<'KERNELS'
attend_tensor:attend to all
list_statistics_tensor:list weights of all
score_bounds_tensor:score bounds of 16
top_k:top 2048
pool_mean:pool means of 32, prompt
gather_rows:gather 1024
KERNELS"

if [ -n "$archive" ]; then
  tar -C "$out" -czf "$archive.part" --exclude lock --exclude outcome . || die "'$archive' can't be written"
  mv "$archive.part" "$archive"
fi
if grep -q failed "$outcome"; then exit 1; fi
[ -z "$dry" ] && [ ! -s "$outcome" ] || exit 3
