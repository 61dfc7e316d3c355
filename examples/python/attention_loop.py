"""A Hugging Face-style attention loop: a prompt, then steps over what a policy keeps, beside dense attention.

    pip install . numpy
    python3 examples/python/attention_loop.py [POLICY] [--numpy | --torch]
"""
import sys
import types

try:
    import numpy as np
except ImportError:
    print("no NumPy here, which this example needs")
    sys.exit(77)

import kvpolicy

try:
    import torch
except ImportError:
    torch = None


class Attention:
    """One layer as transformers has it, of random weights, on PyTorch or on NumPy: q_proj, k_proj, v_proj, rotary halves."""

    def __init__(self, xp, q_heads=8, kv_heads=2, head_dim=16, hidden=64, most=512, seed=0):
        draw = np.random.default_rng(seed)
        self.xp, self.head_dim, self.hidden, self.draw = xp, head_dim, hidden, draw
        self.config = types.SimpleNamespace(num_attention_heads=q_heads, num_key_value_heads=kv_heads)
        weights = [self.array(draw.normal(size=(hidden, heads * head_dim)) * hidden**-.5 * 1.5) for heads in (q_heads, kv_heads, kv_heads)]
        self.q_proj, self.k_proj, self.v_proj = (lambda x, w=w: x @ w for w in weights)
        self.scale = head_dim**-.5
        self.inverse_frequencies = self.array(1e4**(-np.arange(0, head_dim, 2) / head_dim))
        # A static cache, [batch, kv_heads, tokens, head_dim]: rows are written where they stay.
        self.keys, self.values = (self.array(np.zeros((1, kv_heads, most, head_dim))) for _ in range(2))

    def array(self, values):
        values = np.asarray(values, dtype=np.float32)
        return values if self.xp is np else self.xp.from_numpy(values)

    def position_embeddings(self, first, last):
        angles = self.array(np.arange(first, last))[:, None] * self.inverse_frequencies[None]
        cat = np.concatenate if self.xp is np else self.xp.cat
        angles = cat([angles, angles], -1)
        return self.xp.cos(angles), self.xp.sin(angles)

    def rotated(self, x, first):
        """x [tokens, heads, head_dim]"""
        cos, sin = self.position_embeddings(first, first + len(x))
        half = self.head_dim // 2
        cat = np.concatenate if self.xp is np else self.xp.cat
        return x * cos[:, None] + cat([-x[..., half:], x[..., :half]], -1) * sin[:, None]

    def write(self, x, first):
        """Projects hidden states [tokens, hidden], writes their rows; the queries, [tokens, q_heads, head_dim]."""
        last = first + len(x)
        split = lambda y: y.reshape(len(x), -1, self.head_dim)
        self.keys[0, :, first:last] = self.rotated(split(self.k_proj(x)), first).swapaxes(0, 1)
        self.values[0, :, first:last] = split(self.v_proj(x)).swapaxes(0, 1)
        return self.rotated(split(self.q_proj(x)), first)

    def attention(self, queries, kv_head, tokens):
        """queries [group, head_dim] over those tokens of one KV head."""
        logits = queries @ self.keys[0, kv_head, tokens].T * self.scale
        weights = self.xp.exp(logits - logits.max())
        return weights / weights.sum(-1)[:, None] @ self.values[0, kv_head, tokens]


def prompt(layer, policy, hidden_states):
    """Writes a prompt and hands it to the policy; the sequence's state. Nothing is copied."""
    shape = layer.config
    state = kvpolicy.State(policy, kvpolicy.Shape(layers=1, q_heads=shape.num_attention_heads, kv_heads=shape.num_key_value_heads,
                                                  head_dim=layer.head_dim, max_tokens=layer.keys.shape[2]))
    state.bind(0, layer.keys[0], layer.values[0])
    queries, tokens = layer.write(hidden_states, 0), len(hidden_states)
    state.prefill(0, tokens, queries=queries[max(0, tokens - policy.observation_queries):], scale=layer.scale,
                  inverse_frequencies=layer.inverse_frequencies, token_ids=np.full(tokens, -1, np.int32))
    return state


def main(text="snapkv:tokens=96,window=16", use_numpy=False, tokens=300, steps=8):
    xp = np if use_numpy or torch is None else torch
    print(f"{text} on {'NumPy' if xp is np else 'PyTorch'}" + (", PyTorch is not installed" if torch is None else ""))
    layer, policy = Attention(xp), kvpolicy.Policy(text)
    kv_heads, group = layer.config.num_key_value_heads, layer.config.num_attention_heads // layer.config.num_key_value_heads
    state = prompt(layer, policy, layer.array(layer.draw.normal(size=(tokens, layer.hidden))))
    out = layer.array(np.zeros((layer.config.num_attention_heads, layer.head_dim)))
    for _ in range(steps):
        query = layer.write(layer.array(layer.draw.normal(size=(1, layer.hidden))), tokens)[0]
        tokens += 1
        state.choose(0, tokens, query, layer.scale)
        state.attend(0, query, layer.scale, out)
        state.observe(layer.array(layer.draw.normal(size=100)))
        for h in range(kv_heads):
            mine, kept = slice(h * group, (h + 1) * group), state.tokens(0, h)
            wrong = float(abs(layer.attention(query[mine], h, kept) - out[mine]).max())
            assert wrong < 1e-5, f"attention over the kept tokens differs by {wrong}"
            missed = float(abs(layer.attention(query[mine], h, list(range(tokens))) - out[mine]).max())
            print(f"  {tokens} tokens, KV head {h} reads {len(kept)}; dense attention differs by at most {missed:.4f}")


if __name__ == "__main__":
    if "--torch" in sys.argv and torch is None:
        print("no PyTorch here")
        sys.exit(77)
    main(*[a for a in sys.argv[1:] if a not in ("--numpy", "--torch")], use_numpy="--numpy" in sys.argv)
