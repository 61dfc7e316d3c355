"""outputs.py RUN PROFILE EVAL MODEL: what a run writes appears whole or not at all, and where asked for, whatever ends it."""
import json
import os
import signal
import stat
import sys
import time

from harness import begin, contents, expect, finish, long_enough, model_or_skip, read_some, run, scratch

kvpolicy_run, profile, evaluate, model = sys.argv[1:]
model_or_skip(model)
old = "this was here before\n"
story = "Once upon a time there was a harbour town with an old market and a lighthouse."
alone = ["--model", model, "--threads", "1"]
quick = [kvpolicy_run, *alone, "--prompt", story, "--predict", "3"]
endless = [kvpolicy_run, *alone, "--prompt", story, "--predict", "7000"]


def is_json(path):
    try:
        return "policy" in json.loads(contents(path))
    except (OSError, ValueError):
        return False


def wait_until(condition, seconds):
    """Whether it came to hold; what follows must be right either way."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def interrupted(what, command, with_what, prints):
    """Ends a run while it works; its outputs are what they were, and nothing is left beside them."""
    with scratch() as work:
        work.write("p.txt", "The harbour master painted the doors of the old market. " * 12)
        work.write("a.json", old)
        work.write("a.json.part", "the user's own\n")
        work.write("b.json", old)
        os.symlink("b.json", work("link.json"))
        before = work.names()
        process = begin(work, command)
        if prints:
            read_some(process, 1)  # it decodes
        else:
            wait_until(lambda: work.names() != before, 5)
            time.sleep(0.2)
        if with_what == "SIGPIPE":
            process.stdout.close()  # whoever read its output has gone
        else:
            process.send_signal(getattr(signal, with_what))
        try:
            status = process.wait(timeout=long_enough)
        except Exception:
            process.kill()
            process.wait()
            status = "none: it went on"
        process.stderr.close()
        if not process.stdout.closed:
            process.stdout.close()
        which = f"{what}, {with_what}"
        expect(status != 0, f"{which}: the exit status says that all was well")
        expect(not isinstance(status, str), f"{which}: it did not end")
        expect(work.names() <= before, f"{which}: left behind: {sorted(work.names() - before)}")
        expect(before <= work.names(), f"{which}: gone: {sorted(before - work.names())}")
        for name in ("a.json", "b.json"):
            expect(contents(work(name)).decode() == old, f"{which}: an output that was there before is not as it was: {name}")
        if os.path.exists(work("a.json.part")):
            expect(contents(work("a.json.part")) == b"the user's own\n", f"{which}: the user's a.json.part was written to")
        expect(os.path.islink(work("link.json")), f"{which}: a link is no link any more")


for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE"):
    interrupted("kvpolicy-run, fresh outputs", endless + ["--json", "c.json", "--trace", "c.jsonl"], name, True)
    interrupted("kvpolicy-run, outputs that are there", endless + ["--json", "a.json", "--trace", "link.json"], name, True)
for name in ("SIGINT", "SIGTERM"):
    compared = [*endless[:-1], "2000", "--compare", "--policy", "streaming_llm", "--json", "a.json", "--trace", "c.jsonl"]
    interrupted("kvpolicy-run --compare", compared, name, False)
    profiled = [profile, *alone, "--prompt-file", "p.txt", "--steps", "5000", "--out", "a.json"]
    interrupted("kvpolicy-profile", profiled, name, False)

# A user's own file beside an output, after a run that went well.
with scratch() as work:
    for name in ("x.json.part", "t.jsonl.part", "x.json~", "x.json.tmp"):
        work.write(name, "the user's own\n")
    before = work.names()
    result = run(work, quick + ["--json", "x.json", "--trace", "t.jsonl"])
    expect(result.status == 0, result.text)
    expect(is_json(work("x.json")), "--json x.json wrote no result")
    expect(work.names() == before | {"x.json", "t.jsonl"}, f"beside x.json and t.jsonl there is now {sorted(work.names())}")
    for name in before:
        if os.path.exists(work(name)):
            expect(contents(work(name)) == b"the user's own\n", f"the user's {name} was written to")
    mask = os.umask(0)
    os.umask(mask)
    if os.path.exists(work("x.json")):
        mode = stat.S_IMODE(os.stat(work("x.json")).st_mode)
        expect(mode == 0o666 & ~mask, f"a new output has the mode {mode:o}, not what the umask gives")

# Links.
with scratch() as work:
    os.mkdir(work("other"))
    work.write("other/target.json", old)
    work.write("near.json", old)
    links = {"relative.json": "near.json", "far.json": os.path.join("other", "target.json"), "absolute.json": work("near.json"),
             "dangling.json": os.path.join("other", "fresh.json"), "chain.json": "far.json"}
    for link, target in links.items():
        os.symlink(target, work(link))
    for link, target in links.items():
        before = work.names()
        work.write("other/target.json", old)
        work.write("near.json", old)
        result = run(work, quick + ["--json", link])
        expect(result.status == 0, f"a link: {result.text}")
        still = os.path.islink(work(link)) and os.readlink(work(link)) == target
        expect(still, f"{link} was a link to {target}, and is not any more")
        expect(is_json(os.path.realpath(work(link))), f"what {link} names has no result")
        expect(is_json(work(link)), f"{link} has no result")
        expect(work.names() <= before | {"other/fresh.json"}, f"{link}: left behind: {sorted(work.names() - before)}")
    before = work.names()
    work.write("near.json", old)
    result = run(work, quick + ["--json", "relative.json", "--trace", "/dev/full"])
    expect(result.status == 2 and "/dev/full" in result.err, result.text)
    result = run(work, [profile, *alone, "--prompt-file", work.write("p.txt", story), "--steps", "2", "--out", "far.json"])
    expect(result.status == 0 and os.path.islink(work("far.json")), f"a link: {result.text}")
    expect(b"heads" in contents(work("other/target.json")), "kvpolicy-profile did not write through a link")

# Standard output by its name, as a link to it (of one's own: /dev/stdout itself is not to be risked).
with scratch() as work:
    os.symlink("/proc/self/fd/1", work("stdout"))
    with open(work("out.txt"), "wb") as out:
        result = run(work, quick + ["--json", "stdout"], stdout=out)
    expect(result.status == 0, f"a link to standard output: {result.text}")
    expect(os.path.islink(work("stdout")), "a link to standard output was replaced by a file")
    expect(b'"steps"' in contents(work("out.txt")), "the result did not go to standard output through the link to it")

# Two runs with one output: the later one's is there, whole.
with scratch() as work:
    both = [begin(work, quick[:-1] + ["60", "--json", "x.json"]) for _ in range(2)]
    said = [process.communicate(timeout=long_enough)[1].decode() for process in both]
    statuses = [process.returncode for process in both]
    expect(statuses == [0, 0], f"two runs with one output: {statuses}, {said}")
    expect(work.names() == {"x.json"} and is_json(work("x.json")), f"two runs with one output: {sorted(work.names())}")

# An evaluation that was interrupted has whole lines, and leaves what it finds beside them.
with scratch() as work:
    os.mkdir(work("data"))
    os.mkdir(work("out"))
    record = json.dumps({"prompt": story, "answer_prefix": "", "outputs": ["nothing like it"]}) + "\n"
    work.write("data/task.jsonl", record * 400)
    work.write("out/summary.md", old)
    process = begin(work, [evaluate, *alone, "--data", "data", "--out", "out", "--records", "400", "--predict", "12"])
    results = work("out/results.jsonl")
    expect(wait_until(lambda: os.path.exists(results) and contents(results).count(b"\n") > 2, long_enough),
           "an evaluation wrote no result")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=long_enough)
    expect(process.returncode != 0, "an interrupted evaluation says that all was well")
    expect(set(os.listdir(work("out"))) == {"summary.md", "results.jsonl"}, f"an evaluation left {os.listdir(work('out'))}")
    expect(contents(work("out/summary.md")).decode() == old, "an interrupted evaluation changed the summary")
finish()
