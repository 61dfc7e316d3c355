"""chats.py KVPOLICY_EXEC LIBRARY ENGINE_BIN MODEL: clients of a llama-server with a policy in it are answered as they
should be, and the log says what their requests read."""
import sys

from server import attempt, messages, needle, programs, server, together
from harness import expect, finish, scratch

of = programs(sys.argv[1:])
sure = 0.7  # a token that wins by so much wins with the policies' rounding, too
questions = [(needle(4826, 30, .3), 12), (needle(2594, 32, .7), 12), (needle(6183, 28, .5), 12),
             ("The secret word is banana. What is the secret word?", 6)]
pattern = "one, two, three, four, five, six, " * 8
budget = 256


def answers(work, policy, ask, *how):
    with server(work, of, of.exec(policy, *how), "-c", "2048", "-np", "1") as s:
        return ask(s)


def ask_all(s):
    """Each question twice: at once and as a stream; and a text that goes on for many steps."""
    both = {"logprobs": True, "top_logprobs": 2}
    whole = [s.chat(text, most, **both) for text, most in questions] + [s.complete(pattern, 48, n_probs=2)]
    return whole, [s.stream(text, most) for text, most in questions]


def full_is_no_policy(work):
    dense, dense_streamed = answers(work, None, ask_all)
    for how in ((), ("--managed-cache",)):
        compare(dense, dense_streamed, *answers(work, "full", ask_all, *how))
    # What reads too little answers otherwise: these answers do depend on what is read.
    for (text, most), d in zip(questions[:2], dense):
        little = answers(work, "streaming_llm:tokens=48", lambda s: s.chat(text, most))
        expect(little.text != d.text, f"48 tokens are enough for {d.text!r}")


def compare(dense, dense_streamed, full, streamed):
    compared = [(d, f) for d, f in zip(dense, full) if d.margin > sure]
    expect(len(compared) >= 4, f"too many near-ties: {[round(d.margin, 2) for d in dense]}")
    for d, f in compared:
        expect(d.text == f.text, f"without {d.text!r}, with full {f.text!r}")
        expect(d.timings["predicted_n"] == f.timings["predicted_n"], f"{d.timings} {f.timings}")
    for d, whole, s in zip(dense_streamed, full, streamed):
        expect(d.text == whole.text == s.text, f"streamed {d.text!r}; with full {whole.text!r}, streamed {s.text!r}")


def check_line(line, timings, what):
    """What the log says of a request that no other one in its slot followed at once."""
    came, made = timings["prompt_n"], timings["predicted_n"]
    # One token of a prompt that comes alone is a step.
    expect(line.prompt in (came, came - 1), f"{what}: {line}, and the server processed {came}")
    expect(abs(line.prompt + line.steps - (came + made - 1)) <= 1, f"{what}: {line}, {came} came and {made} were made")
    expect(line.left == 0, f"{what}: {line} was left to the engine")
    expect(line.read <= budget + line.steps + 8, f"{what}: {line} read too much")
    there = came + timings["cache_n"]
    expect(there <= line.tokens <= there + line.steps, f"{what}: {line}, behind a prompt of {there}")


def four_clients(s):
    """At once, two of them streaming; each gets its own code. Returns the first one's answer."""
    codes = [7301, 2594, 6183, 5918]
    texts = [needle(code, 118, at) for code, at in zip(codes, (.3, .8, .45, .5))]
    jobs = [lambda ask=ask, text=text, slot=slot: ask(text, id_slot=slot)
            for slot, (ask, text) in enumerate(zip((s.chat, s.stream, s.chat, s.stream), texts))]
    got = together(jobs)
    lines = {line.sequence: line for line in s.requests(4)}
    expect(sorted(lines) == [0, 1, 2, 3], f"lines of requests: {lines}")
    for slot, (code, given) in enumerate(zip(codes, got)):
        if given is None:
            continue
        expect(str(code) in given.text, f"client {slot}: {code} is not in {given.text!r}")
        expect(given.timings["prompt_n"] > 550, f"client {slot}: {given.timings}")
        if slot in lines:
            check_line(lines[slot], given.timings, f"client {slot}")
    return texts[0], got[0]


def second_turn(s, text, first):
    """The prompt's tokens are in the cache, and so is what the policy knows of them."""
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": first.text},
             {"role": "user", "content": "And once more, what is the secret code? Say only the number."}]
    before = len(s.requests())
    given = s.chat(turns, id_slot=0)
    expect("7301" in given.text, f"second turn: {given.text!r}")
    expect(given.timings["cache_n"] > 550 and given.timings["prompt_n"] < 60, f"second turn: {given.timings}")
    check_line(s.requests(before + 1)[-1], given.timings, "second turn")


def three_choices(s):
    """The engine copies the prompt's tokens from one sequence to the others."""
    before = len(s.requests())
    body = {"messages": messages(needle(8235, 60, .35)), "max_tokens": 24, "temperature": 0, "n": 3}
    reply = s.post("/v1/chat/completions", body)
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    expect(len(texts) == 3 and all("8235" in text for text in texts), f"three choices: {texts}")
    lines = s.requests(before + 3)[before:]
    expect(len(lines) == 3, f"three choices: {lines}")
    for line in lines:
        expect(line.left == 0 and line.read < line.tokens, f"three choices: {line}")


