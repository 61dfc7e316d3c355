#!/usr/bin/env python3
"""Makes one self-contained page of what `kvpolicy-run --compare --json` wrote.

    report.py compare.json report.html
"""
import base64
import html
import itertools
import json
import struct
import sys
import zlib

COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#a463f2", "#97bbf5", "#9c6b4e", "#3ca951", "#d6336c", "#7a8b00", "#0f7b8a", "#8a6fdf"]

STYLE = """
:root { --ink: #1b1e23; --paper: #ffffff; --line: #d9dde3; --soft: #5b6470; --tint: #f5f7fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --paper: #16181c; --line: #363b43; --soft: #a2abb7; --tint: #1f2227; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin-top: 2.2rem }
p, figcaption { color: var(--soft); margin: .3rem 0 }
.wide { overflow-x: auto }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 1rem 2rem; align-items: start }
.pair > * { min-width: 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
th, td { padding: .35rem .42rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th { color: var(--soft); font-weight: 600 } td:first-child, th:first-child, .text { text-align: left } td.text { white-space: normal; min-width: 8rem; overflow-wrap: anywhere } td.text:first-child { min-width: 0 }
.swatch { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .45rem }
figure { margin: 1.1rem 0 } figure img { width: 100%; height: 150px; image-rendering: pixelated; border: 1px solid var(--line); background: var(--tint) }
.kept { position: relative } .kept i { position: absolute; top: -7px; bottom: -2px; min-width: 3px; border: solid var(--ink); border-width: 7px 0 }
svg { width: 100%; height: auto } svg text { fill: var(--ink); font: 13px system-ui, sans-serif } svg .axis { stroke: var(--line) }
svg .soft { fill: var(--soft) } svg .prompt { fill: var(--soft); opacity: .45 } svg rect.steps:not([fill]) { fill: var(--ink) }
"""


def number(value, digits=2, unit=""):
    return f"{value:.{digits}f}{unit}"


def table(head, rows):
    """Columns whose head begins with ~ hold text, the others numbers."""
    kinds = [' class="text"' if name.startswith("~") else "" for name in head]
    line = lambda tag, cells: "<tr>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells)) + "</tr>"
    lines = [line("th", [name.lstrip("~") for name in head])] + [line("td", row) for row in rows]
    return '<div class="wide"><table>' + "\n".join(lines) + "</table></div>"


def coloured(result):
    return zip(result["policies"], itertools.cycle(COLOURS))


def swatch(colour):
    return f'<span class="swatch" style="background:{colour}"></span>'


def dense_runs(result, *keys):
    """Those that there are: quantised values need flash attention."""
    names = {"flash_on": "dense, flash attention on", "flash_off": "dense, flash attention off",
             "pass_through": "dense, through kvpolicy"}
    return [(names[key], result["dense"][key]) for key in keys if result["dense"][key]]


def megabytes(count):
    return number(count / 1e6, 1, " MB") if count else ""


def speed_table(result):
    head = ["policy", "first token", "ms/token", "p10&ndash;p90", "request", "a step", "read", "mass", "choosing", "top-1", "KL"]
    request = lambda run: [number(run["request_speedup"], 2, "x")] if "request_ms" in run else [""]
    times = lambda run: [number(run["first_token_ms"] / 1e3, 2, " s") if "request_ms" in run else "", number(run["ms_per_token"]),
                         f'{run["ms_p10"]:.2f}&ndash;{run["ms_p90"]:.2f}', *request(run), number(run["speedup"], 2, "x")]
    rows = [[name, *times(run), "100%", "100%", "", "", ""] for name, run in dense_runs(result, "flash_on", "flash_off", "pass_through")]
    for policy, colour in coloured(result):
        rows.append([swatch(colour) + html.escape(policy["label"]), *times(policy), number(100 * policy["cache_share"], 1, "%"),
                     number(100 * policy["attention_mass"]["mean"], 1, "%"), number(100 * policy["choose_share"], 1, "%"),
                     number(100 * policy["top1_agreement"], 1, "%"), number(policy["kl"], 4)])
    return table(head, rows)


