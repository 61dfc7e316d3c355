"""compaction.py KVPOLICY_EXEC LIBRARY ENGINE_BIN MODEL: a llama-server whose own cells get what a policy retains of each prompt
answers as it should, for clients at once and over turns; it reads a prompt anew that leaves a compacted one; and what can't be
compacted is refused, or said once."""
import os
import re
import sys

from server import ask, attempt, in_turns, is_served, library_lines, needle, next_turn, programs, server, together
from harness import expect, finish, run, scratch

of = programs(sys.argv[1:])
budget = 128
row_mib = 30 * 3 * 2 * 64 * 2 / 2**20  # of a token: SmolLM2-135M's layers, KV heads, key and value, elements, bytes
questions = [(needle(4826, 60, .3), "4826"), (needle(2594, 62, .7), "2594"), (needle(6183, 58, .5), "6183")]
first, other, _ = questions


def start(work, under, *options, how=()):
    return server(work, of, of.exec(under, "--compact", *how), "-c", "2048", "--slot-save-path", work("slots"), *options)


def one_by_one(work):
    """What waits for the answer's tokens is compacted in the middle of it; its first steps read everything."""
    for under, waited in ((f"snapkv:tokens={budget},after=0", 0), (f"snapkv:tokens={budget}", 16)):
        with start(work, under, "-np", "1") as s:
            ask(s, first, under)
            given = ask(s, other, under, most=40, ignore_eos=True)
            lines = s.requests(2)
            expect(len(lines) == 2 and lines[1].steps > 30, f"{under}: {lines}")
            for line in lines:
                whole = min(waited, line.steps)
                most = (whole * line.tokens + (line.steps - whole) * (budget + line.steps)) / line.steps
                expect(line.left == 0 and line.read <= most + 2, f"{under}: {line}, at most {most:.0f}")
                expect(line.tokens > 300, f"{under}: {line}")
                expect(line.mib <= (budget + line.steps + 2) * row_mib or line.steps <= waited, f"{under}: {line}")
            expect(waited or given.timings["cache_n"] < 40, f"{under}, another text: {given.timings}")
            said = s.other_lines()
            expect(len(said) == 1 and "compacts the engine's cells" in said[0], f"{under}: {said}")


def at_once(work):
    """Batches have several sequences' prompts and steps; each is compacted by its own queries."""
    for options in (("-np", "3", "-c", "4096"), ("-np", "3", "-c", "4096", "-b", "64", "-ub", "32")):
        with start(work, f"snapkv:tokens={budget},after=2", *options) as s:
            for _ in range(2):
                together([lambda q=q, slot=slot: ask(s, q, f"at once, slot {slot}", slot) for slot, q in enumerate(questions)])
            lines = s.requests(6)
            expect(len(lines) == 6, f"at once: {lines}")
            for line in lines:
                expect(line.left == 0 and line.read < .8 * line.tokens, f"at once: {line}")
            expect(len(s.other_lines()) == 1, f"at once: {s.other_lines()}")


def over_turns(work):
    """The next turn goes on behind compacted cells; a text that leaves the prompt is read anew."""
    story = " ".join(["The grass is green. The sky is blue. The sun is yellow."] * 20)
    code = "The secret code of the day is 4826."
    asked = [f"{story} {code} {story} {question}" for question in
             ("What is the secret code of the day?", "Say it again: what was the code that I told you?")]
    with start(work, f"snapkv:tokens={budget},after=0", "-np", "1", "-cram", "0") as s:
        before = ask(s, (asked[0], "4826"), "a first turn")
        total = before.timings["prompt_n"]
        again = ask(s, (next_turn(asked[0], before.text), "4826"), "a second turn")
        expect(again.timings["cache_n"] >= total and again.timings["prompt_n"] < 60, f"a second turn: {again.timings}")
        after = ask(s, (asked[1], "4826"), "another question")
        expect(after.timings["cache_n"] == 0 and after.timings["prompt_n"] > total - 40, f"another question: {after.timings}")
        expect(len(s.other_lines()) == 1, f"over turns: {s.other_lines()}")


def put_away(work):
    """States: in the server's memory, and in a file that another server restores."""
    with start(work, f"snapkv:tokens={budget},after=0", "-np", "1") as s:
        for line in in_turns(s, first, other):
            is_served(line, "in turns", budget)
        before = ask(s, first, "to be saved")
        s.slot("save", "first.bin")
    turns = next_turn(first[0], before.text)
    with start(work, f"snapkv:tokens={budget},after=0", "-np", "2") as s:
        s.slot("restore", "first.bin", 1)
        again = ask(s, (turns, "4826"), "behind a restored state", 1)
        expect(again.timings["cache_n"] > 300 and again.timings["prompt_n"] < 60, f"behind a restored state: {again.timings}")
        anew = ask(s, other, "another text there", 1)
        expect(anew.timings["cache_n"] < 40, f"another text there: {anew.timings}")


