"""Rows that the library holds, in host memory: of what a policy drops nothing is left."""
from __future__ import annotations

import ctypes as c
from typing import Any, Protocol

from kvpolicy import _abi
from kvpolicy.shape import Shape
from kvpolicy.tensors import Array, borrowed


class BoundState(Protocol):
    """A State that was bound to the store."""

    _handle: Any


class Arena:
    """Memory of stores of one shape, at most so many bytes; what is not used takes none. Its stores are used by one thread at a
    time."""

    def __init__(self, shape: Shape, bytes: int) -> None:
        self.shape = shape
        self._handle = _abi.handle()
        sizes = shape._struct()
        _abi.arena_start(c.byref(sizes), bytes, c.byref(self._handle))

    def __del__(self, free=_abi.arena_free) -> None:  # type: ignore[no-untyped-def]
        if getattr(self, "_handle", None):
            free(self._handle)

    @property
    def bytes(self) -> int:
        """That its stores take now."""
        return int(_abi.arena_bytes(self._handle))


class Store:
    """One sequence's rows."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._handle = _abi.handle()
        sizes = arena.shape._struct()
        _abi.store_start(arena._handle, c.byref(sizes), c.byref(self._handle))

    def __del__(self, free=_abi.store_free) -> None:  # type: ignore[no-untyped-def]
        if getattr(self, "_handle", None):
            free(self._handle)

    def fork(self, tokens: int) -> Store:
        """The first `tokens` tokens, without copying a row."""
        copy = Store.__new__(Store)
        copy.arena, copy._handle = self.arena, _abi.handle()
        _abi.store_fork(self._handle, tokens, c.byref(copy._handle))
        return copy

    def append(self, layer: int, keys: Array, values: Array) -> None:
        """A layer's next tokens are copied: [kv_heads, n, head_dim]. Before its prefill, or choose."""
        tensors = borrowed("keys", keys), borrowed("values", values)
        _abi.store_append(self._handle, layer, tensors[0].pointer, tensors[1].pointer)

    def retain(self, layer: int, state: BoundState) -> None:
        """Of a layer's tokens, those that the state bound to this store does not retain are gone. After the first step behind a
        prompt, and each step of a policy that evicts or waits for an answer's first tokens; every layer."""
        _abi.store_retain(self._handle, layer, state._handle)

    def truncate(self, tokens: int) -> None:
        """Tokens from `tokens` on are gone, in every layer."""
        _abi.store_truncate(self._handle, tokens)

    @property
    def released(self) -> int:
        """So many first tokens are here in every layer: other rows of them may go."""
        return int(_abi.store_released(self._handle))

    @property
    def rows(self) -> int:
        """Of a token, layer and KV head."""
        return int(_abi.store_rows(self._handle))
