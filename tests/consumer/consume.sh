#!/usr/bin/env bash
# consume.sh PROJECT BUILD ARGUMENTS...: configures PROJECT in BUILD with ARGUMENTS, builds it and runs its programs.
set -euo pipefail
cmake --fresh -S "$1" -B "$2" "${@:3}"
cmake --build "$2"
for program in "$2"/uses_*; do "$program"; done
