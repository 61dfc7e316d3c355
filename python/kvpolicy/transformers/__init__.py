"""Hugging Face transformers: attn_implementation="kvpolicy", and a cache that lets go of what its policy drops.

    kvpolicy.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="kvpolicy")
    cache = kvpolicy.transformers.PolicyCache(model, "snapkv:tokens=512")
    model.generate(**inputs, past_key_values=cache)       # on a CUDA device inside kvpolicy.transformers.captured(model)
"""
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from kvpolicy.transformers.cache import PolicyCache
from kvpolicy.transformers.captured_steps import captured
from kvpolicy.transformers.layer import PolicyLayer, attention

__all__ = ["PolicyCache", "PolicyLayer", "attention", "captured", "register"]


def register() -> None:
    """attn_implementation="kvpolicy" has a meaning from here on: with a PolicyCache what its policy says, else as "sdpa"."""
    AttentionInterface.register("kvpolicy", attention)
    AttentionMaskInterface.register("kvpolicy", sdpa_mask)
