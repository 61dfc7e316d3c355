"""Runs kvpolicy-select on every entry of a golden set and compares what it keeps with what kvpress kept.

A token that differs is excused only where the choice turned on a near-tie: its score lies within 1e-4 of the threshold
(relative; 1e-5 for knorm and keydiff), or, where LagKV ranks, its rank hangs on such a tie within its partition. Counts,
whole chunks and AdaKV's floors are never excused. Needs Python alone.
"""
import argparse
import array
import collections
import concurrent.futures
import json
import math
import os
import pathlib
import subprocess
import sys

TOLERANCE = collections.defaultdict(lambda: 1e-4, knorm=1e-5, keydiff=1e-5)


class Different(Exception):
    """What the tool did wrong, in words."""


def read_scores(path, name, layer):
    """Tensor `name.layer` of a safetensors file of fp32, as rows [kv_heads][tokens]; None where it is not there."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        if f"{name}.{layer}" not in header:
            return None
        tensor = header[f"{name}.{layer}"]
        begin, end = tensor["data_offsets"]
        file.seek(begin, os.SEEK_CUR)
        values = array.array("f", file.read(end - begin))
    if sys.byteorder == "big":
        values.byteswap()
    heads, tokens = tensor["shape"]
    return [values[h * tokens:(h + 1) * tokens].tolist() for h in range(heads)]


def near(scores, threshold, tolerance):
    return {i for i, score in enumerate(scores) if abs(score - threshold) <= tolerance * abs(threshold)}


def near_top(scores, count, tolerance):
    """The indices whose membership of the top `count` turns on less than the tolerance."""
    return near(scores, sorted(scores, reverse=True)[count - 1], tolerance) if count else set()


def near_ranks(row, unranked, sinks, lag, count, tolerance):
    """As near_top, for LagKV's ranks: tokens of a partition whose softmax nearly ties may hold each other's rank."""
    threshold = sorted(row, reverse=True)[count - 1]
    excused = near(row, threshold, tolerance)
    for begin in range(sinks, len(row) - 2 * lag + 1, lag):  # the last partition and what follows are forced
        part = unranked[begin:begin + lag]
        for i, score in enumerate(part):
            lowest = sum(other < score * (1 - tolerance) for other in part)
            highest = sum(other <= score * (1 + tolerance) for other in part) - 1
            if lowest < highest and lowest - 0.5 < threshold * lag < highest + 0.5:  # ranks are fp32 multiples of 1 / lag
                excused.add(begin + i)
    return excused


def check_sets(want, got, excused, what="tokens"):
    """Per KV head, lists of one length each that differ in excused tokens (or chunks) alone."""
    for head, (a, b, free) in enumerate(zip(want, got, excused)):
        if len(a) != len(b):
            raise Different(f"head {head}: {len(b)} {what}, not {len(a)}")
        if wrong := sorted((set(a) ^ set(b)) - free):
            raise Different(f"head {head}: {what} that kvpress alone keeps {sorted(set(a) - set(b))}, the tool alone "
                            f"{sorted(set(b) - set(a))}; not near the threshold: {wrong}")


def check_chunks(want, got, scores, chunk, tolerance):
    tokens = len(scores[0])
    chunks = [range(begin, min(tokens, begin + chunk)) for begin in range(0, tokens, chunk)]
    means = [math.fsum(row[t] for row in scores for t in piece) / len(piece) for piece in chunks]

    def whole(kept):
        found = [i for i, piece in enumerate(chunks) if piece[0] in kept or piece[-1] in kept]
        if kept != [t for i in found for t in chunks[i]]:
            raise Different("not whole chunks")
        return found

    reference = whole(want[0])
    for kept in got:
        check_sets([reference], [whole(kept)], [near_top(means, len(reference), tolerance)], "chunks")
        if kept != got[0]:
            raise Different("not the same chunks for all heads")


def check_adakv(want, got, scores, alpha, tolerance):
    total, tokens = sum(map(len, want)), len(scores[0])
    if sum(map(len, got)) != total:
        raise Different(f"{sum(map(len, got))} tokens in the layer, not {total}")
    floor = max(int(total // len(want) * alpha), 1 if alpha > 0 else 0)
    floors = [sorted(range(tokens), key=lambda t: -row[t])[:floor] for row in scores]
    for head, (kept, safe, row) in enumerate(zip(got, floors, scores)):
        if len(kept) < floor:
            raise Different(f"head {head}: {len(kept)} tokens, below the floor of {floor}")
        if lost := set(safe) - set(kept) - near_top(row, floor, tolerance):
            raise Different(f"head {head}: {sorted(lost)} of its floor are missing")
    # The others compete in one ranking of the layer. Who enters a head's floor may turn on a near-tie of its own.
    others = sorted((row[t] for row, safe in zip(scores, floors) for t in set(range(tokens)) - set(safe)), reverse=True)
    threshold = others[total - floor * len(want) - 1] if total > floor * len(want) else math.inf
    for head, (a, b, row) in enumerate(zip(want, got, scores)):
        free = near(row, threshold, tolerance) if threshold < math.inf else set()
        if floor and row[floors[head][-1]] <= threshold * (1 + tolerance):  # the floor, not the ranking, is this head's edge
            free |= near_top(row, floor, tolerance)
        if wrong := sorted((set(a) ^ set(b)) - free):
            raise Different(f"head {head}: {wrong} differ and are not near the threshold")


def check_kvzip_total(entry, got):
    total, found = (sum(len(kept) for heads in layers for kept in heads) for layers in (entry["kept"], got))
    if found != total:
        raise Different(f"{found} tokens in all layers, not {total}")


def check_kvzip(entry, got, layer, scores_path, tolerance):
    """One ranking of all layers' tokens."""
    layers = [read_scores(scores_path, "kvzip", i) for i in range(len(entry["kept"]))]
    total = sum(len(kept) for heads in entry["kept"] for kept in heads)
    threshold = sorted((score for rows in layers for row in rows for score in row), reverse=True)[total - 1]
    for head, (a, b, row) in enumerate(zip(entry["kept"][layer], got, layers[layer])):
        if wrong := sorted((set(a) ^ set(b)) - near(row, threshold, tolerance)):
            raise Different(f"head {head}: {wrong} differ and are not near the threshold")


