"""The rows of a PolicyCache on a CUDA device, and the decoder that makes its steps there."""
from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Iterator

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

    def integers(self, address: int, count: int, like: torch.Tensor) -> list[int]:
        """What the library wrote on the device, once that is done."""
        class Array:
            __cuda_array_interface__ = dict(data=(address, True), shape=(count,), typestr="<i4", version=2)

        found: list[int] = torch.as_tensor(Array(), device=like.device).tolist()
        return found

    def exported(self, tensor: torch.Tensor) -> Any:
        """What the library takes as a tensor on the device."""
        return tensor

    def stream(self, like: torch.Tensor) -> tuple[int, int]:
        """The device's number, and the stream on which PyTorch works."""
        return like.device.index or 0, torch.cuda.current_stream(like.device).cuda_stream

    def current(self, number: int) -> ContextManager[Any]:
        """The library works on the thread's current device."""
        return torch.cuda.device(number)

    def settle(self) -> None:
        """Before PyTorch reads what the decoder enqueued: nothing, as both work on one stream."""

    @contextlib.contextmanager
    def waits(self) -> Iterator[list[str]]:
        """What inside makes the host wait for the device, which no capture survives."""
        found: list[str] = []
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield found
            finally:
                torch.cuda.set_sync_debug_mode(before)
        for each in said:
            if "synchronizing CUDA operation" in str(each.message):
                found.append(str(each.message))
            elif "Synchronization debug mode" not in str(each.message):  # that it is new
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)

    def graph(self, like: torch.Tensor, work: Callable[[], Any]) -> Callable[[], Any]:
        """Captures what work() enqueues. Each call of the result enqueues it again, and returns what work() returned."""
        graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream(like.device)
        with torch.cuda.device(like.device), torch.cuda.stream(aside):  # back to the other stream, whatever becomes of the capture
            with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
                made = work()

        def replay() -> Any:
            graph.replay()
            return made

        return replay


memory = Memory()


