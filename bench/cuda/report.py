"""Prints the CUDA benchmarks' JSON lines (files, or standard input) as Markdown tables; --html FILE: a page with a roofline."""
import argparse
import fileinput
import html
import json
import math

import claims

# What is published, where it is of the same kind (docs: performance records). Other hardware, other shapes: for orientation alone.
RECORDS = {
    ("top 2048", 1, 4096): "17 us on H20, 3.2 us on Blackwell",
    ("top 2048", 1, 16384): "20 us on H20, 5.0 us on Blackwell",
    ("top 2048", 1, 32768): "26 us on H20",
    ("top 2048", 1, 65536): "6.1 us on Blackwell",
}
RECORD_OF_ALL = "3980 GB/s on H200"  # dense paged GQA decode


def tokens(count):
    return "-" if count == 0 else f"{count // 1024}K" if count % 1024 == 0 else str(count)


def micros(us):
    return f"{us / 1000:.3g} ms" if us >= 1000 else f"{us:.3g} us"


def amount(count):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def record_of(case):
    if case["name"] == "attend to all" and case["batch"] == 64:
        return RECORD_OF_ALL
    return RECORDS.get((case["name"], case["batch"], case["context"]), "")


def table(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|" + "|".join(" --- " if i == 0 else " ---: " for i in range(len(head))) + "|"
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"


def primitives_table(cases):
    head = ["kernel", "batch", "context", "time", "least to most", "bytes", "GB/s", "of ceiling", "record"]
    rows = []
    for c in cases:
        rows.append([c["name"], c["batch"], tokens(c["context"]), micros(c["us"]), f"{micros(c['us_least'])} to {micros(c['us_most'])}",
                     amount(c["bytes"]), f"{c['gbps']:.0f}", f"{c['share_of_ceiling']:.0%}", record_of(c)])
    return table(head, rows)


def steps_table(cases):
    head = ["policy, tokens", "batch", "context", "tokens read", "step", "dense step", "times faster", "of ceiling",
            "layers to a pool"]
    rows = []
    for c in cases:
        read = f"{c['tokens_read']:.0f}" if "tokens_read" in c else "all"
        rows.append([c["name"].removeprefix("step "), c["batch"], tokens(c["context"]), read, micros(c["us"]), micros(c["us_dense"]),
                     f"{c['ratio_to_dense']:.2f}", f"{c['share_of_ceiling']:.0%}", f"{c['shared_layers']:.0f}"])
    return table(head, rows)


def claims_table(cases):
    """The papers' claims beside what is here; of settings that were not timed, the arithmetic alone."""
    return table(["the paper's claim", "setting", "bound by bytes", "here", "why they differ"], claims.table(cases))


def markdown(facts, measured, unmeasured):
    for fact in facts:
        yield (f"{fact['device']}, {fact['processors']:.0f} multiprocessors, {fact['memory_bytes'] / 2**30:.0f} GiB, driver "
               f"{fact['driver']:.0f}, runtime {fact['runtime']:.0f}. {fact['shape']}, pages {fact['layout']}. Shares "
               "are of this run's streaming read.")
        yield ""
    primitives = [c for c in measured if not c["name"].startswith(("step ", "claim "))]
    steps = [c for c in measured if c["name"].startswith("step ")]
    if primitives:
        yield from ["## Kernels, one layer", "", *primitives_table(primitives), ""]
    if steps:
        yield from ["## Decode steps, 32 layers: choice and attention", "", *steps_table(steps), ""]
    notes = dict.fromkeys((c["name"], c["note"]) for c in measured if "note" in c)
    if notes:
        yield from ["Notes:", "", *(f"- {name}: {note}" for name, note in notes), ""]
    for what, why in (("skipped", "Not measured, for memory:"), ("failed", "Failed:")):
        cases = [c for c in unmeasured if what in c]
        if cases:
            yield from [why, "", *(f"- {c['name']}, batch {c['batch']}, {tokens(c['context'])}: {c[what]}" for c in cases), ""]


COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#994455", "#225555", "#ee8866"]
SHAPES = ["circle", "square", "diamond"]


def mark(shape, x, y, colour, title):
    size = 4.5
    look = f'fill="{colour}" fill-opacity=".75" stroke="{colour}"'
    title = f"<title>{html.escape(title)}</title>"
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" {look}>{title}</circle>'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if shape == "diamond" else ""
    return (f'<rect x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size}" height="{2 * size}" {look}{turn}>{title}</rect>')


def roofline(cases, ceiling):
    """Bytes against time, both by powers of ten; the line is the ceiling's time for as many bytes."""
    width, height, left, top, right, bottom = 1100, 640, 70, 20, 330, 50
    counts = [c["bytes"] for c in cases]
    first_x, last_x = math.floor(math.log10(min(counts))), math.ceil(math.log10(max(counts)))
    times = [c["us"] for c in cases] + [10 ** last_x / ceiling * 1e6]
    first_y, last_y = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    last_x, last_y = max(last_x, first_x + 1), max(last_y, first_y + 1)

    def x_of(count):
        return left + (math.log10(count) - first_x) / (last_x - first_x) * (width - left - right)

    def y_of(us):
        return height - bottom - (math.log10(us) - first_y) / (last_y - first_y) * (height - top - bottom)

    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="bytes against time" font-family="sans-serif" font-size="12">'
    for power in range(first_x, last_x + 1):
        x = x_of(10.0 ** power)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{amount(10.0 ** power)}</text>'
    for power in range(first_y, last_y + 1):
        y = y_of(10.0 ** power)
        yield f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{micros(10.0 ** power)}</text>'
    yield f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">bytes that the floor counts</text>'
    # The ceiling, from where it enters the plot.
    begin = max(10.0 ** first_x, 10.0 ** first_y * ceiling / 1e6)
    end = min(10.0 ** last_x, 10.0 ** last_y * ceiling / 1e6)
    if begin < end:
        yield (f'<line x1="{x_of(begin):.1f}" y1="{y_of(begin / ceiling * 1e6):.1f}" x2="{x_of(end):.1f}" '
               f'y2="{y_of(end / ceiling * 1e6):.1f}" stroke="#000" stroke-width="1.5"><title>the streaming read of this run: '
               f'{ceiling / 1e9:.0f} GB/s</title></line>')
    names = list(dict.fromkeys(c["name"] for c in cases))
    look = {name: (SHAPES[i // len(COLOURS) % len(SHAPES)], COLOURS[i % len(COLOURS)]) for i, name in enumerate(names)}
    for c in cases:
        title = (f"{c['name']}, batch {c['batch']}, {tokens(c['context'])}: {micros(c['us'])}, {c['gbps']:.0f} GB/s, "
                 f"{c['share_of_ceiling']:.0%} of the ceiling")
        shape, colour = look[c["name"]]
        yield mark(shape, x_of(c["bytes"]), y_of(c["us"]), colour, title)
    for i, name in enumerate(names):
        y = top + 10 + i * 17
        yield mark(look[name][0], width - right + 24, y, look[name][1], name)
        yield f'<text x="{width - right + 36}" y="{y + 4}">{html.escape(name)}</text>'
    yield "</svg>"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="JSON lines; standard input where there is none")
    parser.add_argument("--roofline", metavar="FILE", help="write a picture of the kernels, too")
    given = parser.parse_args()
    with fileinput.input(given.files or ("-",), encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines if line.strip()]
    facts = list({fact["device"]: fact for fact in cases if "device" in fact}.values())
    measured = [c for c in cases if "us" in c]
    unmeasured = [c for c in cases if "skipped" in c or "failed" in c]
    print("\n".join(markdown(facts, measured, unmeasured)))
    if any(c["name"].startswith("claim ") for c in measured):
        print("\n".join(["## The papers' claims", "", *claims_table(measured)]))
    ceilings = [c["gbps"] * 1e9 for c in measured if c["name"] == "ceiling read"]
    primitives = [c for c in measured if not c["name"].startswith(("step ", "ceiling ", "claim "))]
    if given.roofline and ceilings and primitives:
        with open(given.roofline, "w", encoding="utf-8") as out:
            out.write("\n".join(roofline(primitives, max(ceilings))) + "\n")


if __name__ == "__main__":
    main()
