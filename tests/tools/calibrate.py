"""calibrate.py CALIBRATE RUN MODEL: the thresholds are the quantiles of the pages that it counted, and the line is a policy."""
import json
import re
import sys

from harness import expect, finish, model_or_skip, run, scratch

calibrate, kvpolicy_run, model = sys.argv[1:]
model_or_skip(model)


def quantile(values, q):
    values = sorted(values)
    place = q * (len(values) - 1)
    low = int(place)
    return values[low] + (place - low) * (values[min(low + 1, len(values) - 1)] - values[low])


with scratch() as work:
    for name, text in (("a.txt", "Once upon a time there was a king who"), ("b.txt", "The three laws of motion say that")):
        work.write(name, text)
    made = run(work, [calibrate, "--model", model, "--prompt-file", "a.txt", "b.txt", "--steps", "60", "--page", "8", "--quantile", "0.8",
                      "--out", "t.json"])
    if expect(made.status == 0, made.text):
        with open(work("t.json")) as file:
            found = json.load(file)
        pages = found["pages"]
        expect(10 <= len(pages) <= 16, f"{len(pages)} pages of 2 x 60 tokens in eights")
        for which, name in enumerate(("entropy", "varentropy")):
            want = quantile([page[which] for page in pages], .8)
            expect(abs(found[name] - want) < 1e-5 * max(1, want), f"{name} is {found[name]}, the pages' quantile {want}")
            expect(0 < found[name] < 12, f"{name} is {found[name]}")
        line = re.match(r"(chess:page=8,entropy=[0-9.e-]+,varentropy=[0-9.e-]+)  \(\d+ pages", made.out)
        if expect(line, "the line is " + made.out):
            used = run(work, [kvpolicy_run, "--model", model, "--prompt", "Once upon a time", "--predict", "2", "--policy", line.group(1)])
            expect(used.status == 0, used.text)
    for arguments, said in ((["--steps", "3", "--page", "512"], "no page of 512 tokens"), (["--quantile", "1.5"], "from 0 to 1"),
                            (["--page", "0"], "from 1 to"), (["--steps", "60000"], "the model's context has")):
        refused = run(work, [calibrate, "--model", model, "--prompt-file", "a.txt", *arguments, "--out", "none.json"])
        expect(refused.status == 2 and said in refused.err and refused.err.count("\n") == 1, refused.text)
        expect("none.json" not in work.names(), f"{arguments} left a file")
finish()
