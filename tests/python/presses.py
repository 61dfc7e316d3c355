"""presses.py EXAMPLES: kvpress's own presses on the tensors of EXAMPLES/attention_loop.py, against what the library keeps
of them through the C ABI. Run by a Python that has kvpress; 77 where it has not."""
import sys

try:
    import kvpress
    import torch
except ImportError as missing:
    print(f"no {missing.name} in {sys.executable}: kvpress is not compared live")
    sys.exit(77)

sys.path.insert(0, sys.argv[1])
import attention_loop
import kvpolicy

torch.set_grad_enabled(False)
compared = excused = 0
for seed in range(20):
    tokens = 60 + 17 * seed
    for ratio in (.1, .5, .9):
        for text, press in ((f"knorm:ratio={ratio}", kvpress.KnormPress(ratio)),
                            (f"snapkv:paper,ratio={ratio},window=4,kernel=5", kvpress.SnapKVPress(ratio, window_size=4, kernel_size=5))):
            layer = attention_loop.Attention(torch, seed=seed)
            hidden_states = layer.array(layer.draw.normal(size=(tokens, layer.hidden)))
            state = attention_loop.prompt(layer, kvpolicy.Policy(text), hidden_states)
            cos, sin = layer.position_embeddings(0, tokens)
            keys, values = layer.keys[:, :, :tokens], layer.values[:, :, :tokens]
            scores = press.score(layer, hidden_states[None], keys, values, None, {"position_embeddings": (cos[None], sin[None])})[0]
            for head, row in enumerate(scores):
                kept = [t for r in state.retained(0, head) for t in range(r.begin, r.end)]
                assert len(kept) == int(tokens * (1 - ratio)), (text, len(kept), tokens)
                wanted, threshold = set(row.topk(len(kept)).indices.tolist()), row.topk(len(kept)).values[-1]
                different = wanted ^ set(kept)
                near = {t for t in different if abs(row[t] - threshold) <= 1e-4 * abs(threshold)}
                assert different == near, f"{text}, seed {seed}, KV head {head}: {sorted(different)} differ"
                compared, excused = compared + 1, excused + bool(different)
print(f"kvpress {sys.executable}: {compared} sets compared, {excused} of them differ at a near-tie")
assert excused <= compared // 100
