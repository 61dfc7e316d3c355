"""What is measured: each function returns one result, and runs the repository's programs for it."""
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools/eval"), str(ROOT / "examples")]
import haystack
import report

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


def plugin(source, folder):
    """The option that loads a policy of examples/own_policy."""
    library = folder / f"lib{source}.so"
    output("c++", "-std=c++20", "-O2", "-shared", "-fPIC", "-Iinclude", f"examples/own_policy/{source}.cpp",
           BUILD / "release/src/simd/libkvpolicy_simd.a", "-lhwy", "-o", library)
    return ["--plugin", library]


def each(option, words):
    return [word for of in words for word in (option, of)]


def profile(model, folder, *options):
    """A model's profile, of a text that no other measure reads."""
    text, made = folder / "calibration.txt", folder / f"{model.stem}-profile.json"
    text.write_text(haystack.haystack(2500, .4, seed=9))
    output(BUILD / "release/tools/kvpolicy-profile", "--model", model, "--prompt-file", text, "--chat", "--steps", 60, "--out", made, *options)
    return made


def answers():
    """Long answers, by the share of the cache that a step reads."""
    result = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        plugins = [*plugin("random_tokens", folder), *plugin("drop_kv", folder)]
        for tokens, (records, budgets, policies) in ANSWERS.items():
            print(f"answers: {tokens} tokens", file=sys.stderr, flush=True)
            asked, out = folder / f"records-{tokens}", BUILD / f"results/{commit()}-answers-{tokens}"
            output(sys.executable, "examples/haystack.py", "--long", "--records", records, "--seed", tokens, "--words", words_of(tokens), "--out", asked)
            common = ["build/release/tools/kvpolicy-eval", "--model", qwen(), "--data", asked, "--forms", "chat", "--predict", 200, "--records", records]
            output(*common, *plugins, "--budgets", ",".join(map(str, budgets)), "--out", out,
                   *each("--policy", policies))
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


SHORT = ("quest:after=16", "quest", "chess:after=16,every=16", "sentencekv", "snapkv:tokens=1024+quest", "snapkv", "heterocache:profile=", "chunkkv", "chess",
         "random")


def short_answers():
    """Short answers of two models, in the forms in which people ask."""
    result = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for model, label, words, seed in ((MODEL, "SmolLM2-135M", 2600, 1000), (pathlib.Path(qwen()), "Qwen2.5-Coder-0.5B", 2000, 2000)):
            print(f"short answers: {label}", file=sys.stderr, flush=True)
            asked, out = folder / label, BUILD / f"results/{commit()}-short-{label}"
            output(sys.executable, "examples/haystack.py", "--records", 10, "--seed", seed, "--words", words, "--out", asked)
            texts = [text + str(profile(model, folder)) if text.endswith("profile=") else text for text in SHORT]
            output(BUILD / "release/tools/kvpolicy-eval", "--model", model, "--data", asked, "--forms", "chat,instructed,question_first,turns",
                   "--records", 2, "--tasks", "number,uuid,several,name", "--budgets", 512, *plugin("random_tokens", folder), "--out", out,
                   *each("--policy", texts))
            lines = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
            for line in lines:
                line["policy"] = line["policy"].split(":profile=")[0]
            told = report.Gathered(lines)
            worst = {at[0]: min(report.share_of_dense(tasks) for tasks in told.by_form[at].values()) for at in told.order}
            made = of_dense(lines)
            result[label] = {"tokens": round(statistics.mean(line["prompt_tokens"] for line in lines)), **made,
                             "rows": [row | {"worst": worst[row["policy"]]} for row in made["rows"]]}
    return result


WRITTEN = (
    "Write a detailed tutorial, in many numbered sections, on how to write a small web server in Python with sockets alone: parsing requests, routing, "
    "static files, logging, threads, timeouts, errors and tests. Show code in every section and explain it.",
    "Write a long story in many chapters about a lighthouse keeper, her brother and a ship that never arrives. Give each chapter a title.",
    "Solve these problems one after the other, step by step, and give each result on a line of its own. "
    + " ".join(f"{i}. A shop sells {12 + 7 * i} boxes of {3 + i} pencils each, and {5 * i} single pencils; {4 + 3 * i} pencils come back. How many are sold?"
               for i in range(1, 13)))
