"""Steps of a PolicyCache on a CUDA device: one-token forwards of a model, each captured whole in a CUDA graph and replayed."""
from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Callable

import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from kvpolicy.transformers.device import memory
from kvpolicy.transformers.layer import PolicyLayer, waiting

if TYPE_CHECKING:
    from kvpolicy.transformers.cache import PolicyCache

Forward = Callable[..., Any]


def go_through_graphs(model: PreTrainedModel) -> None:
    """From now on forwards of the model with a PolicyCache that has captured steps go through them."""
    own = model.__dict__.get("forward")
    if hasattr(own, "of_kvpolicy"):
        return
    this, plain = weakref.ref(model), type(model).forward

    @functools.wraps(plain if own is None else own)
    def forward(*arguments: Any, **named: Any) -> Any:
        model = this()
        run = own or functools.partial(plain, model)
        steps = next((found for given in named.values() if (found := getattr(given, "captured", None)) is not None), None)
        if steps is None or len(arguments) > 1:
            return run(*arguments, **named)
        if arguments:
            named["input_ids"] = arguments[0]
        return steps.forward(run, named)

    forward.of_kvpolicy = True  # type: ignore[attr-defined]
    forward.__signature__ = inspect.signature(model.forward)  # type: ignore[attr-defined]
    model.forward = forward  # type: ignore[method-assign]


class CapturedSteps:
    """PyTorch launches a step's kernels one after the other, which takes longer than they do. Of each kind of step the first runs as it
    is, the second is captured, and the others are replays with new inputs."""

    def __init__(self, model: PreTrainedModel, cache: PolicyCache, rows: int, device: torch.device) -> None:
        self._model, self._cache = weakref.ref(model), weakref.ref(cache)
        self._graphs: dict[Any, Callable[[], Any] | None] = {}  # None: one such step has run as it is
        self._modules = [weakref.ref(module) for module in model.modules() if module is not model]
        self._weights = [weakref.ref(weight) for weight in (*model.parameters(), *model.buffers())]
        self._places: list[int] = []  # of the weights that graphs read
        takes = inspect.signature(model.forward).parameters
        self._serves = "position_ids" in takes and all(isinstance(layer, PolicyLayer) for layer in cache.layers)
        with torch.inference_mode(False):
            self._ids, self._positions = (torch.zeros(rows, 1, dtype=torch.long, device=device) for _ in range(2))
            self._place = torch.zeros(1, dtype=torch.long, device=device)
        self._inputs = dict(input_ids=self._ids, position_ids=self._positions, attention_mask=None,
                            **(dict(cache_position=self._place) if "cache_position" in takes else {}))
        go_through_graphs(model)

    def forward(self, run: Forward, named: dict[str, Any]) -> Any:
        """The model's forward run(**named): a replay where every row steps, and nobody asks for more than a graph gives."""
        cache = self._cache()
        asked = {name: given for name, given in named.items() if given is not None and given is not cache}
        ids, mask, positions = (asked.pop(name, None) for name in ("input_ids", "attention_mask", "position_ids"))
        asked.pop("cache_position", None)
        if (cache is None or not self._serves or torch.is_grad_enabled() or ids is None or ids.shape != self._ids.shape
                or (positions is not None and positions.shape not in (ids.shape, (1, 1)))
                or not all(isinstance(given, (bool, int, str)) for given in asked.values())
                or self._watched() or not cache.every_row_steps(mask)):
            return run(**named)
        places = [held.data_ptr() for weight in self._weights if (held := weight()) is not None]
        if places != self._places:  # the model was moved
            self._places = places
            self._graphs.clear()
        before = cache.layers[0].tokens
        cache.arrive(torch.ones(self._ids.shape, dtype=torch.bool, device="cpu"))
        cache.arrived = True  # the first layer has nothing to look for
        planned = cache.device.planned
        if planned.decides:
            return run(**named)
        self._ids.copy_(ids)
        self._positions.fill_(before) if positions is None else self._positions.copy_(positions)
        self._place.fill_(before)
        cache.token_ids_are(self._ids)
        work = functools.partial(run, **{**named, **self._inputs})
        kind = planned.idle, torch.is_inference_mode_enabled(), *sorted(asked.items())
        if kind not in self._graphs:
            cache.length_was_read = False
            made = work()
            if cache.length_was_read:  # it would be the captured step's for good
                self._serves = False
            self._graphs[kind] = None
            return made
        try:
            replay = self._graphs[kind] or self._capture(work)
        except Exception as error:  # PyTorch's, CUDA's or the model's
            return self._launched(run, named, before, error)
        self._graphs[kind] = replay
        made = replay()
        self._ends(before + 1)
        return _cloned(made)

    def _watched(self) -> bool:
        """Somebody has hooks in the model, which a replay would not call."""
        return any(module._forward_hooks or module._forward_pre_hooks for held in self._modules if (module := held()) is not None)

    def _capture(self, work: Callable[[], Any]) -> Callable[[], Any]:
        rows = self._cache().device

        def enqueue() -> Any:
            rows.follow()
            return work()

        try:
            return memory.graph(self._ids, enqueue)
        finally:
            rows.follow()

    def _launched(self, run: Forward, named: dict[str, Any], before: int, error: Exception) -> Any:
        warnings.warn(f"a step of {type(self._model()).__name__} can't be captured in a CUDA graph ({error}): its kernels are launched one by "
                      "one, which is slower")
        self._serves = False
        self._ends(before)
        self._cache().arrived = True
        return run(**named)

    def _ends(self, tokens: int) -> None:
        """Each layer has so many tokens, and its rows were attended to."""
        for layer in self._cache().policy_layers:
            layer.tokens, layer.fresh = tokens, 0
        waiting.layer, self._cache().arrived = None, False


def _cloned(made: Any) -> Any:
    """What the next replay leaves alone."""
    if isinstance(made, torch.Tensor):
        return made.clone()
    if isinstance(made, ModelOutput):
        return type(made)(**{name: _cloned(part) for name, part in made.items()})
    return type(made)(map(_cloned, made)) if isinstance(made, (tuple, list)) else made