def memory_table(result):
    if "dense_bytes" not in result["memory"]:
        return ""
    head = ["policy", "at most", "after the last step", "ms/token with a managed cache"]
    rows = [["dense", megabytes(result["memory"]["dense_bytes"]), megabytes(result["memory"]["dense_bytes"]), ""]]
    for policy, colour in coloured(result):
        own = policy["managed_cache"]
        rows.append([swatch(colour) + html.escape(policy["label"]), megabytes(own["most_bytes"]), megabytes(own["bytes"]), number(own["ms_per_token"])])
    return table(head, rows)


def answer_table(result):
    head = ["~prompt", "tokens", "~dense"] + ["~" + swatch(c) + html.escape(p["label"]) for p, c in coloured(result)]
    rows = []
    for i, prompt in enumerate(result["prompts"]):
        rows.append([html.escape(prompt["name"]), str(prompt["tokens"]), html.escape(prompt["answer"][:60])] +
                    [html.escape(policy["answers"][i][:60]) for policy in result["policies"]])
    return table(head, rows)


def requests(result):
    """The first prompt and what follows it, as bars: until the first token, then the steps."""
    runs = [(name, run, None) for name, run in dense_runs(result, "flash_on", "flash_off")]
    runs += [(policy["label"], policy, colour) for policy, colour in coloured(result)]
    left, right, height = 190, 590, 26
    longest = max(run["request_ms"] for _, run, _ in runs)
    x = lambda ms: left + (right - left) * ms / longest
    parts = []
    for i, (name, run, colour) in enumerate(runs):
        top = 6 + height * i
        first, whole = run["first_token_ms"], run["request_ms"]
        parts.append(f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{html.escape(name)}</text>'
                     f'<rect class="prompt" x="{left}" y="{top}" width="{x(first) - left:.1f}" height="18"/>'
                     f'<rect class="steps" x="{x(first):.1f}" y="{top}" width="{max(x(whole) - x(first), 1):.1f}" height="18"{f" fill={chr(34)}{colour}{chr(34)}" if colour else ""}/>'
                     f'<text class="soft" x="{x(whole) + 8:.1f}" y="{top + 14}">{whole / 1e3:.1f} s, {run["request_speedup"]:.2f}x</text>')
    bottom = 6 + height * len(runs)
    parts.append(f'<text class="soft" x="{left}" y="{bottom + 16}">grey: until the first token; colour: the steps, {result["predict"]} tokens in all</text>')
    return f'<svg viewBox="0 0 720 {bottom + 26}" role="img" aria-label="time of a request">{"".join(parts)}</svg>'


def memory(result):
    """Rows that a request holds, over its tokens: the prompt in equal measure, then the steps, drawn wider."""
    if "dense_bytes" not in result["memory"]:
        return f'<p>{html.escape(result["memory"]["left_out"])}</p>'
    left, right, top, bottom, middle = 70, 640, 16, 250, 400
    prompt, dense = result["memory"]["prompt"], result["memory"]["dense_bytes"]
    tokens, steps = prompt[-1][0], result["predict"] - 1
    y = lambda count: bottom - (bottom - top) * count / dense
    at_prompt = lambda token: left + (middle - left) * token / tokens
    at_step = lambda step: middle + (right - middle) * step / steps
    line = lambda points, colour: f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>'
    parts = []
    for tick in range(5):
        count = dense * tick / 4
        parts.append(f'<line class="axis" x1="{left}" y1="{y(count):.1f}" x2="{right}" y2="{y(count):.1f}"/>'
                     f'<text class="soft" x="{left - 8}" y="{y(count) + 4:.1f}" text-anchor="end">{count / 1e6:.0f} MB</text>')
    while_prompted = [(at_prompt(token), y(count)) for token, count in [(0, 0)] + prompt]
    parts.append(line(while_prompted + [(right, y(dense))], "var(--soft)"))
    for policy, colour in coloured(result):
        held = policy["managed_cache"]["bytes_after_step"]
        parts.append(line(while_prompted[-1:] + [(at_step(i + 1), y(count)) for i, count in enumerate(held)], colour))
    parts.append(f'<line class="axis" x1="{middle}" y1="{top}" x2="{middle}" y2="{bottom}"/>'
                 f'<text class="soft" x="{(left + middle) / 2}" y="{bottom + 18}" text-anchor="middle">prompt, {tokens} tokens</text>'
                 f'<text class="soft" x="{(middle + right) / 2}" y="{bottom + 18}" text-anchor="middle">{steps} steps</text>')
    return f'<svg viewBox="0 0 720 {bottom + 28}" role="img" aria-label="memory of a request">{"".join(parts)}</svg>'


