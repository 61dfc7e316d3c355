#!/usr/bin/env bash
# clang.sh COMPILER ARGUMENTS...: checks sources with clang under the project's warnings. 77 (skipped) without a clang.
set -euo pipefail
command -v "$1" >/dev/null || { echo "no clang++ here"; exit 77; }
exec "$1" -std=c++20 -fsyntax-only -Wall -Wextra -Wconversion -Wshadow -Werror "${@:2}"
