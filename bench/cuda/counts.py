#!/usr/bin/env python3
"""What kernels do, counted from their PTX without a GPU (tests/cuda/ptx): launches, instructions of warps, bytes.

    counts.py write STEPS PRIMITIVES [--only TEXT]   counts anew (ten minutes; --only: cases with this in their names), stores the counts
                                                     in docs/results/gpu_counts.json and writes the tables of docs/results/gpu.md
    counts.py check STEPS PRIMITIVES                 counts what takes a minute, and fails where it is 5 % above what is stored

STEPS and PRIMITIVES are the programs kvpolicy_counted_steps and kvpolicy_counted_primitives.
"""
import argparse
import json
import os
import subprocess
import sys

import report

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/results")
STORED = os.path.join(FOLDER, "gpu_counts.json")
BEGIN, END = "<!-- counts.py: begin -->", "<!-- counts.py: end -->"
QUANTITIES = ("launches", "instructions", "bytes")
# What `check` counts: contexts of steps, and primitives by a part of their names.
QUICK_STEPS = 4096
QUICK_PRIMITIVES = ("pool", "score", "cascade", "attend", "list weights")


def counted(program, context, only):
    command = [program, "--batch", "1", "--context", str(context), "--only", only]
    print("counts.py: " + " ".join([os.path.basename(program)] + command[3:]), file=sys.stderr, flush=True)
    for line in subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
        case = json.loads(line)
        if "launches" not in case:
            sys.exit(f"counts.py: {case['name']} at {context} tokens was not counted: {case.get('failed') or case.get('skipped')}")
        kernels = [[k["kernel"], k["launches"], k["instructions"], k["read"] + k["written"]] for k in case["kernels"]]
        yield {"name": case["name"], "context": context, "floor": round(case["bytes"]), "launches": case["launches"],
               "instructions": case["instructions"], "bytes": case["read"] + case["written"], "kernels": kernels}


def key_of(case):
    return (case["name"], case["context"])


def check(steps, primitives):
    with open(STORED, encoding="utf-8") as file:
        stored = {key_of(case): case for case in json.load(file)}
    cases = list(counted(steps, QUICK_STEPS, "1024"))
    for only in QUICK_PRIMITIVES:
        cases += counted(primitives, 32768, only)
    faults = []
    for case in cases:
        before = stored.get(key_of(case))
        if before is None:
            faults.append(f"{case['name']}, {case['context']} tokens: nothing is stored; run counts.py write")
            continue
        for what in QUANTITIES:
            if case[what] > 1.05 * before[what]:
                faults.append(f"{case['name']}, {case['context']} tokens: {case[what]:,} {what}; {before[what]:,} are stored")
            elif case[what] < .95 * before[what]:
                print(f"{case['name']}, {case['context']} tokens: {case[what]:,} {what}, fewer than the {before[what]:,} that are "
                      "stored: counts.py write would say so")
    print(f"{len(cases)} cases counted")
    for fault in faults:
        print("counts.py: " + fault, file=sys.stderr)
    return 1 if faults else 0


def millions(count):
    return f"{count / 1e6:.2f}" if count < 1e7 else f"{count / 1e6:.0f}"


def tables(cases):
    of = {key_of(case): case for case in cases}
    yield from ["Kernels of one layer at 32K tokens, batch 1. An instruction is one of a warp; 512 bytes are a token's key and value of one KV",
                "head. The last column is bytes read and written, in sectors of 32 bytes that a launch touches, against the floor.", ""]
    rows = []
    for (name, context), c in of.items():
        if name.startswith("step ") or context != 32768:
            continue
        rows.append([name, c["launches"], millions(c["instructions"]), f"{c['instructions'] * 512 / c['floor']:.0f}", millions(c["bytes"]),
                     millions(c["floor"]), f"{c['bytes'] / c['floor']:.2f}"])
    yield from report.table(["kernel", "launches", "million instructions", "for 512 bytes of the floor", "MB", "floor, MB", "times floor"], rows)
    yield from ["", "Steps of two layers, the first of which also does the work that all layers share; 1,024 tokens are read.", ""]
    rows = []
    names = list(dict.fromkeys(name for name, _ in of if name.startswith("step ")))
    for name in names:
        row = [name.removeprefix("step ").removesuffix(" 1024")]
        for context in (32768, 131072):
            c = of.get((name, context))
            row += [c["launches"], millions(c["instructions"]), millions(c["bytes"]), f"{c['bytes'] / c['floor']:.2f}"] if c else ["-"] * 4
        rows.append(row)
    columns = ["launches", "million instructions", "MB", "times floor"]
    yield from report.table(["policy"] + [f"{column}, {at}" for at in ("32K", "128K") for column in columns], rows)


def write(steps, primitives, only):
    cases = {}
    if os.path.exists(STORED):
        with open(STORED, encoding="utf-8") as file:
            cases = {key_of(case): case for case in json.load(file)}
    for context in (QUICK_STEPS, 32768, 131072):
        for case in counted(steps, context, only or "1024"):
            if case["name"].endswith((" 1024", "dense")):
                cases[key_of(case)] = case
    for part in [part for part in (*QUICK_PRIMITIVES, "window attention", "norms") if not only or part in only]:
        cases.update((key_of(case), case) for case in counted(primitives, 32768, part))
    with open(STORED, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases.values()) + "\n]\n")
    page = os.path.join(FOLDER, "gpu.md")
    with open(page, encoding="utf-8") as file:
        before, rest = file.read().split(BEGIN)
    with open(page, "w", encoding="utf-8") as file:
        file.write(before + BEGIN + "\n" + "\n".join(tables(cases.values())) + "\n" + END + rest.split(END)[1])
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "check"])
    parser.add_argument("steps")
    parser.add_argument("primitives")
    parser.add_argument("--only", default="")
    wanted = parser.parse_args()
    programs = os.path.abspath(wanted.steps), os.path.abspath(wanted.primitives)
    return write(*programs, wanted.only) if wanted.what == "write" else check(*programs)


if __name__ == "__main__":
    sys.exit(main())
