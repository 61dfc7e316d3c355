"""Runs every engine that is installed on one prompt, one after the other, each in a process of its own; prints a Markdown table."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import measured

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build"
sys.path.insert(0, str(HERE.parents[1] / "examples"))
import haystack

POLICIES = {"full": ["full"], "quest:after=16": ["quest:after=16"], "snapkv": ["snapkv"],
            "snapkv and prompt pages": ["snapkv", "--prompt-policy", "pages"]}
ANSWER = "\n\nAnswer:\n"  # engines differ in chat templates, so all go on with plain text


class failed(Exception):
    """Of a program; its text is the program's last words."""


def output(command, **environment):
    result = subprocess.run([str(word) for word in command], env={**os.environ, **environment}, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        said = [line for line in result.stderr.splitlines() if line.strip()]
        raise failed(said[-1] if said else f"exit status {result.returncode}")
    return result.stdout


def own(python, script, *options, **environment):
    return lambda common: json.loads(output([python, HERE / script, *options, *common], **environment).splitlines()[-1])


def kvpolicy(program, name):
    def run(common):
        a = dict(zip(common[::2], common[1::2]))
        generate = int(a["--generate"])
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            output([program, "--model", a["--model"], "--prompt-file", a["--prompt-file"], "--policy", *POLICIES[name],
                    "--predict", a["--generate"], "--threads", a["--threads"], "--json", file.name])
            told = json.loads(pathlib.Path(file.name).read_text())
        steps = [1e-3 * step["ms"] for step in told["steps"]]
        return {"engine": "llama.cpp + kvpolicy, " + name, "model": pathlib.Path(a["--model"]).name,
                "prompt_tokens": told["prompt_tokens"], **measured.summary(1e-3 * told["first_token_ms"], steps, generate),
                "generated": 1 + len(steps), "peak_bytes": told["peak_memory_bytes"], "answer": told["answer"]}
    return run


def vllm(python):
    preload = ":".join(map(str, python.parents[1].glob("lib/libiomp5.so")))

    def run(common):
        source = pathlib.Path(common[1])
        folder = BUILD / "rivals" / (source.stem + "-bf16")
        if not folder.is_dir():
            output([python, HERE / "gguf_to_bf16.py", source, folder])
        return own(python, "vllm_cpu_bench.py", LD_PRELOAD=preload)(["--model", folder, *common[2:]])
    return run


def ways(program):
    """Name -> what measures it. Of llama.cpp's two dense ways one is shown."""
    found = {f"llama.cpp, flash attention {flash}": own(sys.executable, "llama_dense_bench.py", "--flash", flash)
             for flash in ("on", "off")}
    found |= {f"kvpolicy, {name}": kvpolicy(program, name) for name in POLICIES}
    python = BUILD / "rivals/openvino/bin/python"
    if python.exists():
        found["OpenVINO GenAI"] = own(python, "openvino_genai_bench.py")
        found["OpenVINO GenAI, its eviction"] = own(python, "openvino_genai_bench.py", "--evict")
    else:
        say("OpenVINO GenAI is not installed: cmake/bootstrap.sh rivals brings it")
    python = BUILD / "vllm/bin/python"
    if python.exists():
        found["vLLM for CPUs"] = vllm(python)
    else:
        say("vLLM is not installed: cmake/bootstrap.sh vllm brings it")
    return found


def check_prompt(ours, first):
    """Tokenizers may differ by a token or two; an engine that cuts a prompt off is not compared."""
    if abs(ours["prompt_tokens"] - first["prompt_tokens"]) > 8:
        raise failed(f"it read {ours['prompt_tokens']} tokens, the first engine {first['prompt_tokens']}")


def median(turns):
    middle = {key: statistics.median(turn[key] for turn in turns) for key in ("first_token_s", "ms_per_token", "request_s", "peak_bytes")}
    return {**turns[0], **middle}


def print_table(rows, generate):
    print(f"| engine | model | prompt tokens | first token (s) | ms/token | prompt + {generate} tokens (s) | peak memory (MB) | numbers told |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        print(f"| {row['engine']} | {row['model']} | {row['prompt_tokens']} | {row['first_token_s']:.2f} | {row['ms_per_token']:.1f} | "
              f"{row['request_s']:.2f} | {row['peak_bytes'] / 1e6:.0f} | {row['told']} |")


def say(text):
    print("rivals: " + text, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvpolicy-run", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--record", type=pathlib.Path, required=True, help="what haystack.py --long wrote; its first line is asked")
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=1, help="times that all take their turn; medians are shown")
    parser.add_argument("--leave-out", action="append", default=[], metavar="NAME", help="one of the engines; repeat for several")
    parser.add_argument("--json", type=pathlib.Path, help="every turn's numbers, and the answers")
    a = parser.parse_args()
    record = json.loads(a.record.read_text().splitlines()[0])
    prompt = a.record.with_suffix(".txt")
    prompt.write_text(record["prompt"] + ANSWER)
    common = ["--model", str(a.model.resolve()), "--prompt-file", str(prompt), "--generate", str(a.generate), "--threads", str(a.threads)]
    found, told, refused = ways(a.kvpolicy_run), {}, {}
    for name in a.leave_out:
        if name not in found:
            parser.error(f"--leave-out '{name}': there are {', '.join(found)}")
        del found[name]
    for turn in range(a.turns):
        for name in [name for name in found if name not in refused]:
            say(name + (f", turn {turn + 1}" if a.turns > 1 else ""))
            try:
                measured_now = found[name](common)
                check_prompt(measured_now, next(iter(told.values()), [measured_now])[0])
                told.setdefault(name, []).append({**measured_now, "told": haystack.told_rightly(measured_now["answer"], record["facts"])})
            except failed as error:
                refused[name] = error
                say(f"{name} failed: {error}")
    if a.json:
        a.json.write_text(json.dumps(told, indent=1) + "\n")
    rows = {name: median(turns) for name, turns in told.items() if name not in refused}
    dense = [name for name in rows if name.startswith("llama.cpp")]
    if len(dense) == 2:
        del rows[max(dense, key=lambda name: rows[name]["request_s"])]
    print_table(rows.values(), a.generate)
    for row in rows.values():
        if row["generated"] < a.generate:
            say(f"{row['engine']} stopped after {row['generated']} tokens; the others count as its median step")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
