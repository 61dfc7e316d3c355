#!/usr/bin/env python3
"""freeable_pages.py PAGE TRACE...: of what `kvpolicy-run --trace` wrote, the share of a prompt's full pages that no list of the
last step names: where each layer has a page table of its own, on the mean, and where all layers share one."""
import json
import sys

page = int(sys.argv[1])
for path in sys.argv[2:]:
    steps = {}
    with open(path, encoding="utf-8") as file:
        for line in map(json.loads, file):
            steps.setdefault(line["step"], []).append(line)
    layers = steps[max(steps)]
    full = range(layers[0]["tokens"] // page)
    named = [{p for heads in layer["kept"] for begin, end, _ in heads for p in range(begin // page, (end - 1) // page + 1)} for layer in layers]
    free = lambda pages: sum(p not in pages for p in full) / len(full)
    print(f"{layers[0]['policy']}: {sum(map(free, named)) / len(named):.1%} by layer, {free(set().union(*named)):.1%} of a shared table")
