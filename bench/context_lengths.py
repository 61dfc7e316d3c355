#!/usr/bin/env python3
"""Time and memory of a decoding step against the length of the context: measures them, and draws the picture in the README.

    python3 bench/context_lengths.py measure build/release/tools/kvpolicy-run MODEL.gguf docs/results/context_lengths.json
    python3 bench/context_lengths.py draw docs/results/context_lengths.json docs/results/context_lengths.svg

Measuring takes 35 minutes to an hour on two cores: most of it is the engine's own prompt of 32,000 tokens, with flash attention and without.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768]  # tokens
POLICIES = {"full": "full", "quest": "quest", "snapkv": "snapkv:after=0"}
GENERATED = 24  # tokens
EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"


def compared(program, model, tokens, folder):
    """What kvpolicy-run says of one length."""
    words = int((tokens - 2 * GENERATED - 210) / 1.15)  # of examples/haystack.py; the template and the question are 210 tokens
    text = subprocess.run([sys.executable, EXAMPLES / "haystack.py", "--words", str(words), "--depth", "0.3"], check=True, capture_output=True)
    prompt, out = folder / "prompt.txt", folder / "measured.json"
    prompt.write_bytes(text.stdout)
    command = [program, "--compare", "--chat", "--model", model, "--prompt-file", prompt, "--predict", str(GENERATED), "--json", out]
    for policy in POLICIES.values():
        command += ["--policy", policy]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def shortened(run):
    """What the picture needs of it."""
    def times(way):
        return {key: round(way[key], 2) for key in ("ms_per_token", "ms_p10", "ms_p90", "first_token_ms")}

    ways = {f"dense, flash attention {name}": times(run["dense"][key]) | {"bytes": run["memory"]["dense_bytes"]}
            for name, key in (("on", "flash_on"), ("off", "flash_off"))}
    for name, policy in zip(POLICIES, run["policies"], strict=True):
        ways[name] = times(policy) | {"tokens_read": round(policy["tokens_read"]), "bytes": policy["managed_cache"]["bytes"]}
    return {"tokens": run["prompts"][0]["tokens"], "ways": ways}


def measure(program, model, out):
    result = {"policies": POLICIES, "generated": GENERATED, "lengths": []}
    with tempfile.TemporaryDirectory() as folder:
        for tokens in LENGTHS:
            print(f"context_lengths.py: {tokens} tokens", file=sys.stderr, flush=True)
            run = compared(program, model, tokens, pathlib.Path(folder))
            result |= {"model": pathlib.Path(model).name, "engine": run["engine"], "threads": run["threads"]}
            result["lengths"].append(shortened(run))
            pathlib.Path(out).write_text(json.dumps(result, indent=1) + "\n")


STYLE = """
  svg { --paper: #fff; --ink: #1f2328; --soft: #59636e; --rule: #d8dee4;
        --dense: #59636e; --full: #0969da; --quest: #1a7f37; --snapkv: #bc4c00 }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --rule: #30363d;
          --dense: #9198a1; --full: #58a6ff; --quest: #3fb950; --snapkv: #ffa657 }
  }
  text { font: 13px system-ui, sans-serif; fill: var(--soft) }
  .title { font-size: 15px; font-weight: 600; fill: var(--ink) }
  .rule { stroke: var(--rule) }
  path { fill: none; stroke-width: 2.5; stroke-linejoin: round }
"""
WIDTH, HEIGHT, TOP, BOTTOM = 880, 340, 56, 44


def round_steps(most):
    """Four to eight steps of 1, 2 or 5 times a power of ten, up to `most`."""
    step = 10 ** len(str(int(most)))
    divisors = [2, 2.5, 2]
    while most / step < 4:
        step /= divisors[0]
        divisors.append(divisors.pop(0))
    return [i * step for i in range(int(most // step) + 1)]


def panel(left, width, title, lengths, lines):
    """One diagram. `lines`: label, colour, a value for each length."""
    most = max(max(values) for _, _, values in lines) * 1.05
    longest = lengths[-1]
    x = lambda tokens: left + width * tokens / longest
    y = lambda value: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most
    out = [f'<text class="title" x="{left}" y="{TOP - 24}">{title}</text>']
    for step in round_steps(most):
        out.append(f'<line class="rule" x1="{left}" x2="{left + width}" y1="{y(step):.1f}" y2="{y(step):.1f}"/>')
        out.append(f'<text x="{left - 8}" y="{y(step) + 4:.1f}" text-anchor="end">{step:g}</text>')
    for tokens in LENGTHS[2:]:  # the shorter ones would overlap
        out.append(f'<text x="{x(min(tokens, longest)):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{tokens // 1024}K</text>')
    out.append(f'<text x="{left + width / 2}" y="{HEIGHT - 6}" text-anchor="middle">tokens in the context</text>')
    below = None
    for label, colour, values in sorted(lines, key=lambda line: -line[2][-1]):
        points = " L".join(f"{x(t):.1f} {y(v):.1f}" for t, v in zip(lengths, values))
        out.append(f'<path stroke="var(--{colour})" d="M{points}"/>')
        at = y(values[-1]) + 4 if below is None else max(y(values[-1]) + 4, below + 17)  # labels do not overlap
        below = at
        out.append(f'<text x="{left + width + 8}" y="{at:.1f}" style="fill: var(--{colour})">{label}</text>')
    return out


def draw(measured, out):
    data = json.loads(pathlib.Path(measured).read_text())
    lengths = [length["tokens"] for length in data["lengths"]]
    ways = [length["ways"] for length in data["lengths"]]
    settings = [name for name in ways[0] if name.startswith("dense")]
    times = [("llama.cpp", "dense", [min(w[s]["ms_per_token"] for s in settings) for w in ways])]
    times += [(name, name, [w[name]["ms_per_token"] for w in ways]) for name in POLICIES]
    rows = [("all rows", "dense", [w[settings[0]]["bytes"] / 2**20 for w in ways]),
            ("snapkv", "snapkv", [w["snapkv"]["bytes"] / 2**20 for w in ways])]
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
           f"<title>Time and memory of a decoding step against the length of the context: {data['model']}</title>",
           f"<style>{STYLE}</style>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="var(--paper)"/>',
           *panel(48, 312, "ms for each token", lengths, times), *panel(500, 290, "MiB of KV cache", lengths, rows), "</svg>"]
    pathlib.Path(out).write_text("\n".join(svg) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True)
    measuring = verbs.add_parser("measure")
    measuring.add_argument("program")
    measuring.add_argument("model")
    measuring.add_argument("out")
    measuring.set_defaults(run=lambda a: measure(a.program, a.model, a.out))
    drawing = verbs.add_parser("draw")
    drawing.add_argument("measured")
    drawing.add_argument("out")
    drawing.set_defaults(run=lambda a: draw(a.measured, a.out))
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
