"""Whole requests of a llama-server with policies in front of it, on the engine's rows and in a managed cache: seconds until the
last of four clients has its answer, and what the process takes. Each way a process of its own, in one run.

    cmake/bootstrap.sh packages programs && cmake --preset release && cmake --build --preset release
    python3 bench/server/whole_requests.py [--sentences 600] [--turns 2]
"""
import argparse
import os
import pathlib
import sys
import time

root = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(root / "tests/server"), str(root / "tests/tools")]
from server import needle, programs, resident, server, together
from harness import finish, scratch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--sentences", type=int, default=600, help="of a prompt, of 5 tokens each")
parser.add_argument("--tokens", type=int, default=64, help="of an answer")
parser.add_argument("--context", type=int, default=32768)
parser.add_argument("--turns", type=int, default=1)
given = parser.parse_args()
of = programs([str(root / "build/release/tools/kvpolicy-exec"), str(root / "build/release/src/adapters/preload/libkvpolicy-llama.so"),
               str(root / "build/engine/prefix/bin"), str(root / "build/engine/model.gguf")])
codes = (4826, 2594, 6183, 7301)
own = ("--managed-cache",)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def measure(work, policy, how, options):
    with server(work, of, of.exec(policy, *how), "-c", str(given.context), "-np", "4", "-cram", "0", *options) as s:
        jobs = [lambda code=code, at=at: s.chat(needle(code, given.sentences, at), given.tokens, ignore_eos=True)
                for code, at in zip(codes, (.2, .4, .6, .8))]
        start = time.monotonic()
        answers = together(jobs)
        seconds = time.monotonic() - start
        return {"seconds": seconds, "tokens": answers[0].timings["prompt_n"],
                "found": sum(str(code) in a.text for code, a in zip(codes, answers)),
                "held": resident(s.pid), "most": resident(s.pid, "VmHWM")}


with scratch() as work:
    ways = {"the engine, flash attention on": (None, (), ("-fa", "on")), "the engine, off": (None, (), ("-fa", "off")),
            "full": ("full", (), ()), "snapkv:tokens=512": ("snapkv:tokens=512", (), ()),
            "snapkv:tokens=512, managed cache": ("snapkv:tokens=512", own, ()),
            "snapkv:tokens=512, managed cache, -b 512": ("snapkv:tokens=512", own, ("-b", "512")),
            "quest:tokens=512": ("quest:tokens=512", (), ()),
            "quest:tokens=512, a tier on a disk, -b 512": ("quest:tokens=512", ("--tier", "disk:" + work("rows")), ("-b", "512"))}
    results = {name: [] for name in ways}
    for turn in range(given.turns):
        for name, (policy, how, options) in ways.items():
            results[name].append(measure(work, policy, how, options))
            print(f"turn {turn}, {name}: {results[name][-1]}", file=sys.stderr)
    best = {name: min(all_, key=lambda r: r["seconds"]) for name, all_ in results.items()}
    dense = min(best["the engine, flash attention on"]["seconds"], best["the engine, off"]["seconds"])
    print(f"4 requests of {best['full']['tokens']} tokens at once, {given.tokens} tokens each, -c {given.context} -np 4, 2 threads:\n")
    print("| llama-server | all answered (s) | of the better dense | memory then (MiB) | most (MiB) | needles |\n"
          "|---|--:|--:|--:|--:|--:|")
    for name, b in best.items():
        print(f"| {name} | {b['seconds']:.1f} | {dense / b['seconds']:.2f}x | {b['held']:.0f} | {b['most']:.0f} | "
              f"{b['found']} of {len(codes)} |")
finish()