def scatter(result):
    left, right, top, bottom = 60, 680, 20, 330
    speeds = [policy["speedup"] for policy in result["policies"]] + [1.0]
    slowest, fastest = int(min(speeds) * 2) / 2, max(speeds) * 1.05
    lowest = int(20 * min([policy["top1_agreement"] for policy in result["policies"]] + [.95])) / 20  # in twentieths
    x = lambda speed: left + (right - left - 30) * (speed - slowest) / (fastest - slowest)
    y = lambda share: bottom - (bottom - top - 10) * (share - lowest) / (1 - lowest)
    parts = []
    for tick in range(int(slowest * 2), int(fastest * 2) + 1):
        speed = tick / 2
        parts.append(f'<line class="axis" x1="{x(speed):.1f}" y1="{top}" x2="{x(speed):.1f}" y2="{bottom}"/>'
                     f'<text class="soft" x="{x(speed):.1f}" y="{bottom + 18}" text-anchor="middle">{speed:g}x</text>')
    for tick in range(0, 6):
        share = lowest + tick * (1 - lowest) / 5
        parts.append(f'<line class="axis" x1="{left}" y1="{y(share):.1f}" x2="{right}" y2="{y(share):.1f}"/>'
                     f'<text class="soft" x="{left - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{100 * share:.0f}%</text>')
    points = sorted(coloured(result), key=lambda entry: -entry[0]["top1_agreement"])
    taken = [(x(p["speedup"]) - 8, y(p["top1_agreement"]) - 8, 16, 16) for p, _ in points]  # boxes: left, top, width, height
    for policy, colour in points:
        px, py = x(policy["speedup"]), y(policy["top1_agreement"])
        width = 7 * len(policy["label"]) + 6
        free = lambda box: not any(box[0] < l + w and l < box[0] + box[2] and box[1] < t + h and t < box[1] + box[3] for l, t, w, h in taken)
        # Beside the point where there is room, else as near as may be, with a line to it.
        places = sorted(((side, step) for step in range(-8, 12) for side in (1, -1)), key=lambda place: (abs(place[1]), -place[0]))
        boxes = [(px + 11 if side > 0 else px - 11 - width, py - 8 + 16 * step, width, 15) for side, step in places]
        inside = lambda box: left <= box[0] and box[0] + width <= 720 and 0 <= box[1] <= bottom - 15
        box = next((box for box in boxes if inside(box) and free(box)), boxes[0])
        taken.append(box)
        if abs(box[1] + 8 - py) > 8:
            parts.append(f'<line class="axis" x1="{px:.1f}" y1="{py:.1f}" x2="{box[0] + (0 if box[0] > px else width):.1f}" y2="{box[1] + 8:.1f}"/>')
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="7" fill="{colour}"/>'
                     f'<text x="{box[0] + 3:.1f}" y="{box[1] + 12:.1f}">{html.escape(policy["label"])}</text>')
    parts.append(f'<text class="soft" x="{(left + right) / 2}" y="{bottom + 40}" text-anchor="middle">speed-up over the best dense setting</text>')
    parts.append(f'<text class="soft" x="16" y="{(top + bottom) / 2}" text-anchor="middle" transform="rotate(-90 16 {(top + bottom) / 2})">top-1 agreement with dense</text>')
    return f'<svg viewBox="0 0 720 380" role="img" aria-label="speed-up against agreement">{"".join(parts)}</svg>'


