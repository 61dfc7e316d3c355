"""Decoding steps in Hugging Face transformers: eager, sdpa, kvpress's SnapKV and policies through kvpolicy.transformers, interleaved in one
run, on fresh random weights of SmolLM2-135M's sizes, or Llama-3.1-8B's. Run by a Python that has torch, transformers and kvpolicy:

    cmake/bootstrap.sh kvpress && build/kvpress/bin/pip install .
    OMP_NUM_THREADS=2 build/kvpress/bin/python bench/transformers/steps.py [--tokens 7000] [--steps 40] [--dtype float32]
    python3 bench/transformers/steps.py --device cuda --sizes 8b --dtype bfloat16 --tokens 32000 --budget 1024

On a CUDA device there is also sdpa over transformers' static cache, with the step compiled and captured (torch.compile,
mode="reduce-overhead"). A way that the machine lacks (kvpress) is left out by name.
"""
import argparse
import contextlib
import inspect
import statistics
import sys
import time

import torch
import transformers

import kvpolicy.transformers

try:
    import kvpress
except ImportError as missing:
    kvpress = None
    print(f"left out: kvpress SnapKV ({missing})", file=sys.stderr)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
parser.add_argument("--sizes", choices=("smollm2", "8b"), default="smollm2", help="of the model")
parser.add_argument("--tokens", type=int, default=7000, help="of the prompt")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--budget", type=int, default=512)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
parser.add_argument("--only", action="append", help="ways whose name has this")
parser.add_argument("--policy", action="append", help="others than full, snapkv and quest")
given = parser.parse_args()

torch.set_grad_enabled(False)
torch.manual_seed(0)
kvpolicy.transformers.register()
room = given.tokens + given.steps + 64
sizes = (dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
              tie_word_embeddings=True) if given.sizes == "smollm2" else
         dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8))
config = transformers.LlamaConfig(max_position_embeddings=max(8192, room), **sizes)
torch.set_default_dtype(getattr(torch, given.dtype))
with torch.device(given.device):
    model = transformers.LlamaForCausalLM(config).eval()
torch.set_default_dtype(torch.float32)
ids = torch.randint(0, config.vocab_size, (given.batch, given.tokens)).to(given.device)
takes_places = "cache_position" in inspect.signature(model.forward).parameters
plain_forward = model.forward


def held(cache):
    """Bytes of rows."""
    if isinstance(cache, kvpolicy.transformers.PolicyCache):
        return cache.bytes
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))


def settle():
    if given.device == "cuda":
        torch.cuda.synchronize()


class Way:
    def __init__(self, name, attention, cache, around=contextlib.nullcontext, prompt="sdpa", forward=None):
        self.name, self.attention, self.cache, self.seconds, self.forward = name, attention, cache, [], forward or model
        model.set_attn_implementation(attention if given.device == "cpu" or attention == "kvpolicy" else prompt)
        settle()
        begin = time.perf_counter()
        with around():
            out = model(ids, past_key_values=cache, logits_to_keep=1)
        settle()
        self.prompt = time.perf_counter() - begin
        self.next, self.position = out.logits[:, -1:].argmax(-1), given.tokens

    def step(self):
        model.set_attn_implementation(self.attention)
        position = torch.tensor([self.position], device=given.device)
        settle()
        begin = time.perf_counter()
        out = self.forward(self.next, past_key_values=self.cache, position_ids=position[None].expand(given.batch, 1),
                           **(dict(cache_position=position) if takes_places else {}))
        settle()
        self.seconds.append(time.perf_counter() - begin)
        self.next, self.position = out.logits[:, -1:].argmax(-1).clone(), self.position + 1


ways = []
makers = {"eager": lambda name: Way(name, "eager", transformers.DynamicCache()),
          "sdpa, growing cache": lambda name: Way(name, "sdpa", transformers.DynamicCache())}
if given.device == "cuda":
    makers["sdpa, static cache, compiled"] = lambda name: Way(
        name, "sdpa", transformers.StaticCache(config=config, max_cache_len=room),
        forward=torch.compile(plain_forward, mode="reduce-overhead", fullgraph=True))
if kvpress is not None:
    press = kvpress.SnapKVPress(1 - given.budget / given.tokens)
    makers["kvpress SnapKV"] = lambda name: Way(name, "sdpa", transformers.DynamicCache(), lambda: press(model))
for text in given.policy or ("full", f"snapkv:tokens={given.budget}", f"quest:tokens={given.budget}"):
    makers["kvpolicy " + text] = lambda name, text=text: Way(
        name, "kvpolicy", kvpolicy.transformers.PolicyCache(model, text, **(dict(max_tokens=room) if given.device == "cuda" else {})))
for name, make in makers.items():
    if given.only is None or any(word in name for word in given.only):
        ways.append(make(name))
warm = 20  # what a policy waits for, and captures
with kvpolicy.transformers.captured(model) if given.device == "cuda" else contextlib.nullcontext():
    for turn in range(given.steps + warm):
        for way in ways[turn % len(ways):] + ways[:turn % len(ways)]:
            way.step()
best = min((statistics.median(w.seconds[warm:]) for w in ways if "kv" not in w.name), default=None)
where = torch.cuda.get_device_name() if given.device == "cuda" else f"{torch.get_num_threads()} threads"
print(f"{given.tokens} tokens, batch {given.batch}, {given.steps} steps each, {given.dtype}, {given.sizes}, {where}; medians")
print("| way | prompt | ms/token | of the better dense one | rows |\n|---|--:|--:|--:|--:|")
for way in ways:
    step = statistics.median(way.seconds[warm:])
    print(f"| {way.name} | {way.prompt:.1f} s | {1e3 * step:.1f} | {'' if best is None else f'{best / step:.2f}x'} | {held(way.cache) / 1e6:.1f} MB |")
