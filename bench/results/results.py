#!/usr/bin/env python3
"""Measures what the documents' tables show, and writes the tables from docs/results/data. run.sh says what there is.

    results.py measure NAME... | write | check
"""
import argparse
import itertools
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import picture

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools/eval"), str(ROOT / "examples")]
import haystack
import report

DATA = ROOT / "docs/results/data"
BUILD = ROOT / "build"
MODEL = BUILD / "engine/model.gguf"


class problem(Exception):
    pass


def output(*command, **environment):
    result = subprocess.run([str(word) for word in command], cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise problem(f"{' '.join(map(str, command))} ended with status {result.returncode}")
    return result.stdout


def printed(*command, **environment):
    return {"printed": output(*command, **environment).splitlines()}


def commit():
    return output("git", "rev-parse", "--short", "HEAD").strip()


def qwen():
    path = os.environ.get("KVPOLICY_QWEN", "")
    if not os.path.exists(path):
        raise problem("set KVPOLICY_QWEN to the file of Qwen2.5-Coder-0.5B-Instruct (docs/results/answers.md#models)")
    return os.path.abspath(path)


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"^flags\s*: (.*)", text, re.M)[1].split())
    kinds = [name for flag, name in (("avx2", "AVX2"), ("avx512f", "AVX-512"), ("avx512_bf16", "bf16"), ("amx_tile", "AMX")) if flag in flags]
    return f"{re.search(r'^model name.*: (.*)', text, re.M)[1].strip()} ({', '.join(kinds)}), {os.cpu_count()} cores"


def words_of(tokens):
    """Words of a text that Qwen's template makes so many tokens of; the template and the question are 210."""
    return int((tokens - 210) / 1.15)


def hidden_fact(words, depth, path):
    path.write_text(haystack.haystack(words, depth, seed=1))
    return path


# What is measured: a name, minutes on two cores, and what returns the result.

def requests():
    """On a CPU with AVX-512."""
    if "AVX-512" not in machine():
        raise problem("this CPU has no AVX-512: measure avx2")
    return whole_requests((4096, 16384, 32000))


def avx2():
    """On a CPU with AVX2 alone."""
    if "AVX-512" in machine():
        raise problem("this CPU has AVX-512: measure requests")
    return whole_requests((4096, 16384))


def whole_requests(lengths):
    """In one engine after the other, by their own defaults. Left out behind more tokens: what took over twice llama.cpp's time; and
    behind 32,000 the slower of llama.cpp's two settings, which takes a quarter of an hour."""
    result, left_out = {"generated": 200, "lengths": {}}, set()
    for tokens in lengths:
        print(f"{tokens} tokens", file=sys.stderr, flush=True)
        out = BUILD / f"rivals/requests-{commit()}-{tokens}.json"
        if not out.exists():  # else a run of this commit was cut short
            output("bench/rivals/run.sh", "--tokens", tokens, "--generate", result["generated"], "--model", qwen_q8(), "--json", out,
                   *[word for name in left_out for word in ("--leave-out", name)])
        told = json.loads(out.read_text())
        time = lambda name: told[name][0]["request_s"]
        slower = max(filter(of_llama_cpp, told), key=time)
        left_out |= {name for name in told if time(name) > 2 * time(slower)} | ({slower} if tokens >= 16384 else set())
        kept = ("engine", "prompt_tokens", "first_token_s", "ms_per_token", "request_s", "peak_bytes", "told", "generated", "answer")
        result["lengths"][str(tokens)] = {name: {key: turns[0][key] for key in kept} for name, turns in told.items()}
    return result


def qwen_q8():
    """The model in a type that all engines read."""
    model = BUILD / "rivals/qwen2.5-coder-0.5b-q8_0.gguf"
    model.parent.mkdir(parents=True, exist_ok=True)
    if not model.exists():
        output(BUILD / "engine/bin/python", "bench/rivals/requantise.py", qwen(), model)
    return model


def of_llama_cpp(name):
    return name.startswith("llama.cpp")