def check_layer(entry, layer, got, scores_path):
    """Raises Different unless layer `layer`'s sets equal kvpress's, near-ties aside. got [kv_heads][...] differs from them."""
    policy, options, want = entry["policy"], entry["options"], entry["kept"][layer]
    if len(got) != len(want):
        raise Different(f"{len(got)} heads, not {len(want)}")
    if any(kept != sorted(set(kept)) for kept in got):
        raise Different("not ascending token indices")
    scores, tolerance = read_scores(scores_path, policy, layer), TOLERANCE[policy]
    if scores is None:  # R = 0
        return check_sets(want, got, [set()] * len(want))
    if policy == "kvzip":
        return check_kvzip(entry, got, layer, scores_path, tolerance)
    if policy == "adakv":
        return check_adakv(want, got, scores, float(options["alpha"]), tolerance)
    if policy == "chunkkv" and len(scores[0]) >= int(options["chunk"]):
        return check_chunks(want, got, scores, int(options["chunk"]), tolerance)
    excused = [near_top(row, len(kept), tolerance) for row, kept in zip(scores, want)]
    if policy == "lagkv" and (unranked := read_scores(scores_path, "lagkv_unranked", layer)):
        excused = [near_ranks(row, raw, int(options["sinks"]), int(options["lag"]), len(kept), tolerance)
                   for row, raw, kept in zip(scores, unranked, want)]
    return check_sets(want, got, excused)


def check_entry(tool, case, entry):
    """identical, excused or different; the command and what was wrong."""
    command = [tool, str(case), "--policy", entry["policy"]]
    if "tokens" not in entry["options"]:  # in place of a share of the tokens
        command += ["--ratio", entry["ratio"]]
    for name, value in entry["options"].items():
        command += [f"--{name}", str(case.with_name(value)) if name == "heads" else value]
    outcome, layer = "identical", None
    try:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            raise Different("no answer within two minutes") from None
        if done.returncode:
            raise Different(f"exit status {done.returncode}: {done.stderr.strip()}")
        try:
            answer = json.loads(done.stdout)
            policy, got = answer["policy"], answer["kept"]
        except (ValueError, KeyError, TypeError):
            raise Different(f"not the JSON object asked for: {done.stdout[:200]!r}") from None
        if policy != entry["policy"] or len(got) != len(entry["kept"]):
            raise Different(f"policy {policy!r} with {len(got)} layers, not {entry['policy']!r} with {len(entry['kept'])}")
        if entry["policy"] == "kvzip":
            check_kvzip_total(entry, got)
        for layer, kept in enumerate(got):
            if kept != entry["kept"][layer]:
                check_layer(entry, layer, kept, case.with_suffix(".scores.safetensors"))
                outcome = "excused"
    except Different as wrong:
        where = "" if layer is None else f"layer {layer}, "
        return "different", f"{' '.join(command)}\n    {where}{wrong}"
    return outcome, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", required=True, help="path of kvpolicy-select")
    parser.add_argument("--cases", required=True, type=pathlib.Path, help="folder of case-*.json")
    parser.add_argument("--policy", help="this one alone")
    parser.add_argument("--details", type=int, default=10, help="how many differences to print")
    args = parser.parse_args()

    work = [(path.with_suffix(".safetensors"), entry) for path in sorted(args.cases.glob("case-*.json"))
            for entry in json.loads(path.read_text()) if args.policy in (None, entry["policy"])]
    if not work:
        sys.exit(f"{args.cases}: no entries")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda job: check_entry(args.tool, *job), work))

    tally = collections.Counter((entry["policy"], outcome) for (_, entry), (outcome, _) in zip(work, results))
    for policy in dict.fromkeys(entry["policy"] for _, entry in work):
        counts = [tally[policy, outcome] for outcome in ("identical", "excused", "different")]
        print("{:<20}{:>5} entries: {:>5} identical, {:>3} excused, {:>3} different".format(policy, sum(counts), *counts))
    details = [detail for outcome, detail in results if outcome == "different"]
    for detail in details[:args.details]:
        print(detail)
    sys.exit(1 if details else 0)


if __name__ == "__main__":
    main()
