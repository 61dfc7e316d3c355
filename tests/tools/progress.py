"""progress.py RUN PROFILE EVAL MODEL EXAMPLES: work of over 3 seconds says on stderr what time is left, though that is no
terminal: a line at least each 10 seconds."""
import json
import os
import re
import subprocess
import sys
import time

from harness import begin, ended, expect, finish, long_enough, model_or_skip, run, scratch

kvpolicy_run, profile, evaluate, model, examples = sys.argv[1:]
model_or_skip(model)


def commands(work, words):
    """Each spends nearly all its time in one prompt: its steps and records alone would say nothing for long."""
    text = subprocess.run([sys.executable, os.path.join(examples, "haystack.py"), "--words", str(words), "--depth", "0.5"],
                          capture_output=True, check=True, text=True).stdout
    work.write("p.txt", text)
    os.makedirs(work("data"), exist_ok=True)
    work.write("data/task.jsonl", json.dumps({"prompt": text, "answer_prefix": "", "outputs": ["nothing like it"]}) + "\n")
    one = ["--threads", "1"]
    return {
        "kvpolicy-run": [kvpolicy_run, "--model", model, "--prompt-file", "p.txt", "--predict", "4", "--json", "r.json"] + one,
        "kvpolicy-profile": [profile, "--model", model, "--prompt-file", "p.txt", "--steps", "4", "--out", "p.json"] + one,
        "kvpolicy-eval": [evaluate, "--model", model, "--data", "data", "--out", f"out-{words}", "--predict", "4"] + one,
    }


with scratch() as work:
    short = run(work, [kvpolicy_run, "--model", model, "--prompt", "Once upon a time", "--predict", "3"])
    expect(short.status == 0, short.text)
    if short.seconds < 2.5:
        expect(short.err == "", f"a run of {short.seconds:.1f} s says something: {short.text}")

    waiting = ["kvpolicy-run", "kvpolicy-profile", "kvpolicy-eval"]
    words = 500
    while waiting:  # on a faster machine with longer prompts, until they take long enough to tell
        started = time.monotonic()
        all_commands = commands(work, words)
        runs = {}
        for name in waiting:  # at once: a file for each, as when somebody redirects
            err = open(work(f"{name}.err"), "wb")
            runs[name] = (begin(work, all_commands[name], stdout=subprocess.DEVNULL, stderr=err), err)
        seconds = {}
        while len(seconds) < len(runs) and time.monotonic() - started < long_enough:
            for name, (process, _) in runs.items():
                if name not in seconds and process.poll() is not None:
                    seconds[name] = time.monotonic() - started
            time.sleep(0.05)
        waiting = []
        for name, (process, err) in runs.items():
            result = ended(all_commands[name], process, 1, started)
            err.close()
            if not expect(result.status == 0, result.text):
                continue
            if seconds[name] < 5:
                waiting.append(name)
                continue
            with open(work(f"{name}.err"), newline="") as file:
                text = file.read()
            lines = [line for line in text.split("\n") if re.search(r"\d.*\bleft\b", line)]
            wanted = max(1, int(seconds[name] / 12))
            expect(len(lines) >= wanted,
                   f"{name}, {seconds[name]:.1f} s: said what is left {len(lines)} times, not {wanted}: {text[:300]!r}")
            expect("\r" not in text and "\033" not in text, f"{name} draws on what is no terminal: {text[:300]!r}")
            expect(text == "" or text.endswith("\n"), f"{name} leaves a line unfinished: {text[-100:]!r}")
        words *= 2
        if not expect(words < 5000 or not waiting, f"no prompt took long enough: {waiting}"):
            break
finish()
