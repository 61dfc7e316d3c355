"""misuse.py RUN PROFILE EVAL SELECT MODEL: what can't be meant is refused at once, by one short line that says why."""
import json
import os
import re
import sys

from harness import at_once, contents, expect, finish, model_or_skip, run, scratch

kvpolicy_run, profile, evaluate, select, model = sys.argv[1:]
model_or_skip(model)
cores = len(os.sched_getaffinity(0))
story = "Once upon a time there was"
memory = 3 << 30  # bytes that a run may take that should take none
decode = [kvpolicy_run, "--model", model, "--prompt", story, "--predict", "3"]
old = "this was here before\n"

with scratch() as work:
    os.mkdir(work("data"))
    work.write("data/task.jsonl", json.dumps({"prompt": story, "answer_prefix": "", "outputs": ["no"]}) + "\n")
    work.write("p.txt", story * 20)
    work.write("there.json", old)
    os.symlink("there.json", work("link.json"))
    os.mkfifo(work("fifo"))
    os.mkdir(work("piped"))
    os.mkfifo(work("piped/task.jsonl"))
    calibrate = [profile, "--model", model, "--prompt-file", "p.txt", "--steps", "2", "--out", "profile.json"]
    score = [evaluate, "--model", model, "--data", "data", "--out", "results", "--predict", "2"]
    before = work.names()

    def refused(command, *patterns, never=None):
        """Exit status 2, before anything was decoded; one line that holds every pattern."""
        result = run(work, command, limit=at_once, memory=memory)
        lines = result.err.splitlines()
        if not expect(result.status == 2, f"not refused at once: {result.text}"):
            return result
        expect(len(lines) == 1 and result.err.endswith("\n"), f"{len(lines)} lines: {result.text}")
        expect(result.out == "", f"refused after {result.out[:40]!r} was printed: {result.text}")
        # The names of files and lists of what there is may make it longer; a printed range may not.
        expect(not re.search(r"\d{40}", result.err), f"a number that nobody reads: {result.text}")
        for pattern in patterns:
            expect(re.search(pattern, result.err), f"the line lacks /{pattern}/: {result.text}")
        if never:
            expect(not re.search(never, result.err), f"the line should not have /{never}/: {result.text}")
        return result

    def short(command, *patterns):
        result = refused(command, *patterns)
        expect(len(result.err) <= 160, f"a line of {len(result.err)} characters: {result.text}")

    # More threads than the machine has; as many as it has are none too many.
    for command in (decode, calibrate, score):
        refused(command + ["--threads", "1000"], "--threads", rf"\b{cores}\b")
    result = run(work, decode + ["--threads", str(cores)])
    expect(result.status == 0, f"all of the machine's threads: {result.text}")

    # What never ends, or never begins.
    for path in ("fifo", "/dev/zero"):
        name = re.escape(path)
        refused(decode[:3] + ["--predict", "3", "--prompt-file", path], name)
        refused([profile, "--model", model, "--prompt-file", path, "--steps", "2", "--out", "profile.json"], name)
        refused([kvpolicy_run, "--model", path, "--prompt", story], name)
        refused([select, path, "--policy", "snapkv"], name)
        refused(decode + ["--policy", f"heterocache:profile={path}"], name)
    refused(score + ["--forms", "chat,prefixed"], "'prefixed'", "question_first")
    refused([evaluate, "--model", model, "--data", "piped", "--out", "results", "--predict", "2"], r"task\.jsonl")

    # An item without its value.
    for policy, key in (("quest:tokens", "tokens"), ("quest:page=16,tokens", "tokens"), ("snapkv:ratio", "ratio"),
                        ("chess:entropy", "entropy")):
        refused(decode + ["--policy", policy], key, rf"value|{key}=", never="did you mean")
    # One that is misspelt is still told what it may have been.
    refused(decode + ["--policy", "quest:tokns=5"], "did you mean 'tokens'")
    refused(decode + ["--policy", "snapkv:papr"], "did you mean 'paper'")

    # Numbers that are none, or outside of what they can be.
    for policy, key in (("chess:entropy=nan", "entropy"), ("chess:entropy=-nan", "entropy"),
                        ("chess:varentropy=nan", "varentropy"),
                        ("chess:trigger=entropy:nan", "trigger"), ("quest:trigger=entropy:1:nan", "trigger"),
                        ("expected_attention:epsilon=-1", "epsilon"), ("expected_attention:epsilon=nan", "epsilon"),
                        ("expected_attention:epsilon=inf", "epsilon"),
                        ("snapkv:ratio=nan", "ratio"), ("adakv:alpha=nan", "alpha"), ("pyramidkv:beta=inf", "beta"),
                        ("h2o:recent_share=nan", "recent_share"), ("sentencekv:keep=inf", "keep")):
        refused(decode + ["--policy", policy], key)
    for option in ("--tau-stable", "--tau-sim"):
        for number in ("nan", "-0.1", "inf"):
            short(calibrate + [option, number], option)

    # The same thing said twice, or in two ways.
    twice = "twice|again|more than once|duplicate|already"
    refused(decode + ["--policy", "quest:tokens=64,tokens=32"], "tokens", twice)
    refused(decode + ["--policy", "snapkv:window=8,tokens=64,window=8"], "window", twice)
    for policy in ("snapkv:ratio=.5,tokens=64", "snapkv:tokens=64,ratio=.5", "quest:tokens=64,page=16,ratio=.5"):
        refused(decode + ["--policy", policy], "ratio", "tokens")
    result = run(work, decode + ["--policy", "snapkv:tokens=128+quest:tokens=64"])
    expect(result.status == 0, f"a budget for each part of a composition: {result.text}")

    # Counts: a short line with the least that they may be.
    short(decode + ["--tier", "host", "--tier-slots", "-1"], "--tier-slots", r"-1")
    short(decode + ["--tier", "host", "--tier-slots", "0"], "--tier-slots")
    short(decode + ["--tier", "host", "--tier-slots", "nan"], "--tier-slots")
    short(calibrate + ["--top", "-1"], "--top")
    short(score + ["--records", "-1"], "--records")
    short(score + ["--first", "-1"], "--first")
    short(decode + ["--predict", "-1"], "--predict")
    short(decode + ["--ctx", "-1"], "--ctx")

    # Outputs without a name, or two under one.
    for option in ("--json", "--trace"):
        refused(decode + [option, ""], option)
    refused(calibrate[:-1] + [""], "--out")
    refused([evaluate, "--model", model, "--data", "data", "--out", ""], "--out")
    for one, other in (("x.json", "x.json"), ("x.json", "./x.json"), ("x.json", work("x.json")), ("there.json", "there.json"),
                       ("there.json", "link.json"), ("link.json", "data/../there.json")):
        refused(decode + ["--json", one, "--trace", other], "--json", "--trace")
        refused(decode + ["--compare", "--policy", "quest", "--json", one, "--trace", other], "--json", "--trace")

    left, gone = sorted(work.names() - before), sorted(before - work.names())
    expect(left == [] and gone == [], f"refusals left behind: {left}; took away: {gone}")
    expect(contents(work("there.json")).decode() == old, "a refusal changed an output that was there")

    # Help that nobody gets is no success; help that is read is one.
    for tool in (kvpolicy_run, profile, evaluate, select):
        with open("/dev/full", "wb") as full:
            result = run(work, [tool, "--help"], stdout=full)
        expect(result.status not in (0, None) and len(result.err.splitlines()) == 1, f"help to a full device: {result.text}")
        result = run(work, [tool, "--help"])
        expect(result.status == 0 and result.err == "" and "Usage" in result.out, f"help: {result.text}")
    with open("/dev/full", "wb") as full:
        result = run(work, [kvpolicy_run, "--list-policies"], stdout=full)
    expect(result.status not in (0, None), f"--list-policies to a full device: {result.text}")
    result = run(work, [kvpolicy_run, "--list-policies"])
    expect(result.status == 0 and "quest" in result.out, f"--list-policies: {result.text}")
finish()
