"""Sequences that make their steps together."""
from __future__ import annotations

import ctypes as c
from typing import Callable, Sequence

from kvpolicy import _abi
from kvpolicy.state import State
from kvpolicy.tensors import Array, borrowed


class StepError(_abi.Error):
    """A step in which these `sequences` were refused, the first for the reason given; each has lost the token in every layer, and
    may begin the step again. The others have made theirs."""

    def __init__(self, sequences: list[int], why: str) -> None:
        super().__init__(f"sequence {sequences[0]}: {why}")
        self.sequences = sequences


class Threads:
    """Threads of the caller's: run(work, argument), two addresses, calls the C function work(argument) on some of them at once, and
    returns when they all have."""

    def __init__(self, run: Callable[[int, int], None]) -> None:
        self._struct = _abi.Threads(type(_abi.Threads().run)(lambda _, work, argument: run(work, argument)))


def openmp() -> Threads | None:
    """Those of the OpenMP runtime that this process has already, PyTorch's for instance; None where it has none."""
    try:
        parallel = c.CDLL(None).GOMP_parallel
    except AttributeError:
        return None
    parallel.argtypes, parallel.restype = (c.c_void_p, c.c_void_p, c.c_uint, c.c_uint), None
    return Threads(lambda work, argument: parallel(work, argument, 0, 0))


class Batch:
    """Sequences, bound to stores of one shape, that make their steps together. With threads they are shared out among them, and
    each has an Arena of its own."""

    def __init__(self, states: Sequence[State], threads: Threads | None = None) -> None:
        self.states, self.threads = tuple(states), threads
        self._handles = (_abi.handle * len(self.states))(*(state._handle for state in self.states))
        self.read = (_abi.i64 * len(self.states))()

    def step(self, layer: int, keys: Array, values: Array, queries: Array, scale: float, out: Array,
             token_ids: Array | None = None, leave_whole: bool = False) -> list[int]:
        """In one layer, each sequence's next token: its row is appended, what it reads is chosen and attended to; behind the last
        layer what is not retained is gone, and, with a policy that needs no logits, observe() has been called. Every layer in
        order. keys and values [sequences, kv_heads, head_dim], queries [sequences, q_heads, head_dim] float32, out the same;
        token_ids [sequences] int32. leave_whole: out stays as it is where a sequence reads all of its tokens. Returns rows of the
        layer that each one read, of all its KV heads. Raises StepError, and InvalidError where none has begun."""
        tensors = (borrowed("keys", keys), borrowed("values", values), borrowed("queries", queries),
                   borrowed("token_ids", token_ids), borrowed("out", out))
        k, v, q, ids, to = (t.pointer for t in tensors)
        try:
            _abi.step(self._handles, len(self.states), layer, k, v, q, scale, ids, to, self.read, leave_whole,
                      None if self.threads is None else c.byref(self.threads._struct))
        except _abi.Error as why:
            refused = [i for i, read in enumerate(self.read) if read < 0]
            if len(refused) == len(self.states) and isinstance(why, _abi.InvalidError):
                raise
            raise StepError(refused, str(why)) from why
        return list(self.read)