ANSWERS = {  # tokens of the text: records of each kind, budgets of 1.6, 3, 6 (and 12) %, policies
    8192: (4, (128, 256, 512, 1024), ("quest", "quest:after=16", "chess:after=16,every=16", "snapkv", "chunkkv", "sentencekv", "drop_kv:kernel=63,after=16", "random")),
    16384: (2, (256, 512, 1024), ("quest", "quest:after=16", "chess:after=16,every=16", "random")),
}


def answers():
    """Long answers, by the share of the cache that a step reads."""
    result = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        plugins = []
        for source in ("random_tokens", "drop_kv"):
            plugins += ["--plugin", folder / f"lib{source}.so"]
            output("c++", "-std=c++20", "-O2", "-shared", "-fPIC", "-Iinclude", f"examples/own_policy/{source}.cpp",
                   BUILD / "release/src/simd/libkvpolicy_simd.a", "-lhwy", "-o", plugins[-1])
        for tokens, (records, budgets, policies) in ANSWERS.items():
            print(f"answers: {tokens} tokens", file=sys.stderr, flush=True)
            asked, out = folder / f"records-{tokens}", BUILD / f"results/{commit()}-answers-{tokens}"
            output(sys.executable, "examples/haystack.py", "--long", "--records", records, "--seed", tokens, "--words", words_of(tokens), "--out", asked)
            common = ["build/release/tools/kvpolicy-eval", "--model", qwen(), "--data", asked, "--forms", "chat", "--predict", 200, "--records", records]
            output(*common, *plugins, "--budgets", ",".join(map(str, budgets)), "--out", out,
                   *[word for policy in policies for word in ("--policy", policy)])
            facts = {(path.stem, at): json.loads(text)["facts"] for path in asked.glob("*.jsonl") for at, text in enumerate(path.read_text().splitlines())}
            lines = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
            share = lambda answer, of: haystack.told_rightly(answer, of) / len(of)
            lines = [line | {"score": share(line["answer"], facts[line["task"], line["record"]])} for line in lines]
            result.append({"tokens": round(statistics.mean(line["prompt_tokens"] for line in lines)), **of_dense(lines)})
    return result


def of_dense(lines):
    """What kvpolicy-eval-report says of these lines."""
    told = report.Gathered(lines)
    read = lambda at: statistics.mean(line["tokens_read"] / line["prompt_tokens"] for line in told.of[at])
    rows = []
    for at in told.order:
        paired = told.paired(at)
        if at[0] != "dense" and paired:
            worse, better, p = report.signs_against_dense(paired)
            rows.append({"policy": at[0], "budget": at[1], "read": read(at), "kept": report.share_of_dense(paired),
                         "interval": report.bootstrap_interval(paired), "worse": worse, "better": better, "p": p})
    dense = {task: statistics.mean(line["score"] for line in told.of["dense", 0] if line["task"] == task) for task in told.tasks}
    return {"records": len(told.of["dense", 0]), "dense": dense, "answered": told.answered, "rows": rows}


PROMPTS = {8192: 2, 16384: 2}  # tokens of the text: records of each kind


OF_A_PROMPT = ("first_token_ms", "attend_ms", "read_share")


def prompts():
    """Prompts that read everything, and prompts that read pages: first tokens, and long answers whose steps read everything."""
    result = []
    for tokens, records in PROMPTS.items():
        runs = {"whole": [], "pages": []}
        paired = {}
        for kind, i in itertools.product(haystack.LONG, range(records)):
            print(f"{tokens} tokens, {kind} {i}", file=sys.stderr, flush=True)
            record = haystack.long_answer(kind, words_of(tokens), tokens + 50 + i)  # texts that chose no setting
            for way in runs:
                runs[way].append(prompt_run(record, f"{tokens}-{kind}-{i}-{way}", ["--prompt-policy", "pages"] if way == "pages" else []))
            paired.setdefault(kind, []).append((runs["pages"][-1]["told"], runs["whole"][-1]["told"]))
        worse, better, p = report.signs_against_dense(paired)
        result.append({"tokens": round(statistics.mean(run["prompt_tokens"] for run in runs["whole"])), "texts": len(runs["whole"]),
                       **{way: {"told": sum(run["told"] for run in made), **{key: statistics.median(run[key] for run in made) for key in OF_A_PROMPT}}
                          for way, made in runs.items()},
                       "kept": report.share_of_dense(paired), "interval": report.bootstrap_interval(paired), "worse": worse, "better": better, "p": p})
    return result


