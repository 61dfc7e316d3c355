"""A batch's decode steps on a GPU: PyTorch's tensors as they are, one step captured in a CUDA graph and replayed.

    pip install . torch
    python3 examples/python/cuda_decoder.py [POLICY]
"""
import sys

try:
    import torch
except ImportError:
    torch = None
if torch is None or not torch.cuda.is_available():
    print("no PyTorch with a GPU here, which this example needs")
    sys.exit(77)

import kvpolicy

text = sys.argv[1] if len(sys.argv) > 1 else "quest:tokens=256,page=16"
shape = kvpolicy.Shape(layers=2, q_heads=8, kv_heads=2, head_dim=64, max_tokens=1024, dtype="f16")
sequences, prompt, steps, scale = 2, 900, 20, shape.head_dim ** -.5
stream = torch.cuda.Stream()
decoder = kvpolicy.Decoder(kvpolicy.Policy(text), shape, sequences, cuda=(0, stream.cuda_stream))

rows = sequences, shape.kv_heads, shape.max_tokens, shape.head_dim
heads = sequences, shape.q_heads, shape.head_dim
with torch.cuda.stream(stream):
    keys, values = ([torch.randn(rows, dtype=torch.float16, device="cuda") for _ in range(shape.layers)] for _ in range(2))
    queries, out = torch.randn(heads, device="cuda"), torch.zeros(heads, device="cuda")
for layer in range(shape.layers):
    decoder.bind(layer, keys[layer], values[layer])
for sequence in range(sequences):
    for layer in range(shape.layers):
        decoder.prefill(sequence, layer, prompt)


def step():
    for layer in range(shape.layers):  # the model's own kernels write the step's keys, values and queries here
        decoder.choose(layer, queries, scale)
        decoder.attend(layer, queries, scale, out)


decoder.plan([prompt + 1] * sequences)
with torch.cuda.stream(stream):
    step()  # loads the kernels, which a capture may not
decoder.plan([prompt + 2] * sequences)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=stream):
    step()
with torch.cuda.stream(stream):
    graph.replay()
    for i in range(3, steps + 1):
        decoder.plan([prompt + i] * sequences)
        graph.replay()
stream.synchronize()

repeated = [rows[layer].repeat_interleave(shape.q_heads // shape.kv_heads, 1)[:, :, :prompt + steps].float()
            for layer in (shape.layers - 1,) for rows in (keys, values)]
dense = torch.nn.functional.scaled_dot_product_attention(queries[:, :, None], *repeated, scale=scale)[:, :, 0]
print(f"{text}: {steps - 1} replays of one graph; dense attention differs by at most {(dense - out).abs().max():.3f}")
