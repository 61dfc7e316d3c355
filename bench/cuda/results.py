#!/usr/bin/env python3
"""Writes what tests/cuda/lease.sh found on a GPU into docs/results/gpu.md, between its two marks, and the picture beside it.

    results.py OUT [--docs FOLDER]
"""
import argparse
import json
import os
import sys

import report

BEGIN, END = "<!-- results.py: begin -->", "<!-- results.py: end -->"

# What is to be met: cases by name, batch and context (None: any), what is said of them, and the target.
TARGETS = [
    ("pooling", ["pool means of 32, prompt", "pool bounds of 16, prompt"], None, None, "share", "85 % of bandwidth"),
    ("gather of rows into slots", ["gather 1024 rows a head from the host"], 1, 131072, "gbps", "85 % of the link"),
    ("lazy descent, 128K, batch 1", ["cascade of depth 3"], 1, 131072, "us", "30 us"),
    ("top-k of 16K floats", ["top 2048"], 1, 16384, "us", "12 us"),
    ("attend over 1,024 tokens, one layer, batch 1", ["attend to 1024, pages of 16", "attend to 1024, single tokens"], 1, 131072, "us",
     "12 us"),
    ("the same, batch 16", ["attend to 1024, pages of 16", "attend to 1024, single tokens"], 16, 131072, "share",
     "80 % of bandwidth, at batch 64"),
    ("dense attend", ["attend to all"], None, 131072, "share", "85 % of bandwidth"),
    ("monitor: weights without values", ["list weights of all"], None, 131072, "share", "75 % of bandwidth"),
    ("sentence scoring", ["score sentences of 28"], None, 131072, "share", "75 % of bandwidth"),
    ("choose and attend, 128K, 1 % kept, batch 16",
     ["step quest 1%", "step chess 1%", "step sentencekv 1%", "step heterocache 1%"], 16, 131072, "ratio", "at least 8 times dense"),
]


def lines_of(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.startswith("{")]


def measured_of(cases, names, batch, context, kind):
    """The worst of each name's cases, in words."""
    said = []
    for name in names:
        mine = [c for c in cases if c["name"] == name and batch in (None, c["batch"]) and context in (None, c["context"])]
        if not mine:
            continue
        label = f"{name}: " if len(names) > 1 else ""
        if kind == "us":
            said.append(label + report.micros(max(c["us"] for c in mine)))
        elif kind == "share":
            said.append(f"{label}{min(c['share_of_ceiling'] for c in mine):.0%}".replace("%", " %"))
        elif kind == "gbps":
            said.append(f"{label}{min(c['gbps'] for c in mine):.0f} GB/s")
        else:
            said.append(f"{label}{min(c['ratio_to_dense'] for c in mine):.1f} times")
    return "; ".join(said) or "not yet measured"


def section(folder):
    stages = lines_of(folder, "lease.jsonl")
    cases = [c for name in ("primitives.jsonl", "steps-128k.jsonl", "steps-32k.jsonl", "steps-batch.jsonl", "claims.jsonl", "sdpa.jsonl") for c in lines_of(folder, name)]
    facts = list({fact["device"]: fact for fact in cases if "device" in fact}.values())
    measured = [c for c in cases if "us" in c]
    own = [c for c in measured if "floor_us" in c]
    stages = {line["stage"]: line for line in stages}
    ran = [line for line in stages.values() if line["status"] not in ("dry", "missing")]
    if not ran:
        yield "Nothing is yet measured on a GPU."
    else:
        days = sorted({line["at"][:10] for line in ran})
        yield f"Measured on {' and '.join(days)}."
    yield ""
    yield from report.table(["what", "target", "measured"],
                            [[what, target, measured_of(own, names, batch, context, kind)]
                             for what, names, batch, context, kind, target in TARGETS])
    yield from ["", "What the papers claim of a step, where each step also reads the model's weights:", "", *report.claims_table(measured)]
    if ran:
        yield from ["", "| stage | status | seconds | |", "| --- | --- | ---: | --- |"]
        yield from (f"| {line['stage']} | {line['status']} | {line['seconds']} | {line['why']} |" for line in stages.values())
    if own:
        yield from ["", "![Kernels: bytes against time; the line is the run's streaming read](gpu.svg)", ""]
        yield from report.markdown(facts, own, [c for c in cases if "skipped" in c or "failed" in c])
    others = [c for c in measured if c not in own]
    if others:
        yield from ["## Others, in the same run", ""]
        yield from report.table(["what", "batch", "context", "time", "GB/s"],
                                [[c["name"], c["batch"], report.tokens(c["context"]), report.micros(c["us"]), f"{c['gbps']:.0f}"]
                                 for c in others])


def picture(folder):
    cases = [c for c in lines_of(folder, "primitives.jsonl") if "us" in c]
    ceilings = [c["gbps"] * 1e9 for c in cases if c["name"] == "ceiling read"]
    shown = [c for c in cases if not c["name"].startswith("ceiling ")]
    if not ceilings or not shown:
        return None
    return "\n".join(report.roofline(shown, max(ceilings))) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="what lease.sh was given")
    parser.add_argument("--docs", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs"))
    given = parser.parse_args()
    if not os.path.isdir(given.out):
        print(f"results.py: '{given.out}' is no folder", file=sys.stderr)
        return 2
    page = os.path.join(given.docs, "results/gpu.md")
    try:
        with open(page, encoding="utf-8") as file:
            text = file.read()
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        made = "\n".join(section(given.out))
    except (OSError, ValueError, KeyError, IndexError) as problem:
        print(f"results.py: {page} or what is in {given.out} can't be read: {problem}", file=sys.stderr)
        return 2
    drawn = picture(given.out)
    if drawn:
        with open(os.path.join(given.docs, "results/gpu.svg"), "w", encoding="utf-8") as file:
            file.write(drawn)
    with open(page, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n{made.strip()}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
