"""A cache of transformers whose rows a policy chooses."""
from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicSlidingWindowLayer

from kvpolicy import Arena, Batch, InvalidError, Needs, Policy, Shape, State, Store, UnsupportedError
from kvpolicy.transformers.device import DeviceRows, memory
from kvpolicy.transformers.layer import PolicyLayer, Terms, waiting
from kvpolicy.transformers.mask import new_tokens
from kvpolicy.transformers.rotation import rotation_of

_types = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_once = "snapkv", "chunkkv", "knorm", "keydiff", "expected_attention", "lagkv"
_address_space = 1 << 40  # bytes: an arena takes memory for the rows that it has


class Sequence:
    """A sequence of the batch; on a CPU with a state of its own, in a store of its own."""

    def __init__(self, place: int, state: State | None = None, store: Store | None = None) -> None:
        self.place, self._state, self._store = place, state, store
        self.tokens = 0  # without padding
        self.fresh = 0  # of the running forward
        self.columns = torch.zeros(0, dtype=torch.long, device="cpu")  # where they stand in it: the others are padding
        self.steps = False  # the running forward is a step for it, not a prompt
        self.in_prompt = False  # the last forward brought a prompt, or a piece of one
        self.goes_on = False  # the running one goes on with it
        self.observed: dict[int, torch.Tensor] = {}  # by layer: the last queries of the prompt so far
        if state is not None and store is not None:
            state.bind_store(store)

    @property
    def state(self) -> State:
        assert self._state is not None
        return self._state

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    def end_prompt(self) -> None:
        """What the policy drops of a prompt goes; a step does this by itself."""
        for layer in range(self.state.shape.layers if self.in_prompt and self._store is not None else 0):
            self.store.retain(layer, self.state)
        self.in_prompt = False
        self.observed.clear()

    def copy(self, place: int) -> Sequence:
        made = Sequence(place, self.state.copy(), self.store.fork(self.tokens))
        made.tokens, made.in_prompt, made.observed = self.tokens, self.in_prompt, dict(self.observed)
        return made


