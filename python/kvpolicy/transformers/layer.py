"""A layer of a PolicyCache, and the attention function that reads it."""
from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers.cache_utils import CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kvpolicy import UnsupportedError

if TYPE_CHECKING:
    from kvpolicy.transformers.cache import PolicyCache, Sequence

# Words that some models give their attention function, and that this one would ignore.
_not_served = ("position_bias", "head_mask")


class Terms(NamedTuple):
    """What a model adds to a layer's attention: a soft cap of its logits, and sinks [q_heads], one more logit each."""

    softcap: float | None
    sinks: torch.Tensor | None

    @staticmethod
    def of(given: dict[str, Any]) -> Terms | None:
        softcap, sinks = given.get("softcap"), given.get("s_aux")
        return None if softcap is None and sinks is None else Terms(softcap, sinks)

    def attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float,
                  causal: bool) -> torch.Tensor:
        """As sdpa_attention_forward, which knows no terms: out [batch, n, q_heads, head_dim]. Without a mask, causal tokens see the first
        keys up to their own."""
        group, count = query.shape[1] // key.shape[1], query.shape[2]
        if mask is None and causal and count > 1:
            key, value = key[:, :, :count], value[:, :, :count]
            mask = torch.ones(count, count, dtype=torch.bool, device=query.device).tril()
        keys = key.repeat_interleave(group, 1).float().transpose(2, 3)
        values = value.repeat_interleave(group, 1).float()
        sinks = None if self.sinks is None else self.sinks.float().reshape(1, -1, 1, 1)
        made = torch.empty(len(query), count, query.shape[1], value.shape[3], dtype=query.dtype, device=query.device)
        for begin in range(0, count, 512):  # all queries' logits would take as much as their square
            part = slice(begin, begin + 512)
            logits = query[:, :, part].float() @ keys * scale
            if self.softcap is not None:
                logits = self.softcap * torch.tanh(logits / self.softcap)
            if mask is not None:
                here = mask[..., part, :]
                logits = logits.masked_fill(~here, torch.finfo(torch.float32).min) if here.dtype == torch.bool else logits + here
            if sinks is not None:
                logits = torch.cat([logits, sinks.expand(len(query), -1, logits.shape[2], 1)], 3)
            made[:, part] = (logits.softmax(3)[..., :keys.shape[3]] @ values).transpose(1, 2)
        return made

    def words(self) -> dict[str, Any]:
        """For bind_terms."""
        return dict(soft_cap=self.softcap or 0.0, sinks=None if self.sinks is None else self.sinks.detach().float().contiguous())


class _Waiting(threading.local):
    """The layer whose new rows were given to the cache, and not attended to yet: attention comes next in the same thread. Models may
    make new tensors of what update() returned, so it is the layer that is followed."""

    layer: PolicyLayer | None = None


waiting = _Waiting()


