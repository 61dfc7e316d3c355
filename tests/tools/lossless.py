"""lossless.py RUN MODEL EXAMPLES: kvpolicy-run --lossless writes what full writes, and drafts; what it can't do is refused at once."""
import json
import sys

from harness import at_once, expect, finish, model_or_skip, run, scratch

kvpolicy_run, model, examples = sys.argv[1:]
model_or_skip(model)

with scratch() as work:
    prompt = run(work, [sys.executable, examples + "/haystack.py", "--words", "2000", "--depth", "0.5"]).out
    work.write("prompt.txt", prompt)
    command = [kvpolicy_run, "--model", model, "--prompt-file", "prompt.txt", "--predict", "24", "--threads", "2"]
    full = run(work, command + ["--policy", "full"])
    expect(full.status == 0 and len(full.out) > 20, full.text)
    for drafts in ([], ["--policy", "quest"]):
        fast = run(work, command + ["--lossless", "--json", "fast.json"] + drafts)
        expect(fast.out == full.out, f"full wrote {full.out!r}, {drafts} {fast.text}")
        with open(work("fast.json")) as file:
            did = json.load(file)["lossless"]
        expect(did["drafted"] >= 3 and did["rounds"] + did["accepted"] == did["tokens"], f"{drafts}: {did}")
    work.write("short.txt", run(work, [sys.executable, examples + "/haystack.py", "--words", "300", "--depth", "0.5"]).out)
    both = run(work, [kvpolicy_run, "--model", model, "--prompt-file", "short.txt", "--predict", "6", "--compare", "--lossless", "--policy",
                      "full", "--json", "both.json"])
    with open(work("both.json")) as file:
        did = json.load(file)["lossless"]
    expect("| lossless " in both.out and did["equal"] == did["compared"] == 6 and did["rounds"] == 5, f"{did} {both.text}")
    always = run(work, command + ["--lossless", "--drafts", "3", "--json", "fast.json"])
    with open(work("fast.json")) as file:
        did = json.load(file)["lossless"]
    expect(always.out == full.out and did["drafted"] >= 3 * did["rounds"] - 3, f"{did} {always.text}")
    for more, why in ((["--drafts", "16"], "--drafts"), (["--policy", "snapkv"], "the policy drops some"), (["--managed-cache"], "leave the managed cache away")):
        refused = run(work, command + ["--lossless"] + more, limit=at_once)
        expect(refused.status == 2 and why in refused.err and refused.err.count("\n") == 1, refused.text)
finish()
