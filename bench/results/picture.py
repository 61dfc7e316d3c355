"""The pictures: a decoding step's time and memory against the length of the context; answers against the share that is read."""
import math

LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768]  # tokens
POLICIES = ["full", "quest:after=16", "snapkv"]

STYLE = """
  svg { --paper: #fff; --ink: #1f2328; --soft: #59636e; --rule: #d8dee4;
        --dense: #59636e; --full: #0969da; --quest: #1a7f37; --snapkv: #bc4c00;
        --chunkkv: #8250df; --sentencekv: #bf3989 }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --rule: #30363d;
          --dense: #9198a1; --full: #58a6ff; --quest: #3fb950; --snapkv: #ffa657;
          --chunkkv: #d2a8ff; --sentencekv: #ff9bce }
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


def draw(data):
    lengths = [length["tokens"] for length in data["lengths"]]
    of_each = lambda way, key: [length["ways"][way][key] for length in data["lengths"]]
    dense = [min(pair) for pair in zip(of_each("flash on", "ms_per_token"), of_each("flash off", "ms_per_token"))]
    times = [("llama.cpp", "dense", dense)]
    times += [(name, name.split(":")[0], of_each(name, "ms_per_token")) for name in POLICIES]
    rows = [("all rows", "dense", [length["bytes"] / 2**20 for length in data["lengths"]]),
            ("snapkv", "snapkv", [count / 2**20 for count in of_each("snapkv", "bytes")])]
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
           "<title>Time and memory of a decoding step against the length of the context: Qwen2.5-Coder-0.5B-Instruct in llama.cpp</title>",
           f"<style>{STYLE}</style>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="var(--paper)"/>',
           *panel(48, 300, "ms for each token", lengths, times), *panel(510, 280, "MiB of KV cache", lengths, rows), "</svg>"]
    return "\n".join(svg) + "\n"


COLOURS = {"quest": "quest", "snapkv": "snapkv", "chess": "full", "sentencekv": "sentencekv", "chunkkv": "chunkkv", "random": "dense"}


def draw_answers(data):
    """A diagram for each length: a line for each policy, a point with its interval for each budget; the share on a scale of logarithms."""
    body = []
    for place, of_length in enumerate(data):
        left, width = 48 + place * 450, 270
        lines = {}
        for row in of_length["rows"]:
            if row["budget"]:
                lines.setdefault(row["policy"], []).append(row)
        least, most = (bound(row["read"] for rows in lines.values() for row in rows) for bound in (min, max))
        x = lambda share: left + width * math.log(share / least) / math.log(most / least)
        y = lambda kept: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * kept / 1.15
        body.append(f'<text class="title" x="{left}" y="{TOP - 24}">% of dense answers, {of_length["tokens"] // 1000}K tokens</text>')
        for percent in range(0, 101, 20):
            body.append(f'<line class="rule" x1="{left}" x2="{left + width}" y1="{y(percent / 100):.1f}" y2="{y(percent / 100):.1f}"/>')
            body.append(f'<text x="{left - 8}" y="{y(percent / 100) + 4:.1f}" text-anchor="end">{percent}</text>')
        for percent in (1, 2, 5, 10, 20, 50):
            if least <= percent / 100 <= most:
                body.append(f'<text x="{x(percent / 100):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{percent}</text>')
        body.append(f'<text x="{left + width / 2}" y="{HEIGHT - 6}" text-anchor="middle">% of the cache that a step reads, on the mean</text>')
        above = HEIGHT
        for policy, rows in sorted(lines.items(), key=lambda line: line[1][-1]["kept"]):
            name = policy.split(":")[0]
            stroke = f'stroke="var(--{COLOURS[name]})"' + (' stroke-dasharray="5 4"' if policy.endswith("after=0") or policy == "quest" else "")
            points = " L".join(f"{x(row['read']):.1f} {y(row['kept']):.1f}" for row in rows)
            body.append(f'<path {stroke} d="M{points}"/>')
            for row in rows:
                low, high = row["interval"]
                body.append(f'<path {stroke} stroke-opacity=".35" d="M{x(row["read"]):.1f} {y(low):.1f} V{y(min(high, 1.15)):.1f}"/>')
            above = min(y(rows[-1]["kept"]) + 4, above - 17)  # labels do not overlap
            body.append(f'<text x="{left + width + 8}" y="{above:.1f}" style="fill: var(--{COLOURS[name]})">{policy}</text>')
    wide = 48 + len(data) * 450
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {HEIGHT}" width="{wide}" height="{HEIGHT}" role="img">',
           "<title>Share of dense decoding's answers that policies keep, against the share of the cache that a step reads</title>",
           f"<style>{STYLE}</style>", f'<rect width="{wide}" height="{HEIGHT}" fill="var(--paper)"/>', *body, "</svg>"]
    return "\n".join(svg) + "\n"
