"""What the tests of the preload library share: a llama-server with a policy in it or none, and what clients ask."""
import collections
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
from harness import begin, expect, model_or_skip

piece = collections.namedtuple("piece", "text timings progress")  # progress: of the prompt, where asked for
answer = collections.namedtuple("answer", "text timings margin")  # margin: the least by which a token won, where asked
request = collections.namedtuple("request", "sequence prompt steps read tokens mib left")
_request_line = re.compile(r"sequence (\d+): prompt of (\d+) tokens, (\d+) steps; a step read (\d+) of (\d+) tokens "
                           r"\([\d.]+%\), choosing [\d.]+ ms,(?: fetching [\d.]+ ms,)? attending [\d.]+ ms"
                           r"; rows take ([\d.]+) MiB"
                           r"(?:; (\d+) steps were left to the engine)?$")


class programs:
    """A script's arguments: KVPOLICY_EXEC LIBRARY ENGINE_BIN MODEL. Where those are not there, nothing is tested."""

    def __init__(self, arguments):
        self.kvpolicy_exec, self.library, self.folder, model = arguments
        self.model = model_or_skip(model)
        model_or_skip(self("llama-server"))

    def __call__(self, name):
        return os.path.join(self.folder, name)

    def exec(self, policy, *options):
        """In front of a program; nothing for no policy."""
        return [] if policy is None else [self.kvpolicy_exec, policy, *options, "--"]

    def preloaded(self, *assignments, behind=""):
        """The same without kvpolicy-exec; `behind`: another library that is preloaded."""
        return ["env", f"LD_PRELOAD={self.library}{behind and ':'}{behind}", *assignments]


def _number(said):
    return float(said) if "." in said else int(said)


def request_of(line):
    """What a line says of a request; None for other lines."""
    found = _request_line.search(line)
    return found and request(*(_number(said or "0") for said in found.groups()))


def library_lines(text):
    """Its own lines in what a program printed, without their beginning."""
    return [line.partition("kvpolicy: ")[2] for line in text.splitlines() if "kvpolicy: " in line]


