"""managed_cache.py KVPOLICY_EXEC LIBRARY ENGINE_BIN MODEL: a llama-server whose rows are the library's takes less memory, reads a
prompt anew where what another one left of it is not enough, saves its own states, and refuses what it can't follow."""
import os
import re
import sys

from server import attempt, ask, in_turns, is_cached, is_served, library_lines, needle, next_turn, programs, resident, server
from harness import contents, expect, finish, run, scratch

of = programs(sys.argv[1:])
budget = 128
policy = f"snapkv:tokens={budget},after=0"
row_mib = 30 * 3 * 2 * 64 * 2 / 2**20  # of a token: SmolLM2-135M's layers, KV heads, key and value, elements, bytes
first, other = (needle(4826, 60, .3), "4826"), (needle(2594, 62, .7), "2594")


def start(work, under, *options, how=("--managed-cache",)):
    return server(work, of, of.exec(under, *how), "-c", "2048", "-np", "2", "-b", "256", "--slot-save-path", work("slots"),
                  *options)


def memory(work):
    """With room for 32K tokens, an engine's cache of 720 MiB; rows that are the library's take what is there of them."""
    large = ("-c", "32768", "-np", "1", "-cram", "0")
    sizes = {}
    for how in ((), ("--managed-cache",)):
        with server(work, of, of.exec(policy, *how), *large) as s:
            expect(s.get("/props")["default_generation_settings"]["n_ctx"] == 8192, f"{how}: {s.get('/props')}")
            ask(s, first, f"memory, {how}")
            sizes[how] = resident(s.pid)
            line = s.requests(1)[0]
            whole = line.tokens * row_mib
            expect((.9 * whole < line.mib < 1.1 * whole) if not how else line.mib < .6 * whole, f"{how}: {line}")
            expect(("with a managed cache" in s.lines()[0]) == bool(how), f"{how}: {s.lines()}")
    expect(sizes["--managed-cache",] < sizes[()] - 500, f"memory: {sizes} MiB")
    print(f"memory: {sizes[()]:.0f} MiB with the engine's cache of 32,768 tokens, {sizes['--managed-cache',]:.0f} with a managed cache")


def other_texts(work):
    """What snapkv left of a text is of use for its continuation alone; quest leaves all of it."""
    story = " ".join(["The grass is green. The sky is blue. The sun is yellow."] * 20)
    code = "The secret code of the day is 4826."
    asked = [f"{story} {code} {story} {question}" for question in
             ("What is the secret code of the day?", "Say it again: what was the code that I told you?")]
    for under, again in ((policy, True), ("quest:tokens=128", False)):
        with start(work, under, "-cram", "0") as s:
            before = ask(s, (asked[0], "4826"), under)
            is_cached(ask(s, (asked[0], "4826"), f"{under}, the same request"), f"{under}, the same request")
            after = ask(s, (asked[1], "4826"), f"{under}, another question", 0)
            total = before.timings["prompt_n"]
            expect((after.timings["cache_n"] == 0) == again, f"{under}, another question: {after.timings}")
            expect(again or after.timings["cache_n"] > total - 60, f"{under}, another question: {after.timings}")
            turns = next_turn(asked[1], after.text)
            is_rest = ask(s, (turns, "4826"), f"{under}, a second turn")
            expect(is_rest.timings["cache_n"] > total - 10, f"{under}, a second turn: {is_rest.timings}")
            for line in s.requests(4):
                expect(line.left == 0 and line.read < line.tokens, f"{under}: {line}")
            expect(len(s.other_lines()) == 1, f"{under}: {s.other_lines()}")


def states(work):
    with start(work, policy) as s:
        before = ask(s, first, "first")
        s.slot("save", "first.bin")
        ask(s, other, "other")
        for slot in (0, 1):
            s.slot("restore", "first.bin", slot)
            again = ask(s, first, f"restored to slot {slot}", slot)
            is_cached(again, f"restored to slot {slot}")
            expect(again.text == before.text, f"restored to slot {slot}: {again.text!r}, before {before.text!r}")
        lines = s.requests(4)
        expect(len(lines) == 4, f"requests: {lines}")
        for line in lines:
            is_served(line, "states", budget)
        expect(len(s.other_lines()) == 1, f"states: {s.other_lines()}")
    expect(not os.path.exists(work("slots/first.bin.kvpolicy")), "a second file")
    size = os.path.getsize(work("slots/first.bin")) / 2**20
    expect(size < .6 * lines[0].tokens * row_mib, f"the state takes {size} MiB")
    for options in ((), ("--no-warmup",)):
        with start(work, policy, *options) as s:
            s.slot("restore", "first.bin")
            again = ask(s, first, "another server")
            is_cached(again, "another server")
            expect(again.text == before.text, f"another server: {again.text!r}, the first one {before.text!r}")
            turns = next_turn(first[0], again.text)
            expect(ask(s, (turns, "4826"), "another server, a second turn").timings["cache_n"] > 300, "a second turn")
            ask(s, other, "another server, another text")
            for line in s.requests(3):
                is_served(line, "another server", budget)