@torch.compiler.disable
def attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None,
              **more: Any) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query [batch, q_heads, n, head_dim]; out [batch, n, q_heads, head_dim]."""
    layer, waiting.layer = waiting.layer, None
    position = getattr(module, "layer_idx", None)
    terms = Terms.of(more)
    if layer is None:
        cache = PolicyLayer.running()
        if cache is not None and getattr(module, "is_causal", False) and position in cache.policy_positions:
            raise UnsupportedError(f"layer {position} attends again, or without new rows of its own: such layers are not served")
        if terms is not None:
            causal = more.get("is_causal")
            return terms.attention(query, key, value, attention_mask, query.shape[-1] ** -.5 if scaling is None else scaling,
                                   getattr(module, "is_causal", True) if causal is None else causal), None
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **more)
    _refuse_words({name: more.get(name) for name in _not_served}, position)
    if not getattr(module, "is_causal", True) or more.get("is_causal") is False:
        raise UnsupportedError(f"layer {position} is not causal: cross-attention and encoders are not served")
    if dropout:
        raise UnsupportedError("a policy's cache is for inference: call model.eval()")
    if any(tensor.requires_grad for tensor in (query, key, value)):
        raise UnsupportedError("a policy's cache keeps no gradients: call the model under torch.no_grad()")
    if query.shape[2] != layer.fresh or key.shape[2] != layer.fresh:
        raise UnsupportedError(f"layer {position} was given {layer.fresh} new rows, and attends with {query.shape[2]} queries over "
                               f"{key.shape[2]} rows: models that keep rows themselves are not served")
    window = layer.most = more.get("sliding_window")
    if window is not None and layer.tokens + layer.fresh > window:
        raise UnsupportedError(f"layer {position} has a window of {window} tokens, and the model's configuration none")
    if scaling is None and (getattr(module, "scale_attn_by_inverse_layer_idx", False) or not getattr(module, "scale_attn_weights", True)):
        raise UnsupportedError(f"layer {position} scales its logits by itself (scale_attn_weights), and does not say by what")
    scale = query.shape[-1] ** -.5 if scaling is None else scaling
    return layer.attend(module, query, key, value, attention_mask, scale, terms), None


def _refuse_words(given: dict[str, Any], position: int | None) -> None:
    for name, what in given.items():
        if what is not None:
            raise UnsupportedError(f"layer {position} has {name}, which is not served; use attn_implementation='eager' with another cache")


class PolicyLayer(CacheLayerMixin):
    """A layer that attends to all tokens, by its policy's choice."""

    is_sliding = False
    is_croppable = True

    def __init__(self, cache: PolicyCache, index: int, position: int) -> None:
        super().__init__()
        self._cache = weakref.ref(cache)
        self.index = index  # of those that the policy acts on
        self.position = position  # in the model
        self.tokens = 0  # with padding
        self.most: int | None = None  # tokens that it may have, for a window that the configuration does not name
        self.fresh = 0  # rows that update() was given and attention has not seen

    @staticmethod
    def running() -> PolicyCache | None:
        """The cache of this thread's forward."""
        cache = getattr(waiting, "cache", None)
        return None if cache is None else cache()

    def __deepcopy__(self, memo: dict[int, Any]) -> PolicyLayer:
        raise UnsupportedError("a layer of a policy's cache can't be copied alone; models that copy layers of a cache are not served")

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    @torch.compiler.disable
    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The new rows as they are: attention comes next, and takes them into the store."""
        if waiting.layer is not None:
            waiting.layer.unattended()
        cache = self._cache()
        assert cache is not None
        if self.index == 0 and (any(layer.tokens != self.tokens for layer in cache.policy_layers) or cache.seen_tokens != self.tokens):
            raise UnsupportedError("a forward ended in the middle, and layers have different numbers of tokens; call crop() or reset()")
        self.is_initialized, self.fresh, waiting.layer = True, key_states.shape[2], self
        return key_states, value_states

    def unattended(self) -> None:
        """Raises UnsupportedError: nobody has attended to this layer's new rows."""
        waiting.layer = None
        cache = self._cache()
        how, name = ("kvpolicy", "the model") if cache is None else cache.model_runs()
        raise UnsupportedError(
            f"layer {self.position}'s new rows were attended to by something else: "
            + (f"{name} computes attention by itself; use another cache" if how == "kvpolicy" else
               f"{name} runs attn_implementation={how!r}; call model.set_attn_implementation('kvpolicy'), or use another cache where "
               "the model knows no other attention"))

    def attend(self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               mask: torch.Tensor | None, scale: float, terms: Terms | None = None) -> torch.Tensor:
        cache = self._cache()
        assert cache is not None
        if cache.device is not None:
            cache.device.expect(key, self.position)
        if self.index == 0 and not cache.arrived:
            cache.see(query, key, value, mask)
        if terms is not None:
            cache.bind_terms(self.index, terms)
        before, channels, (key_width, value_width) = self.tokens, value.shape[3], cache.widths
        if key.shape[3] > key_width or value.shape[3] > value_width:
            raise UnsupportedError(f"layer {self.position} has keys of {key.shape[3]} and values of {value.shape[3]} channels, an earlier one "
                                   f"{key_width} and {value_width}")
        self.tokens, self.fresh = before + query.shape[2], 0
        exact = (None if before > 0 else sdpa_attention_forward(module, query, key, value, mask, scaling=scale)[0] if terms is None
                 else terms.attention(query, key, value, mask, scale, True))
        query, key, value = (rows if rows.shape[3] == width else torch.nn.functional.pad(rows, (0, width - rows.shape[3]))
                             for rows, width in ((query, key_width), (key, key_width), (value, value_width)))
        stepping = [row for row in cache.sequences if row.steps]
        if cache.device is not None and len(stepping) == len(cache.sequences):
            made = cache.device.step(self.index, query, key, value, scale, cache.last_ids(slice(None)))
            return made[:, None, :, :channels].to(query.dtype)
        out = torch.zeros(query.shape[0], query.shape[2], query.shape[1], value_width, device=query.device)
        if stepping and cache.device is not None:
            made = cache.device.step(self.index, query, key, value, scale, cache.last_ids(slice(None)))
            out[cache.device.places, -1] = made[cache.device.places].float()
        elif stepping:
            rows = torch.tensor([row.place for row in stepping], device="cpu")
            made = torch.empty(len(stepping), query.shape[1], value_width, device="cpu")
            cache.batch(stepping).step(self.index, key[rows, :, -1], value[rows, :, -1], query[rows, :, -1].float(), scale, made,
                                       cache.last_ids(rows))
            out[rows, -1] = made
        for row in cache.sequences:
            if row.fresh > 0 and not row.steps:
                self._prompt(cache, row, query[row.place], key[row.place], value[row.place], scale,
                             out[row.place] if exact is None else None, terms)
        return (out[..., :channels].to(query.dtype) if exact is None else exact)

    def _prompt(self, cache: PolicyCache, row: Sequence, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float,
                out: torch.Tensor | None, terms: Terms | None) -> None:
        """A prompt of one row, or a piece of one. What the policy drops of it goes with the step behind its last piece."""
        queries = query[:, row.columns].transpose(0, 1)
        first = row.tokens - row.fresh
        signals: dict[str, Any] = dict(scale=scale, queries=cache.observed(row, self.index, queries), neighbours=cache.neighbours,
                                       inverse_frequencies=cache.inverse_frequencies, token_ids=cache.token_ids(row))
        if cache.device is not None:
            cache.device.prompt(self.index, row, key[:, row.columns], value[:, row.columns], **signals)
            if out is not None:
                out[row.columns] = cache.device.attend_prompt(self.index, row, queries.transpose(0, 1), scale, terms).float()
            return
        row.store.append(self.index, key[:, row.columns], value[:, row.columns])
        if out is not None:
            queries = queries.float().contiguous()
            made = queries.new_empty(*queries.shape[:2], value.shape[2])
            row.state.attend_prompt(self.index, row.tokens, queries, scale, made)
            out[row.columns] = made
        row.state.prefill(self.index, row.tokens, first=first, observed_from=0 if row.goes_on else first, **signals)

    def get_seq_length(self) -> int:
        if (cache := self._cache()) is not None:
            cache.length_was_read = True
        return self.tokens

    def get_mask_sizes(self, query_length: int | torch.Tensor) -> tuple[int, int]:
        # transformers 5.2 gives the positions instead.
        return self.tokens + (query_length.shape[0] if isinstance(query_length, torch.Tensor) else query_length), 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in transformers 5.2

    def reset(self) -> None:
        self.tokens = self.fresh = 0