def prompt_run(record, name, options):
    out = BUILD / f"results/{commit()}-prompts-{name}.json"
    if not out.exists():  # else a run of this commit was cut short
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as prompt:
            prompt.write(record["prompt"])
            prompt.flush()
            output(BUILD / "release/tools/kvpolicy-run", "--model", qwen_q8(), "--prompt-file", prompt.name, "--chat", "--policy", "full",
                   *options, "--predict", 200, "--json", out)
    run = json.loads(out.read_text())
    return {"read_share": 1, **run, **run["prompt"], "told": haystack.told_rightly(run["answer"], record["facts"])}


STEPS = ("full", "streaming_llm", "snapkv:after=0", "quest", "snapkv:tokens=1024,after=0+quest:tokens=512", "chess", "heterocache:after=0",
         "sentencekv:after=0", "chunkkv:after=0", "pyramidkv:after=0", "adakv:after=0", "knorm:sinks=4,recent=8", "keydiff:sinks=4,recent=8",
         "expected_attention:recent=8", "lagkv", "infllm", "tova", "h2o:queries=512", "omnikv", "twilight", "rocketkv:after=0")


def steps():
    """Steps of policies that choose from an answer's first token on, by one prompt."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prompt, profile, out = hidden_fact(6000, .5, folder / "prompt.txt"), folder / "profile.json", folder / "steps.json"
        (folder / "calibration.txt").write_text(haystack.haystack(2500, .4, seed=9))
        output(BUILD / "release/tools/kvpolicy-profile", "--model", MODEL, "--prompt-file", folder / "calibration.txt", "--chat", "--steps", 60, "--out", profile)
        texts = [text + f",profile={profile}" if text.startswith("heterocache") else text for text in STEPS]
        output(BUILD / "release/tools/kvpolicy-run", "--model", MODEL, "--compare", "--chat", "--prompt-file", prompt, "--predict", 64, "--json", out,
               *[word for text in texts for word in ("--policy", text)])
        told = json.loads(out.read_text())
    timed = ("ms_per_token", "ms_p10", "ms_p90", "speedup")
    kept = (*timed, "tokens_read", "cache_share", "choose_share", "top1_agreement", "kl")
    of_rows = lambda own: own and {key: own[key] for key in ("ms_per_token", "bytes")}
    return {"tokens": told["prompts"][0]["tokens"], "row_bytes": told["memory"]["dense_bytes"],
            "dense": {way: {key: told["dense"][way][key] for key in timed} for way in ("flash_on", "flash_off")},
            "policies": {text: {key: told[key] for key in kept} | {"managed": of_rows(told["managed_cache"])} for text, told in zip(STEPS, told["policies"])}}


def processes():
    """Memory of a small model's processes."""
    return printed("bench/memory/run.sh", MODEL, 6000)


def larger():
    """Memory of a larger model's processes."""
    ways = "^(full, the engine's rows.*|snapkv, managed cache|quest, managed cache(, a host tier, an eighth in memory)?)$"
    return printed("bench/memory/run.sh", qwen(), 13800, ONLY=ways)


def server():
    """Four requests at once of a llama-server."""
    return printed(sys.executable, "bench/server/whole_requests.py")


def batches():
    """Several sequences in one context."""
    return printed("bench/llama_batch.sh")


def demo():
    """The demo's tables of its longer prompt, and what its policies did."""
    shown = output("examples/demo.sh")
    told = json.loads((BUILD / "demo/compare.json").read_text())["policies"]
    return {"printed": shown[shown.index("The next table has more policies"):].splitlines()[1:],
            "at_work": {of["label"]: {key: of[key] for key in ("parameters", "at_work", "attention_mass")} for of in told}}


