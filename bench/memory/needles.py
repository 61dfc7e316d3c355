"""needles.py RUN MODEL DATA OUT [RECORDS]: needles found in RULER's records, prompts whole and in pieces that drop rows.

Each record's prompt is decoded under one policy, with a managed cache: all of the prompt's rows held until it ends
("whole"), and with a policy between its pieces. One JSON line a run is appended to OUT; what is there is not run again."""
import json
import os
import subprocess
import sys
import tempfile

TASKS = ["niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue"]
POLICY = "snapkv:tokens=1024"
WAYS = os.environ.get("WAYS", "whole keydiff:tokens=4096").split()

run, model, data, out = sys.argv[1:5]
records = int(sys.argv[5]) if len(sys.argv) > 5 else 4


def found(record, way):
    with tempfile.TemporaryDirectory() as folder:
        prompt, result = os.path.join(folder, "prompt"), os.path.join(folder, "result.json")
        with open(prompt, "w", encoding="utf-8") as file:
            file.write(record["prompt"])
        pieces = ["--between-pieces", way] if way != "whole" else []
        subprocess.run([run, "--model", model, "--prompt-file", prompt, "--chat", "--answer-prefix", record["answer_prefix"],
                        "--policy", POLICY, "--managed-cache", "--ctx", "2048", "--predict", "40", "--json", result,
                        "--threads", os.environ.get("THREADS", "2"), *pieces],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(result, encoding="utf-8") as file:
            told = json.load(file)
    hits = sum(needle.lower() in told["answer"].lower() for needle in record["outputs"])
    return {"found": hits, "needles": len(record["outputs"]), "prompt_tokens": told["prompt_tokens"],
            "most_rows_bytes": told["rows"]["most_bytes"]}


done = {}
if os.path.exists(out):
    with open(out, encoding="utf-8") as file:
        done = {(r["task"], r["index"], r["way"]): r for r in map(json.loads, file)}
for index in range(records):
    for task in TASKS:
        with open(os.path.join(data, task + ".jsonl"), encoding="utf-8") as file:
            record = json.loads(file.readlines()[index])
        for way in WAYS:
            if (task, index, way) in done:
                continue
            told = {"task": task, "index": index, "way": way, **found(record, way)}
            done[task, index, way] = told
            with open(out, "a", encoding="utf-8") as file:
                file.write(json.dumps(told) + "\n")

for way in WAYS:
    runs = [r for r in done.values() if r["way"] == way]
    hits, needles = sum(r["found"] for r in runs), sum(r["needles"] for r in runs)
    most = max(r["most_rows_bytes"] for r in runs) / 1e6
    print(f"{way}: {hits} of {needles} needles in {len(runs)} records, {most:.1f} MB of rows at most")