def picture(rows, colour):
    """A PNG of [steps][bins] percentages, the colour's opacity being the share."""
    width = max(len(row) for row in rows)
    rgb = bytes(int(colour[i:i + 2], 16) for i in (1, 3, 5))
    # A faint floor lets a single kept token in a wide bin be seen.
    alpha = lambda share: 0 if share == 0 else min(255, 40 + int(2.15 * share))
    raw = b"".join(b"\0" + b"".join(rgb + bytes([alpha(row[i] if i < len(row) else 0)]) for i in range(width)) for row in rows)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), 8, 6, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def mark(result):
    """Marks above and below where the first prompt's marked text stands."""
    marked = result["prompts"][0].get("marked")
    if not marked:
        return ""
    whole = result["prompts"][0]["tokens"] + result["predict"]
    return f'<i style="left:{100 * marked[0] / whole:.2f}%;width:{100 * (marked[1] - marked[0]) / whole:.2f}%"></i>'


def pictures(result):
    parts = []
    for policy, colour in coloured(result):
        if not policy["kept"]:
            continue
        parts.append(f'<figure><figcaption>{swatch(colour)}<b>{html.escape(policy["label"])}</b> {html.escape(policy["parameters"])}</figcaption>'
                     f'<div class="kept">{mark(result)}<img alt="tokens kept by {html.escape(policy["label"])}" src="{picture(policy["kept"], colour)}"></div></figure>')
    return "".join(parts)


def at_work(result):
    """What each policy's own idea did in its free run behind the first prompt."""
    head = ["policy", "lists", "changed", "scored tokens a step", "ever", "renewals", "heads whole", "following", "fixed", "looks", "drifts", "fetches"]
    keys = ["whole_heads", "following_heads", "fixed_heads", "looks", "drifts", "fetches"]
    rows = []
    for policy, colour in coloured(result):
        did = policy["at_work"]
        if not did["lists"] or not did["scored_tokens_ever"]:
            continue
        rows.append([swatch(colour) + html.escape(policy["label"]), str(did["lists"]), number(100 * did["lists_changed"] / did["lists"], 0, "%"),
                     number(did["scored_tokens_a_step"], 0), number(did["scored_tokens_ever"], 0), number(did["renewals"], 0) if "renewals" in did else ""] +
                    [number(did[key], 0) if key in did else "" for key in keys])
    return table(head, rows) if rows else ""


def limit(policy, name):
    """A policy's parameter as a number, or none."""
    for pair in policy["parameters"].replace("+", ",").split(","):
        key, _, value = pair.rpartition(":")[2].partition("=")
        if key == name and value.replace(".", "", 1).isdigit():
            return float(value)
    return None