def pages():
    """Pages that an engine may free."""
    shares = {}
    with tempfile.TemporaryDirectory() as folder:
        prompt = hidden_fact(2000, .5, pathlib.Path(folder) / "prompt.txt")
        trace = pathlib.Path(folder) / "trace.jsonl"
        for policy in ("snapkv:after=0", "keydiff", "chunkkv:after=0,chunk=16", "chunkkv:after=0,chunk=16,reuse=30", "chess:page=16"):
            output(BUILD / "release/tools/kvpolicy-run", "--model", MODEL, "--prompt-file", prompt, "--chat", "--predict", 2, "--policy", policy, "--trace", trace)
            shares[policy] = freeable(trace, 16)
    return shares


def freeable(trace, page):
    """Of what --trace wrote: the share of the prompt's full pages that no list of the last step names. By layer on the mean, and of a
    table that all layers share."""
    steps = {}
    with open(trace, encoding="utf-8") as file:
        for line in map(json.loads, file):
            steps.setdefault(line["step"], []).append(line)
    layers = steps[max(steps)]
    full = range(layers[0]["tokens"] // page)
    named = [{p for heads in layer["kept"] for begin, end, _ in heads for p in range(begin // page, (end - 1) // page + 1)} for layer in layers]
    free = lambda taken: sum(p not in taken for p in full) / len(full)
    return [statistics.mean(map(free, named)), free(set().union(*named))]


MEASURED = {measure.__name__: measure for measure in (requests, avx2, prompts, answers, steps, processes, larger, server, batches, demo, pages)}


# Tables: a mark in a page, the result that it is made from, and what returns its lines.

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
    ("docs/results/speed.md", "batches"): ("batches", printed_table(0)),
    ("docs/results/speed.md", "requests of a batch"): ("batches", printed_table(1)),
    ("docs/results/memory.md", "pages"): ("pages", pages_table),
}
PICTURES = {"docs/results/requests.svg": ("requests", picture.draw_requests),
            "docs/results/answers.svg": ("answers", picture.draw_answers)}


def stored(name):
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def written():
    """Path -> text, of every page and picture as the stored results would have it."""
    files = {}
    for (page, mark), (names, made) in TABLES.items():
        names = names if isinstance(names, tuple) else (names,)
        text = files.setdefault(page, (ROOT / page).read_text(encoding="utf-8"))
        begin = f"<!-- bench/results/run.sh: {mark} -->\n"
        if begin not in text:
            raise problem(f"{page} has no line {begin.strip()}")
        if not all((DATA / f"{name}.json").exists() for name in names):
            continue
        data = [stored(name) for name in names]
        before, after = text.split(begin)
        after = re.sub(r"\A(?:<!--.*-->\n)?\n*(?:\|.*\n)*\n*", "", after, count=1)
        of = "; ".join(f"{of['commit']}, {of['date']}: {of['machine']}" for of in data)
        files[page] = (before + begin + f"<!-- {of} -->\n\n" + "\n".join(made(*(of["result"] for of in data))) + "\n\n" + after).rstrip("\n") + "\n"
    for path, (name, draw) in PICTURES.items():
        if (DATA / f"{name}.json").exists():
            files[path] = draw(stored(name)["result"])
    return files


def measure(names):
    if output("git", "status", "--porcelain", "--untracked-files=no", "--", "include", "src", "cuda", "tools", "bench"):
        raise problem("commit first: a result belongs to a commit")
    DATA.mkdir(exist_ok=True)
    for name in names:
        result = {"commit": commit(), "date": output("date", "+%F").strip(), "machine": machine(),
                  "command": f"bench/results/run.sh {name}", "result": MEASURED[name]()}
        (DATA / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=["measure", "write", "check"])
    parser.add_argument("names", nargs="*", choices=[*MEASURED, []])
    arguments = parser.parse_args()
    try:
        if arguments.verb == "measure":
            measure(arguments.names)
        for path, text in written().items():
            if arguments.verb == "write":
                (ROOT / path).write_text(text, encoding="utf-8")
            elif arguments.verb == "check" and (ROOT / path).read_text(encoding="utf-8") != text:
                raise problem(f"{path} is not what docs/results/data says; run bench/results/run.sh")
    except problem as error:
        sys.exit(f"results.py: {error}")


if __name__ == "__main__":
    main()
