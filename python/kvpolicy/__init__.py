"""KV-cache policies: which few percent of a long context each decoding step reads.

    policy = kvpolicy.Policy("snapkv:tokens=512")
    state = kvpolicy.State(policy, kvpolicy.Shape(layers, q_heads, kv_heads, head_dim, max_tokens, "bf16"))
    state.bind(layer, keys, values)                      # each layer: [kv_heads, tokens, head_dim], torch, NumPy, ...
    state.prefill(layer, tokens, queries=last, scale=s)  # each layer in order, when a prompt's keys are written
    state.choose(layer, tokens, query, s)                # each layer in order, before attention of one token
    state.attend(layer, query, s, out)                   # or your own, over state.ranges(layer, kv_head)
    state.observe(logits)
"""
from kvpolicy import _abi
from kvpolicy._abi import Error, InvalidError, OutOfMemoryError, UnsupportedError
from kvpolicy.batch import Batch, StepError, Threads, openmp
from kvpolicy.decoder import Decoder, DeviceLists, Step
from kvpolicy.policy import Needs, Policy, load_plugin, policies, sentence_ends
from kvpolicy.shape import Shape
from kvpolicy.state import Range, Ranks, State
from kvpolicy.store import Arena, Store

__version__: str = _abi.version().decode()
__all__ = ["Arena", "Batch", "Decoder", "DeviceLists", "Error", "InvalidError", "Needs", "OutOfMemoryError", "Policy", "Range", "Ranks",
           "Shape", "State", "Step", "StepError", "Store", "Threads", "UnsupportedError", "load_plugin", "openmp", "policies", "sentence_ends"]
