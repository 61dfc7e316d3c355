"""Hugging Face transformers: attn_implementation="kvpolicy", and a cache that lets go of what its policy drops.

    kvpolicy.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="kvpolicy")
    cache = kvpolicy.transformers.PolicyCache(model, "snapkv:tokens=512")
    model.generate(**inputs, past_key_values=cache)
"""
from __future__ import annotations

import weakref
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicSlidingWindowLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from kvpolicy import Arena, Batch, Needs, Policy, Shape, State, Store, UnsupportedError

_types = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def register() -> None:
    """attn_implementation="kvpolicy" has a meaning from here on: with a PolicyCache what its policy says, else as "sdpa"."""
    AttentionInterface.register("kvpolicy", attention)
    AttentionMaskInterface.register("kvpolicy", sdpa_mask)


def attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: torch.Tensor | None, scaling: float | None = None, **more: Any) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query [batch, q_heads, n, head_dim]; out [batch, n, q_heads, head_dim]."""
    layer: PolicyLayer | None = getattr(key, "kvpolicy_layer", None)
    if layer is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)
    for name in ("softcap", "s_aux"):
        if more.get(name) is not None:
            raise UnsupportedError(f"layers with {name} are not served; use attn_implementation='eager' with another cache")
    if more.get("dropout"):
        raise UnsupportedError("a policy's cache is for inference: call model.eval()")
    scale = query.shape[-1] ** -.5 if scaling is None else scaling
    return layer.attend(module, query, key, value, attention_mask, scale), None


class _Row:
    """A sequence of the batch."""

    def __init__(self, cache: PolicyCache, shape: Shape, pads: int) -> None:
        self.pads = pads
        self.state = State(cache.policy, shape)
        self.store = Store(cache.arena(shape))
        self.state.bind_store(self.store)


class PolicyLayer(CacheLayerMixin):
    """A layer that attends to all tokens, by its policy's choice."""

    is_sliding = False

    def __init__(self, cache: PolicyCache, index: int) -> None:
        super().__init__()
        self._cache = weakref.ref(cache)
        self.index = index  # of those that the policy acts on
        self.tokens = 0  # with padding

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor,
               cache_kwargs: dict[str, Any] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The new rows as they are: attention comes next, and takes them into the store."""
        self.is_initialized = True
        key_states = key_states.view_as(key_states)
        key_states.kvpolicy_layer = self  # type: ignore[attr-defined]
        return key_states, value_states

    def attend(self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               mask: torch.Tensor | None, scale: float) -> torch.Tensor:
        cache, count, before = self._cache(), query.shape[2], self.tokens
        assert cache is not None
        rows = cache.rows(query, key, mask) if self.index == 0 else cache.sequences
        self.tokens = before + count
        if count == 1 and before > 0:
            out = torch.empty(query.shape[0], *query.shape[1::2], dtype=torch.float32)
            cache.batch().step(self.index, key[:, :, 0], value[:, :, 0], query[:, :, 0].float(), scale, out, cache.last_ids)
            return out[:, None].to(query.dtype)
        out = torch.empty(query.shape[0], count, *query.shape[1::2], dtype=torch.float32)
        if before == 0:
            out = sdpa_attention_forward(module, query, key, value, mask, scaling=scale)[0]
        for b, row in enumerate(rows):
            new = slice(row.pads if before == 0 else 0, None)  # but for the padding
            first, tokens = max(0, before - row.pads), self.tokens - row.pads
            row.store.append(self.index, key[b, :, new], value[b, :, new])
            if before > 0:
                row.state.attend_prompt(self.index, tokens, query[b].transpose(0, 1).float(), scale, out[b])
            wanted = min(cache.policy.observation_queries, tokens - first)
            row.state.prefill(self.index, tokens, first=first, scale=scale,
                              queries=query[b, :, count - wanted:].transpose(0, 1).float() if wanted else None,
                              inverse_frequencies=cache.inverse_frequencies, token_ids=cache.token_ids(b, new))
            row.store.retain(self.index, row.state)
        return out.to(query.dtype)

    def get_seq_length(self) -> int:
        return self.tokens

    def get_mask_sizes(self, query_length: int | torch.Tensor) -> tuple[int, int]:
        # transformers 5.2 gives the positions instead.
        return self.tokens + (query_length.shape[0] if isinstance(query_length, torch.Tensor) else query_length), 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in transformers 5.2

    def reset(self) -> None:
        self.tokens = 0

    def crop(self, max_length: int) -> None:
        self.tokens = min(self.tokens, max_length if max_length >= 0 else self.tokens + max_length)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        raise UnsupportedError("beams share rows that a policy may drop for one of them; generate with num_beams=1")


class PolicyCache(Cache):
    """Keys and values of a batch of sequences, each with a state of its own, in memory of the library's (on a CPU): what the policy
    drops of a row, a layer and a head is freed. Layers with sliding windows are transformers' own.

    policy: its text, or a Policy. max_tokens: the most that a sequence may have, as many as the model was made for by default.
    Sequences may be padded on the left. Raises InvalidError, UnsupportedError."""

    def __init__(self, model: PreTrainedModel, policy: str | Policy, max_tokens: int | None = None) -> None:
        self.policy = Policy(policy) if isinstance(policy, str) else policy
        config = model.config.get_text_config(decoder=True)
        self.max_tokens = max_tokens or config.max_position_embeddings
        self.sequences: list[_Row] = []
        self._arena: Arena | None = None
        self._batch: Batch | None = None
        self._ids: torch.Tensor | None = None
        self._logits: torch.Tensor | None = None
        window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
        kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
        layers: list[CacheLayerMixin] = []
        self.policy_layers = 0
        for kind in kinds:
            if kind == "full_attention":
                layers.append(PolicyLayer(self, self.policy_layers))
                self.policy_layers += 1
            elif kind in ("sliding_attention", "chunked_attention"):
                layers.append(DynamicSlidingWindowLayer(window))
            else:
                raise UnsupportedError(f"layers of kind {kind} are not served; there are full_attention and sliding_attention")
        if self.policy_layers == 0:
            raise UnsupportedError("no layer of the model attends to all tokens: there is nothing for a policy to choose")
        if Needs.REPETITION in self.policy.needs:
            raise UnsupportedError("the policy has the prompt repeated, which this cache can't do; take kvpolicy.State")
        self.inverse_frequencies = self._rotation(model) if Needs.ROTATION in self.policy.needs else None
        if self.policy.needs & (Needs.TOKEN_IDS | Needs.LOGITS):
            self._listen(model)
        super().__init__(layers=layers)

    @property
    def bytes(self) -> int:
        """Of rows that are held, those of sliding windows aside."""
        return 0 if self._arena is None else self._arena.bytes

    def reset(self) -> None:
        super().reset()
        self.sequences.clear()

    def crop(self, max_length: int) -> None:
        super().crop(max_length)
        left = max(layer.tokens for layer in self.layers if isinstance(layer, PolicyLayer))
        for row in self.sequences:
            row.store.truncate(max(0, left - row.pads))

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise UnsupportedError("a state can't be copied; repeat the prompts, or begin with a cache for each")

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.sequences = [self.sequences[i] for i in indices.tolist()]

    def arena(self, shape: Shape) -> Arena:
        if self._arena is None or self._arena.shape != shape:
            rows = shape.layers * shape.kv_heads * (shape.max_tokens + 64)
            self._arena = Arena(shape, self._rows * rows * 2 * shape.head_dim * (4 if shape.dtype == "f32" else 2))
        return self._arena

    def rows(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None) -> list[_Row]:
        """The batch's sequences; they begin here, where they have not."""
        if not self.sequences:
            if key.device.type != "cpu" or key.dtype not in _types:
                raise UnsupportedError(f"keys of {key.dtype} on {key.device}; there are float32, float16 and bfloat16 on the CPU")
            shape = Shape(self.policy_layers, query.shape[1], key.shape[1], key.shape[3], self.max_tokens, _types[key.dtype])
            self._rows = key.shape[0]
            self.sequences = [_Row(self, shape, pads) for pads in self._padding(mask)]
        if len(self.sequences) != key.shape[0]:
            raise UnsupportedError(f"a batch of {key.shape[0]}; the cache has {len(self.sequences)} sequences: begin with a cache of its own")
        return self.sequences

    def batch(self) -> Batch:
        if self._batch is None or self._batch.states != [row.state for row in self.sequences]:
            self._batch = Batch([row.state for row in self.sequences])
        return self._batch

    @property
    def last_ids(self) -> torch.Tensor | None:
        return None if self._ids is None else self._ids[:, -1].to(torch.int32)

    def token_ids(self, row: int, new: slice) -> torch.Tensor | None:
        return None if self._ids is None else self._ids[row, new].to(torch.int32)

    def _padding(self, mask: torch.Tensor | None) -> list[int]:
        """Of each row, how many tokens at its beginning the last one does not see."""
        if mask is None:
            return [0] * self._rows
        pads = []
        for seen in mask[:, 0, -1, :].expand(self._rows, -1):
            count = int((~seen).sum())
            if not bool(seen[count:].all()):
                raise UnsupportedError("an attention mask with holes; pad on the left alone: tokenizer.padding_side = 'left'")
            pads.append(count)
        return pads

    @staticmethod
    def _rotation(model: PreTrainedModel) -> torch.Tensor:
        for module in model.modules():
            if isinstance(found := getattr(module, "inv_freq", None), torch.Tensor):
                return found.float().cpu()
        raise UnsupportedError("the policy turns keys back, and the model has no rotary embedding (inv_freq)")

    def _listen(self, model: PreTrainedModel) -> None:
        """Token ids before each forward with this cache, logits after it."""
        this = weakref.ref(self)

        def before(_: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            cache, ids = this(), named.get("input_ids", arguments[0] if arguments else None)
            if cache is not None and named.get("past_key_values") is cache:
                cache._ids = ids

        def after(_: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            cache = this()
            if cache is not None and named.get("past_key_values") is cache and Needs.LOGITS in cache.policy.needs:
                if cache._ids is not None and cache._ids.shape[1] == 1:
                    for b, row in enumerate(cache.sequences):
                        row.state.observe(output.logits[b, -1].float())

        for handle in (model.register_forward_pre_hook(before, with_kwargs=True), model.register_forward_hook(after, with_kwargs=True)):
            weakref.finalize(self, handle.remove)
