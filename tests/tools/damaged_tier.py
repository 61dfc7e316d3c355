"""damaged_tier.py RUN MODEL EXAMPLES: rows on a disk whose file is damaged are an error with its name, or the right answer."""
import os
import random
import signal
import subprocess
import sys
import time

from harness import begin, contents, ended, expect, finish, long_enough, model_or_skip, read_some, run, scratch

kvpolicy_run, model, examples = sys.argv[1:]
model_or_skip(model)
rng = random.Random(17)
text = subprocess.run([sys.executable, os.path.join(examples, "haystack.py"), "--words", "100", "--depth", "0.5"],
                      capture_output=True, check=True, text=True).stdout
prompt = " ".join(text.split()[:70])  # without its question: the model goes on


def command(predict, tier):
    # Few rows in fast memory: every step fetches some.
    return [kvpolicy_run, "--model", model, "--prompt-file", "p.txt", "--predict", str(predict), "--policy", "quest:tokens=64",
            "--tier", tier, "--tier-slots", "200", "--threads", "1"]


def flipped(data, bits):
    data = bytearray(data)
    for _ in range(bits):
        at = rng.randrange(8 * len(data))
        data[at // 8] ^= 1 << at % 8
    return bytes(data)


ways = {
    "cut to nothing": lambda data: b"",
    "cut within a page": lambda data: data[:6000],
    "cut in half": lambda data: data[:len(data) // 2],
    "a byte shorter": lambda data: data[:-1],
    "200 flips": lambda data: flipped(data, 200),
    "3,000 flips": lambda data: flipped(data, 3000),
    "random bytes in its second half": lambda data: data[:len(data) // 2] + rng.randbytes(len(data) - len(data) // 2),
    "random bytes": lambda data: rng.randbytes(len(data)),
    "a text": lambda data: b"Shopping list: bread, salt, two candles.\n",
}

with scratch() as work:
    work.write("p.txt", prompt)
    long_answer = run(work, command(50, "host"))
    short_answer = run(work, command(4, "host"))
    expect(long_answer.status == 0 and short_answer.status == 0, short_answer.text)

    def judge(which, result, answer, path):
        """All of the answer, or as much of it as was right and one line with the file's name."""
        if result.status == 0:
            expect(result.out == answer.out and result.err == "", f"{which}: another answer: {result.text}")
            return
        if not expect(result.status == 2, f"{which}: {result.text}"):
            return
        one_line = len(result.err.splitlines()) == 1
        expect(one_line and path in result.err, f"{which}: not one line with the file's name: {result.text}")
        expect(answer.out.startswith(result.out.rstrip("\n")), f"{which}: a wrong answer before the error")

    # A run that was killed leaves its rows in the file: what is damaged then is a file in use.
    killed = begin(work, command(50, "disk:rows"))
    read_some(killed, 20)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    left = contents(work("rows"))
    expect(len(left) > 100000, f"a run that was killed left {len(left)} bytes")
    os.remove(work("rows"))
    for which, damage in ways.items():
        name = f"rows-{len(which)}-{which.replace(' ', '-').replace(',', '')}"
        damaged = damage(left)
        work.write(name, damaged)
        judge(f"{which}, between runs", run(work, command(4, f"disk:{name}")), short_answer, name)
        if which in ("a text", "random bytes"):
            expect(contents(work(name)) == damaged, f"{which}: a file that was no tier's was changed")

    for which, damage in ways.items():
        name = f"used-{len(which)}-{which.replace(' ', '-').replace(',', '')}"
        started = time.monotonic()
        process = begin(work, command(50, f"disk:{name}"))
        first = read_some(process, 20)  # some tokens: all rows of the prompt are there
        data = contents(work(name))
        damaged = damage(data)
        with open(work(name), "r+b") as file:
            file.write(damaged)
            file.truncate(len(damaged))
        result = ended(command(50, f"disk:{name}"), process, long_enough, started)
        result.out = first.decode() + result.out
        judge(f"{which}, while it runs", result, long_answer, name)
finish()
