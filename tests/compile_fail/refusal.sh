#!/usr/bin/env bash
# refusal.sh PATTERN DEFINITION COMPILER...: with -DDEFINITION, COMPILER fails and says PATTERN; with FIRST_ERROR in the
# environment, in its first error. That it succeeds without the definition is a test of its own.
set -euo pipefail
pattern=$1 definition=$2
export LC_ALL=C
if said=$("${@:3}" "-D$definition" 2>&1); then
  echo "it compiles with $definition"
  exit 1
fi
[ -z "${FIRST_ERROR:-}" ] || said=$(grep -m1 'error' <<<"$said")
grep -Eq "$pattern" <<<"$said" || { printf '%s\n' "$said" "no match for: $pattern"; exit 1; }