def who_leaves(s):
    """One client leaves while it is answered, one while its prompt is read: others, and those after, do not notice."""
    codes, gone = [4826, 3562], needle(9047, 118, .2)
    jobs = [lambda text=needle(code, 118, at), slot=slot: s.chat(text, id_slot=slot)
            for slot, (code, at) in enumerate(zip(codes, (.6, .7)))]
    jobs += [lambda: s.leave("Tell me a long story about a river.", 8, 2), lambda: s.leave_while_read(gone, 3)]
    before = len(s.requests())
    *given, _, (processed, total) = together(jobs)
    expect(0 < processed < total > 600, f"it left when {processed} of its {total} tokens had been read")
    for code, one in zip(codes, given):
        expect(one and str(code) in one.text, f"beside those that leave, {code} is not in {one}")
    lines = s.requests(before + 3)[before:]
    expect(sorted(line.sequence for line in lines) == [0, 1, 2], f"who left while it was read made no step: {lines}")
    expect(all(5 <= line.steps < 900 for line in lines), f"left after 8 pieces: {lines}")
    given = together([lambda: s.chat(needle(2594, 32, .7), id_slot=2), lambda: s.chat(gone, id_slot=3)])
    for code, one in zip((2594, 9047), given):
        expect(one and str(code) in one.text, f"after those that left, {code} is not in {one}")


def the_rest_of_a_prompt(work):
    """Whose beginning was read for a client that left."""
    with server(work, of, of.exec("snapkv:tokens=128,after=0"), "-c", "1024", "-np", "1", "-b", "64") as s:
        text = needle(4826, 40, .3)
        processed, total = s.leave_while_read(text)
        given = s.chat(text)
        line = s.requests(1)[-1]
        expect("4826" in given.text, f"the rest of a prompt: {given.text!r}")
        expect(processed <= given.timings["cache_n"] < total, f"{processed} of {total} were read: {given.timings}")
        expect(line.left == 0 and line.read <= 128 + line.steps + 8 < line.tokens, f"the rest of a prompt: {line}")


def context_shift(work, policy, is_served):
    """The answer is longer than the context, half of which is dropped then and the rest turned."""
    with server(work, of, of.exec(policy), "-c", "256", "-np", "1", "--context-shift") as s:
        given = s.chat(needle(4826, 24, .5), 220, ignore_eos=True)
        expect(given.timings["predicted_n"] == 220 and len(given.text) > 300, f"{policy}: {given}")
        after = s.chat(needle(2594, 32, .7))
        expect("2594" in after.text, f"{policy}, after the context was shifted: {after.text!r}")
        lines = s.requests(2)
        alone = [line for line in s.other_lines() if "the engine goes on alone" in line]
        expect("slot context shift" in s.said(), f"{policy}: nothing was shifted")
        expect(len(lines) == 2 and lines[0].steps == 219 and lines[1].left == 0, f"{policy}: {lines}")
        expect(len(alone) == (0 if is_served else 1), f"{policy}: {alone}")
        expect((lines[0].left == 0) == is_served and lines[0].left < 219, f"{policy}: {lines}")
        if policy != "full":
            expect(all(line.read < .9 * line.tokens for line in lines), f"{policy}: {lines}")


def asked_twice(work):
    """The second time nothing but the last token of the prompt is processed: two requests, all the same."""
    with server(work, of, of.exec("full"), "-c", "1024", "-np", "1") as s:
        for _ in range(2):
            s.chat("The secret word is banana. What is the secret word?", 6)
        lines = s.requests(2)
        expect(len(lines) == 2, f"two requests, one behind the other: {lines}")
    for policy in ("snapkv:tokens=64,after=16", "quest:tokens=64,after=16"):
        with server(work, of, of.exec(policy), "-c", "1024", "-np", "1") as s:
            for _ in range(3):
                s.complete(pattern * 4, 40)
            first, *again = s.requests(3)
            expect(first.read > .3 * first.tokens, f"{policy} does not wait: {first}")
            for line in again:  # one step more: the prompt's last token
                expect(abs(line.read - first.read) < .05 * first.tokens, f"{policy}, the first time {first}, then {line}")


def clients(work, *how):
    """Prompts are longer than a batch, with a managed cache than the engine's whole cache; and the policy drops most of them."""
    with server(work, of, of.exec(f"snapkv:tokens={budget},after=0", *how), "-c", "4096", "-b", "256", "-ub", "64") as s:
        second_turn(s, *four_clients(s))
        attempt(three_choices, s)
        attempt(who_leaves, s)
        expect(len(s.other_lines()) == 1, f"nothing is left to the engine: {s.other_lines()}")


with scratch() as work:
    attempt(full_is_no_policy, work)
    attempt(clients, work)
    attempt(clients, work, "--managed-cache")
    attempt(context_shift, work, "full", True)
    attempt(context_shift, work, "quest:tokens=64", True)
    attempt(context_shift, work, "snapkv:tokens=64,kernel=31,after=0", False)
    attempt(the_rest_of_a_prompt, work)
    attempt(asked_twice, work)
finish()
