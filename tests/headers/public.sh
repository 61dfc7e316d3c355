#!/usr/bin/env bash
# public.sh ROOT: what users read and copy from, and the headers of adapters, name public headers alone.
set -uo pipefail
cd "$1" || exit 2
grep -rnE 'kvpolicy/detail/[a-z]|detail::' README.md docs examples tests/consumer include/kvpolicy/interop src/c/include python
case $? in
  1) ;;  # none
  0) echo "private headers are named above: users include what is in include/kvpolicy itself" >&2; exit 1 ;;
  *) exit 2 ;;
esac
