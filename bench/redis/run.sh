#!/usr/bin/env bash
# What the remote tier moves on the loopback, beside what the server's own benchmark does with pipelined GETs of the same sizes:
# rounds of one and the other, medians, MB/s. Needs valkey-tools (cmake/bootstrap.sh packages).
#
#   bench/redis/run.sh [rounds]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
rounds=${1:-5}
cmake --build --preset release --target kvpolicy_remote_tier >build/build.log 2>&1 || { cat build/build.log >&2; exit 1; }

for kind in valkey redis; do command -v $kind-benchmark >/dev/null && break; done
command -v $kind-benchmark >/dev/null || { echo "run.sh: no valkey-benchmark here; run cmake/bootstrap.sh packages" >&2; exit 2; }
folder=$(mktemp -d)
port=$((20000 + RANDOM % 10000))
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null; rm -rf "$folder"' EXIT
# The tools hold the server too: it asks for the name that it is called by.
(exec -a $kind-server "$(command -v $kind-server || command -v $kind-check-rdb)" --port $port --bind 127.0.0.1 --save '' \
  --appendonly no --dir "$folder" --logfile "$folder/log") &
server=$!
for _ in $(seq 50); do $kind-cli -p $port ping >/dev/null 2>&1 && break; sleep .1; done

median() { sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

printf '| block | batch | tier, MB/s | %s-benchmark, MB/s | tier over it |\n|--:|--:|--:|--:|--:|\n' $kind
for bytes in 256 1024 4096 16384; do
  for batch in 64 512; do
    blocks=$((64 * 1024 * 1024 / bytes)); [ $blocks -le 20000 ] || blocks=20000
    ours=() theirs=()
    $kind-benchmark -p $port -q --csv -t set -d $((bytes + 48)) -r $blocks -n $((blocks * 3)) -P 64 -c 1 >/dev/null
    for _ in $(seq "$rounds"); do
      ours+=("$(build/release/bench/kvpolicy_remote_tier 127.0.0.1:$port $bytes $blocks $batch 2)")
      theirs+=("$($kind-benchmark -p $port --csv -t get -d $((bytes + 48)) -r $blocks -n $((200000000 / (bytes + 400))) -P $batch -c 1 |
        awk -F'"' -v bytes=$bytes '/GET/ {print $4 * bytes / 1e6}')")
    done
    a=$(printf '%s\n' "${ours[@]}" | median) b=$(printf '%s\n' "${theirs[@]}" | median)
    awk -v bytes=$bytes -v batch=$batch -v a="$a" -v b="$b" 'BEGIN {printf "| %d B | %d | %.0f | %.0f | %.0f%% |\n", bytes, batch, a, b, 100 * a / b}'
    $kind-cli -p $port flushall >/dev/null
  done
done
