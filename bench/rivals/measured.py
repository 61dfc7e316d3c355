"""What each rival's script has in common: its options, and the JSON line that it prints."""
import argparse
import json
import pathlib
import statistics


def options(description, more=lambda parser: None):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--prompt-file", type=pathlib.Path, required=True)
    parser.add_argument("--generate", type=int, default=64, help="tokens, the first one among them (default 64)")
    parser.add_argument("--threads", type=int, default=2)
    more(parser)
    arguments = parser.parse_args()
    if arguments.generate < 3:
        parser.error("--generate must be at least 3")
    return arguments


def peak_bytes():
    """VmHWM of this process."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def summary(first_token_seconds, step_seconds, generate):
    """Times of a request. A step gives one token more; the first step, in which a policy chooses, is not in ms_per_token. Where an
    engine stopped early, the steps that are missing count as the median one."""
    median = statistics.median(step_seconds[1:])
    return {"first_token_s": first_token_seconds, "ms_per_token": 1e3 * median,
            "request_s": first_token_seconds + sum(step_seconds) + (generate - 1 - len(step_seconds)) * median}


def print_line(engine, model, prompt_tokens, first_token_seconds, step_seconds, generate, answer):
    print(json.dumps({"engine": engine, "model": model, "prompt_tokens": prompt_tokens,
                      **summary(first_token_seconds, step_seconds, generate), "generated": 1 + len(step_seconds),
                      "peak_bytes": peak_bytes(), "answer": answer}))
