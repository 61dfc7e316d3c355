#!/usr/bin/env bash
# The tests, from a fresh Debian or Ubuntu machine: lists and installs what is missing, builds, runs, and prints where the time went.
#
#   tests/run.sh               one optimised build and what it tests: what CI runs
#   tests/run.sh AREA...       the same for some areas: core gpu llama c python tools package preload redis
#   tests/run.sh --full        every test and every random case, the area ranks too; then again under ASan with UBSan, and TSan
#   tests/run.sh --full AREA...  the same for some areas
#   tests/run.sh --no-install  installs nothing; where something is missing it prints what, and ends with status 2
#
# tests/README.md says what each area holds and how long it takes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. cmake/watched.sh

usual=(core gpu llama c python tools package preload redis)
full_only=(ranks)
full= install=1 areas=()
for argument; do
  case $argument in
    --full) full=1 ;;
    --no-install) install= ;;
    *)
      if [[ " ${usual[*]} " == *" $argument "* ]]; then areas+=("$argument")
      elif [[ " ${full_only[*]} " == *" $argument "* ]]; then areas+=("$argument") full_wanted=$argument
      else
        echo "run.sh: unknown argument '$argument'; there are --full, --no-install and the areas ${usual[*]} ${full_only[*]}" >&2
        exit 2
      fi ;;
  esac
done
if [ -z "$full" ] && [ -n "${full_wanted:-}" ]; then
  echo "run.sh: '$full_wanted' runs only with --full: tests/run.sh --full $full_wanted" >&2
  exit 2
fi
if [ ${#areas[@]} -eq 0 ]; then
  areas=("${usual[@]}")
  [ -z "$full" ] || areas+=("${full_only[@]}")
fi
has() { [[ " ${areas[*]} " == *" $1 "* ]]; }

# The engine's threads would spin against whatever else runs here: several times slower on a machine that is not idle.
export OMP_WAIT_POLICY=passive

steps=(packages)
if [ -n "$full" ]; then steps=(all-packages programs)
elif has llama || has tools || has package || has preload; then steps+=(engine); fi
if [ -n "$full" ] && command -v nvcc >/dev/null; then steps+=(nccl nvdisasm); fi
if [ -n "$install" ]; then
  install_steps "${steps[@]}"
else
  missing=$(cmake/bootstrap.sh list "${steps[@]}")
  [ -z "$missing" ] || {
    printf 'run.sh: missing, and with --no-install not installed (cmake/bootstrap.sh %s installs it):\n%s\n' "${steps[*]}" "$missing" >&2
    exit 2
  }
fi
mkdir -p build
set_up=$SECONDS
command -v nvcc >/dev/null ||
  echo "run.sh: no nvcc here: the kernels are not compiled for a GPU; their bodies are tested on the GPU emulator"

stages=(quick)
selected=(--label-regex "^($(IFS='|'; echo "${areas[*]}"))(-|\$)")
if [ -n "$full" ]; then
  stages=(host asan tsan)
  export KVPOLICY_ROUNDS=${KVPOLICY_ROUNDS:-1}
else
  selected+=(--label-exclude 'full$')
fi

results=()
for stage in "${stages[@]}"; do
  targets=() of_stage=()
  case $stage in
    quick) targets=(--target "${areas[@]/#/tests-}") ;;
    host) targets=(--target all "${areas[@]/#/tests-}") ;;
    asan)
      for area in "${areas[@]}"; do
        case $area in
          core) targets+=(kvpolicy_tests kvpolicy_tier_tests kvpolicy_tier_io_tests) ;;
          llama)
            targets+=(kvpolicy_llama_tests)
            if command -v nvcc >/dev/null; then targets+=(kvpolicy_standin_tests); fi ;;
          c) targets+=(kvpolicy_c_tests kvpolicy_fuzz_{policy_text,profile,safetensors,tensors}) ;;
        esac
      done
      of_stage=(--tests-regex "^(kvpolicy|tier|llama|standin|c|fuzz):" --exclude-regex "500 kills" --label-exclude model) ;;
    tsan)
      for area in "${areas[@]}"; do
        case $area in
          core) targets+=(kvpolicy_tier_tests) ;;
          redis) targets+=(kvpolicy_redis_tests) ;;
          c) targets+=(kvpolicy_c_tests) ;;
        esac
      done
      of_stage=(--tests-regex "^(tier|redis|c):" --exclude-regex "500 kills") ;;
  esac
  case $stage in
    asan | tsan)
      [ ${#targets[@]} -gt 0 ] || continue
      targets=(--target "${targets[@]}") ;;
  esac
  echo "== $stage"
  log=build/$stage began=$SECONDS
  cmake --preset "$stage" >"$log.log" 2>&1 || { cat "$log.log"; exit 1; }
  cp "build/$stage/.ninja_log" "$log.before" 2>/dev/null || : >"$log.before"
  watched "building" "$log.log" cmake --build --preset "$stage" --parallel "$(nproc)" "${targets[@]}"
  built=$SECONDS
  rm -f "$log.xml"
  # A test that needs both cores says so (PROCESSORS 2) and runs alone.
  ctest --preset "$stage" --parallel "$(nproc)" "${selected[@]}" "${of_stage[@]}" --output-junit "$PWD/$log.xml" || true
  results+=("$stage" $((built - began)) $((SECONDS - built)))
done
echo
python3 tests/summary.py build "$set_up" "${results[@]}"
