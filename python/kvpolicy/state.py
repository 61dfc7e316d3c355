"""What a policy does in one sequence."""
from __future__ import annotations

import ctypes as c
import traceback
from typing import Callable, NamedTuple, Sequence

from kvpolicy import _abi
from kvpolicy.policy import Policy
from kvpolicy.shape import Shape
from kvpolicy.store import Store
from kvpolicy.tensors import Array, borrowed

_reasons = "sink", "scored", "recent", "open"


class Range(NamedTuple):
    """Tokens [begin, end), and why they are read: "sink", "scored", "recent", or "open" (their unit is not complete yet, or they
    came after the choice)."""

    begin: int
    end: int
    why: str


class Ranks(NamedTuple):
    """This one of a group that runs one model, a part of its KV heads each. sum(address, count) sums so many float32 over all of
    them, in place: all call it equally often, in the same order. What it raises is printed, and the choice is refused."""

    rank: int
    size: int
    sum: Callable[[int, int], None]


class State:
    """One sequence's state. Used by one thread at a time, on which it works; others have states of their own, and run at once.

    Tensors are borrowed, never copied; those that are bound are kept alive until they are bound anew. Calls raise InvalidError
    (a value that can't be, or a call out of order), UnsupportedError, OutOfMemoryError, Error; what was refused has changed
    nothing. kvpolicy.h says what each call takes, to the letter.

    cuda: the device's number and a cudaStream_t's address; keys and values are there then. ranks: the shape is of this rank's
    heads, and a policy with one choice for the whole request makes the same one on all ranks; choose is collective then."""

    def __init__(self, policy: Policy, shape: Shape, cuda: tuple[int, int] | None = None, ranks: Ranks | None = None) -> None:
        self.policy, self.shape = policy, shape
        self._handle = _abi.handle()
        self._bound: dict[int, tuple[borrowed, ...]] = {}
        self._terms: dict[int, tuple[borrowed, ...]] = {}
        self._store: Store | None = None
        sizes = shape._struct()
        if ranks is not None:
            if cuda is not None:
                raise _abi.UnsupportedError("ranks of a state on a device; they are served in host memory alone")
            self._ranks = _abi.Ranks(ranks.rank, ranks.size, _abi.Sum(_sum_of(ranks)))
            _abi.start_ranked(policy._handle, c.byref(sizes), c.byref(self._ranks), c.byref(self._handle))
        elif cuda is None:
            _abi.start(policy._handle, c.byref(sizes), c.byref(self._handle))
        else:
            _abi.start_cuda(policy._handle, c.byref(sizes), cuda[0], cuda[1], c.byref(self._handle))

    def __del__(self, free=_abi.state_free) -> None:  # type: ignore[no-untyped-def]
        if getattr(self, "_handle", None):
            free(self._handle)

    def bind(self, layer: int, keys: Array, values: Array | None = None, pages: Array | None = None) -> None:
        """Where a layer's rows are: keys and values [kv_heads, tokens, head_dim], any strides; with pages, int32 [n], they are
        [pages, kv_heads, page_size, head_dim]. Again where they moved or grew."""
        tensors = borrowed("keys", keys), borrowed("values", values), borrowed("pages", pages)
        _abi.bind(self._handle, layer, *(t.pointer for t in tensors))
        self._bound[layer] = tensors

    def bind_terms(self, layer: int, *, soft_cap: float = 0.0, slopes: Array | None = None, sinks: Array | None = None) -> None:
        """What the model adds to a layer's attention, in this order: logits become soft_cap tanh(logit / soft_cap); slopes [q_heads]
        float32 (ALiBi); sinks [q_heads] float32, one more logit each, whose value is zero. Policies choose without them."""
        tensors = borrowed("slopes", slopes), borrowed("sinks", sinks)
        _abi.bind_terms(self._handle, layer, c.byref(_abi.Terms(soft_cap, *(t.pointer for t in tensors))))
        self._terms[layer] = tensors

    def bind_store(self, store: Store) -> None:
        """In place of bind, for all layers, once: the rows are the store's."""
        _abi.bind_store(self._handle, store._handle)
        self._store = store

    def copy(self) -> State:
        """Another state that goes on as this one would. Tensors stay bound; a store does not: bind a fork of it. UnsupportedError
        on a device, or of ranks."""
        made = State.__new__(State)
        made.policy, made.shape, made._bound, made._store = self.policy, self.shape, dict(self._bound), None
        made._terms = dict(self._terms)
        made._handle = _abi.handle()
        _abi.state_copy(self._handle, c.byref(made._handle))
        return made

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, object]) -> State:
        return self.copy()  # tensors are the engine's, and stay where they are

    def __reduce__(self) -> str:
        raise TypeError("a State is memory of the library; it can be copied, and not pickled")

    def cut(self, tokens: int) -> None:
        """The sequence's last tokens were removed; `tokens` are left. Before the step behind them. A prompt needs no such call,
        its `first` says it; nor does a store's truncate."""
        _abi.cut(self._handle, tokens)

    def prefill(self, layer: int, tokens: int, *, first: int = 0, queries: Array | None = None, scale: float = 0.0,
                inverse_frequencies: Array | None = None, neighbours: bool = False, token_ids: Array | None = None,
                repeats: tuple[int, int] = (0, 0), observed_from: int = 0) -> None:
        """The keys of a prompt, or of a further piece of one behind `first` tokens, are written: there are `tokens` now. Every
        layer in order. queries [n, q_heads, head_dim] float32, float16 or bfloat16, of the last n tokens, oldest first, with
        their scale, the factor of q.k, in most models head_dim ** -.5; inverse_frequencies [pairs] float32, of channels
        (i, i + pairs) or, with neighbours, (2 i, 2 i + 1); token_ids [tokens - first] int32.
        The queries are of a prompt's earlier pieces too; observed_from is the first token whose query the caller still has, behind
        tokens that another request computed.
        For a policy with Needs.REPETITION, the new tokens repeat the tokens [begin, end) of `repeats`, queries are all of theirs, and
        the caller removes them after each piece; the piece whose end is `first` makes the choice."""
        tensors = (borrowed("queries", queries), borrowed("inverse_frequencies", inverse_frequencies),
                   borrowed("token_ids", token_ids))
        prompt = _abi.Prompt(_abi.integer(first), tensors[0].pointer, scale, neighbours, tensors[1].pointer, tensors[2].pointer,
                              *map(_abi.integer, repeats))
        _abi.observed_from(self._handle, observed_from)
        _abi.prefill(self._handle, layer, tokens, c.byref(prompt))

    def choose(self, layer: int, tokens: int, queries: Array | None = None, scale: float = 0.0, token_id: int = -1) -> None:
        """Before attention of one token, the last of `tokens`, whose key is written in this layer. Every layer in order. queries
        [q_heads, head_dim] float32, with their scale."""
        tensor = borrowed("queries", queries)
        _abi.choose(self._handle, layer, tokens, tensor.pointer, scale, token_id)

    def choose_several(self, layer: int, tokens: int, brought: int, queries: Array | None = None, scale: float = 0.0,
                       token_ids: Sequence[int] = ()) -> None:
        """Before attention of the last `brought` of `tokens`, 1 to 16: a token that was sampled, and drafts of those behind it. All
        of them read what the first one chooses, and themselves. The next prefill or choose shows by where it begins how many stayed.
        Every layer in order. queries [brought, q_heads, head_dim] float32, with their scale."""
        tensor = borrowed("queries", queries)
        if len(token_ids) not in (0, brought):
            raise _abi.InvalidError(f"{len(token_ids)} token ids for {brought} tokens")
        ids = (_abi.i32 * brought)(*(_abi.integer(i, 32) for i in token_ids)) if len(token_ids) else None
        _abi.choose_several(self._handle, layer, tokens, brought, tensor.pointer, scale, ids)

    def ranges(self, layer: int, kv_head: int) -> list[Range]:
        """What this step reads of a head, ascending; after choose of the layer."""
        return self._ranges(_abi.list_, layer, kv_head)

    def retained(self, layer: int, kv_head: int) -> list[Range]:
        """What is there at all, read or not; after prefill or choose of the layer."""
        return self._ranges(_abi.retained, layer, kv_head)

    def tokens(self, layer: int, kv_head: int) -> list[int]:
        """What this step reads of a head, token by token."""
        return [t for r in self.ranges(layer, kv_head) for t in range(r.begin, r.end)]

    def page_table(self, layer: int, kv_head: int) -> tuple[list[int], int]:
        """The physical pages of what this step reads, and how many tokens the last of them holds. InvalidError where that is not
        made of whole pages."""
        most = sum(r.end - r.begin for r in self.ranges(layer, kv_head))
        pages, count, last = (_abi.i32 * max(most, 1))(), _abi.i64(), _abi.i32()
        _abi.page_table(self._handle, layer, kv_head, pages, most, c.byref(count), c.byref(last))
        return list(pages[:count.value]), last.value

    def attend(self, layer: int, queries: Array, scale: float, out: Array) -> None:
        """The step's attention over what it reads, into out [q_heads, head_dim] float32; of several tokens, queries and out
        [brought, q_heads, head_dim]."""
        tensors = borrowed("queries", queries), borrowed("out", out)
        _abi.attend(self._handle, layer, tensors[0].pointer, scale, tensors[1].pointer)

    def attend_prompt(self, layer: int, tokens: int, queries: Array, scale: float, out: Array) -> None:
        """Attention of a prompt's last n tokens, each over all that is there before it and itself; their rows are written in this
        layer, which has `tokens` tokens now. queries [n, q_heads, head_dim] float32, out the same, dense."""
        tensors = borrowed("queries", queries), borrowed("out", out)
        _abi.attend_prompt(self._handle, layer, tokens, tensors[0].pointer, scale, tensors[1].pointer)

    def observe(self, logits: Array | None = None) -> None:
        """After a step, once for each of its tokens that stays; logits [vocabulary] float32, where the policy needs them."""
        tensor = borrowed("logits", logits)
        _abi.observe(self._handle, tensor.pointer)

    def _ranges(self, which, layer: int, kv_head: int) -> list[Range]:  # type: ignore[no-untyped-def]
        ranges, count = c.POINTER(_abi.Range)(), _abi.i64()
        which(self._handle, layer, kv_head, c.byref(ranges), c.byref(count))
        return [Range(r.begin, r.end, _reasons[r.why]) for r in ranges[:count.value]]


def _sum_of(ranks: Ranks):  # type: ignore[no-untyped-def]
    def call(_: int, values, count: int) -> int:  # type: ignore[no-untyped-def]
        try:
            ranks.sum(c.addressof(values.contents), count)
            return 0
        except BaseException:
            traceback.print_exc()
            return 1
    return call
