"""Steps of a PolicyCache on a CUDA device: one-token forwards of a model, each captured whole in a CUDA graph and replayed."""
from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
import weakref
from typing import Any, Callable, Iterator

import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from kvpolicy import UnsupportedError
from kvpolicy.transformers.cache import PolicyCache
from kvpolicy.transformers.device import memory
from kvpolicy.transformers.layer import PolicyLayer, waiting

Forward = Callable[..., Any]
_its_cache = object()  # in an output that a graph keeps, where the cache was


@contextlib.contextmanager
def captured(model: PreTrainedModel) -> Iterator[None]:
    """Inside, forwards of one token with a PolicyCache on a CUDA device are captured in CUDA graphs and replayed. Leave the model as it
    is inside: a replay runs the kernels that were captured, and none of the model's Python. Raises UnsupportedError for adapters, and
    for weights without an address."""
    if any(hasattr(module, "_disable_adapters") for module in model.modules()):
        raise UnsupportedError("a model with adapters, which a replay could not turn off; merge them first (merge_and_unload)")
    if any(weight.numel() > 0 and weight.data_ptr() == 0 for weight in model.parameters()):
        raise UnsupportedError("weights without an address of their own, whose moves a replay would not see")
    own, run = model.__dict__.get("forward"), model.forward
    steps: weakref.WeakKeyDictionary[PolicyCache, CapturedSteps] = weakref.WeakKeyDictionary()
    takes = inspect.signature(run).parameters

    @functools.wraps(run)
    def forward(*arguments: Any, **named: Any) -> Any:
        cache = next((given for given in named.values() if isinstance(given, PolicyCache)), None)
        if cache is None or cache.device is None or cache.model is not model or len(arguments) > 1:
            return run(*arguments, **named)
        if arguments:
            named[next(iter(takes))] = arguments[0]
        if cache not in steps or steps[cache].rows() is not cache.device:  # it was reset, and has other rows
            steps[cache] = CapturedSteps(model, cache, takes)
        return steps[cache].forward(run, named)

    model.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        if own is None:
            del model.forward
        else:
            model.forward = own  # type: ignore[method-assign]
        steps.clear()


