#!/usr/bin/env bash
# abi.sh LIBRARY LAYOUT [--write]: what LIBRARY exports and what LAYOUT (abi.c) prints must be abi.txt, to the letter. After a
# release a new function takes a node of its own in src/c/kvpolicy.map, and any other change a new minor version; then --write.
set -euo pipefail
known=$(dirname "${BASH_SOURCE[0]}")/abi.txt
now() {
  readelf --dynamic --wide "$1" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p'
  nm --dynamic --defined-only --with-symbol-versions "$1" | sed 's/^[0-9a-f]* //' | LC_ALL=C sort
  "$2"
}
if [ "${3:-}" = --write ]; then
  now "$1" "$2" >"$known"
else
  diff -u --label abi.txt --label "$1" "$known" <(now "$1" "$2")
fi
