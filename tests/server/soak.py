"""soak.py KVPOLICY_EXEC LIBRARY ENGINE_BIN MODEL: many requests of all kinds, four at a time; none is answered wrongly,
and the server does not grow. KVPOLICY_SOAK in the environment says how many, 40 otherwise."""
import os
import random
import sys
import threading

from server import needle, programs, server, together
from harness import expect, finish, scratch

of = programs(sys.argv[1:])
requests = int(os.environ.get("KVPOLICY_SOAK", "40"))
clients = 4
budget = 256
needles = [(code, needle(code, sentences, at)) for code, sentences, at in
           ((4826, 60, .6), (6183, 60, .45), (8235, 60, .35), (2594, 118, .8), (3562, 80, .7), (5918, 50, .5),
            (9047, 70, .3), (7301, 60, .5))]
shorts = ["Hello!", "What is 2 + 2?", "Write a short poem about the sea.", "Tell me three facts about the moon."]


def answered_without(work):
    """Those needles that the engine finds alone."""
    with server(work, of, [], "-c", "8192", "-np", str(clients)) as s:
        jobs = [lambda code=code, text=text: str(code) in s.chat(text, 14).text for code, text in needles]
        right = together(jobs[:clients]) + together(jobs[clients:])
    found = [one for one, is_right in zip(needles, right) if is_right]
    expect(len(found) >= 5, f"too few needles are found without a policy: {[code for code, _ in found]}")
    return found


def one_request(s, draw, found):
    """Of a kind that is drawn."""
    kind = draw.random()
    if kind < .5:
        code, text = draw.choice(found)
        ask = draw.choice((s.chat, s.stream))
        given = ask(text, draw.choice((14, 24)), cache_prompt=draw.random() < .6)
        expect(str(code) in given.text, f"{code} is not in {given.text!r}, {given.timings}")
    elif kind < .75:
        given = draw.choice((s.chat, s.stream))(draw.choice(shorts), 20, ignore_eos=True)
        expect(given.timings["predicted_n"] == 20, f"a short question: {given}")
    elif kind < .9:
        s.leave(draw.choice(shorts), draw.randrange(1, 12))
    else:
        s.leave_early(draw.choice(found)[1], draw.uniform(.05, 1.5))


class sizes:
    """Of a process, after each request."""

    def __init__(self, pid):
        self._folder = f"/proc/{pid}"
        self._taken = []
        self._taking = threading.Lock()

    def take(self):
        with open(f"{self._folder}/status") as status:
            said = dict(line.split(":", 1) for line in status)
        now = (int(said["VmRSS"].split()[0]) // 1024, len(os.listdir(f"{self._folder}/fd")), int(said["Threads"]))
        with self._taking:
            self._taken.append(now)

    def thirds(self, which):
        count = len(self._taken)
        values = [taken[which] for taken in self._taken]
        return values[count // 3:2 * count // 3], values[2 * count // 3:]

    def check(self, most):
        """`most`: MiB that the last third of the requests may add to the one before."""
        (middle, last), (open_before, open_after), (threads_before, threads_after) = map(self.thirds, range(3))
        grown = sum(last) / len(last) - sum(middle) / len(middle)
        expect(grown <= most, f"{grown:.0f} MiB more: {middle[::8]} {last[::8]}")
        expect(min(open_after) <= min(open_before) + 1, f"open files: {open_before} {open_after}")
        expect(max(threads_after) <= max(threads_before) + 1, f"threads: {threads_before} {threads_after}")
        print(f"{len(self._taken)} requests: {middle[0]} to {last[-1]} MiB, {open_after[-1]} open files, "
              f"{threads_after[-1]} threads")


def soak(work, found, draws, most, how, *options):
    with server(work, of, of.exec(f"snapkv:tokens={budget},after=0", *how), "-c", "8192", "-np", str(clients), *options) as s:
        of_process = sizes(s.pid)
        left = iter(draws)
        taking = threading.Lock()

        def client():
            while True:
                with taking:
                    draw = next(left, None)
                if draw is None:
                    return
                one_request(s, draw, found)
                of_process.take()

        together([client] * clients)
        of_process.check(most)
        lines = s.requests(1)
        expect(len(lines) > len(draws) / 3, f"only {len(lines)} lines of requests")
        for line in lines:
            expect(line.left == 0 and line.read <= budget + line.steps + 8, f"a request read too much: {line}")
        expect(len(s.other_lines()) == 1, f"nothing is left to the engine: {s.other_lines()}")


with scratch() as work:
    found = answered_without(work)
    draws = [random.Random(index) for index in range(requests)]
    # With the server's memory of prompts, beside which the library keeps up to 256 MiB of them; and without; and on rows of
    # the library's own, of which the server keeps states.
    a_third = requests // 3
    soak(work, found, draws[:a_third], 256, (), "-cram", "32")
    soak(work, found, draws[a_third:2 * a_third], 8 + 400 / requests, (), "-cram", "0")
    soak(work, found, draws[2 * a_third:], 40 + 400 / requests, ("--managed-cache",), "-cram", "32")
finish()
