"""Times what kvpress 0.5.5 does at the end of prefill for one layer, on given tensors: scores, selection, gather. Prints JSON.

One sequence, 8192 tokens, 8 KV and 32 query heads, head size 128, standard normal queries, keys and values.
  select    press.compress without its copies: scores and the indices that it keeps. Compare this one with kvpolicy.
  compress  press.compress: select, and K and V gathered into new tensors (AdaKV only lists what to mask: no copies).
Queries are given: the projection from hidden states, which kvpress repeats, is left out. RoPE on the window's queries
(window x 32 x 128) is in, as are kvpress's copy of the keys for every query head and SnapKV's mask.
"""
import argparse
import json
import statistics
import time
import types
from unittest import mock

import kvpress
import torch
from kvpress.presses import snapkv_press

SIZES = dict(tokens=8192, kv_heads=8, q_heads=32, head_dim=128)
WINDOW, KERNEL, CHUNK, ALPHA = 64, 5, 20, 0.2  # kvpress's defaults


def presses(ratio):
    def snapkv():
        return kvpress.SnapKVPress(ratio, window_size=WINDOW, kernel_size=KERNEL)

    return {"snapkv": snapkv(), "chunkkv": kvpress.ChunkKVPress(snapkv(), chunk_length=CHUNK),
            "keydiff": kvpress.KeyDiffPress(ratio), "knorm": kvpress.KnormPress(ratio),
            "adakv": kvpress.AdaKVPress(snapkv(), alpha_safeguard=ALPHA)}


def median_ms(call, rounds):
    call()  # warm-up
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return round(statistics.median(times) * 1e3, 3)


def bench(dtype, args):
    tokens, kv_heads, q_heads, head_dim = SIZES.values()
    generator = torch.Generator().manual_seed(args.seed)

    def normal(heads, count):
        return torch.randn(1, heads, count, head_dim, generator=generator).to(dtype)

    queries, keys, values = normal(q_heads, WINDOW), normal(kv_heads, tokens), normal(kv_heads, tokens)
    config = types.SimpleNamespace(num_attention_heads=q_heads, num_key_value_heads=kv_heads, _attn_implementation="sdpa")
    module = types.SimpleNamespace(config=config, head_dim=head_dim, layer_idx=0)
    hidden_states = torch.empty(1, tokens, 1, dtype=dtype)  # only its length is read
    no_rotation = (torch.ones(1, tokens, head_dim, dtype=dtype), torch.zeros(1, tokens, head_dim, dtype=dtype))
    kwargs = {"position_embeddings": no_rotation}

    results = []
    with mock.patch.object(snapkv_press, "get_prerope_query_states", lambda *_: queries):
        for policy, press in presses(args.ratio).items():
            def compress():
                press.compress(module, hidden_states, keys, values, None, kwargs)

            with mock.patch.object(torch.Tensor, "gather", lambda tensor, *_: tensor):
                select_ms = median_ms(compress, args.rounds)
            results.append({"policy": policy, "dtype": str(dtype).removeprefix("torch."), "select_ms": select_ms,
                            "compress_ms": median_ms(compress, args.rounds)})
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ratio", type=float, default=0.5, help="fraction removed")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    results = [result for dtype in (torch.float32, torch.bfloat16) for result in bench(dtype, args)]
    print(json.dumps({"torch": torch.__version__, **SIZES, "window": WINDOW, "kernel": KERNEL, "chunk": CHUNK, "alpha": ALPHA,
                      "ratio": args.ratio, "threads": args.threads, "rounds": args.rounds, "results": results}, indent=1))


if __name__ == "__main__":
    main()
