"""The sizes of one sequence's cache."""
from __future__ import annotations

from typing import NamedTuple

from kvpolicy import _abi

_types = "f32", "f16", "bf16"


class Shape(NamedTuple):
    """The fixed sizes of one sequence's cache. q_heads, of a layer, is a multiple of kv_heads; dtype "f32", "f16" or "bf16".
    value_dim is 0 where values are as wide as keys; a latent row's values (MLA) may be the first channels of the keys' tensor."""

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    max_tokens: int
    dtype: str = "f32"
    value_dim: int = 0

    def _struct(self) -> _abi.Shape:
        if self.dtype not in _types:
            raise ValueError(f"dtype is {self.dtype!r}; there are {', '.join(_types)}")
        return _abi.Shape(*map(_abi.integer, self[:5]), _types.index(self.dtype), _abi.integer(self.value_dim))
