"""The rows of a PolicyCache on a CUDA device, and the decoder that makes its steps there."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kvpolicy import Decoder, Needs, Policy, Shape, Step, UnsupportedError

if TYPE_CHECKING:
    from kvpolicy.transformers.cache import Sequence
    from kvpolicy.transformers.layer import Terms


class Memory:
    """A device's, as PyTorch has it. Tests put an interpreter's in its place."""

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cuda"

    def empty(self, shape: tuple[int, ...], like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)

    def exported(self, tensor: torch.Tensor) -> Any:
        """What the library takes as a tensor on the device."""
        return tensor

    def stream(self, like: torch.Tensor) -> tuple[int, int]:
        """The device's number, and the stream on which PyTorch works."""
        return like.device.index or 0, torch.cuda.current_stream(like.device).cuda_stream

    def settle(self) -> None:
        """Before PyTorch reads what the decoder enqueued: nothing, as both work on one stream."""


memory = Memory()


class DeviceRows:
    """All rows of a batch, whether a policy reads them or not: keys and values [rows, kv_heads, max_tokens, head_dim] a layer."""

    def __init__(self, policy: Policy, shape: Shape, sequences: int, like: torch.Tensor) -> None:
        self._device = memory.stream(like)
        self._decoder = Decoder(policy, shape, sequences, cuda=self._device)
        self._needs = policy.needs
        room = (sequences, shape.kv_heads, shape.max_tokens, shape.head_dim)
        self._keys, self._values = ([memory.empty(room, like) for _ in range(shape.layers)] for _ in range(2))
        for layer, (keys, values) in enumerate(zip(self._keys, self._values)):
            for rows_of in (keys, values):
                rows_of.zero_()  # those behind a sequence's end have no influence, and must be finite
            self._decoder.bind(layer, memory.exported(keys), memory.exported(values))
        step = (sequences, shape.q_heads, shape.head_dim)
        self._queries, self._out = memory.empty(step, like), memory.empty(step, like)
        self._ids = memory.empty((sequences,), like, torch.int32)
        self._sinks: dict[int, torch.Tensor] = {}
        self._step = Step(False, False, False)

    @property
    def bytes(self) -> int:
        return sum(rows.numel() * rows.element_size() for rows in (*self._keys, *self._values))

    def plan(self, sequences: list[Sequence], like: torch.Tensor) -> None:
        """Before a forward's first layer: which sequences step. The others pause, or begin a prompt."""
        if (now := memory.stream(like)) != self._device:
            if now[0] != self._device[0]:
                raise UnsupportedError(f"a forward on device {now[0]}; the cache's rows are on device {self._device[0]}")
            self._decoder.on(now[1])
            self._device = now
        if any(row.steps for row in sequences):
            self._step = self._decoder.plan([row.tokens if row.steps else -1 if row.tokens > row.fresh else 0 for row in sequences])

    def step(self, layer: int, rows: list[Sequence], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float,
             ids: torch.Tensor | None) -> torch.Tensor:
        """A layer's step of those rows; query [rows, q_heads, 1, head_dim] and the others are of all. out [rows, q_heads, head_dim]."""
        places, last = (torch.tensor(numbers) for numbers in ([row.place for row in rows], [row.tokens - 1 for row in rows]))
        self._keys[layer][places, :, last] = key[places, :, -1]
        self._values[layer][places, :, last] = value[places, :, -1]
        self._queries.copy_(query[:, :, -1])
        queries = memory.exported(self._queries)
        if self._step.decides:
            self._decoder.decide(layer, queries, scale)
        if self._step.idle:
            self._decoder.standing(layer)
        else:
            if ids is not None:
                self._ids.copy_(ids)
            self._decoder.choose(layer, queries, scale, None if ids is None else memory.exported(self._ids))
        self._decoder.attend(layer, queries, scale, memory.exported(self._out))
        if not self._step.idle:
            self._decoder.renew(layer, queries, scale)
        memory.settle()
        return self._out

    def prompt(self, layer: int, row: Sequence, key: torch.Tensor, value: torch.Tensor, **signals: Any) -> None:
        """A row's new tokens [kv_heads, n, head_dim], behind its earlier ones."""
        first = row.tokens - row.fresh
        self._keys[layer][row.place, :, first:row.tokens] = key
        self._values[layer][row.place, :, first:row.tokens] = value
        self._decoder.prefill(row.place, layer, row.tokens, first=first, **signals)

    def attend_prompt(self, layer: int, row: Sequence, query: torch.Tensor, scale: float, terms: Terms | None) -> torch.Tensor:
        """Attention of a prompt that goes on, over all rows: of query [q_heads, n, head_dim] out [n, q_heads, head_dim]."""
        keys, values = (rows[layer][row.place, :, :row.tokens][None] for rows in (self._keys, self._values))
        if terms is not None:
            return terms.attention(query[None], keys, values, None, scale)[0]
        group = query.shape[0] // keys.shape[1]
        sees = torch.ones(query.shape[1], row.tokens, dtype=torch.bool, device=query.device).tril(row.tokens - query.shape[1])
        return torch.nn.functional.scaled_dot_product_attention(
            query[None], keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1), attn_mask=sees, scale=scale)[0].transpose(0, 1)

    def bind_terms(self, layer: int, soft_cap: float, sinks: torch.Tensor | None) -> None:
        if sinks is not None:
            held = memory.empty(tuple(sinks.shape), sinks)
            held.copy_(sinks)
            self._sinks[layer] = held
        self._decoder.bind_terms(layer, soft_cap=soft_cap, sinks=None if sinks is None else memory.exported(self._sinks[layer]))

    def cut(self, sequences: list[Sequence], tokens: list[int]) -> None:
        """So many tokens of each stay. Raises UnsupportedError for a policy that learns from steps, InvalidError within a prompt."""
        for row, left in zip(sequences, tokens):
            if left == 0:
                self._decoder.end(row.place)
            elif left < row.tokens:
                self._decoder.cut(row.place, left)

    def observe(self, logits: torch.Tensor) -> None:
        """Behind a forward with steps: logits [rows, vocabulary]."""
        if Needs.LOGITS in self._needs:
            held = memory.empty(tuple(logits.shape), self._queries, torch.float32)
            held.copy_(logits)
            self._decoder.observe(memory.exported(held))
            memory.settle()
