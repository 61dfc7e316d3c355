"""Decoding steps in Hugging Face transformers: eager, sdpa, kvpress's SnapKV and policies through kvpolicy.transformers, interleaved in one
run, on fresh random weights of SmolLM2-135M's sizes. Run by a Python that has torch, transformers, kvpress and kvpolicy:

    cmake/bootstrap.sh kvpress && build/kvpress/bin/pip install .
    OMP_NUM_THREADS=2 build/kvpress/bin/python bench/transformers/steps.py [--tokens 7000] [--steps 40] [--dtype float32]
"""
import argparse
import contextlib
import statistics
import time

import kvpress
import torch
import transformers

import kvpolicy.transformers

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tokens", type=int, default=7000, help="of the prompt")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--budget", type=int, default=512)
parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
given = parser.parse_args()

torch.set_grad_enabled(False)
torch.manual_seed(0)
kvpolicy.transformers.register()
config = transformers.LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                                  num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True)
model = transformers.LlamaForCausalLM(config).to(getattr(torch, given.dtype)).eval()
ids = torch.randint(0, config.vocab_size, (1, given.tokens))


def held(cache):
    """Bytes of rows."""
    if isinstance(cache, kvpolicy.transformers.PolicyCache):
        return cache.bytes
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))


class Way:
    def __init__(self, name, attention, cache, around=contextlib.nullcontext):
        self.name, self.attention, self.cache, self.seconds = name, attention, cache, []
        model.set_attn_implementation(attention)
        begin = time.perf_counter()
        with around():
            out = model(ids, past_key_values=cache, logits_to_keep=1)
        self.prompt = time.perf_counter() - begin
        self.next, self.position = out.logits[:, -1:].argmax(-1), given.tokens

    def step(self):
        model.set_attn_implementation(self.attention)
        position = torch.tensor([self.position])
        begin = time.perf_counter()
        out = model(self.next, past_key_values=self.cache, position_ids=position[None], cache_position=position)
        self.seconds.append(time.perf_counter() - begin)
        self.next, self.position = out.logits[:, -1:].argmax(-1), self.position + 1


press = kvpress.SnapKVPress(1 - given.budget / given.tokens)
ways = [Way("eager", "eager", transformers.DynamicCache()), Way("sdpa", "sdpa", transformers.DynamicCache()),
        Way("kvpress SnapKV", "sdpa", transformers.DynamicCache(), lambda: press(model))]
ways += [Way("kvpolicy " + text, "kvpolicy", kvpolicy.transformers.PolicyCache(model, text))
         for text in ("full", f"snapkv:tokens={given.budget}", f"quest:tokens={given.budget}")]
for turn in range(given.steps + 3):
    for way in ways[turn % len(ways):] + ways[:turn % len(ways)]:
        way.step()
best = min(statistics.median(w.seconds[3:]) for w in ways[:2])
print(f"{given.tokens} tokens, {given.steps} steps each, {given.dtype}, {torch.get_num_threads()} threads; medians")
print("| way | prompt | ms/token | of the better dense one | rows |\n|---|--:|--:|--:|--:|")
for way in ways:
    step = statistics.median(way.seconds[3:])
    print(f"| {way.name} | {way.prompt:.1f} s | {1e3 * step:.1f} | {best / step:.2f}x | {held(way.cache) / 1e6:.1f} MB |")
