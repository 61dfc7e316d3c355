#!/usr/bin/env bash
# public.sh ROOT: what users read and copy from, and the headers of adapters, name public headers alone.
set -euo pipefail
cd "$1"
if grep -rnE 'kvpolicy/detail/[a-z]|detail::' README.md docs examples tests/consumer include/kvpolicy/interop src/c/include python; then
  echo "private headers are named above: users include what is in include/kvpolicy itself" >&2
  exit 1
fi
