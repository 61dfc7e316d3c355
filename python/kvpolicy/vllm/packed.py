"""How vLLM's CPU kernels pack a block of rows, which depends on the machine: learnt by writing rows that say where they belong."""
from __future__ import annotations

import torch
from vllm import _custom_ops as ops

from kvpolicy import UnsupportedError


class Packing:
    """Of blocks [kv_heads, block_size, 2 * head_dim] of one type, for one instruction set."""

    def __init__(self, block_size: int, head_dim: int, dtype: torch.dtype, isa: str) -> None:
        count = block_size * head_dim
        index = torch.arange(count)
        # In two digits, each of which every type holds exactly.
        low, high = (self._packed((index % 256, index // 256)[digit], block_size, head_dim, dtype, isa) for digit in (0, 1))
        place = low + 256 * high
        if not torch.equal(place.sort(dim=1).values, index.expand(2, -1)):
            raise UnsupportedError(f"rows in blocks of {block_size} are not packed one by one for {isa}; start vLLM with "
                                   "enable_prefix_caching=False")
        self._of = place.argsort(dim=1)  # of keys and of values, where each element lies

    @staticmethod
    def _packed(digits: torch.Tensor, block_size: int, head_dim: int, dtype: torch.dtype, isa: str) -> torch.Tensor:
        """[2, block_size * head_dim] as they lie."""
        rows = digits.to(dtype).view(block_size, 1, head_dim)
        cache = torch.zeros(1, 1, 2 * block_size, head_dim, dtype=dtype)
        keys, values = cache.chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(rows, rows, keys, values, torch.arange(block_size), isa)
        return cache.view(2, -1).to(torch.int64)

    def rows(self, cache: torch.Tensor, blocks: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [kv_heads, count, head_dim] of a sequence whose first tokens are in these blocks of a layer's cache
        [blocks, kv_heads, block_size, 2 * head_dim]."""
        _, heads, block_size, twice = cache.shape
        packed = cache[blocks.long()].view(-1, heads, 2, block_size * twice // 2)
        keys, values = (packed[:, :, which].index_select(2, self._of[which]).view(-1, heads, block_size, twice // 2)
                        .transpose(0, 1).reshape(heads, -1, twice // 2)[:, :count] for which in (0, 1))
        return keys, values
