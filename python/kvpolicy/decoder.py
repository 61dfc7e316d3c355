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


class Step(NamedTuple):
    """What a planned step asks for."""

    idle: bool
    """The lists follow from the lengths alone, so that standing may take choose's place: for policies that never choose, or once,
    and have, and between heterocache's looks."""
    decides: bool
    """Each layer calls decide before choose, and the step is not captured: a choice waited for tokens of the answer (after), or comes
    every so many steps."""
    unsettled: bool
    """Call settle before choose: of the last step's several tokens, more than the first one stayed."""


class Decoder:
    """The steps of a batch of sequences under one policy, on a CUDA device; a slot holds one sequence at a time.

    Tensors are on the device, except a prompt's. They are borrowed, never copied; those that are bound are kept alive. settle, choose,
    attend, renew and observe only enqueue kernels on the stream, with the same arguments at every step: capture one step's calls in a
    CUDA graph, torch.cuda.graph(graph, stream=stream) of this stream, and replay it there after each plan. Make one step before, with
    its own plan. Calls raise what State's raise; a slot whose prompt was refused has no step until it was given again.

    sequences: slots. cuda: the device's number and a cudaStream_t's address, torch.cuda.Stream.cuda_stream. workspace: bytes of scratch, 0
    for 64 MiB; an error says where that is too little. step_tokens: that a sequence brings to a step at most; above 1, tensors of a step
    have an axis of that many behind that of rows. rows: of a batch at most, if sequences' rows move from step to step (plan's slots); 0:
    a slot's number is its row."""

    def __init__(self, policy: Policy, shape: Shape, sequences: int, cuda: tuple[int, int], workspace: int = 0, *,
                 step_tokens: int = 1, rows: int = 0) -> None:
        self.policy, self.shape, self.sequences = policy, shape, sequences
        self.step_tokens, self.rows = step_tokens, rows
        self._handle = _abi.handle()
        self._bound: dict[int, tuple[borrowed, ...]] = {}
        self._terms: dict[int, tuple[borrowed, ...]] = {}
        sizes = shape._struct()
        options = _abi.DecoderOptions(_abi.integer(sequences), _abi.integer(rows), _abi.integer(workspace), cuda[1],
                                      _abi.integer(cuda[0], 32), _abi.integer(step_tokens, 32))
        _abi.decoder_start(policy._handle, c.byref(sizes), c.byref(options), c.byref(self._handle))

    def __del__(self, free=_abi.decoder_free) -> None:  # type: ignore[no-untyped-def]
        if getattr(self, "_handle", None):
            free(self._handle)

    def on(self, stream: int) -> None:
        """Uses another cudaStream_t from now on. Order its work behind what was enqueued before: scratch is shared."""
        _abi.decoder_on(self._handle, stream)

    def bind(self, layer: int, keys: Array, values: Array, pages: Array | None = None) -> None:
        """Where a layer's rows are: keys and values [pages, kv_heads, page_size, head_dim], any strides, and pages int32 [rows, n], whose
        numbers may change between steps; without pages [rows, kv_heads, tokens, head_dim]. A batch has as many rows as slots, or the
        constructor's."""
        tensors = borrowed("keys", keys), borrowed("values", values), borrowed("pages", pages)
        _abi.decoder_bind(self._handle, layer, *(t.pointer for t in tensors))
        self._bound[layer] = tensors

    def bind_terms(self, layer: int, *, soft_cap: float = 0.0, slopes: Array | None = None, sinks: Array | None = None) -> None:
        """What the model adds to a layer's attention, as State.bind_terms; slopes and sinks are on the device."""
        tensors = borrowed("slopes", slopes), borrowed("sinks", sinks)
        _abi.decoder_bind_terms(self._handle, layer, c.byref(_abi.Terms(soft_cap, *(t.pointer for t in tensors))))
        self._terms[layer] = tensors

    def prefill(self, sequence: int, layer: int, tokens: int, *, first: int = 0, queries: Array | None = None, scale: float = 0.0,
                inverse_frequencies: Array | None = None, neighbours: bool = False, token_ids: Array | None = None,
                row: int | None = None) -> None:
        """The keys of a slot's prompt, or of a further piece of it, are written: as State.prefill. Waits for the device. row: the
        sequence's row of the batch, where rows move."""
        tensors = (borrowed("queries", queries), borrowed("inverse_frequencies", inverse_frequencies),
                   borrowed("token_ids", token_ids))
        prompt = _abi.Prompt(_abi.integer(first), tensors[0].pointer, scale, neighbours, tensors[1].pointer, tensors[2].pointer)
        _abi.decoder_prefill(self._handle, sequence, -1 if row is None else row, layer, tokens, c.byref(prompt))

    def plan(self, tokens: Sequence[int], brought: Sequence[int] | None = None, slots: Sequence[int] | None = None) -> Step:
        """Before a step, not captured: each row's tokens, with those that are decoded now; 0 where nobody is, -1 where the sequence
        pauses. Both read nothing, and their out is 0. brought: how many of them are decoded now, one of each if not given; those before
        them say how many of the last step's stayed. slots: each row's slot, where rows move; slots that no row has pause."""
        if slots is None and self.rows == 0 and len(tokens) != self.sequences:
            raise _abi.InvalidError(f"{len(tokens)} numbers of tokens; there are {self.sequences} slots")
        for name, given in (("brought", brought), ("slots", slots)):
            if given is not None and len(given) != len(tokens):
                raise _abi.InvalidError(f"{len(given)} numbers of {name} for {len(tokens)} rows")
        numbers = [None if of is None else (_abi.i32 * len(of))(*(_abi.integer(n, 32) for n in of)) for of in (tokens, brought, slots)]
        step = _abi.i32()
        _abi.decoder_plan(self._handle, len(tokens), *numbers, c.byref(step))
        return Step(bool(step.value & 1), bool(step.value & 2), bool(step.value & 4))

    def settle(self, scale: float) -> None:
        """Enqueues the steps of the last one's later tokens that stayed, before choose, where plan says unsettled."""
        _abi.decoder_settle(self._handle, scale)

    def cut(self, sequence: int, tokens: int) -> None:
        """Takes back a sequence's last tokens, of a policy that learns nothing from steps; tokens: how many it has left."""
        _abi.decoder_cut(self._handle, sequence, tokens)

    def end(self, sequence: int) -> None:
        """Empties a slot: its sequence has ended."""
        _abi.decoder_end(self._handle, sequence)

    def decide(self, layer: int, queries: Array, scale: float) -> None:
        """Makes a layer's choices that are due at the planned step; waits. queries as choose()."""
        tensor = borrowed("queries", queries)
        _abi.decoder_decide(self._handle, layer, tensor.pointer, scale)

    def choose(self, layer: int, queries: Array | None = None, scale: float = 0.0, token_ids: Array | None = None) -> DeviceLists:
        """Enqueues the choice of a layer, before its attention; every sequence's current key is written. queries [rows, q_heads,
        head_dim] float32, float16 or bfloat16, token_ids [rows] int32. The lists are valid until the next step."""
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
        """Enqueues a layer's attention over its lists, after its choose or standing, into out [rows, q_heads, head_dim]."""
        tensors = borrowed("queries", queries), borrowed("out", out)
        _abi.decoder_attend(self._handle, layer, tensors[0].pointer, scale, tensors[1].pointer)

    def renew(self, layer: int, queries: Array | None = None, scale: float = 0.0) -> None:
        """Enqueues the choice that serves the next step, after a layer's attention, for a policy with next_step; queries as choose()."""
        tensor = borrowed("queries", queries)
        _abi.decoder_renew(self._handle, layer, tensor.pointer, scale)

    def observe(self, logits: Array | None = None) -> None:
        """Enqueues the end of a step; logits [rows, vocabulary], where the policy needs them."""
        tensor = borrowed("logits", logits)
        _abi.decoder_observe(self._handle, tensor.pointer)