def drafts_and_choices(work):
    """A draft model's context is the engine's; several answers share a prompt's cells, and go on with all of them."""
    for under in (f"snapkv:tokens={budget},after=0", f"snapkv:tokens={budget},after=4"):
        with start(work, under, "-np", "1", "-md", of.model, "--spec-draft-n-max", "4") as s:
            for question in (first, other):
                ask(s, question, f"drafts, {under}", most=40)
            expect(len(s.other_lines()) == 1, f"drafts: {s.other_lines()}")
    with start(work, f"snapkv:tokens={budget},after=0", "-np", "2", how=("--strict",)) as s:
        reply = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": first[0]}], "max_tokens": 24,
                                                "temperature": 0, "n": 2})
        texts = [choice["message"]["content"] for choice in reply["choices"]]
        expect(len(texts) == 2 and all("4826" in text for text in texts), f"two answers: {texts}")
        for slot in (0, 1):
            ask(s, other, f"behind two answers, slot {slot}", slot)
        lines = s.requests(4)
        expect(len(lines) == 4 and all(line.read < .6 * line.tokens for line in lines[2:]), f"behind two answers: {lines}")


def no_shift(work):
    """Compacted cells' positions are not their tokens': an answer ends where the context does."""
    with start(work, f"snapkv:tokens={budget},after=0", "-c", "256", "-np", "1", "--context-shift") as s:
        given = s.chat(needle(4826, 24, .5), 300, ignore_eos=True)
        expect(50 < given.timings["predicted_n"] < 200, f"no shift: {given}")
        expect("slot context shift" not in s.said(), f"no shift: {s.said()[-500:]}")
        expect("2594" in s.chat(needle(2594, 32, .7)).text, "behind a full context")


def left_alone(work):
    """Said once, and the engine answers alone; strict, the request or the start fails."""
    uneven = f"adakv:tokens={budget},after=0"
    with start(work, uneven, "-np", "1") as s:
        ask(s, first, uneven)
        ask(s, other, uneven)
        said = s.other_lines()
        expect(len(said) == 2 and "the same in all layers and heads" in said[1] and "all of its cells" in said[1], f"{uneven}: {said}")
    with start(work, uneven, "-np", "1", how=("--strict",)) as s:
        try:
            s.chat(first[0])
            expect(False, "a strict server answered without a compaction")
        except RuntimeError as why:
            expect("status 500" in str(why), f"strict: {why}")
    for options, pattern in ((("-fa", "off"), "--flash-attn on"), (("-np", "2", "--no-kv-unified"), "--kv-unified")):
        with start(work, "snapkv:after=0", *options) as s:
            ask(s, first, f"{options}")
            said = s.lines()
            expect(len(said) == 1 and pattern in said[0] and "left to the engine" in said[0], f"{options}: {said}")
        result = run(work, of.exec("snapkv:after=0", "--compact", "--strict") + [of("llama-server"), "-m", of.model, *options])
        expect(result.status not in (0, None) and len(library_lines(result.err)) == 1, f"{options}, strict: {result.text}")


def refused(work):
    """Before the program starts."""
    for said, pattern in ((("quest",), "a compaction can't serve this policy: at each step"), (("full",), "it drops nothing"),
                          (("h2o",), "it drops tokens in steps"), (("expected_attention",), "needs more than keys"),
                          (("snapkv:after=4+quest:tokens=64,page=8",), "at each step"), (("snapkv:tokens=64+quest",), "at each step"),
                          (("snapkv", "--managed-cache"), "leave managed-cache"), (("snapkv", "--tier", "host"), "leave managed-cache"),
                          (("snapkv", "--lossless"), "leave managed-cache"), (("snapkv", "--prompts", "pages"), "leave managed-cache")):
        result = run(work, of.exec(said[0], "--compact", *said[1:]) + [of("llama-server"), "--version"])
        expect(result.status == 2 and len(result.err.splitlines()) == 1 and re.search(pattern, result.err), f"{said}: {result.text}")


with scratch() as work:
    os.mkdir(work("slots"))
    for scenario in (refused, one_by_one, at_once, over_turns, put_away, drafts_and_choices, no_shift, left_alone):
        attempt(scenario, work)
finish()