LATE = ("triattention:tokens=256,moments=", "h2o:tokens=256", "rkv:tokens=256", "tova:tokens=256", "quest:tokens=256", "random_late:tokens=256")
BLOCK = 100  # tokens of an answer that are counted together


def written_answers():
    """Answers of 1,000 tokens behind short prompts: policies that evict while they decode, on the tokens that dense decoding wrote."""
    result = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        moments = folder / "moments.json"
        profile(pathlib.Path(qwen()), folder, "--moments", moments)
        texts = [text + str(moments) if text.endswith("moments=") else text for text in LATE]
        for at, asked in enumerate(WRITTEN):
            print(f"written answers: {at + 1} of {len(WRITTEN)}", file=sys.stderr, flush=True)
            prompt = folder / f"{at}.txt"
            prompt.write_text(asked)
            told = compared(prompt, folder, "--rounds", 1, "--predict", 1000, *plugin("random_tokens", folder), *each("--policy", texts), model=qwen())
            words = told["prompts"][0]["answer"].split()
            runs = list(zip(words, words[1:], words[2:], words[3:]))
            result.setdefault("distinct", []).append(len(set(runs)) / len(runs))
            for text, of in zip(LATE, told["policies"]):
                steps = of["steps"]
                blocks = [steps[i:i + BLOCK] for i in range(0, len(steps) - BLOCK // 2, BLOCK)]
                result.setdefault("policies", {}).setdefault(text.split(",moments=")[0], []).append(
                    {"read": of["tokens_read"], "agrees": [statistics.mean(s["agrees"] for s in block) for block in blocks],
                     "kl": [statistics.mean(s["kl"] for s in block) for block in blocks]})
    return result


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


def compared(prompt, folder, *options, model=MODEL):
    """What kvpolicy-run --compare measured."""
    output(BUILD / "release/tools/kvpolicy-run", "--model", model, "--compare", "--chat", "--prompt-file", prompt, "--json", folder / "compared.json", *options)
    return json.loads((folder / "compared.json").read_text())


STEPS = ("full", "streaming_llm", "snapkv:after=0", "quest", "snapkv:tokens=1024,after=0+quest:tokens=512", "chess", "heterocache:after=0",
         "sentencekv:after=0", "chunkkv:after=0", "pyramidkv:after=0", "adakv:after=0", "knorm:sinks=4,recent=8", "keydiff:sinks=4,recent=8",
         "expected_attention:recent=8", "lagkv", "infllm", "tova", "h2o:queries=512", "omnikv", "twilight", "rocketkv:after=0")


def steps():
    """Steps of policies that choose from an answer's first token on, by one prompt."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        of_model = profile(MODEL, folder)
        texts = [text + f",profile={of_model}" if text.startswith("heterocache") else text for text in STEPS]
        return of_steps(STEPS, compared(hidden_fact(6000, .5, folder / "prompt.txt"), folder, "--predict", 64, *each("--policy", texts)))


def of_steps(labels, told):
    timed = ("ms_per_token", "ms_p10", "ms_p90", "speedup")
    kept = (*timed, "tokens_read", "cache_share", "choose_share", "top1_agreement", "kl")
    of_rows = lambda own: own and {key: own[key] for key in ("ms_per_token", "bytes")}
    return {"tokens": told["prompts"][0]["tokens"], "row_bytes": told["memory"]["dense_bytes"],
            "dense": {way: {key: told["dense"][way][key] for key in timed} for way in ("flash_on", "flash_off")},
            "policies": {text: {key: told[key] for key in kept} | {"managed": of_rows(told["managed_cache"])} for text, told in zip(labels, told["policies"])}}


BUDGETS = ("full", *(policy.format(tokens) for policy in ("quest:tokens={}", "snapkv:tokens={},after=0") for tokens in (128, 256, 512, 1024, 2048)))


def budgets():
    """Steps of a larger model at the length and budgets of the answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prompt = hidden_fact(words_of(8192), .5, folder / "prompt.txt")
        return of_steps(BUDGETS, compared(prompt, folder, "--predict", 64, "--rounds", 1, *each("--policy", BUDGETS), model=qwen_q8()))


def cache_types():
    """Requests and steps with a cache of 16 and of 8 bits."""
    result = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prompt = hidden_fact(6000, .3, folder / "prompt.txt")
        policies = ("full", "quest:after=16", "snapkv")
        for kind in ("f16", "q8_0"):
            told = compared(prompt, folder, "--rounds", 1, "--predict", 64, "--cache-type-k", kind, "--cache-type-v", kind,
                            *each("--policy", policies))
            kept = ("first_token_ms", "request_ms", "request_speedup", "ms_per_token", "speedup", "kl")
            ways = {f"dense, flash attention {way[6:]}": told["dense"].get(way) for way in ("flash_on", "flash_off")}
            ways |= dict(zip(policies, told["policies"]))
            result[kind] = {"tokens": told["prompts"][0]["tokens"], "ways": {way: {key: of.get(key) for key in kept} for way, of in ways.items() if of}}
    return result


def programs():
    """llama-bench alone and with a policy in front of it."""
    ways = {f"llama.cpp, flash attention {flag}": ([], ["-fa", flag]) for flag in ("on", "off")}
    ways |= {policy: ([BUILD / "release/tools/kvpolicy-exec", policy, "--"], []) for policy in ("full", "quest:after=16", "snapkv")}
    result = {way: {} for way in ways}
    for what, sizes in {"prompt": ["-p", 4096, "-n", 0], "steps": ["-p", 0, "-n", 128, "-d", 4096]}.items():
        for way, (in_front, options) in ways.items():
            told = output(*in_front, BUILD / "engine/prefix/bin/llama-bench", "-m", MODEL, "-t", 2, "-r", 2, "-o", "json", *sizes, *options)
            (run,) = json.loads(told)
            result[way][what] = run["avg_ts"]
    return result


def models():
    """A request of 2,000 tokens on SmolLM2-135M, Qwen2.5-Coder-0.5B and the models that KVPOLICY_MODELS names."""
    return printed("bench/models.sh", "--tokens", 2000, "--generate", 64, *each("--model", [MODEL.relative_to(ROOT), qwen(), *os.environ.get("KVPOLICY_MODELS", "").split()]))


def transformers():
    """Steps in Hugging Face transformers."""
    return printed(BUILD / "kvpress/bin/python", "bench/transformers/steps.py", "--tokens", 4000, OMP_NUM_THREADS="2")


def kvpress():
    """Selection when a prompt ends, beside kvpress."""
    return printed("bench/kvpress/run.sh", 3)


def sparse():
    """A step's attention under the mask of a model that was trained sparse."""
    output("cmake", "--preset", "release", "-DKVPOLICY_BUILD_BENCHMARKS=ON")
    output("cmake", "--build", "--preset", "release", "--target", "kvpolicy_chosen_bench")
    told = json.loads(output(BUILD / "release/bench/kvpolicy_chosen_bench", "--benchmark_format=json", "--benchmark_repetitions=5",
                             "--benchmark_enable_random_interleaving=true"))["benchmarks"]
    units = {"ns": 1e-6, "us": 1e-3, "ms": 1}
    return {of["run_name"]: of["real_time"] * units[of["time_unit"]] for of in told if of.get("aggregate_name") == "median"}


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


MEASURED = {measure.__name__: measure for measure in (requests, avx2, prompts, answers, short_answers, written_answers, steps, budgets, cache_types, processes, larger,
                                                     server, batches, programs, models, transformers, kvpress, sparse, demo, pages)}