def is_refused(s, name, *patterns):
    """The server says that it can't; one line says why, and the next request is answered."""
    before = len(s.other_lines())
    try:
        s.slot("restore", name)
        expect(False, f"{name} was restored")
    except RuntimeError as why:
        expect("status 400" in str(why), f"{name}: {why}")
    said = s.other_lines()[before:]
    expect(len(said) == 1 and all(re.search(pattern, said[0]) for pattern in patterns), f"{name}: {said}")
    ask(s, other, f"behind {name}")


def bad_states(work):
    """Needs first.bin."""
    saved = contents(work("slots/first.bin"))
    work.write("slots/cut.bin", saved[:len(saved) // 2])
    work.write("slots/damaged.bin", saved[:-9] + bytes([saved[-9] ^ 1]) + saved[-8:])
    work.write("slots/empty.bin", b"")
    with start(work, policy, how=()) as s:
        ask(s, first, "without a managed cache")
        s.slot("save", "engine.bin")
        try:
            s.slot("restore", "first.bin")
            expect(False, "the engine restored a state of a managed cache")
        except RuntimeError as why:
            expect("status 400" in str(why), f"{why}")
        ask(s, other, "behind a state of a managed cache")
    with start(work, policy) as s:
        for name in ("cut.bin", "damaged.bin", "empty.bin", "engine.bin", "nosuch.bin"):
            is_refused(s, name, "not a state of a managed cache", name)
    with start(work, "snapkv:tokens=64,kernel=31,after=0") as s:
        is_refused(s, "first.bin", "another policy", "tokens=128", "tokens=64")
    with start(work, policy, "-c", "1024") as s:
        is_refused(s, "first.bin", "another cache")
    os.mkdir(work("slots/full.bin.part"))
    with start(work, policy) as s:
        ask(s, first, "before a file that can't be written")
        try:
            s.slot("save", "full.bin")
            expect(False, "a file that can't be written was saved")
        except RuntimeError as why:
            expect("status 500" in str(why), f"{why}")
        expect(any("full.bin.part" in line for line in s.other_lines()), f"{s.other_lines()}")
        expect(not os.path.exists(work("slots/full.bin")), "half a file")
        ask(s, other, "behind a file that can't be written")


def in_memory(work):
    """One slot, two conversations in turns: the server puts away the one and takes out the other."""
    with start(work, policy, "-np", "1") as s:
        for line in in_turns(s, first, other):
            is_served(line, "in memory", budget)
        expect(len(s.other_lines()) == 1, f"in memory: {s.other_lines()}")


def tiers(work):
    """quest keeps all; what its steps do not read lies on a disk."""
    for name in ("host", f"disk:{work('rows')}"):
        with start(work, "quest:tokens=64", how=("--tier", name)) as s:
            ask(s, first, name)
            is_cached(ask(s, first, f"{name}, again"), f"{name}, again")
            ask(s, other, f"{name}, in another slot", 1)
            for line in s.requests(3):
                expect(line.left == 0 and line.read <= 64 and line.mib < .6 * line.tokens * row_mib, f"{name}: {line}")
            expect(len(s.other_lines()) == 1 and f"with a managed cache in {name}" in s.lines()[0], f"{name}: {s.other_lines()}")
    expect(os.path.getsize(work("rows")) > 300 * row_mib * 2**20, "few rows on the disk")
    # A file that can't be: said once, and the engine alone answers; strict, nothing starts.
    with start(work, "quest:tokens=64", how=("--tier", "disk:/no/such/folder/rows")) as s:
        ask(s, first, "no tier")
        expect(len(s.lines()) == 1 and "/no/such/folder/rows" in s.lines()[0], f"no tier: {s.lines()}")
    result = run(work, of.exec("quest", "--tier", "disk:/no/such/folder/rows", "--strict") +
                 [of("llama-server"), "-m", of.model])
    expect(result.status not in (0, None) and len(library_lines(result.err)) == 1, f"no tier, strict: {result.text}")


def no_shift(work):
    """Positions can't be moved: an answer ends where the context does."""
    with server(work, of, of.exec(policy, "--managed-cache"), "-c", "256", "-np", "1", "--context-shift") as s:
        given = s.chat(needle(4826, 24, .5), 300, ignore_eos=True)
        expect("4826" in given.text and 50 < given.timings["predicted_n"] < 200, f"no shift: {given}")
        expect("slot context shift" not in s.said(), f"no shift: {s.said()[-500:]}")
        expect("2594" in s.chat(needle(2594, 32, .7)).text, "behind a full context")


def decided_by_all(work):
    """h2o can't go on behind what it dropped: the next turn, and the same request again, are read anew."""
    with start(work, "h2o:tokens=128") as s:
        given = s.chat(first[0], id_slot=0)
        turns = [{"role": "user", "content": first[0]}, {"role": "assistant", "content": given.text},
                 {"role": "user", "content": "And once more?"}]
        for asked in (turns, first[0]):
            again = s.chat(asked, id_slot=0)
            expect(again.timings["cache_n"] == 0 and again.timings["prompt_n"] > 300, f"h2o, again: {again.timings}")
        expect(again.text == given.text, f"h2o, the same: {again.text!r}, before {given.text!r}")
        expect(len(s.other_lines()) == 1, f"h2o: {s.other_lines()}")


def lost_rows(work):
    """A disk that loses what it was given: requests that need that end with status 500, or are read anew; others go on."""
    with start(work, "quest:tokens=64", "-np", "1", how=("--tier", f"disk:{work('lost')}")) as s:
        given = ask(s, first, "before the loss")
        os.truncate(work("lost"), 1 << 16)
        turns = next_turn(first[0], given.text)
        try:
            s.chat(turns)
            expect(False, "a turn behind rows that were lost")
        except RuntimeError as why:
            expect("status 500" in str(why), f"{why}")
        expect(any("tier" in line for line in s.other_lines()[1:]), f"lost: {s.other_lines()}")
        ask(s, first, "read anew behind the loss")
        os.truncate(work("lost"), 1 << 16)
        # The server puts the conversation away, which fails; the next one begins with the same template, whose rows are lost too.
        try:
            s.chat(other[0])
            expect(False, "another text behind a beginning that was lost")
        except RuntimeError as why:
            expect("status 500" in str(why), f"{why}")
        ask(s, other, "another text, again")
        given = ask(s, first, "what could not be put away")
        expect(given.timings["prompt_n"] == 340, f"what could not be put away: {given.timings}")
        expect(any("could not be saved" in line for line in s.other_lines()), f"lost: {s.other_lines()}")


def other_programs(work):
    """llama-bench restores states and counts positions by what it is told; whole contexts have no state."""
    bench = [of("llama-bench"), "-m", of.model, "-n", "4", "-p", "300", "-d", "700", "-r", "2", "-t", "2", "-b", "256", "-o", "json"]
    result = run(work, of.exec(policy, "--managed-cache") + bench)
    lines = library_lines(result.err)
    expect(result.status == 0 and result.out.count('"avg_ts"') == 2, f"llama-bench: {result.text}")
    # Decoding behind 700 tokens, twice, and once to warm up.
    steps = [line for line in lines if re.search(r"step read 1[23]\d of 70\d tokens", line)]
    expect(len(steps) >= 2, f"llama-bench: {lines}")
    tell = [of("llama-completion"), "-m", of.model, "-t", "2", "--temp", "0", "-no-cnv", "-n", "8", "-c", "512", "-p",
            "One, two, three, four,"]
    plain = run(work, tell)
    own = run(work, of.exec("full", "--managed-cache") + tell)
    expect(own.status == 0 and own.out == plain.out, f"llama-completion: {own.out!r}, {plain.out!r}")
    cached = run(work, of.exec("full", "--managed-cache") + tell + ["--prompt-cache", work("cache")])
    expect(cached.out == plain.out, f"a prompt cache: {cached.text}")
    expect(not os.path.exists(work("cache")), "a prompt cache that holds nothing")
    expect(any("whole context" in line for line in library_lines(cached.err)), f"a prompt cache: {cached.err[-500:]}")


with scratch() as work:
    os.mkdir(work("slots"))
    attempt(memory, work)
    attempt(other_texts, work)
    attempt(states, work)
    attempt(bad_states, work)
    attempt(in_memory, work)
    attempt(tiers, work)
    attempt(no_shift, work)
    attempt(decided_by_all, work)
    attempt(lost_rows, work)
    attempt(other_programs, work)
finish()
