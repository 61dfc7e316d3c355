"""What the pages show: a mark in a page, the result that its table is made from, and what returns the table's lines."""
import itertools
import math
import random
import re
import statistics

import picture
import report
from measures import of_llama_cpp


def table(head, rows):
    line = lambda cells: "| " + " | ".join(cells) + " |"
    return [line(head), "|---|" + "--:|" * (len(head) - 1), *map(line, rows)]


def seconds(value):
    return f"{value:.0f} s" if value >= 99.5 else f"{value:.1f} s"


def request(data, of_length, name, generated):
    """Seconds of a request with so long an answer."""
    return of_length[name]["request_s"] + (generated - data["generated"]) * of_length[name]["ms_per_token"] / 1e3


def ratios_table(with_avx512, with_avx2):
    """How many times as fast as the faster of llama.cpp's settings; bold: the fastest, and what is as fast within the noise."""
    ways = {**{f"kvpolicy, `{policy}`": f"kvpolicy, {policy}" for policy in ("full", "quest:after=16", "snapkv")}, "OpenVINO GenAI": "OpenVINO GenAI",
            "the same, with its eviction": "OpenVINO GenAI, its eviction", "vLLM": "vLLM for CPUs"}
    rows = []
    for cpu, noise, data in (("AVX-512", .04, with_avx512), ("AVX2 alone", .08, with_avx2)):
        for of_length in data["lengths"].values():
            tokens = f"{next(iter(of_length.values()))['prompt_tokens']:,}"
            faster = lambda generated: min(filter(of_llama_cpp, of_length), key=lambda name: request(data, of_length, name, generated))
            for generated in (data["generated"], 1000):
                dense = request(data, of_length, faster(generated), generated)
                times = [dense / request(data, of_length, name, generated) if name in of_length else 0 for name in ways.values()]
                as_fast = lambda time: time >= (1 - noise) * max(times)
                rows.append([cpu, f"{tokens} + {generated:,}", seconds(dense),
                             *[f"**{time:.2f}x**" if as_fast(time) else f"{time:.2f}x" if time else "not run" for time in times]])
    return table(["CPU", "tokens: prompt + answer", "llama.cpp", *ways], rows)


def requests_table(data):
    """Of llama.cpp's settings the faster for each row. The last column says from how many tokens of answer llama.cpp takes no longer
    than the fastest other engine, by kvpolicy with a prompt that reads everything."""
    own, others = [], []
    for name in dict.fromkeys(name for of_length in data["lengths"].values() for name in of_length if not of_llama_cpp(name)):
        (own if name.startswith("kvpolicy") else others).append(name)
    rows = []
    for of_length in data["lengths"].values():
        dense = list(filter(of_llama_cpp, of_length))
        fastest = lambda names, generated: min((request(data, of_length, name, generated) for name in names if name in of_length), default=math.inf)
        whole = [name for name in own if "prompt" not in name]
        even = next((f"{n:,}" for n in range(1, 100_000) if fastest(whole, n) <= fastest(others, n)), "never")
        for generated in (data["generated"], 1000):
            times = [fastest(names, generated) for names in (dense, *zip(own + others))]
            cells = ["" if t == math.inf else f"**{seconds(t)}**" if seconds(t) == seconds(min(times)) else seconds(t) for t in times]
            rows.append([f"{of_length[own[0]]['prompt_tokens']:,} + {generated:,}", *cells, even])
        if "told" in of_length[own[0]]:
            faster = min(dense, key=lambda name: of_length[name]["request_s"])
            rows.append(["numbers told, of 8", *[str(of_length[name]["told"]) if name in of_length else "" for name in (faster, *own, *others)], ""])
    names = [re.sub(r"^kvpolicy, (\S+)", r"with `\1`", name) for name in own + others]
    return table(["tokens: prompt + answer", "llama.cpp", *names, "`full`, `quest` or `snapkv` is the fastest from"], rows)


def engines_table(data):
    rows = []
    for of_length in data["lengths"].values():
        for e in of_length.values():
            rows.append([e["engine"], f"{e['prompt_tokens']:,}", f"{e['first_token_s']:.1f}", f"{e['ms_per_token']:.1f}", f"{e['request_s']:.1f}", f"{e['peak_bytes'] / 1e6:.0f}"])
    return table(["engine", "prompt tokens", "first token (s)", "median ms/token", f"prompt + {data['generated']} tokens (s)", "peak memory (MB)"], rows)


def printed_table(place):
    """The place-th table of what a program printed."""
    def made(data):
        runs = itertools.groupby(data["printed"], key=lambda line: line.startswith("|"))
        return [list(lines) for of_table, lines in runs if of_table][place]
    return made


