"""programs.py KVPOLICY_EXEC LIBRARY ENGINE_BIN MODEL: the engine's other programs, with a policy in them."""
import re
import sys

from server import attempt, library_lines, needle, programs, request_of
from harness import expect, finish, run, scratch

of = programs(sys.argv[1:])
budget = 64


def requests(result):
    return [r for line in library_lines(result.err) if (r := request_of(line))]


def bench(work, test, steps, *options):
    """Its table, and what its steps read; they come behind 300 tokens."""
    command = [of("llama-bench"), "-m", of.model, "-t", "2", "-r", "2", "-p", "0", "-n", "0", *options]
    result = run(work, of.exec(f"snapkv:tokens={budget},after=0") + command)
    expect(result.status == 0, f"llama-bench: {result.text}")
    row = rf"\| +{re.escape(test)} \| +[\d.]+ ± [\d.]+ \|"
    expect(re.search(row, result.out), f"llama-bench: no {test} in {result.out!r}")
    long = [line for line in requests(result) if line.tokens > 300 and line.steps == steps]
    expect(len(long) == 2, f"{test}, two repetitions: {library_lines(result.err)}")
    for line in long:
        expect(line.left == 0 and line.read <= budget + steps + 8, f"{test}: {line}")


def same_text(work, what, program, *options):
    """Under full as without, and not with too few tokens: the answer depends on what is read."""
    command = [of(program), "-m", of.model, "-t", "2", "--temp", "0", *options]
    said = {}
    for policy in (None, "full", "streaming_llm:tokens=48"):
        result = run(work, of.exec(policy) + command)
        expect(result.status == 0, f"{what}: {result.text}")
        # Without what llama-cli shows at first, and how fast it was.
        said[policy] = re.sub(r"\[ Prompt: .* \]", "", result.out).rpartition("\n> ")[2]
        if policy:
            lines = requests(result)
            expect(len(lines) == 1 and lines[0].left == 0 and lines[0].prompt > 150, f"{what}: {lines}")
    expect("4826" in said[None], f"{what}: {said[None]!r}")
    expect(said["full"] == said[None], f"{what}: without {said[None]!r}, with full {said['full']!r}")
    expect(said["streaming_llm:tokens=48"] != said[None], f"{what}: 48 tokens are enough for {said[None]!r}")


with scratch() as work:
    attempt(bench, work, "pp300+tg16", 16, "-pg", "300,16")
    attempt(bench, work, "tg16 @ d300", 16, "-d", "300", "-n", "16")
    attempt(same_text, work, "llama-cli", "llama-cli", "-st", "-n", "12", "-p", needle(4826, 30, .3))
    attempt(same_text, work, "llama-completion", "llama-completion", "-no-cnv", "-n", "5", "-p",
            needle(4826, 30, .3) + " The secret code of the day is")
finish()
