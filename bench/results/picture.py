"""The pictures: requests and steps of several engines against the length of the prompt; answers against the share that is read."""
import math

STYLE = """
  svg { --paper: #fff; --ink: #1f2328; --soft: #59636e; --rule: #d8dee4;
        --grey: #59636e; --blue: #0969da; --green: #1a7f37; --orange: #bc4c00;
        --purple: #8250df; --pink: #bf3989 }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --rule: #30363d;
          --grey: #9198a1; --blue: #58a6ff; --green: #3fb950; --orange: #ffa657;
          --purple: #d2a8ff; --pink: #ff9bce }
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


def panel(left, width, title, lines):
    """One diagram. `lines`: a label, how its stroke looks, and its points (tokens, value)."""
    longest = max(tokens for _, _, points in lines for tokens, _ in points)
    most = max(value for _, _, points in lines for _, value in points) * 1.05
    x = lambda tokens: left + width * tokens / longest
    y = lambda value: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most
    out = [f'<text class="title" x="{left}" y="{TOP - 24}">{title}</text>']
    for step in round_steps(most):
        out.append(f'<line class="rule" x1="{left}" x2="{left + width}" y1="{y(step):.1f}" y2="{y(step):.1f}"/>')
        out.append(f'<text x="{left - 8}" y="{y(step) + 4:.1f}" text-anchor="end">{step:g}</text>')
    for tokens, _ in lines[0][2]:
        out.append(f'<text x="{x(tokens):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{tokens / 1000:.0f}K</text>')
    out.append(f'<text x="{left + width / 2}" y="{HEIGHT - 6}" text-anchor="middle">tokens of the prompt</text>')
    above = HEIGHT
    for label, (colour, dashes), points in sorted(lines, key=lambda line: line[2][-1][1]):
        out.append(f'<path stroke="var(--{colour})"{dashes} d="M{" L".join(f"{x(t):.1f} {y(v):.1f}" for t, v in points)}"/>')
        above = min(y(points[-1][1]) + 4, above - 17)  # labels do not overlap
        out.append(f'<text x="{left + width + 8}" y="{above:.1f}" style="fill: var(--{colour})">{label}</text>')
    return out


DASHES = ' stroke-dasharray="5 4"'
ENGINES = {  # label: the names of its settings, of which the faster counts, and its stroke
    "llama.cpp": (("llama.cpp, flash attention on", "llama.cpp, flash attention off"), ("grey", "")),
    "with full": (("kvpolicy, full",), ("blue", "")),
    "with quest": (("kvpolicy, quest:after=16",), ("green", "")),
    "with snapkv": (("kvpolicy, snapkv",), ("orange", "")),
    "and prompt pages": (("kvpolicy, snapkv and prompt pages",), ("orange", DASHES)),
    "OpenVINO": (("OpenVINO GenAI",), ("purple", "")),
    "its eviction": (("OpenVINO GenAI, its eviction",), ("purple", DASHES)),
    "vLLM": (("vLLM for CPUs",), ("pink", "")),
}


def draw_requests(data):
    def lines(key):
        lengths = data["lengths"].values()
        ran = {label: engine for label, engine in ENGINES.items() if all(set(engine[0]) & set(of_length) for of_length in lengths)}
        return [(label, stroke, [(of_length["kvpolicy, full"]["prompt_tokens"], min(of_length[name][key] for name in names if name in of_length))
                                 for of_length in lengths]) for label, (names, stroke) in ran.items()]
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
           "<title>Time of a request and of a step against the length of the prompt, by engine</title>",
           f"<style>{STYLE}</style>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="var(--paper)"/>',
           *panel(48, 260, f"seconds for the prompt and {data['generated']} tokens", lines("request_s")),
           *panel(486, 260, "ms for each token of the answer", lines("ms_per_token")), "</svg>"]
    return "\n".join(svg) + "\n"


COLOURS = {"quest": "green", "snapkv": "orange", "chess": "blue", "sentencekv": "pink", "chunkkv": "purple", "random": "grey"}


def draw_answers(data):
    """A diagram for each length: a line for each policy, a point with its interval for each budget; budgets on a scale of logarithms.
    Dashed: policies whose first steps read everything."""
    body = []
    for place, of_length in enumerate(data):
        left, width = 48 + place * 450, 270
        lines = {}
        for row in of_length["rows"]:
            if row["budget"]:
                lines.setdefault(row["policy"], []).append(row)
        share = lambda row: row["budget"] / of_length["tokens"]
        least, most = (bound(share(row) for rows in lines.values() for row in rows) for bound in (min, max))
        x = lambda at: left + width * math.log(at / least) / math.log(most / least)
        y = lambda kept: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * kept / 1.15
        body.append(f'<text class="title" x="{left}" y="{TOP - 24}">% of dense answers, {of_length["tokens"] // 1000}K tokens</text>')
        for percent in range(0, 101, 20):
            body.append(f'<line class="rule" x1="{left}" x2="{left + width}" y1="{y(percent / 100):.1f}" y2="{y(percent / 100):.1f}"/>')
            body.append(f'<text x="{left - 8}" y="{y(percent / 100) + 4:.1f}" text-anchor="end">{percent}</text>')
        for percent in (1, 2, 5, 10, 20, 50):
            if least <= percent / 100 <= most:
                body.append(f'<text x="{x(percent / 100):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{percent}</text>')
        body.append(f'<text x="{left + width / 2}" y="{HEIGHT - 6}" text-anchor="middle">budget, % of the cache; dashed: the first 15 steps read all</text>')
        above = HEIGHT
        for policy, rows in sorted(lines.items(), key=lambda line: line[1][-1]["kept"]):
            name = policy.split(":")[0]
            stroke = f'stroke="var(--{COLOURS[name]})"' + (DASHES if rows[0]["read"] > share(rows[0]) + .05 else "")
            points = " L".join(f"{x(share(row)):.1f} {y(row['kept']):.1f}" for row in rows)
            body.append(f'<path {stroke} d="M{points}"/>')
            for row in rows:
                low, high = row["interval"]
                body.append(f'<path {stroke} stroke-opacity=".35" d="M{x(share(row)):.1f} {y(low):.1f} V{y(min(high, 1.15)):.1f}"/>')
            above = min(y(rows[-1]["kept"]) + 4, above - 17)  # labels do not overlap
            body.append(f'<text x="{left + width + 8}" y="{above:.1f}" style="fill: var(--{COLOURS[name]})">{policy}</text>')
    wide = 48 + len(data) * 450
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {HEIGHT}" width="{wide}" height="{HEIGHT}" role="img">',
           "<title>Share of dense decoding's answers that policies keep, against their budget</title>",
           f"<style>{STYLE}</style>", f'<rect width="{wide}" height="{HEIGHT}" fill="var(--paper)"/>', *body, "</svg>"]
    return "\n".join(svg) + "\n"
