"""Decoding in vLLM for CPUs with policies in it and without: several long requests at once, a needle in each.

    bench/vllm/decode.py [--requests 8] [--tokens 6000] [--steps 48] [--turns 1] [--model FOLDER] [POLICY ...]

Each way has a process of its own, in turns; of several turns medians are shown. After `cmake/bootstrap.sh vllm`; the library is
build/release's (or KVPOLICY_LIBRARY). The model is SmolLM2-135M-Instruct in bf16, made from build/engine/model.gguf.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

root = pathlib.Path(__file__).resolve().parents[2]
python = root / "build/vllm/bin/python"
filler = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policies", nargs="*", metavar="POLICY", default=["full", "snapkv:tokens=512", "quest:tokens=512"])
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=6000, help="of each prompt")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=pathlib.Path, default=root / "build/rivals/smollm2-135m-bf16")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    return parser.parse_args()


def prompt(tokenizer, tokens, index):
    """A code somewhere in some text, and a question for it, as a chat."""
    code, at = 1000 + 1237 * index % 9000, .1 + .8 * index / 8

    def chat(sentences):
        said = filler * sentences
        cut = said.find(". ", int(len(said) * at)) + 2
        text = f"{said[:cut]}The secret code of the day is {code}. {said[cut:]}What is the secret code of the day?"
        return tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]

    least, most = 1, tokens
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if len(chat(middle)) <= tokens else (least, middle)
    return str(code), chat(least)


def measure(a):
    """In this process; prints a line of JSON."""
    cores = sorted(os.sched_getaffinity(0))[:a.threads]
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                      VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)), OMP_NUM_THREADS=str(len(cores)))
    import transformers
    import vllm

    tokenizer = transformers.AutoTokenizer.from_pretrained(a.model)
    config = transformers.AutoConfig.from_pretrained(a.model)
    prompts = [prompt(tokenizer, a.tokens, index) for index in range(a.requests)]
    room = a.tokens + a.steps + 64
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    bytes_of_a_token = config.num_hidden_layers * config.num_key_value_heads * head_dim * 2 * 2
    engine = vllm.LLM(str(a.model), dtype="bfloat16", enforce_eager=True, max_model_len=room, max_num_seqs=a.requests,
                      enable_prefix_caching=False, kv_cache_memory_bytes=bytes_of_a_token * (room + 256) * a.requests,
                      disable_log_stats=True, additional_config={"kvpolicy": a.way} if a.way else {}).llm_engine
    greedy = vllm.SamplingParams(temperature=0, max_tokens=a.steps, ignore_eos=True)
    engine.add_request("warm-up", {"prompt_token_ids": prompts[0][1][:256]}, vllm.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    for index, (_, ids) in enumerate(prompts):
        engine.add_request(str(index), {"prompt_token_ids": ids}, greedy)
    began, steps, made, last = time.perf_counter(), [], {}, {}
    prefill = None
    while engine.has_unfinished_requests():
        start = time.perf_counter()
        outputs = engine.step()
        end = time.perf_counter()
        decoding = len(made) == a.requests and len(outputs) == a.requests
        for output in outputs:
            made[output.request_id] = len(output.outputs[0].token_ids)
            last[output.request_id] = output.outputs[0].text
        if decoding:
            steps.append(end - start)
        elif len(made) == a.requests and prefill is None:
            prefill = end - began
    right = sum(code in last[str(index)] for index, (code, _) in enumerate(prompts))
    print(json.dumps({"prefill_s": prefill, "step_ms": 1e3 * statistics.median(steps), "right": right, "prompt": len(prompts[0][1]),
                      "texts": [last[str(index)] for index in range(a.requests)]}))


def run(a, way):
    preload = root / "build/vllm/lib/libiomp5.so"
    environment = {**os.environ, "LD_PRELOAD": str(preload), "PYTHONPATH": str(root / "python"),
                   "KVPOLICY_LIBRARY": os.environ.get("KVPOLICY_LIBRARY", str(root / "build/release/src/c/libkvpolicy.so"))}
    # The package is the source tree's, and is no distribution with entry points: it is registered by hand.
    code = ("import sys; sys.path.insert(0, sys.argv[1]); import kvpolicy.vllm, decode; kvpolicy.vllm.register(); "
            "sys.argv = sys.argv[1:]; decode.measure(decode.options())")
    told = subprocess.run([python, "-c", code, pathlib.Path(__file__).parent, "--way", way, "--requests", str(a.requests), "--tokens",
                           str(a.tokens), "--steps", str(a.steps), "--threads", str(a.threads), "--model", str(a.model.resolve())],
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if told.returncode != 0:
        sys.exit(f"decode.py: {way or 'without a policy'} failed:\n{told.stderr[-3000:]}")
    return json.loads(told.stdout.strip().splitlines()[-1])


def main():
    a = options()
    if a.way is not None:
        return measure(a)
    if not python.exists():
        sys.exit("decode.py: vLLM is not installed: cmake/bootstrap.sh vllm brings it")
    if not a.model.is_dir():
        subprocess.run([python, root / "bench/rivals/gguf_to_bf16.py", root / "build/engine/model.gguf", a.model], check=True)
    ways = ["", *a.policies]
    turns = {way: [] for way in ways}
    for turn in range(a.turns):
        for way in ways:
            print(f"decode.py: turn {turn + 1}, {way or 'without a policy'}", file=sys.stderr, flush=True)
            turns[way].append(run(a, way))
    middle = {way: {key: statistics.median(t[key] for t in all_) for key in ("prefill_s", "step_ms")} for way, all_ in turns.items()}
    dense = middle[""]
    print(f"{a.requests} requests of {turns[''][0]['prompt']} tokens at once, {a.steps} tokens each, bf16, {a.threads} threads")
    print("| vLLM | prompts (s) | step (ms) | tokens/s | of the engine alone | prompts, of it | needles |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for way in ways:
        m = middle[way]
        print(f"| {way or 'alone'} | {m['prefill_s']:.1f} | {m['step_ms']:.1f} | {1e3 * a.requests / m['step_ms']:.0f} | "
              f"{dense['step_ms'] / m['step_ms']:.2f}x | {m['prefill_s'] / dense['prefill_s']:.3f} | {turns[way][0]['right']} of {a.requests} |")
        if way == "full" and turns[way][0]["texts"] != turns[""][0]["texts"]:
            sys.exit("decode.py: full gave other tokens than the engine alone")


if __name__ == "__main__":
    main()
