"""preloaded.py KVPOLICY_EXEC PLAIN_ENGINE MODEL: a program that knows nothing of kvpolicy, with a policy in its contexts. Whatever it
calls between, it gets the same answer again; full's is the engine's, and a small budget reads and holds no more than it says."""
import sys

from server import library_lines, request_of
from harness import expect, finish, model_or_skip, run, scratch

kvpolicy_exec, engine, model = sys.argv[1:]
model_or_skip(model)
# Enough sentences that the budgets below leave most of them out.
text = " ".join(f"On day {day} the keeper of lamp {day * 7 % 31} wrote down {day * 37 % 101} ships and went to sleep." for day in range(16))
whole = ("first", "again", "file", "data", "copy", "kept", "anew")


def answers(work, policy, *options, states=True):
    """What the program printed, by name, and the library's lines of requests."""
    before = [] if policy is None else [kvpolicy_exec, policy, *options, "--"]
    result = run(work, [*before, engine, model, "text.txt", ".", *(["states"] if states else []), "process"])
    expect(result.status == 0, f"{policy} {options}: {result.text}")
    found = {line.split()[0]: line.split()[1:] for line in result.out.splitlines()}
    expect(tuple(found) == tuple(name for name in whole if states or name not in ("file", "data")), f"{policy} {options}: {found}")
    expect(len({tuple(tokens) for tokens in found.values()}) == 1, f"{policy} {options}: answers differ: {found}")
    requests = [request for line in library_lines(result.err) if (request := request_of(line))]
    expect(len(requests) == (0 if policy is None else len(found)), f"{policy} {options}: {len(requests)} requests in {result.err!r}")
    expect(all(request.left == 0 for request in requests), f"{policy} {options}: steps were left to the engine: {requests}")
    return found["first"], requests


with scratch() as work:
    work.write("text.txt", text)
    dense, _ = answers(work, None)
    full, requests = answers(work, "full")
    # Later tokens may be near a tie.
    expect(full[:5] == dense[:5], f"full answers {full}, the engine {dense}")
    expect(all(request.read == request.tokens > 250 for request in requests), f"full: {requests}")
    for options in (("--lossless", "--drafts", "5"), ("quest:tokens=64", "--lossless", "--drafts", "3"), ("--lossless",)):
        result = run(work, [kvpolicy_exec, *options, "--", engine, model, "text.txt", ".", "states", "process"])
        found = {line.split()[0]: line.split()[1:] for line in result.out.splitlines()}
        expect(result.status == 0 and all(found[name] == full for name in whole), f"{options}: {full} {result.text}")
        lines = [line for line in library_lines(result.err) if "drafts were right" in line]
        expect(len(lines) == len(whole), f"{options}: {result.err!r}")
    snapkv, requests = answers(work, "snapkv:tokens=64,after=0")
    expect(all(request.read <= 64 + 8 for request in requests), f"snapkv: {requests}")
    own, small = answers(work, "snapkv:tokens=64,after=0", "--managed-cache")
    expect(own == snapkv, f"snapkv in a managed cache answers {own}, on the engine's {snapkv}")
    expect(all(a.mib * 2 < b.mib for a, b in zip(small, requests)), f"snapkv's managed cache: {small}, the engine's {requests}")
    _, requests = answers(work, "quest:tokens=64", "--managed-cache", "--tier", f"disk:{work('tier')}", states=False)
    expect(all(request.read <= 64 for request in requests), f"quest in a tier: {requests}")
finish()
