"""Times a request in OpenVINO GenAI on a CPU; prints one JSON line. The settings are its own defaults.

With --evict its cache eviction keeps 672 tokens: 32 first, 128 last, and 512 between them by SnapKV's window of 8.
"""
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


def generate(pipe, prompt, tokens):
    config = genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False, apply_chat_template=False)
    return pipe.generate([prompt], config)


def main():
    arguments = measured.options(__doc__.splitlines()[0], lambda parser: parser.add_argument("--evict", action="store_true"))
    pipe = pipeline(arguments)
    generate(pipe, "A few words to warm up with: the prompt shares none of them.", 4)
    result = generate(pipe, arguments.prompt_file.read_text(), arguments.generate)
    times = result.perf_metrics.raw_metrics
    first, = times.m_times_to_first_token
    measured.print_line("OpenVINO GenAI" + (", its eviction 672" if arguments.evict else ""), arguments.model.name,
                        result.perf_metrics.get_num_input_tokens(), first * 1e-6, [t * 1e-6 for t in times.m_durations],
                        arguments.generate, result.texts[0])


if __name__ == "__main__":
    main()
