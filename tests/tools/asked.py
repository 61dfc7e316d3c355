"""asked.py EVAL MODEL EXAMPLES: four chats whose question stands before a text of 3,000 tokens, answered by SmolLM2.

snapkv answers what dense decoding answers. Where it chooses when the prompt ends, as its paper does, it does not: the last tokens of
such a prompt are the text's and the chat template's."""
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
    subprocess.run([sys.executable, os.path.join(examples, "haystack.py"), "--records", "4", "--seed", "1000", "--words", "2600", "--out",
                    data], check=True)
    subprocess.run([evaluate, "--model", model, "--data", data, "--out", out, "--tasks", "number", "--records", "4", "--forms",
                    "question_first", "--budgets", "512", "--policy", "snapkv", "--policy", "snapkv:after=0", "--threads", "2"], check=True)
    with open(os.path.join(out, "results.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
right = {}
for line in lines:
    right[line["policy"]] = right.get(line["policy"], 0) + line["score"]
print(right)
assert right["dense"] >= 3, "the model answers most of them"
assert right["snapkv"] >= right["dense"], "the default loses an answer"
assert right["snapkv:after=0"] < right["dense"], "a choice at the prompt's end loses none: this test tells nothing"
