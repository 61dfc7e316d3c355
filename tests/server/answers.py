"""answers.py KVPOLICY_EXEC LIBRARY ENGINE_BIN MODEL EXAMPLES [CHATS [WORDS [POLICY]]]: a llama-server answers chats about long texts
with a policy in front of it as it does alone, number for number."""
import json
import os
import re
import subprocess
import sys

from server import attempt, programs, server
from harness import expect, finish, scratch

of = programs(sys.argv[1:5])
examples = sys.argv[5]
chats, words, policy = sys.argv[6:] + ["4", "1200", "quest:tokens=512,after=16"][len(sys.argv) - 6:]


def answers(work, under, texts):
    with server(work, of, of.exec(under), "-c", "8192", "-np", "1", "-cram", "0") as s:
        return [s.chat(text, 64).text for text in texts]


def numbers(work):
    subprocess.run([sys.executable, os.path.join(examples, "haystack.py"), "--records", chats, "--seed", "2000", "--words", words, "--out",
                    work("records")], check=True)
    with open(work("records/number.jsonl"), encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    texts = [record["prompt"] for record in records]
    alone, both = answers(work, None, texts), answers(work, policy, texts)
    found = [[re.findall(r"\d{7}", text)[:1] for text in said] for said in (alone, both)]
    differ = [index for index, (one, other) in enumerate(zip(*found)) if one != other]
    right = [sum(one == record["outputs"] for one, record in zip(said, records)) for said in found]
    print(f"{policy}: {len(texts) - len(differ)} of {len(texts)} answers have the number that the server gives alone; "
          f"right are {right[1]}, alone {right[0]}")
    expect(right[0] * 4 >= 3 * len(texts), f"the server alone finds {right[0]} of {len(texts)} numbers")
    for index in differ:
        expect(False, f"alone {alone[index]!r}, with {policy} {both[index]!r}")


with scratch() as work:
    attempt(numbers, work)
finish()
