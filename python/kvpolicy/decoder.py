"""The decode steps of a batch on a CUDA device."""
from __future__ import annotations

import ctypes as c
from typing import NamedTuple, Sequence

from kvpolicy import _abi
from kvpolicy.policy import Policy
from kvpolicy.shape import Shape
from kvpolicy.tensors import Array, borrowed


class DeviceLists(NamedTuple):
    """Where a layer's lists are: kvpolicy_device_lists, addresses in device memory or None."""

    units: int | None
    named: int | None
    tail: int | None
    tokens: int | None
    stride: int
    tail_of_all: int
    lists: int
    unit_size: int
    tails: int


class Decoder:
    """The steps of a batch of sequences under one policy, on a CUDA device; a slot holds one sequence at a time.

    Tensors are on the device, except a prompt's. They are borrowed, never copied; those that are bound are kept alive. choose,
    attend and observe only enqueue kernels on the stream, with the same arguments at every step: capture one step's calls in a CUDA
    graph, torch.cuda.graph(graph, stream=stream) of this stream, and replay it there after each plan. Make one step before, with its
    own plan. Calls raise what State's raise; a slot whose prompt was refused has no step until it was given again.

    cuda: the device's number and a cudaStream_t's address, torch.cuda.Stream.cuda_stream. workspace: bytes of scratch, 0 for 64 MiB;
    an error says where that is too little."""

    def __init__(self, policy: Policy, shape: Shape, sequences: int, cuda: tuple[int, int], workspace: int = 0) -> None:
        self.policy, self.shape, self.sequences = policy, shape, sequences
        self._handle = _abi.handle()
        self._bound: dict[int, tuple[borrowed, ...]] = {}
        sizes = shape._struct()
        _abi.decoder_start(policy._handle, c.byref(sizes), sequences, cuda[0], cuda[1], workspace, c.byref(self._handle))

    def __del__(self, free=_abi.decoder_free) -> None:  # type: ignore[no-untyped-def]
        if getattr(self, "_handle", None):
            free(self._handle)

    def bind(self, layer: int, keys: Array, values: Array, pages: Array | None = None) -> None:
        """Where a layer's rows are: keys and values [pages, kv_heads, page_size, head_dim], any strides, and pages int32
        [sequences, n], whose numbers may change between steps; without pages [sequences, kv_heads, tokens, head_dim]."""
        tensors = borrowed("keys", keys), borrowed("values", values), borrowed("pages", pages)
        _abi.decoder_bind(self._handle, layer, *(t.pointer for t in tensors))
        self._bound[layer] = tensors

    def prefill(self, sequence: int, layer: int, tokens: int, *, first: int = 0, queries: Array | None = None, scale: float = 0.0,
                inverse_frequencies: Array | None = None, neighbours: bool = False, token_ids: Array | None = None) -> None:
        """The keys of a slot's prompt, or of a further piece of it, are written: as State.prefill. Waits for the device."""
        tensors = (borrowed("queries", queries), borrowed("inverse_frequencies", inverse_frequencies),
                   borrowed("token_ids", token_ids))
        prompt = _abi.Prompt(_abi.integer(first), tensors[0].pointer, scale, neighbours, tensors[1].pointer, tensors[2].pointer)
        _abi.decoder_prefill(self._handle, sequence, layer, tokens, c.byref(prompt))

    def plan(self, tokens: Sequence[int]) -> bool:
        """Before a step, not captured: each slot's tokens, with the one that is decoded now; 0 where nobody is, -1 where the sequence
        pauses. Both read nothing, and their out is 0. Returns whether the lists follow from the lengths alone, so that standing may
        take choose's place: for policies that never choose, or once, and have, and between heterocache's looks."""
        if len(tokens) != self.sequences:
            raise _abi.InvalidError(f"{len(tokens)} numbers of tokens; there are {self.sequences} slots")
        idle = _abi.i32()
        _abi.decoder_plan(self._handle, (_abi.i32 * self.sequences)(*(min(n, 2**31 - 1) for n in tokens)), c.byref(idle))
        return idle.value != 0

    def decides(self) -> bool:
        """Whether the planned step makes a choice that waited for tokens of the answer (after), of a policy that chooses once. Such a
        step is not captured: each layer calls decide before choose."""
        decides = _abi.i32()
        _abi.decoder_decides(self._handle, c.byref(decides))
        return decides.value != 0

    def decide(self, layer: int, queries: Array, scale: float) -> None:
        """Makes a layer's choices that are due at the planned step; waits. queries as choose()."""
        tensor = borrowed("queries", queries)
        _abi.decoder_decide(self._handle, layer, tensor.pointer, scale)

    def choose(self, layer: int, queries: Array | None = None, scale: float = 0.0, token_ids: Array | None = None) -> DeviceLists:
        """Enqueues the choice of a layer, before its attention; every sequence's current key is written. queries [sequences, q_heads,
        head_dim] float32, float16 or bfloat16, token_ids [sequences] int32. The lists are valid until the next step."""
        tensors = borrowed("queries", queries), borrowed("token_ids", token_ids)
        lists = _abi.DeviceLists()
        _abi.decoder_choose(self._handle, layer, tensors[0].pointer, scale, tensors[1].pointer, c.byref(lists))
        return DeviceLists(*(getattr(lists, name) for name in DeviceLists._fields))

    def standing(self, layer: int) -> DeviceLists:
        """A layer's lists at an idle step; enqueues nothing. Capture idle steps in a graph of their own."""
        lists = _abi.DeviceLists()
        _abi.decoder_standing(self._handle, layer, c.byref(lists))
        return DeviceLists(*(getattr(lists, name) for name in DeviceLists._fields))

    def attend(self, layer: int, queries: Array, scale: float, out: Array) -> None:
        """Enqueues a layer's attention over its lists, after its choose or standing, into out [sequences, q_heads, head_dim]."""
        tensors = borrowed("queries", queries), borrowed("out", out)
        _abi.decoder_attend(self._handle, layer, tensors[0].pointer, scale, tensors[1].pointer)

    def renew(self, layer: int, queries: Array | None = None, scale: float = 0.0) -> None:
        """Enqueues the choice that serves the next step, after a layer's attention, for a policy with next_step; queries as choose()."""
        tensor = borrowed("queries", queries)
        _abi.decoder_renew(self._handle, layer, tensor.pointer, scale)

    def observe(self, logits: Array | None = None) -> None:
        """Enqueues the end of a step; logits [sequences, vocabulary], where the policy needs them."""
        tensor = borrowed("logits", logits)
        _abi.decoder_observe(self._handle, tensor.pointer)