def together(jobs):
    """Each job in a thread of its own; what each returned, in their order. An exception is a failed check, and None."""
    results = [None] * len(jobs)

    def do(index):
        try:
            results[index] = jobs[index]()
        except Exception as why:
            expect(False, f"client {index}: {why!r}")

    threads = [threading.Thread(target=do, args=(index,)) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


_sentences = ["The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again."]


def needle(code, sentences, at):
    """A prompt of some 5 tokens a sentence, with a code in it and a question about it. A small model finds those codes
    that the tests ask for, and its answer's first 12 tokens, up to the code, are far from ties."""
    said = [_sentences[index % len(_sentences)] for index in range(sentences)]
    said.insert(int(sentences * at), f"The secret code of the day is {code}.")
    return " ".join(said) + " What is the secret code of the day?"


def ask(s, question, what, slot=0, **more):
    """A text and the code that its answer must have; "what" is for the message."""
    text, code = question
    given = s.chat(text, id_slot=slot, **more)
    expect(code in given.text, f"{what}: {code} is not in {given.text!r}")
    return given


def next_turn(text, answer):
    """The conversation that a text and its answer begin, asked for the code once more."""
    return messages(text) + [{"role": "assistant", "content": answer},
                             {"role": "user", "content": "And once more, what is the secret code? Say only the number."}]


def in_turns(s, *questions):
    """Two conversations in one slot: the server puts away the one and takes out the other."""
    texts = {code: messages(text) for text, code in questions}
    for turn in range(2):
        for code in texts:
            given = ask(s, (texts[code], code), "in turns")
            if turn > 0:
                expect(given.timings["cache_n"] > 150 and given.timings["prompt_n"] < 60, f"in turns: {given.timings}")
            texts[code] = next_turn(texts[code], given.text)
    lines = s.requests(2 * len(texts))
    expect(len(lines) == 2 * len(texts), f"in turns: {lines}")
    return lines


def is_served(line, what, budget):
    expect(line.left == 0, f"{what}: {line} was left to the engine")
    expect(line.read <= budget + line.steps + 8 < line.tokens, f"{what}: {line} read too much")


def is_cached(given, what):
    """A prompt that was in the slot, but for its last few tokens."""
    expect(given.timings["prompt_n"] <= 4 and given.timings["cache_n"] > 150, f"{what}: {given.timings}")


def resident(pid, which="VmRSS"):
    """MiB that a process has in memory; "VmHWM": the most that it ever had."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(which)) / 1024


def _margin(probabilities):
    """Of tokens with the two best each, by how much the best one won where it won by least; None where nobody asked."""
    tops = [token["top_logprobs"] for token in probabilities or []]
    return min((one["logprob"] - other["logprob"] for one, other in tops), default=None)


def attempt(scenario, *arguments):
    """A part of a script; when it breaks off, that is a failed check, and the others go on."""
    try:
        return scenario(*arguments)
    except Exception as why:
        expect(False, f"{scenario.__name__} {arguments[1:]}: {why!r}")


def _free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def messages(text):
    return [{"role": "user", "content": text}] if isinstance(text, str) else text


class server:
    """A llama-server that is ready when the block begins, and has ended well when it is left."""

    def __init__(self, work, of, front, *options):
        self._port = _free_port()
        self._command = [*front, of("llama-server"), "-m", of.model, "--port", str(self._port), "-t", "2", *options]
        self._work = work
        self.log = work(f"server-{self._port}.log")

    def __enter__(self):
        with open(self.log, "wb") as log:
            self._process = begin(self._work, self._command, stdout=log, stderr=subprocess.STDOUT)
        self.pid = self._process.pid
        deadline = time.monotonic() + 60
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server, status {self._process.poll()}; it said:\n{self.said()[-2000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Ends it as a service manager does."""
        if self._process.returncode is not None:
            return
        alive = self._process.poll() is None
        expect(alive, f"the server ended by itself, status {self._process.poll()}: {self.said()[-1000:]}")
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(20)
            expect(not alive or status == 0, f"the server ended with status {status}: {self.said()[-1000:]}")
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            expect(False, "the server does not end")

    def _is_ready(self):
        try:
            return self.get("/health").get("status") == "ok"
        except (OSError, http.client.HTTPException):
            return False

    def said(self):
        with open(self.log, errors="replace") as log:
            return log.read()

    def lines(self):
        return library_lines(self.said())

    def other_lines(self):
        """The library's lines that are not of requests."""
        return [line for line in self.lines() if request_of(line) is None]

    def requests(self, count=0):
        """What the log says of requests, once it has so many: when the next one begins, or after a second."""
        deadline = time.monotonic() + 5
        while True:
            found = [r for line in self.lines() if (r := request_of(line))]
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def _connect(self):
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)

    def _ask(self, method, path, body=None):
        connection = self._connect()
        try:
            connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()

    def get(self, path):
        return self._ask("GET", path)[1]

    def post(self, path, body):
        status, reply = self._ask("POST", path, body)
        if status != 200:
            raise RuntimeError(f"{path}: status {status}, {reply}")
        return reply

    def slot(self, action, name, slot=0):
        return self.post(f"/slots/{slot}?action={action}", {"filename": name} if name else {})

    def chat(self, text, most=24, **more):
        """A whole answer, greedy."""
        reply = self.post("/v1/chat/completions", self._body(text, most, more))
        choice = reply["choices"][0]
        margin = _margin((choice.get("logprobs") or {}).get("content"))
        return answer(choice["message"]["content"], reply["timings"], margin)

    def complete(self, text, most=24, **more):
        """The same without a chat's template."""
        reply = self.post("/completion", {"prompt": text, "n_predict": most, "temperature": 0} | more)
        return answer(reply["content"], reply["timings"], _margin(reply.get("completion_probabilities")))

    def stream(self, text, most=24, **more):
        """The same, piece by piece."""
        with self.streaming(text, most, **more) as pieces:
            whole = list(pieces)
        expect(len(whole) > 5, f"a stream of {len(whole)} pieces")
        return answer("".join(piece.text for piece in whole), whole[-1].timings, None)

    def streaming(self, text, most=24, **more):
        """An answer's pieces as they come; who leaves the block early cancels it."""
        return _pieces(self._connect(), self._body(text, most, more) | {"stream": True})

    def leave(self, text, after, slot=-1):
        """Goes away after so many pieces of a long answer."""
        with self.streaming(text, 1000, id_slot=slot, ignore_eos=True) as pieces:
            for _ in zip(range(after), pieces):
                pass

    def leave_while_read(self, text, slot=-1):
        """Goes away when some of the prompt has been processed; returns how much of how much."""
        with self.streaming(text, id_slot=slot, return_progress=True) as pieces:
            for piece in pieces:
                if piece.progress and piece.progress["processed"] > piece.progress["cache"]:
                    return piece.progress["processed"], piece.progress["total"]
        raise RuntimeError("the prompt had no progress")

    def leave_early(self, text, seconds):
        """Goes away after so long, whatever has come by then."""
        with self.streaming(text):
            time.sleep(seconds)

    def _body(self, text, most, more):
        return {"messages": messages(text), "max_tokens": most, "temperature": 0} | more


class _pieces:
    def __init__(self, connection, body):
        self._connection = connection
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._connection.close()

    def __iter__(self):
        for line in self._connection.getresponse():
            said = line.decode().strip().removeprefix("data: ")
            if said in ("", "[DONE]"):
                continue
            event = json.loads(said)
            text = (event.get("choices") or [{}])[0].get("delta", {}).get("content") or ""
            yield piece(text, event.get("timings"), event.get("prompt_progress"))
