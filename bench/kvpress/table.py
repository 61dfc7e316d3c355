"""table.py BENCH PYTHON ROUNDS: runs both programs in turn and prints one table of their medians."""
import json
import os
import statistics
import subprocess
import sys

bench, python, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kvpress_bench.py")


def output(*command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


ours, theirs = {}, {}
for _ in range(rounds):
    for case in output(bench, "--benchmark_format=json", "--benchmark_min_time=0.2")["benchmarks"]:
        seconds = case["real_time"] * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[case["time_unit"]]
        ours.setdefault(tuple(case["name"].split("/")[:2]), []).append(1e3 * seconds)
    result = output(python, script, "--threads", "1", "--rounds", "5")
    for case in result["results"]:
        theirs.setdefault((case["policy"], case["dtype"]), []).append(case["select_ms"])

types = list(dict.fromkeys(dtype for _, dtype in theirs))
row = lambda cells: print("| " + " | ".join(cells) + " |")
print(f"One layer: {result['tokens']} tokens, {result['kv_heads']} KV and {result['q_heads']} query heads, head size {result['head_dim']}, "
      f"window {result['window']}; one thread; torch {result['torch']}; medians of {rounds} turns.")
row(["policy", *[cell for dtype in types for cell in (f"{dtype}: kvpress", "kvpolicy", "faster")]])
print("|---|" + "--:|" * 3 * len(types))
for policy in dict.fromkeys(policy for policy, _ in theirs):
    times = [(statistics.median(theirs[policy, dtype]), statistics.median(ours[policy, dtype])) for dtype in types]
    row([policy, *[cell for their, mine in times for cell in (f"{their:.2f} ms", f"{mine:.2f} ms", f"{their / mine:.1f}x")]])
row(["reading the layer's keys once (floor)", *[cell for dtype in types
                                                for cell in ("", f"{statistics.median(ours['reading the keys', dtype]):.2f} ms", "")]])
