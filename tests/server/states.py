"""states.py KVPOLICY_EXEC LIBRARY ENGINE_BIN MODEL: what a policy knows of a prompt is saved and restored with its
state, in files and in the server's own memory; without it a state is the engine's, and still answered rightly."""
import os
import shutil
import sys

from server import attempt, ask, in_turns, is_cached, is_served, needle, next_turn, programs, server
from harness import contents, expect, finish, scratch

of = programs(sys.argv[1:])
budget = 128
policy = f"snapkv:tokens={budget},after=0"
first, other = (needle(4826, 30, .3), "4826"), (needle(2594, 32, .7), "2594")
file, known = "slots/first.bin", "slots/first.bin.kvpolicy"


def start(work, under, *options):
    return server(work, of, of.exec(under), "-c", "2048", "-np", "2", "--slot-save-path", work("slots"), *options)


def in_one_server(work):
    """Behind another prompt in the slot, and into another slot. Leaves files of both prompts."""
    with start(work, policy) as s:
        before = ask(s, first, "first")
        s.slot("save", "first.bin")
        ask(s, other, "other")
        s.slot("save", "other.bin")
        for slot in (0, 1):
            s.slot("restore", "first.bin", slot)
            again = ask(s, first, f"restored to slot {slot}", slot)
            is_cached(again, f"restored to slot {slot}")
            expect(again.text == before.text, f"restored to slot {slot}: {again.text!r}, before {before.text!r}")
        s.slot("erase", "", 1)
        lines = s.requests(4)
        expect(len(lines) == 4 and [line.sequence for line in lines] == [0, 0, 0, 1], f"requests: {lines}")
        for line in lines:
            is_served(line, "in one server", budget)
        expect(len(s.other_lines()) == 1, f"nothing is left to the engine: {s.other_lines()}")
    expect(os.path.exists(work(known)), f"{known} is not there: {work.names()}")
    return before.text


def in_another_server(work, text, *options):
    with start(work, policy, *options) as s:
        s.slot("restore", "first.bin")
        again = ask(s, first, "another server")
        is_cached(again, "another server")
        expect(again.text == text, f"another server: {again.text!r}, the first one {text!r}")
        turns = next_turn(first[0], again.text)
        ask(s, (turns, "4826"), "another server, a second turn")
        for line in s.requests(2):
            is_served(line, "another server", budget)
        expect(len(s.other_lines()) == 1, f"another server: {s.other_lines()}")


def alone(s):
    return [line for line in s.other_lines() if line.startswith("in sequence ") and "the engine goes on alone" in line]


def without_what_is_known(work, how, damage):
    """The engine restores the state, and the library can't tell what it is: once it says so, and all is read."""
    kept = contents(work(known))
    damage(work(known), kept)
    try:
        unknown_state(work, how)
    finally:
        shutil.rmtree(work(known), ignore_errors=True)
        work.write(known, kept)


def unknown_state(work, how):
    with start(work, policy) as s:
        s.slot("restore", "first.bin")
        is_cached(ask(s, first, how), how)
        expect(len(alone(s)) == 1, f"{how}: {s.other_lines()}")
        # The next prompt begins as the one that was restored does, as every chat with its template: of those tokens too it is
        # not known which they are, until the slot has none of them. (Another prompt's file knows them.)
        ask(s, other, f"{how}, the next prompt")
        s.slot("erase", "")
        ask(s, other, f"{how}, erased")
        lines = s.requests(3)
        expect(len(lines) == 3, f"{how}: {lines}")
        for line in lines[:1 if how == "of another prompt" else 2]:
            expect(line.left == line.steps and line.read == line.tokens, f"{how}: {line}")
        is_served(lines[2], f"{how}, erased", budget)
        expect(len(alone(s)) == 1, f"{how}, said once: {s.other_lines()}")


def written(change):
    """Damage that is other contents."""

    def damage(path, kept):
        with open(path, "wb") as out:
            out.write(change(kept))

    return damage


def to_a_folder(path, _):
    os.remove(path)
    os.mkdir(path)


def of_another_policy(work):
    """What quest saves has no queries, which snapkv needs; what snapkv saves is enough for quest."""
    with start(work, f"quest:tokens={budget}") as s:
        s.slot("restore", "first.bin")
        ask(s, first, "quest, what snapkv saved")
        line = s.requests(1)[0]
        expect(line.left == 0 and line.read <= budget, f"quest, what snapkv saved: {line}")
        ask(s, other, "quest", 1)
        s.slot("save", "quest.bin", 1)
    with start(work, policy) as s:
        s.slot("restore", "quest.bin")
        is_cached(ask(s, other, "snapkv, what quest saved"), "snapkv, what quest saved")
        line = s.requests(1)[0]
        expect(len(alone(s)) == 1 and line.left == line.steps, f"snapkv, what quest saved: {line} {s.other_lines()}")


def damaged_state(work):
    """The engine's own file is cut: it refuses it, and goes on."""
    work.write("slots/cut.bin", contents(work(file))[:100000])
    shutil.copy(work(known), work("slots/cut.bin.kvpolicy"))
    with start(work, policy) as s:
        try:
            s.slot("restore", "cut.bin")
            expect(False, "a cut state was restored")
        except RuntimeError:
            pass
        ask(s, other, "behind a cut state")
        is_served(s.requests(1)[0], "behind a cut state", budget)


def can_not_be_saved(work):
    """The engine's file is written, the one beside it is not."""
    os.mkdir(work("slots/full.bin.kvpolicy.part"))
    with start(work, policy) as s:
        ask(s, first, "before a file that can't be written")
        expect(s.slot("save", "full.bin")["n_saved"] > 150, "the engine did not save its state")
        said = [line for line in s.other_lines() if "full.bin.kvpolicy" in line]
        expect(len(said) == 1, f"a file that can't be written: {s.other_lines()}")
        ask(s, other, "behind a file that can't be written")


def in_memory(work):
    """One slot, two conversations in turns: the server puts away the one and takes out the other."""
    with start(work, policy, "-np", "1") as s:
        for line in in_turns(s, first, other):
            is_served(line, "in memory", budget)
        expect(len(s.other_lines()) == 1, f"in memory: {s.other_lines()}")


with scratch() as work:
    os.mkdir(work("slots"))
    text = in_one_server(work)
    attempt(in_another_server, work, text)
    attempt(in_another_server, work, text, "--no-warmup")
    attempt(without_what_is_known, work, "missing", lambda path, _: os.remove(path))
    attempt(without_what_is_known, work, "cut", written(lambda kept: kept[:len(kept) // 2]))
    attempt(without_what_is_known, work, "damaged", written(lambda kept: kept[:-9] + bytes([kept[-9] ^ 1]) + kept[-8:]))
    attempt(without_what_is_known, work, "of another version",
            written(lambda kept: b"kvpolicy 0.0.0" + kept[kept.index(b","):]))
    attempt(without_what_is_known, work, "empty", written(lambda kept: b""))
    attempt(without_what_is_known, work, "a folder", to_a_folder)
    attempt(without_what_is_known, work, "of another prompt",
            lambda path, _: shutil.copy(work("slots/other.bin.kvpolicy"), path))
    attempt(of_another_policy, work)
    attempt(damaged_state, work)
    attempt(can_not_be_saved, work)
    attempt(in_memory, work)
finish()
