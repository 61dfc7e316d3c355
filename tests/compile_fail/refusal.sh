#!/usr/bin/env bash
# refusal.sh PATTERN DEFINITION COMPILER...: COMPILER succeeds as it is; with -DDEFINITION it fails, and says PATTERN; with
# FIRST_ERROR in the environment, in its first error.
set -euo pipefail
pattern=$1 definition=$2
export LC_ALL=C
"${@:3}" || { echo "the control does not compile either"; exit 1; }
if said=$("${@:3}" "-D$definition" 2>&1); then
  echo "it compiles with $definition"
  exit 1
fi
[ -z "${FIRST_ERROR:-}" ] || said=$(grep -m1 'error' <<<"$said")
grep -Eq "$pattern" <<<"$said" || { printf '%s\n' "$said" "no match for: $pattern"; exit 1; }
