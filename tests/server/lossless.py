"""lossless.py KVPOLICY_EXEC LIBRARY ENGINE_BIN MODEL: a llama-server that drafts answers as one that reads everything, token by token:
streams, seeds, grammars, log-probabilities, slots side by side, clients who leave, slots that are saved."""
import sys

from server import attempt, needle, programs, server, together
from harness import expect, finish, scratch

of = programs(sys.argv[1:])
drafts = ("--lossless", "--drafts", "5")
one, two, three = needle(4826, 30, .3), needle(2594, 32, .7), needle(6183, 28, .5)
story = "Once upon a time a keeper of a lamp counted ships. He wrote each of them into a book, with its colour and its name. "
grammar = 'root ::= "The code is " [0-9] [0-9] [0-9] [0-9] "."'


def rights(s):
    """Of how many drafts, how many were right, over all requests that the log has."""
    found = [line.split() for line in s.lines() if line.endswith("drafts were right")]
    return sum(int(words[-4]) for words in found), sum(int(words[-6]) for words in found)


def one_slot(s):
    said = {"greedy": s.chat(one, 40, logprobs=True, top_logprobs=2), "again": s.chat(one, 40), "stream": s.stream(two, 40),
            "grammar": s.complete(three, 24, grammar=grammar), "long": s.complete(story, 96)}
    for seed in (1, 2, 3):
        said[f"seed {seed}"] = s.complete(story, 64, temperature=.8, seed=seed)
    with s.streaming(two, 200, ignore_eos=True) as pieces:  # a client leaves in the middle of a round
        for _ in zip(range(7), pieces):
            pass
    said["behind one who left"] = s.chat(two, 24)
    s.slot("save", "slot.bin")
    said["saved"] = s.chat(three, 24)
    s.slot("restore", "slot.bin")
    said["restored"] = s.chat(two, 24)
    return {name: given.text for name, given in said.items()}


def two_slots(s):
    return [given.text for given in together([lambda: s.chat(one, 40, id_slot=0), lambda: s.complete(story, 80, id_slot=1)])]


def compared(work, ask, *options):
    answers = []
    for front in (("full",), drafts, ("quest:tokens=128", *drafts)):
        with server(work, of, of.exec(*front), "-c", "4096", "--slot-save-path", work("."), *options) as s:
            answers.append(ask(s))
            if "--lossless" in front:
                s.stop()
                made, right = rights(s)
                expect(right > 20, f"{front}: {right} of {made} drafts were right: {s.other_lines()}")
    for front, given in zip(("the usual drafts", "quest's drafts"), answers[1:]):
        expect(given == answers[0], f"{front}: {given} for {answers[0]}")


with scratch() as work:
    attempt(compared, work, one_slot, "-np", "1")
    attempt(compared, work, two_slots, "-np", "2")
finish()
