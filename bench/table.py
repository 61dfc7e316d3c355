"""Prints Google Benchmark's JSON (standard input) as a table, with each case's share of the ceiling of as many threads."""
import json
import sys

best = {}  # (what, on) -> (seconds, bytes per second): the fastest of the repetitions
repetitions = 1
for case in sorted(json.load(sys.stdin)["benchmarks"], key=lambda case: case["family_index"]):
    if case["run_type"] != "iteration":
        continue
    key = tuple(case["name"].split("/")[:2])
    if key[0] != "ceiling":
        repetitions = case["repetitions"]
    seconds = case["real_time"] * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[case["time_unit"]]
    if key not in best or seconds < best[key][0]:
        best[key] = (seconds, case.get("bytes_per_second", 0), case.get("flops", 0))

ceilings = {on.split()[-1]: speed for (what, on), (_, speed, _) in best.items() if what == "ceiling"}
peaks = {on: flops for (what, on), (_, _, flops) in best.items() if what == "peak"}  # "fma x1", "tiles x1"
print("SmolLM2-135M shape: 30 layers, 9/3 heads x 64, f16, 8192 tokens. A call is one layer's; score_dot's and cascade's, all")
print(f"layers'. Best of {repetitions}. GB/s counts what must be read. The ceiling is a streaming read by as many threads, in this run.")
print(f"{'primitive':<18}{'executor':<10}{'time/call':>12}{'GB/s':>9}{'of ceiling':>13}")
for (what, on), (seconds, speed, flops) in best.items():
    if flops:
        continue
    threads = on.split()[-1] if " " in on else "x1"
    share = f"{speed / ceilings[threads]:>12.0%}" if threads in ceilings else f"{'-':>12}"
    print(f"{what:<18}{on:<10}{seconds * 1e6:>9.1f} us{speed / 1e9:>9.2f} {share}")

print()
print("Arithmetic. Peaks are loops of multiplications alone, in this run; products of what was cut into two bf16 are counted once.")
print(f"{'primitive':<18}{'instructions':<16}{'time/call':>12}{'GFLOP/s':>9}" + "".join(f"{'of ' + on:>16}" for on in peaks))
for (what, on), (seconds, _, flops) in best.items():
    if flops:
        shares = "".join(f"{flops / peak:>16.0%}" if on.split()[-1] == of.split()[-1] else f"{'-':>16}" for of, peak in peaks.items())
        print(f"{what:<18}{on:<16}{seconds * 1e3:>9.2f} ms{flops / 1e9:>9.0f}{shares}")
