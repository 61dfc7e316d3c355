"""report_test.py REPORT: statistics whose values are known, the table of results that count in part, and input that is none."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

path = sys.argv[1]
spec = importlib.util.spec_from_file_location("report", path)
report = importlib.util.module_from_spec(spec)
spec.loader.exec_module(report)


def near(a, b):
    return abs(a - b) < 1e-9


# A share is of means over tasks, not over records: .5 and 1 of dense's 1 and 1.
assert near(report.share_of_dense({"a": [(1, 1), (0, 1)], "b": [(1, 1)] * 4}), .75)
assert report.share_of_dense({"a": [(1, 0)]}) == 0

# An interval holds the share, narrows with records, and is one point where all are alike. A binomial's deviation is .126 and .0126.
few, many = ({"a": [(0 if i % 5 == 0 else 1, 1) for i in range(n)]} for n in (10, 1000))
for scores, least, most in ((few, .35, 1), (many, .04, .06)):
    low, high = report.bootstrap_interval(scores)
    assert low < .8 < high and least < high - low < most, (low, high)
assert report.bootstrap_interval({"a": [(1, 1), (1, 1)]}) == (1, 1)


def signs(worse, better, same):
    return report.signs_against_dense({"a": [(.5, 1)] * worse + [(1, .5)] * better + [(1, 1)] * same})


# Of 5 records that differ 0 are better: 2 / 2^5. Of 4, 1: 2 (1 + 4) / 2^4. Of 2, 1: all splits are at least as uneven.
assert signs(5, 0, 7)[:2] == (5, 0) and near(signs(5, 0, 7)[2], 2 / 32)
assert near(signs(1, 3, 0)[2], 10 / 16) and near(signs(1, 1, 0)[2], 1) and near(signs(0, 0, 3)[2], 1)
assert signs(1000, 0, 0)[2] < 1e-100

# The table's share is of tasks that dense decoding answers, in the forms in which people ask.
lines = []


def add(form, task, record, policy, budget, score):
    lines.append({"task": task, "record": record, "form": form, "policy": policy, "budget": budget, "score": score, "ms_per_token": 10,
                  "tokens_read": 100, "choose_share": .1, "data": "records</script>"})


for record in range(4):
    for form in ("chat", "turns", "prefix"):
        add(form, "easy", record, "dense", 0, 1)
        add(form, "hard", record, "dense", 0, 1 if record == 0 else 0)
        add(form, "hard", record, "some", 64, 1)
    add("chat", "easy", record, "some", 64, 0 if record == 0 else 1)
    add("turns", "easy", record, "some", 64, 0 if record < 2 else 1)
    add("prefix", "easy", record, "some", 64, 1)
table = report.summary(lines)
# 62 % is the mean of 75 and 50 %: neither "hard" nor the prefix counts. 100 % is with the prefix.
for part in ("| some ", " 62% |", " 75% |", " 50% |", " 100% |", " 3/0 |", "in that form: easy (chat, turns).", "mean over chat, turns."):
    assert part in table, (part, table)
assert "mean over prefix." in report.summary([line for line in lines if line["form"] == "prefix"])


def run(*arguments):
    return subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True)


with tempfile.TemporaryDirectory() as folder:
    results = os.path.join(folder, "results.jsonl")
    for bad in (None, "", "no json\n", '{"task": "a"}\n'):
        if bad is not None:
            with open(results, "w", encoding="utf-8") as file:
                file.write(bad)
        failed = run(folder)
        assert failed.returncode == 1 and failed.stderr.count("\n") == 1 and results in failed.stderr, failed
        assert set(os.listdir(folder)) <= {"results.jsonl"}
    with open(results, "w", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines) + '{"task": "cut')
    made = run(folder)
    assert made.returncode == 0 and made.stdout == table, made
    with open(os.path.join(folder, "summary.md"), encoding="utf-8") as file:
        assert file.read() == table
    with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
        page = file.read()
    assert page.count("</script>") == 1 and '["chat easy", "dense", 0, 1, 10, "chat"]' in page and "@" not in page.split("<script>")[0]
assert run().returncode == 1 and "usage" in run().stderr
