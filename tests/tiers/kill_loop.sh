#!/usr/bin/env bash
# Runs the kill loop in a folder of its own. Usage: kill_loop.sh PROGRAM [KILLS [SEED]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" "$folder" "${2:-500}" "${3:-1}"