def answers_table(data):
    rows = []
    for of_length in data:
        for row in of_length["rows"]:
            low, high = row["interval"]
            rows.append([f"`{row['policy']}`" if row["budget"] else row["policy"], f"{of_length['tokens']:,}", f"{row['budget']:,}" if row["budget"] else "all",
                         f"{100 * row['read']:.1f} %", f"{100 * row['kept']:.0f} %", f"{100 * low:.0f}-{100 * high:.0f}", f"{row['worse']}/{row['better']}", f"{row['p']:.3f}"])
    return table(["policy", "tokens", "budget", "read on the mean", "of dense", "95 %", "worse/better", "p"], rows)


def short_table(data):
    cells = lambda row: [f"{100 * row['kept']:.0f} %", "{:.0f}-{:.0f}".format(*(100 * end for end in row["interval"])), f"{row['worse']}/{row['better']}",
                         f"{100 * row['worst']:.0f} %", f"{100 * row['read']:.0f} %"]
    head = [name for label in data for name in (label, "95 %", "worse/better", "worst form", "read")]
    return table(["policy", *head], [[f"`{rows[0]['policy']}`", *[cell for row in rows for cell in cells(row)]]
                                     for rows in zip(*(of["rows"] for of in data.values()))])


def written_table(data):
    """Intervals: blocks of an answer are drawn anew, answer by answer."""
    source = random.Random(20261129)
    mean_of = lambda answers, pick=lambda blocks: blocks: statistics.mean(statistics.mean(pick(of["agrees"])) for of in answers)
    baseline = next(answers for policy, answers in data["policies"].items() if policy.startswith("random"))
    rows = [["dense", "all", "", "", "", "", *[f"{share:.2f}" for share in data["distinct"]]]]
    for policy, answers in data["policies"].items():
        drawn = [mean_of(answers, lambda blocks: source.choices(blocks, k=len(blocks))) for _ in range(2000)]
        pairs = {at: list(zip(of["agrees"], its["agrees"])) for at, (of, its) in enumerate(zip(answers, baseline))}
        worse, better, p = report.signs_against_dense(pairs)
        rows.append([f"`{policy}`", f"{statistics.mean(of['read'] for of in answers):.0f}", f"{100 * mean_of(answers):.1f} %",
                     f"{100 * report.quantile(drawn, .025):.1f}-{100 * report.quantile(drawn, .975):.1f}",
                     "" if answers is baseline else f"{worse}/{better}, {p:.3f}", f"{statistics.mean(k for of in answers for k in of['kl']):.3f}",
                     *[f"{100 * statistics.mean(of['agrees']):.1f} %" for of in answers]])
    return table(["policy", "tokens read", "top-1", "95 %", "blocks below/above random, p", "KL", "tutorial", "story", "problems"], rows)


def prompts_table(data):
    rows = []
    for of in data:
        whole, pages = of["whole"], of["pages"]
        time = lambda key: f"{whole[key] / 1e3:.0f} to {pages[key] / 1e3:.0f} s"
        rows.append([f"{of['tokens']:,}", str(of["texts"]), time("first_token_ms"), time("attend_ms"), f"{100 * pages['read_share']:.0f} %",
                     f"{whole['told']} to {pages['told']}", f"{100 * of['kept']:.0f} %", f"{100 * of['interval'][0]:.0f}-{100 * of['interval'][1]:.0f}",
                     f"{of['worse']}/{of['better']}", f"{of['p']:.3f}"])
    return table(["tokens", "texts", "first token", "its attention", "read", "numbers told", "of whole", "95 %", "worse/better", "p"], rows)


def steps_table(data):
    share = lambda value: f"{100 * value:.1f} %"
    timed = lambda of: [f"{of['ms_per_token']:.2f}", f"{of['ms_p10']:.2f}-{of['ms_p90']:.2f}", f"{of['speedup']:.2f}x"]
    rows = [[f"dense, flash attention {way[6:]}", "all", "100 %", *timed(of), "", "", ""] for way, of in data["dense"].items()]
    rows += [[f"`{text}`", f"{of['tokens_read']:,.0f}", share(of["cache_share"]), *timed(of), share(of["choose_share"]), share(of["top1_agreement"]), f"{of['kl']:.4f}"]
             for text, of in data["policies"].items()]
    return table(["policy", "tokens read", "of the cache", "ms/token", "p10-p90", "speed-up", "choosing", "top-1", "KL"], rows)


def rows_table(data):
    """Of the first nine policies: what others retain is one of their kinds."""
    ms, mb = lambda of: f"{of['ms_per_token']:.2f}", lambda count: f"{count / 1e6:.1f} MB"
    rows = [[f"dense, flash attention {way[6:]}", ms(of), "", mb(data["row_bytes"])] for way, of in data["dense"].items()]
    rows += [[f"`{text}`", ms(of), ms(of["managed"]), mb(of["managed"]["bytes"])] for text, of in list(data["policies"].items())[:9]]
    return table(["policy", "ms/token", "with a managed cache", "its rows in the end"], rows)


