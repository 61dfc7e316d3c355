#!/usr/bin/env python3
"""PyTorch's attention over everything, one token a sequence, at the shape of the other benchmarks: one JSON line a case. Ends with 77
where there is no PyTorch or no GPU."""
import json
import sys

try:
    import torch
except ImportError:
    print("no PyTorch here")
    sys.exit(77)
if not torch.cuda.is_available():
    print("no GPU here")
    sys.exit(77)

Q_HEADS, KV_HEADS, DIM = 32, 8, 128


def micros(query, keys, values):
    """The median of 20 times, the cache evicted before each."""
    evicting = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(23):
        evicting.fill_(1)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        torch.nn.functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return sorted(times[3:])[10]


for batch, context in ((1, 32768), (1, 131072), (16, 131072)):
    shape = (batch, KV_HEADS, context, DIM)
    try:
        keys, values = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    except torch.cuda.OutOfMemoryError:
        print(json.dumps({"name": "PyTorch's SDPA", "batch": batch, "context": context, "skipped": "no memory"}))
        continue
    query = torch.randn((batch, Q_HEADS, 1, DIM), dtype=torch.bfloat16, device="cuda")
    found = micros(query, keys, values)
    count = 2 * keys.numel() * 2
    print(json.dumps({"name": "PyTorch's SDPA", "batch": batch, "context": context, "us": found, "bytes": count,
                      "gbps": count / found / 1e3, "torch": torch.__version__}), flush=True)