class PolicyCache(Cache):
    """Keys and values of a batch of sequences. On a CPU each has a state of its own, in memory of the library's: what the policy
    drops of a row, a layer and a head is freed. On a CUDA device all rows stay, and steps read what the policy chooses; or, compact, what
    it drops of the first prompt is freed, and later tokens all stay. Layers with sliding windows are transformers' own.

    policy: its text, or a Policy. max_tokens: the most that a sequence may have. On a CPU that is as many as the model was made for
    by default, and memory follows the tokens that there are; a CUDA device has room for it from the start. compact: of a device, for
    policies that choose once. Rows may be padded on the left. Raises InvalidError, UnsupportedError."""

    def __init__(self, model: PreTrainedModel, policy: str | Policy, max_tokens: int | None = None, compact: bool = False) -> None:
        self.policy = Policy(policy) if isinstance(policy, str) else policy
        if compact and self.policy.text.split(":")[0] not in _once or compact and "+" in self.policy.text:
            raise UnsupportedError(f"{self.policy.text} can't be compacted: there are {', '.join(_once)}, which choose once, as many tokens for each head")
        self.compact = compact
        if Needs.REPETITION in self.policy.needs:
            raise UnsupportedError("the policy has the prompt repeated, which this cache can't do; take kvpolicy.State")
        if model.config.is_encoder_decoder:
            raise UnsupportedError("encoder-decoder models are not served: a policy's cache is for models that decode alone")
        if getattr(model, "_is_stateful", False):
            raise UnsupportedError("the model keeps a state beside keys and values (linear attention, Mamba), which is not served")
        config = model.config.get_text_config(decoder=True)
        if getattr(config, "num_kv_shared_layers", 0):
            raise UnsupportedError(f"the model's last {config.num_kv_shared_layers} layers share other layers' rows, which is not served")
        self._given_tokens = max_tokens
        self.max_tokens = max_tokens or getattr(config, "max_position_embeddings", None) or 1 << 20
        layers = self._layers(config)
        self.inverse_frequencies, self.neighbours = rotation_of(model) if Needs.ROTATION in self.policy.needs else (None, False)
        self._model = weakref.ref(model)
        self._begin()
        super().__init__(layers=layers)
        self._listen(model)

    def _begin(self) -> None:
        self.sequences: list[Sequence] = []
        self.device: DeviceRows | None = None  # none: rows are in stores
        self.arrived = False  # the running forward's new tokens were seen before its first layer
        self.length_was_read = False
        self._compacts = False  # rows are freed once the policy has chosen
        self.widths = 0, 0  # of keys' and values' rows
        self._shown = torch.zeros(0, 0, dtype=torch.bool, device="cpu")  # [rows, tokens]: not padding
        self._batch: Batch | None = None
        self._ids: torch.Tensor | None = None
        self._with_terms: set[int] = set()  # layers whose terms are bound

    def _layers(self, config: Any) -> list[CacheLayerMixin]:
        window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
        if window is not None and window >= self.max_tokens:
            window = None  # every token sees all before it
        count = getattr(config, "num_hidden_layers", None)
        if count is None:
            raise UnsupportedError(f"a {config.model_type} model, whose configuration does not say how many layers it has (num_hidden_layers)")
        kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * count
        layers: list[CacheLayerMixin] = []
        self.policy_layers: list[PolicyLayer] = []
        for position, kind in enumerate(kinds):
            windowed = kind in ("sliding_attention", "chunked_attention")
            if kind == "full_attention" or (windowed and window is None):
                layers.append(PolicyLayer(self, len(self.policy_layers), position))
                self.policy_layers.append(layers[-1])
            elif windowed:
                layers.append(DynamicSlidingWindowLayer(window))
            else:
                raise UnsupportedError(f"layers of kind {kind} are not served; there are full_attention and sliding_attention")
        if not self.policy_layers:
            raise UnsupportedError("no layer of the model attends to all tokens: there is nothing for a policy to choose")
        self.policy_positions = {layer.position for layer in self.policy_layers}
        return layers

    @property
    def bytes(self) -> int:
        """Of rows that are held, those of sliding windows aside; on a device, of all that there is room for."""
        if self.device is not None:
            return self.device.bytes
        return sum({id(row.store.arena): row.store.arena.bytes for row in self.sequences}.values())

    def reset(self) -> None:
        super().reset()
        self._begin()

    def crop(self, max_length: int) -> None:
        """max_length: above 0, as many tokens stay; below, as many go; 0 changes nothing. Padding counts, as in the mask."""
        self.arrived = False
        whole = len({layer.tokens for layer in self.policy_layers}) == 1  # else a forward ended in the middle
        tokens = min(layer.tokens for layer in self.policy_layers)
        left = min(tokens, max_length) if max_length > 0 else tokens + max_length
        if left < 0:
            raise InvalidError(f"{-max_length} tokens to remove of {tokens}")
        if self.device is not None:  # which may refuse
            self.device.cut(self.sequences, self._shown[:, :left].sum(1).tolist())
        for layer in self.layers:
            if isinstance(layer, PolicyLayer):
                layer.tokens, layer.fresh = left, 0
            elif left < tokens or getattr(layer, "record_past", False):
                layer.crop(left - tokens)
        self._shown = self._shown[:, :left]
        for row in self.sequences:
            if whole and (self.device is None or left < tokens):
                row.end_prompt()
            row.tokens = int(self._shown[row.place].sum())
            if self.device is None:
                row.store.truncate(row.tokens)
                row.state.cut(row.tokens)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.batch_select_indices(torch.arange(len(self.sequences), device="cpu").repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._take(indices)
        for layer in self.layers:
            if not isinstance(layer, PolicyLayer):
                layer.batch_select_indices(indices)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._take(beam_idx)
        for layer in self.layers:
            if not isinstance(layer, PolicyLayer):
                layer.reorder_cache(beam_idx)

    def _take(self, indices: torch.Tensor) -> None:
        """Rows of these places, in this order; a row that is taken again is copied."""
        self._only_on_a_cpu("rows that are moved or copied (beams, several answers to one prompt)")
        places, taken, rows = indices.tolist(), set(), []
        for place, old in enumerate(places):
            row = self.sequences[old]
            rows.append(row.copy(place) if old in taken else row)
            taken.add(old)
        for place, row in enumerate(rows):
            row.place = place
        self.sequences, self._shown = rows, self._shown[places]

    def _only_on_a_cpu(self, what: str) -> None:
        if self.device is not None:
            raise UnsupportedError(f"{what}: a policy's cache on a device has none; begin with a cache of its own")

    def __deepcopy__(self, memo: dict[int, Any]) -> PolicyCache:
        """Rows are shared until one of both writes."""
        self._only_on_a_cpu("a copy")
        made = PolicyCache.__new__(PolicyCache)
        memo[id(self)] = made
        made.__dict__.update({name: value for name, value in self.__dict__.items() if name not in ("layers", "policy_layers", "sequences")})
        made.layers, made.policy_layers, made._batch, made._with_terms = [], [], None, set(self._with_terms)
        for layer in self.layers:
            if isinstance(layer, PolicyLayer):
                twin = PolicyLayer(made, layer.index, layer.position)
                twin.tokens, twin.is_initialized = layer.tokens, layer.is_initialized
                made.policy_layers.append(twin)
                made.layers.append(twin)
            else:
                made.layers.append(copy.deepcopy(layer, memo))
        made.sequences = [row.copy(row.place) for row in self.sequences]
        if (model := self._model()) is not None:
            made._listen(model)
        return made

    def see(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> None:
        """A forward's new tokens, in its first layer: which row has which of them. Sequences begin here, where there are none."""
        if not self.sequences:
            on_device = memory.has(key)
            if not (on_device or key.device.type == "cpu") or key.dtype not in _types:
                raise UnsupportedError(f"keys of {key.dtype} on {key.device}; there are float32, float16 and bfloat16 on CPUs and CUDA devices")
            self.widths = (max(key.shape[3], value.shape[3]),) * 2 if on_device else (key.shape[3], value.shape[3])
            shape = Shape(len(self.policy_layers), query.shape[1], key.shape[1], self.widths[0], self.max_tokens, _types[key.dtype],
                          self.widths[1])
            if on_device:
                if self._given_tokens is None:
                    raise InvalidError("a cache on a device has room for all tokens from the start: PolicyCache(model, policy, max_tokens=...)")
                self.device = DeviceRows(self.policy, shape, key.shape[0], key)
                self.sequences = [Sequence(place) for place in range(key.shape[0])]
            else:
                arena = Arena(shape, _address_space)
                self.sequences = [Sequence(place, State(self.policy, shape), Store(arena)) for place in range(key.shape[0])]
            self._shown = torch.zeros(key.shape[0], 0, dtype=torch.bool, device="cpu")
        if len(self.sequences) != key.shape[0]:
            raise UnsupportedError(f"a batch of {key.shape[0]}; the cache has {len(self.sequences)} sequences: begin with a cache of its own")
        self.arrive(new_tokens(mask if mask is None else mask.cpu(), self._shown, key.shape[2]))

    def every_row_steps(self, mask: torch.Tensor | None) -> bool:
        """Whether a forward of one token a row, with this mask [rows, tokens] of all, is a step of each."""
        begun = (all(row.tokens > 0 for row in self.sequences) and len({layer.tokens for layer in self.policy_layers}) == 1
                 and self.policy_layers[0].tokens == self._shown.shape[1])
        if not begun or not isinstance(mask, (torch.Tensor, type(None))):
            return False
        if mask is None:
            return bool(self._shown.all())
        sees = mask.cpu() != 0
        return tuple(sees.shape) == (len(self.sequences), self._shown.shape[1] + 1) and torch.equal(sees[:, :-1], self._shown) and bool(sees[:, -1].all())

    def arrive(self, new: torch.Tensor) -> None:
        """A forward's new tokens: bool [rows, tokens], which of them each row has. Raises as see()."""
        counts, width = new.sum(1).tolist(), new.shape[1]
        for row, count in zip(self.sequences, counts):
            if row.tokens + count > self.max_tokens:
                raise InvalidError(f"a sequence of {row.tokens + count} tokens; this cache was made for {self.max_tokens}: "
                                   "PolicyCache(model, policy, max_tokens=...)")
            steps = width == 1 and count == 1 and row.tokens > 0
            goes_on = count > 0 and not steps and row.in_prompt
            if self.device is not None and count > 0 and not steps and row.tokens > 0 and not row.in_prompt:
                self.device.expect_further_prompts()
            if goes_on and self.policy.observation_queries > self.max_tokens:
                raise UnsupportedError("the policy reads every query of a prompt, and this one comes in pieces; give it at once "
                                       "(prefill_chunk_size=None), or decode a token before it goes on")
        self._shown = torch.cat([self._shown, new], 1)
        for row, here, count in zip(self.sequences, new, counts):
            row.columns = here.nonzero()[:, 0]
            row.fresh, row.tokens = count, row.tokens + count
            row.steps = width == 1 and count == 1 and row.tokens > 1
            row.goes_on = count > 0 and not row.steps and row.in_prompt
            row.in_prompt = row.in_prompt if count == 0 else not row.steps
            if row.steps:
                row.observed.clear()
        if self.device is not None:
            self.device.plan(self.sequences)
            if not all(row.steps for row in self.sequences):
                self._compacts = self.compact and not any(self.device.gone)
            elif self._compacts and self.device.planned.idle:  # the policy has chosen
                self._compacts = False
                self._compact(self.device)

    def _compact(self, rows: DeviceRows) -> None:
        if (smaller := rows.compacted(self.sequences)) is not None:
            self.device = smaller
            self._with_terms.clear()
            smaller.plan(self.sequences)

    def bind_terms(self, layer: int, terms: Terms) -> None:
        """What the model adds to a layer's attention, which stays as it is; once."""
        if layer in self._with_terms:
            return
        words = terms.words()
        if self.device is not None:
            self.device.bind_terms(layer, **words)
        for row in self.sequences if self.device is None else ():
            row.state.bind_terms(layer, **words)
        self._with_terms.add(layer)

    def batch(self, rows: list[Sequence]) -> Batch:
        states = tuple(row.state for row in rows)
        if self._batch is None or self._batch.states != states:
            self._batch = Batch(states)
        return self._batch

    def observed(self, row: Sequence, layer: int, queries: torch.Tensor) -> torch.Tensor | None:
        """The queries that the policy reads of a row's prompt [n, q_heads, head_dim]: those of its pieces so far."""
        wanted = self.policy.observation_queries
        if wanted == 0:
            return None
        queries = queries[-min(wanted, queries.shape[0]):].float()
        if row.goes_on and layer in row.observed:
            queries = torch.cat([row.observed[layer], queries])
        queries = queries[-min(wanted, queries.shape[0]):].contiguous()
        if wanted <= self.max_tokens:
            row.observed[layer] = queries
        return queries

    def token_ids_are(self, ids: torch.Tensor) -> None:
        self._ids = ids

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Of masks, which a step's attention does not read."""
        layer = self.layers[layer_idx]
        return layer.tokens if isinstance(layer, PolicyLayer) else layer.get_seq_length()

    def last_ids(self, rows: torch.Tensor | slice) -> torch.Tensor | None:
        return None if self._ids is None else self._ids[rows, -1].to(torch.int32)

    def token_ids(self, row: Sequence) -> torch.Tensor | None:
        return None if self._ids is None else self._ids[row.place, row.columns].to("cpu", torch.int32)

    @property
    def model(self) -> PreTrainedModel | None:
        """The one that it was made for, while that lives."""
        return self._model()

    @property
    def seen_tokens(self) -> int:
        """Before the running forward's, with padding."""
        return self._shown.shape[1] - int(self.arrived)

    def model_runs(self) -> tuple[str, str]:
        """Its attn_implementation, and its class's name."""
        model = self._model()
        return ("kvpolicy", "the model") if model is None else (model.config._attn_implementation, type(model).__name__)

    def _listen(self, model: PreTrainedModel) -> None:
        """Each forward with this cache: token ids before it; after it logits, and whether every layer's rows were attended to."""
        this = weakref.ref(self)

        def of_this(named: dict[str, Any]) -> PolicyCache | None:
            cache = this()
            return cache if cache is not None and any(value is cache for value in named.values()) else None

        @torch.compiler.disable
        def before(_: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if (cache := of_this(named)) is not None:
                cache._ids = named.get("input_ids", arguments[0] if arguments else None)
                waiting.layer, waiting.cache, cache.arrived = None, this, False
                cache._before = [layer.tokens for layer in cache.policy_layers]

        @torch.compiler.disable
        def after(_: torch.nn.Module, __: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            if (cache := of_this(named)) is None:
                return
            if waiting.layer is not None:
                waiting.layer.unattended()
            for layer, tokens in zip(cache.policy_layers, cache._before):
                if layer.tokens == tokens:
                    raise UnsupportedError(f"the model gave layer {layer.position} of this cache no rows; use another cache")
            if Needs.LOGITS in cache.policy.needs and cache.device is not None:
                if any(row.steps for row in cache.sequences):
                    cache.device.observe(output.logits[:, -1])
            elif Needs.LOGITS in cache.policy.needs:
                for row in cache.sequences:
                    if row.steps:
                        row.state.observe(output.logits[row.place, -1].float())

        @torch.compiler.disable
        def at_the_end(_: torch.nn.Module, __: tuple[Any, ...], named: dict[str, Any], ___: Any) -> None:
            if (cache := of_this(named)) is not None:
                waiting.layer, waiting.cache, cache.arrived = None, None, False

        for handle in (model.register_forward_pre_hook(before, with_kwargs=True), model.register_forward_hook(after, with_kwargs=True),
                       model.register_forward_hook(at_the_end, with_kwargs=True, always_call=True)):
            weakref.finalize(self, handle.remove)
