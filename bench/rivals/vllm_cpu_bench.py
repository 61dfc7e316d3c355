"""Times a request in vLLM for CPUs; prints one JSON line. In bf16, eagerly (compiling takes minutes), all in this process.

Start it with LD_PRELOAD naming the libiomp5.so that came with vLLM, as its makers advise.
"""
import logging
import os
import time

import measured

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_ENABLE_V1_MULTIPROCESSING="0")


def cache_bytes(config, tokens):
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return tokens * config.num_hidden_layers * config.num_key_value_heads * head_dim * 2 * 2  # keys and values, bf16


def request(engine, name, prompt, tokens, settings):
    """Seconds until the first token, then of each step; and the text."""
    engine.add_request(name, {"prompt_token_ids": prompt}, settings(temperature=0, max_tokens=tokens, ignore_eos=True))
    times = [time.perf_counter()]
    while engine.has_unfinished_requests():
        for output in engine.step():
            if len(output.outputs[0].token_ids) >= len(times):
                times.append(time.perf_counter())
            text = output.outputs[0].text
    seconds = [after - before for before, after in zip(times, times[1:])]
    return seconds[0], seconds[1:], text


def main():
    arguments = measured.options(__doc__.splitlines()[0])
    cores = sorted(os.sched_getaffinity(0))[:arguments.threads]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    os.environ["OMP_NUM_THREADS"] = str(len(cores))
    import transformers
    import vllm

    logging.disable(logging.WARNING)
    prompt = transformers.AutoTokenizer.from_pretrained(arguments.model)(arguments.prompt_file.read_text()).input_ids
    tokens = len(prompt) + arguments.generate
    config = transformers.AutoConfig.from_pretrained(arguments.model)
    model = vllm.LLM(str(arguments.model), dtype="bfloat16", enforce_eager=True, max_model_len=tokens, enable_prefix_caching=False,
                     kv_cache_memory_bytes=cache_bytes(config, tokens + 512), disable_log_stats=True)
    request(model.llm_engine, "warm-up", prompt[:32], 4, vllm.SamplingParams)
    first, steps, text = request(model.llm_engine, "measured", prompt, arguments.generate, vllm.SamplingParams)
    measured.print_line("vLLM for CPUs", arguments.model.name, len(prompt), first, steps, arguments.generate, text)


if __name__ == "__main__":
    main()
