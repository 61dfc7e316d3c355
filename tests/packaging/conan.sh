#!/usr/bin/env bash
# conan.sh SOURCE FOLDER: makes the Conan package of SOURCE, as git has it, in FOLDER, and builds and runs a program against it.
set -euo pipefail
source=$1
folder=$2
rm -rf "$folder"
mkdir -p "$folder/sources"
(cd "$source" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$folder/sources")
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "conan>=2,<3"
export CONAN_HOME=$folder/home
"$folder/venv/bin/conan" profile detect >"$folder/conan.log" 2>&1
"$folder/venv/bin/conan" create "$folder/sources/packaging/conan" -c "tools.build:jobs=$(nproc)" >>"$folder/conan.log" 2>&1 ||
  { tail -40 "$folder/conan.log"; exit 1; }
grep 'RUN: ./uses_kvpolicy' "$folder/conan.log"