class CapturedSteps:
    """PyTorch launches a step's kernels one after the other, which takes longer than they do. Of each kind of step the first runs as it
    is, the second is captured, and the others are replays with new inputs."""

    def __init__(self, model: PreTrainedModel, cache: PolicyCache, takes: Any) -> None:
        self._model, self._cache, self.rows = weakref.ref(model), weakref.ref(cache), weakref.ref(cache.device)
        self._graphs: dict[Any, Callable[[], Any] | None] = {}  # None: one such step has run as it is
        self._modules = [module for module in model.modules() if module is not model]
        self._weights = [*model.parameters(), *model.buffers()]
        self._places: list[int] = []  # of the weights that graphs read
        self._serves = "position_ids" in takes and all(isinstance(layer, PolicyLayer) for layer in cache.layers)
        rows, device = len(cache.sequences), cache.device.at
        with torch.inference_mode(False):
            self._ids, self._positions = (torch.zeros(rows, 1, dtype=torch.long, device=device) for _ in range(2))
            self._place = torch.zeros(1, dtype=torch.long, device=device)
        self._inputs = dict(input_ids=self._ids, position_ids=self._positions, attention_mask=None,
                            **(dict(cache_position=self._place) if "cache_position" in takes else {}))

    @property
    def cache(self) -> PolicyCache:
        cache = self._cache()
        assert cache is not None
        return cache

    def forward(self, run: Forward, named: dict[str, Any]) -> Any:
        """The model's forward run(**named): a replay where every row steps, and nobody asks for more than a graph gives."""
        cache, before = self.cache, self.cache.layers[0].tokens if self._serves else 0
        asked = {name: given for name, given in named.items() if given is not None and given is not cache}
        ids, mask, positions = (asked.pop(name, None) for name in ("input_ids", "attention_mask", "position_ids"))
        asked.pop("cache_position", None)
        if (not self._serves or not all(isinstance(given, (bool, int, str)) for given in asked.values()) or self._is_watched()
                or not self._fits(ids) or positions is None or positions.shape not in (self._ids.shape, (1, 1))
                or any(layer.most is not None and before + 1 > layer.most for layer in cache.policy_layers)
                or not cache.every_row_steps(mask)):
            return run(**named)
        places = [weight.data_ptr() for weight in self._weights]
        if places != self._places:  # the model was moved
            self._places = places
            self._graphs.clear()
        cache.arrive(torch.ones(self._ids.shape, dtype=torch.bool, device="cpu"))
        cache.arrived = True  # the first layer has nothing to look for
        planned = cache.device.planned
        if planned.decides or self.rows() is not cache.device:  # rows that were freed took others with them: graphs are made anew
            return run(**named)
        self._ids.copy_(ids)
        self._positions.copy_(positions)
        self._place.fill_(before)
        cache.token_ids_are(self._ids)
        work = functools.partial(run, **{**named, **self._inputs})
        config = self._model().config
        kind = (planned.idle, torch.is_inference_mode_enabled(), *sorted(asked.items()),
                *(getattr(config, name, None) for name in ("output_hidden_states", "output_attentions", "return_dict")))
        if kind not in self._graphs:
            return self._first(kind, work)
        try:
            replay = self._graphs[kind] or self._capture(work)
        except Exception as error:  # PyTorch's, CUDA's or the model's
            return self._launched(run, named, before, error)
        self._graphs[kind] = replay
        made = replay()
        self._ends(before + 1)
        return _mapped(made, lambda part: part.clone(), _its_cache, cache)

    def _fits(self, ids: Any) -> bool:
        return isinstance(ids, torch.Tensor) and ids.shape == self._ids.shape and ids.dtype == torch.long and ids.device == self._ids.device

    def _is_watched(self) -> bool:
        """Somebody's Python has a part in the model's forward, in which a replay would have none: hooks, gradients, autocast."""
        of_all = torch.nn.modules.module
        return (self._model().training or torch.is_grad_enabled() or torch.is_autocast_enabled(self._ids.device.type)
                or bool(of_all._global_forward_hooks) or bool(of_all._global_forward_pre_hooks)
                or any(module._forward_hooks or module._forward_pre_hooks for module in self._modules))

    def _first(self, kind: Any, work: Callable[[], Any]) -> Any:
        """As it is; what it shows of a model that can't be captured is remembered."""
        self.cache.length_was_read = False
        with memory.waits() as waits:
            made = work()
        known = isinstance(made, ModelOutput) or type(made) in (tuple, list)
        if self.cache.length_was_read or not known or waits:  # the length would be the captured step's for good
            self._serves = False
        self._graphs[kind] = None
        return made

    def _capture(self, work: Callable[[], Any]) -> Callable[[], Any]:
        rows, cache = self.cache.device, self.cache

        def enqueue() -> Any:
            rows.follow()
            return _mapped(work(), lambda part: part, cache, _its_cache)  # a graph must not keep its cache alive

        try:
            return memory.graph(self._ids, enqueue)
        finally:
            rows.follow()

    def _launched(self, run: Forward, named: dict[str, Any], before: int, error: Exception) -> Any:
        warnings.warn(f"a step of {type(self._model()).__name__} can't be captured in a CUDA graph ({error}): its kernels are launched one by "
                      "one, which is slower")
        self._serves = False
        self._ends(before)
        self.cache.arrived = True
        return run(**named)

    def _ends(self, tokens: int) -> None:
        """Each layer has so many tokens, and its rows were attended to."""
        for layer in self.cache.policy_layers:
            layer.tokens, layer.fresh = tokens, 0
        waiting.layer, self.cache.arrived = None, False


def _mapped(made: Any, of: Callable[[torch.Tensor], torch.Tensor], old: Any, new: Any) -> Any:
    """An output with other tensors, and something else in `old`'s place."""
    if made is old:
        return new
    if isinstance(made, torch.Tensor):
        return of(made)
    if isinstance(made, ModelOutput):
        return type(made)(**{name: _mapped(part, of, old, new) for name, part in made.items()})
    return type(made)(_mapped(part, of, old, new) for part in made) if type(made) in (tuple, list) else made
