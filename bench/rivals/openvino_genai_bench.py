"""Times a request in OpenVINO GenAI on a CPU; prints one JSON line. The settings are its own defaults.

With --evict its cache eviction keeps 672 tokens: 32 first, 128 last, and 512 between them by SnapKV's window of 8.
"""
import re

import numpy
import openvino
import openvino_genai as genai

import measured


def pipeline(arguments):
    settings = {"INFERENCE_NUM_THREADS": arguments.threads}
    if arguments.evict:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 1 << 20  # as without it: the prompt at once
        scheduler.enable_prefix_caching = False
        scheduler.use_cache_eviction = True
        scheduler.cache_eviction_config = genai.CacheEvictionConfig(
            start_size=32, recent_size=128, max_cache_size=672, aggregation_mode=genai.AggregationMode.NORM_SUM, snapkv_window_size=8)
        settings["scheduler_config"] = scheduler
    return genai.LLMPipeline(str(arguments.model), "CPU", **settings)


def tokens_of(pipe, text):
    """Its tokenizer cuts a text off after 8,192 tokens in silence, so paragraphs go in one by one."""
    encode = pipe.get_tokenizer().encode
    paragraphs = filter(None, re.split(r"(?<=\n)(?!\n)", text))
    pieces = [encode(paragraph, add_special_tokens=at == 0).input_ids.data for at, paragraph in enumerate(paragraphs)]
    tokens = numpy.concatenate(pieces, axis=1)
    return genai.TokenizedInputs(openvino.Tensor(tokens), openvino.Tensor(numpy.ones_like(tokens)))


def generate(pipe, prompt, tokens):
    config = genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False, apply_chat_template=False)
    return pipe.generate(tokens_of(pipe, prompt), config)


def main():
    arguments = measured.options(__doc__.splitlines()[0], lambda parser: parser.add_argument("--evict", action="store_true"))
    pipe = pipeline(arguments)
    generate(pipe, "A few words to warm up with: the prompt shares none of them.", 4)
    result = generate(pipe, arguments.prompt_file.read_text(), arguments.generate)
    times = result.perf_metrics.raw_metrics
    first, = times.m_times_to_first_token
    measured.print_line("OpenVINO GenAI" + (", its eviction 672" if arguments.evict else ""), arguments.model.name,
                        result.perf_metrics.get_num_input_tokens(), first * 1e-6, [t * 1e-6 for t in times.m_durations],
                        arguments.generate, pipe.get_tokenizer().decode(result.tokens[0]))


if __name__ == "__main__":
    main()