class DeviceRows:
    """Rows of a batch, whether a policy reads them or not: keys and values [rows, kv_heads, max_tokens, head_dim] a layer. Of compacted
    rows those that the policy dropped are gone."""

    def __init__(self, policy: Policy, shape: Shape, sequences: int, like: torch.Tensor) -> None:
        self.gone, self._compacted = [0] * sequences, [0] * sequences  # tokens of each whose rows are gone, and that it had then
        self.at, self._device, self._policy = like.device, memory.stream(like), policy
        room, step = (sequences, shape.kv_heads, shape.max_tokens, shape.head_dim), (sequences, shape.q_heads, shape.head_dim)
        with memory.current(self._device[0]), torch.inference_mode(False):  # later forwards write these, in that mode or not
            self._decoder = Decoder(policy, shape, sequences, cuda=self._device)
            self._keys, self._values = ([memory.empty(room, like) for _ in range(shape.layers)] for _ in range(2))
            for layer, both in enumerate(zip(self._keys, self._values)):
                for rows in both:
                    rows.zero_()  # those behind a sequence's end have no influence, and must be finite
                self._decoder.bind(layer, *(memory.exported(rows) for rows in both))
            self._queries, self._out = memory.empty(step, like), memory.empty(step, like)
            self._ids = memory.empty((sequences,), like, torch.int32)
            self._all = torch.arange(sequences, device=like.device)
            self._ends = torch.zeros_like(self._all)
        self._sinks: dict[int, torch.Tensor] = {}
        self.planned = Step(False, False, False)
        self.places, self._last = self._all, self._ends  # of the rows that step, and of their new tokens

    @property
    def bytes(self) -> int:
        return sum(rows.numel() * rows.element_size() for rows in (*self._keys, *self._values))

    def expect(self, key: torch.Tensor, position: int) -> None:
        """Raises UnsupportedError for a layer on another device."""
        if key.device != self.at:
            raise UnsupportedError(f"layer {position} is on {key.device}, the cache's rows are on {self.at}: a model on several devices is not served")

    def expect_further_prompts(self) -> None:
        """Raises UnsupportedError where a policy can't take a prompt behind decoded tokens here."""
        for name in ("infllm", "sentencekv"):
            if name in self._policy.text:
                raise UnsupportedError(f"{name} takes no further prompt behind decoded tokens on a device; begin with a cache of its own")

    def plan(self, sequences: list[Sequence]) -> None:
        """Before a forward's first layer: which sequences step. The others pause, or begin a prompt."""
        self.follow()
        stepping = [row for row in sequences if row.steps]
        if not stepping:
            return
        with memory.current(self._device[0]):
            self.planned = self._decoder.plan([row.tokens - self.gone[row.place] if row.steps else -1 if row.tokens > row.fresh else 0
                                               for row in sequences])
        ends = torch.tensor([row.tokens - self.gone[row.place] - 1 for row in stepping], device="cpu")
        if len(stepping) == len(sequences):  # a captured step's tensors stay where they are
            self.places, self._last = self._all, self._ends
            self._ends.copy_(ends)
        else:
            self.places = torch.tensor([row.place for row in stepping], device=self.at)
            self._last = ends.to(self.at)

    def follow(self) -> None:
        """Works on PyTorch's current stream from here on."""
        if (now := memory.stream(self._queries)) != self._device:
            self._decoder.on(now[1])
            self._device = now

    def step(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float,
             ids: torch.Tensor | None) -> torch.Tensor:
        """A layer's step of the rows that were planned; query [rows, q_heads, 1, head_dim] and the others are of all. out [rows, q_heads,
        head_dim]."""
        every = self.places is self._all
        for rows, new in ((self._keys[layer], key), (self._values[layer], value)):
            rows[self.places, :, self._last] = new[:, :, -1] if every else new[self.places, :, -1]
        self._queries.copy_(query[:, :, -1])
        queries = memory.exported(self._queries)
        with memory.current(self._device[0]):
            if self.planned.decides:
                self._decoder.decide(layer, queries, scale)
            if self.planned.idle:
                self._decoder.standing(layer)
            else:
                if ids is not None:
                    self._ids.copy_(ids)
                self._decoder.choose(layer, queries, scale, None if ids is None else memory.exported(self._ids))
            self._decoder.attend(layer, queries, scale, memory.exported(self._out))
            if not self.planned.idle:
                self._decoder.renew(layer, queries, scale)
        memory.settle()
        return self._out

    def prompt(self, layer: int, row: Sequence, key: torch.Tensor, value: torch.Tensor, **signals: Any) -> None:
        """A row's new tokens [kv_heads, n, head_dim], behind its earlier ones."""
        tokens = row.tokens - self.gone[row.place]
        first = tokens - row.fresh
        self._keys[layer][row.place, :, first:tokens] = key
        self._values[layer][row.place, :, first:tokens] = value
        with memory.current(self._device[0]):
            self._decoder.prefill(row.place, layer, tokens, first=first, **signals)

    def attend_prompt(self, layer: int, row: Sequence, query: torch.Tensor, scale: float, terms: Terms | None) -> torch.Tensor:
        """Attention of a prompt that goes on, over all rows: of query [q_heads, n, head_dim] out [n, q_heads, head_dim]."""
        tokens = row.tokens - self.gone[row.place]
        keys, values = (rows[layer][row.place, :, :tokens][None] for rows in (self._keys, self._values))
        sees = torch.ones(query.shape[1], tokens, dtype=torch.bool, device=query.device).tril(tokens - query.shape[1])
        if terms is not None:
            return terms.attention(query[None], keys, values, sees, scale, True)[0]
        group = query.shape[0] // keys.shape[1]
        return torch.nn.functional.scaled_dot_product_attention(
            query[None], keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1), attn_mask=sees, scale=scale)[0].transpose(0, 1)

    def bind_terms(self, layer: int, soft_cap: float, sinks: torch.Tensor | None) -> None:
        if sinks is not None:
            self._sinks[layer] = memory.empty(tuple(sinks.shape), sinks)
            self._sinks[layer].copy_(sinks)
        with memory.current(self._device[0]):
            self._decoder.bind_terms(layer, soft_cap=soft_cap, sinks=None if sinks is None else memory.exported(self._sinks[layer]))

    def cut(self, sequences: list[Sequence], tokens: list[int]) -> None:
        """So many tokens of each stay. Raises UnsupportedError for a policy that learns from steps, and where rows are gone, InvalidError
        within a prompt."""
        for row, left in zip(sequences, tokens):
            if left < self._compacted[row.place]:
                raise UnsupportedError(f"{left} tokens to stay of {row.tokens}: rows of the first {self._compacted[row.place]} were freed; reset() the cache")
        with memory.current(self._device[0]):
            for row, left in zip(sequences, tokens):
                if 0 < left < row.tokens:
                    self._decoder.cut(row.place, left - self.gone[row.place])
            for row, left in zip(sequences, tokens):
                if left == 0:
                    self._decoder.end(row.place)

    def compacted(self, sequences: list[Sequence]) -> DeviceRows | None:
        """The rows that the planned idle step's lists name, in tensors with room for as many more tokens as these have; None where that
        frees none. Every sequence steps, and its new row is not written. Raises UnsupportedError where heads keep unlike numbers."""
        shape, count = self._decoder.shape, len(sequences)
        kept = [self._named(layer, count) for layer in range(shape.layers)]
        lengths = [{len(tokens) for of_layer in kept for tokens in of_layer[place]} for place in range(count)]
        if any(len(of_row) > 1 for of_row in lengths):
            raise UnsupportedError(f"{self._policy.text} keeps unlike numbers of tokens in heads or layers, which can't be compacted")
        left = [length for of_row in lengths for length in of_row]
        room = max(length + shape.max_tokens - row.tokens + 1 for length, row in zip(left, sequences))
        if room >= shape.max_tokens:
            return None
        made = DeviceRows(Policy("full"), shape._replace(max_tokens=room), count, self._queries)
        for layer in range(shape.layers):
            for place in range(count):
                at = torch.tensor(kept[layer][place], device=self.at)[:, :, None]
                for old, new in ((self._keys, made._keys), (self._values, made._values)):
                    rows = old[layer][place]
                    new[layer][place, :, :left[place]] = rows.gather(1, at.expand(rows.shape[0], -1, rows.shape[2]))
        with memory.current(self._device[0]):
            for row in sequences:
                for layer in range(shape.layers):
                    made._decoder.prefill(row.place, layer, left[row.place])
                made._compacted[row.place] = row.tokens - 1
                made.gone[row.place] = row.tokens - 1 - left[row.place]
        return made

    def _named(self, layer: int, count: int) -> list[list[list[int]]]:
        """Tokens that the planned idle step reads of a layer, [sequences][kv_heads], but for the step's own."""
        heads = self._decoder.shape.kv_heads
        with memory.current(self._device[0]):
            lists = self._decoder.standing(layer)
        numbers = lambda address, size: memory.integers(address, size, self._queries) if address else []
        named, units = numbers(lists.named, count * lists.lists), numbers(lists.units, count * lists.lists * lists.stride)
        tails, tokens = numbers(lists.tail, count * lists.tails), numbers(lists.tokens, count)
        made: list[list[list[int]]] = []
        for place in range(count):
            made.append([])
            for head in range(heads):
                at = place * lists.lists + head % lists.lists
                first = at * lists.stride
                of_units = [unit * lists.unit_size + i for unit in units[first:first + named[at]] for i in range(lists.unit_size)] if named else []
                tail = tails[place * lists.tails + head % lists.tails] if tails else lists.tail_of_all
                made[-1].append(of_units + list(range(tail, tokens[place] - 1)))
        return made

    def observe(self, logits: torch.Tensor) -> None:
        """Behind a forward with steps: logits [rows, vocabulary]."""
        if Needs.LOGITS in self._policy.needs:
            held = memory.empty(tuple(logits.shape), self._queries, torch.float32)
            held.copy_(logits)
            with memory.current(self._device[0]):
                self._decoder.observe(memory.exported(held))
            memory.settle()
