#!/usr/bin/env bash
# alone.sh FLAGS HEADER...: each header compiles as a unit of its own, twice in a row, with the compiler and flags of FLAGS.
set -euo pipefail
export flags=$1
alone() { $flags -fsyntax-only -x c++ - <<<"#include \"$1\""$'\n'"#include \"$1\"" || { echo "$1 does not stand alone"; return 1; }; }
export -f alone
printf '%s\n' "${@:2}" | xargs -P "$(nproc)" -I{} bash -c 'alone {}'