def cache_types_table(data):
    rows = []
    for kind, ways in data.items():
        for way, of in ways["ways"].items():
            rows.append([kind, way if way.startswith("dense") else f"`{way}`", f"{of['request_speedup']:.2f}x", seconds(of["first_token_ms"] / 1e3),
                         f"{of['ms_per_token']:.1f}", f"{of['speedup']:.2f}x", "" if of["kl"] is None else f"{of['kl']:.4f}"])
    return table(["cache", "way", "request", "first token", "ms/token", "step", "KL"], rows)


def programs_table(data):
    best = {what: max(of[what] for way, of in data.items() if of_llama_cpp(way)) for what in ("steps", "prompt")}
    return table(["llama-bench", "128 tokens behind 4,096, tokens/s", "", "a prompt of 4,096, tokens/s", ""],
                 [[way if of_llama_cpp(way) else f"`{way}` in front", *[cell for what in best for cell in (f"{of[what]:.1f}", f"{of[what] / best[what]:.2f}x")]]
                  for way, of in data.items()])


def sparse_table(data):
    times = {}
    for name, ms in data.items():
        shape, tokens, way = re.fullmatch(r"(.*), (\d+) tokens: (.*)", name).groups()
        times.setdefault(int(tokens), {}).setdefault(shape, {})[way] = ms
    cells = lambda of: [f"{of['llama.cpp']:.2f} ms", f"{of['kvpolicy']:.2f} ms", f"{of['llama.cpp'] / of['kvpolicy']:.1f}x"]
    head = [cell for shape in next(iter(times.values())) for cell in (f"{shape}: llama.cpp", "kvpolicy", "")]
    return table(["tokens in the cache", *head], [[f"{tokens:,}", *[cell for of in shapes.values() for cell in cells(of)]] for tokens, shapes in times.items()])


def at_work_table(data):
    rows = []
    for label, told in data["at_work"].items():
        did, mass = told["at_work"], told["attention_mass"]
        if did["lists_changed"]:
            rows.append([f"`{label}`", str(did["lists"]), str(did["lists_changed"]), f"{did['scored_tokens_a_step']:,.0f}", f"{did['scored_tokens_ever']:,.0f}",
                         f"{did['renewals']:,.0f}" if "renewals" in did else "", f"{100 * mass['mean']:.1f} %", f"{100 * mass['p10']:.1f} %"])
    return table(["policy", "lists", "changed", "a step", "ever", "renewals", "mass", "worst tenth"], rows)


def pages_table(data):
    return table(["policy", "each layer has a page table", "all layers share one"],
                 [[f"`{policy}`", *[f"{100 * share:.1f} %" for share in shares]] for policy, shares in data.items()])


TABLES = {
    ("README.md", "requests"): (("requests", "avx2"), ratios_table),
    ("docs/results/speed.md", "requests"): ("requests", requests_table),
    ("docs/results/engines.md", "engines"): ("requests", engines_table),
    ("docs/results/answers.md", "answers"): ("answers", answers_table),
    ("docs/results/speed.md", "avx2"): ("avx2", requests_table),
    ("docs/results/speed.md", "prompts"): ("prompts", prompts_table),
    ("docs/results/engines.md", "avx2"): ("avx2", engines_table),
    ("docs/results/demo.md", "demo"): ("demo", printed_table(0)),
    ("docs/results/demo.md", "answers"): ("demo", printed_table(1)),
    ("docs/results/at-work.md", "demo"): ("demo", at_work_table),
    ("docs/results/speed.md", "steps"): ("steps", steps_table),
    ("docs/results/memory.md", "steps"): ("steps", rows_table),
    ("docs/results/memory.md", "processes"): ("processes", printed_table(0)),
    ("docs/results/memory.md", "larger"): ("larger", printed_table(0)),
    ("docs/results/engines.md", "server"): ("server", printed_table(0)),
    ("docs/results/answers.md", "short_answers"): ("short_answers", short_table),
    ("docs/results/long-use.md", "written_answers"): ("written_answers", written_table),
    ("docs/results/speed.md", "budgets"): ("budgets", steps_table),
    ("docs/results/speed.md", "cache_types"): ("cache_types", cache_types_table),
    ("docs/results/speed.md", "sparse"): ("sparse", sparse_table),
    ("docs/results/speed.md", "kvpress"): ("kvpress", printed_table(0)),
    ("docs/results/speed.md", "models"): ("models", printed_table(0)),
    ("docs/results/engines.md", "programs"): ("programs", programs_table),
    ("docs/results/engines.md", "transformers"): ("transformers", printed_table(0)),
    ("docs/results/speed.md", "batches"): ("batches", printed_table(0)),
    ("docs/results/speed.md", "requests of a batch"): ("batches", printed_table(1)),
    ("docs/results/memory.md", "pages"): ("pages", pages_table),
}
PICTURES = {"docs/results/requests.svg": ("requests", picture.draw_requests),
            "docs/results/answers.svg": ("answers", picture.draw_answers)}
