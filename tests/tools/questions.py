"""questions.py EVAL MODEL EXAMPLES: three questions about one text of 1,000 tokens in one chat, answered by SmolLM2.

kvzip compresses the text before it knows a question, and answers what dense decoding answers, with a third of the rows. What snapkv
drops for the first question is gone for the others."""
import json
import os
import subprocess
import sys
import tempfile

evaluate, model, examples = sys.argv[1:]
if not os.path.exists(model):
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    data, out = os.path.join(folder, "data"), os.path.join(folder, "out")
    subprocess.run([sys.executable, os.path.join(examples, "haystack.py"), "--records", "1", "--questions", "3", "--seed", "12", "--words",
                    "700", "--out", data], check=True)
    subprocess.run([evaluate, "--model", model, "--data", data, "--out", out, "--one-chat", "--predict", "30", "--budgets", "192",
                    "--policy", "kvzip", "--policy", "snapkv:after=0", "--threads", "2"], check=True)
    with open(os.path.join(out, "results.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
right, rows = {}, {}
for line in lines:
    right[line["policy"]] = right.get(line["policy"], 0) + line["score"]
    rows[line["policy"]] = line["rows_bytes"]
print(right, rows)
assert right["dense"] >= 2, "the model answers most of them"
assert right["kvzip"] >= right["dense"], "kvzip loses an answer"
assert right["snapkv:after=0"] < right["dense"], "a choice for the first question loses none: this test tells nothing"
assert rows["kvzip"] < rows["dense"] / 2, "kvzip frees no rows"