def uncertainty(result):
    """Entropy and variance of each generated page, their thresholds, and where the choice was made anew."""
    parts = []
    for policy, colour in coloured(result):
        did = policy["at_work"]
        if not did.get("page_end"):
            continue
        begin, end = result["prompts"][0]["tokens"], result["prompts"][0]["tokens"] + result["predict"]
        x = lambda tokens: 60 + 1060 * (tokens - begin) / (end - begin)
        most = max(did["page_entropy"] + did["page_variance"] + [limit(policy, "entropy") or 0, limit(policy, "varentropy") or 0, .1])
        y = lambda nats: 120 - 100 * nats / most
        shapes = [f'<line class="axis" x1="60" y1="120" x2="1120" y2="120"/>']
        for name, key, dash in (("entropy", "page_entropy", ""), ("varentropy", "page_variance", ' stroke-dasharray="4 3"')):
            points = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in zip(did["page_end"], did[key]))
            shapes.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
            shapes += [f'<circle cx="{x(t):.1f}" cy="{y(v):.1f}" r="3" fill="{colour}"/>' for t, v in zip(did["page_end"], did[key])]
            if limit(policy, name) is not None:
                at = y(limit(policy, name))
                shapes.append(f'<line x1="60" y1="{at:.1f}" x2="1120" y2="{at:.1f}" stroke="{colour}" opacity=".5"{dash}/>'
                              f'<text class="soft" x="54" y="{at + 4:.1f}" text-anchor="end">{limit(policy, name):g}</text>')
        shapes += [f'<line x1="{x(t):.1f}" y1="10" x2="{x(t):.1f}" y2="120" stroke="currentColor" opacity=".6"/>' for t in did.get("renewed_at", [])]
        shapes.append(f'<text class="soft" x="60" y="138">generated tokens: 0</text><text class="soft" x="1120" y="138" text-anchor="end">{result["predict"]}</text>')
        parts.append(f'<figure><figcaption>{swatch(colour)}<b>{html.escape(policy["label"])}</b> per page: mean entropy of the next token (nats), and its variance within '
                     f'the page (dashed), with their thresholds; upright lines: the choice was made anew</figcaption>'
                     f'<svg viewBox="0 0 1180 146" role="img" aria-label="entropy per page under {html.escape(policy["label"])}">{"".join(shapes)}</svg></figure>')
    return "".join(parts)


def page(result):
    counts = sorted({prompt["tokens"] for prompt in result["prompts"]})
    tokens = f"{len(result['prompts'])} of " + (f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0]))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvpolicy: policies against dense decoding</title><style>{STYLE}</style></head><body>
<h1>KV-cache policies against dense decoding</h1>
<p>{html.escape(result["model"].rsplit("/", 1)[-1])} in llama.cpp, {result["threads"]} threads, prompts: {tokens} tokens, {result["predict"]} tokens decoded,
{result["rounds"]} interleaved rounds. Baseline: the better dense setting, {html.escape(result["baseline"]["name"])}, {result["baseline"]["ms_per_token"]:.2f} ms a token.</p>
<h2>Answers</h2>
{answer_table(result)}
<h2>Speed</h2>
{speed_table(result)}
<p>Request: the first prompt and {result["predict"]} tokens, over the better dense setting, {html.escape(result["baseline"]["request_name"])}. Read: the share of the cache that a step
reads. Mass: of dense attention, what falls on the tokens read, mean over steps, layers and heads. Choosing: share of a step's time. Mass, top-1 and KL: teacher-forced on the
dense tokens.</p>
<div class="pair">
<section><h3>A request</h3>
{requests(result)}</section>
<section><h3>A step's speed against agreement</h3>
{scatter(result)}</section>
</div>
<h2>Memory of the rows</h2>
<p>With a managed cache, where the session holds the rows: what a policy drops when the prompt has ended is gone. Grey: all that there are.</p>
<div class="pair">
<section>
{memory(result)}</section>
<section>
{memory_table(result)}</section>
</div>
<h2>The methods at work</h2>
<p>Behind the first prompt: lists of tokens that were chosen by score, how many of them changed after their first step, the prompt's tokens that a list read at a
step and over all steps; choices made anew; and where a policy goes by heads' roles, who reads all, follows or is fixed, looks at attention, drifts found, and fetches.</p>
{at_work(result)}
{uncertainty(result)}
<h2>Which tokens were kept</h2>
<p>The first prompt. From left to right the positions of the sequence, from top to bottom the decode steps (they go on past the answer's end);
the stronger the colour, the larger the share of those tokens that was read, over all layers and heads.
{"Between the marks above and below stands the text that the question asks for." if result["prompts"][0].get("marked") else ""}</p>
{pictures(result)}
</body></html>
"""


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: report.py compare.json report.html")
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            text = page(json.load(file))
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError, KeyError) as problem:
        print(f"report.py: {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
