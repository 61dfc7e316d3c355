"""What the policy knows of the engine's requests, and what becomes of their tokens in a forward pass."""
from __future__ import annotations

import ctypes
import dataclasses
import os
from typing import Any

import torch
import torch.distributed
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_tp_group
from vllm.logger import init_logger
from vllm.tokenizers.registry import cached_tokenizer_from_config

from kvpolicy import Arena, Batch, Error, Needs, Policy, Ranks, Shape, State, Store, UnsupportedError, openmp, sentence_ends
from kvpolicy.vllm.packed import Packing

logger = init_logger("vllm.kvpolicy")
_types = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class Request:
    """A request's rows beside the engine's, and its state."""

    def __init__(self, requests: Requests) -> None:
        shape = requests.shape
        self.arena = Arena(shape, 2 * shape.layers * shape.kv_heads * (shape.max_tokens + 64) * shape.head_dim
                           * (4 if shape.dtype == "f32" else 2))
        self.store = Store(self.arena)
        self.state = State(requests.policy, shape, ranks=requests.ranks)
        self.state.bind_store(self.store)
        self.tokens = 0  # that have come
        self.prompt = 0  # of them, those that the policy has seen as a prompt
        self.last_queries: dict[int, torch.Tensor] = {}  # by layer, while the prompt comes
        self.steps = self.read = self.there = 0


@dataclasses.dataclass
class Part:
    """Of a forward pass, what one request has in it."""

    request: Request | None  # None: the engine's alone
    name: str
    row: int  # in the engine's batch
    first: int  # token of the pass
    count: int
    before: int  # tokens that were there
    known: int  # tokens that the request has by now, those to come included
    imported: bool = False  # whether the tokens before are in the engine's cache alone

    @property
    def tokens(self) -> int:
        return self.before + self.count

    @property
    def is_step(self) -> bool:
        return self.request is not None and self.request.prompt > 0


class Requests:
    """Of one engine in this process. policy: its text. Raises UnsupportedError for a configuration that is not served."""

    def __init__(self, policy: str, config: VllmConfig) -> None:
        parallel = config.parallel_config
        for wrong, what in ((config.use_v2_model_runner, "the second model runner (VLLM_USE_V2_MODEL_RUNNER=0 turns it off)"),
                            (config.speculative_config is not None, "speculative decoding"),
                            (parallel.pipeline_parallel_size > 1, "pipeline parallelism"),
                            (parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1,
                             "context parallelism")):
            if wrong:
                raise UnsupportedError(f"{policy}: {what} is not served with a policy")
        self.policy = Policy(policy)
        if Needs.REPETITION in self.policy.needs:
            raise UnsupportedError(f"{policy}: a policy that has the prompt repeated is not served")
        if Needs.TOKEN_IDS in self.policy.needs:
            tokenizer = cached_tokenizer_from_config(config.model_config)
            self.policy = Policy(policy, sentence_ends(tokenizer))
        self.config = config
        self.runner: Any = None
        self.all: dict[str, Request] = {}
        self.alone: set[str] = set()  # left to the engine
        self.said: set[str] = set()
        self.parts: list[Part] = []
        self.indices: dict[str, int] = {}  # of layers, by name
        self.packing: Packing | None = None
        self.threads = openmp()
        self.batch = Batch([])
        self.ranks = None
        group = get_tp_group()
        if group.world_size > 1:
            def total(address: int, count: int) -> None:
                values = torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)
                torch.distributed.all_reduce(values, group=group.cpu_group)
            self.ranks = Ranks(group.rank_in_group, group.world_size, total)

    def see_layers(self, layers: dict[str, Any], dtype: torch.dtype, model: torch.nn.Module) -> None:
        """By name, in the model's order, those that are served. Raises UnsupportedError for what the policy can't do in them."""
        self.indices = {name: index for index, name in enumerate(layers)}
        sizes = {(layer.impl.num_heads, layer.impl.num_kv_heads, layer.impl.head_size) for layer in layers.values()}
        if len(sizes) != 1 or dtype not in _types:
            raise UnsupportedError(f"{self.policy.text}: layers of {dtype} with (query heads, KV heads, channels) {sorted(sizes)}; "
                                   "there must be one such triple, of float32, float16 or bfloat16")
        q_heads, kv_heads, head_dim = sizes.pop()
        self.shape = Shape(len(layers), q_heads, kv_heads, head_dim, self.config.model_config.max_model_len, _types[dtype])
        self.frequencies, self.neighbours = self._rotation(model) if Needs.ROTATION in self.policy.needs else (None, False)
        logger.info("kvpolicy: %s on %d layers of %d KV heads", self.policy.text, *self.shape[:1], self.shape.kv_heads)

    def begin(self, runner: Any, scheduled: Any) -> None:
        """A forward pass of the engine's, whose batch is as it will be."""
        self.runner, self.parts = runner, []
        for name in (*scheduled.finished_req_ids, *(scheduled.preempted_req_ids or ())):
            self.end(name)

    def end(self, name: str) -> None:
        self.alone.discard(name)
        request = self.all.pop(name, None)
        if request is not None and request.steps > 0:
            logger.info("kvpolicy: request %s: prompt of %d tokens, %d steps; a step read %.0f of %.0f tokens (%.1f%%)%s", name,
                        request.prompt, request.steps, request.read / request.steps, request.there / request.steps,
                        100 * request.read / request.there, f"; rows of {request.arena.bytes / 1e6:.1f} MB")

    def leave(self, name: str, why: object) -> None:
        """The engine's cache has all of it: it goes on alone."""
        self.all.pop(name, None)
        self.alone.add(name)
        if (text := str(why)) not in self.said:
            self.said.add(text)
            logger.warning("kvpolicy: request %s, and others like it, are left to the engine: %s", name, text)

    def plan(self, starts: list[int], lengths: list[int]) -> list[Part]:
        """The pass's requests, in the order of the batch: where each begins, and how long it is then."""
        batch, parts = self.runner.input_batch, []
        for row, (first, end, tokens) in enumerate(zip(starts, starts[1:], lengths)):
            name = batch.req_ids[row]
            part = Part(None, name, row, first, end - first, tokens - (end - first), int(batch.num_tokens_no_spec[row]))
            parts.append(part)
            if name in self.alone:
                continue
            request = self.all.get(name)
            try:
                if request is None or request.tokens != part.before or (request.prompt > 0 and part.count > 1):
                    request = self._start(part)
                request.tokens = part.tokens
                part.request = request
            except Error as why:
                self.leave(name, why)
        return parts

    def _start(self, part: Part) -> Request:
        """Tokens that are there already came with another request, or were seen and are computed anew."""
        wanted = min(self.policy.observation_queries, part.known)
        if part.known - part.before < wanted:
            raise UnsupportedError(f"all but {part.known - part.before} tokens of a prompt were in the cache of prefixes, and the "
                                   f"policy reads the last {wanted} queries; quest and others do without, or start vLLM with "
                                   "enable_prefix_caching=False")
        part.imported = part.before > 0
        self.all[part.name] = request = Request(self)
        return request

    def prompt(self, part: Part, index: int, layer: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: torch.Tensor,
               blocks: torch.Tensor) -> None:
        """A layer's rows and queries of a piece of a prompt, [tokens of the pass, heads, head_dim]."""
        request, here = part.request, slice(part.first, part.first + part.count)
        if request is None:
            return
        try:
            if part.imported:
                self._import(part, index, layer, cache, blocks)
            request.store.append(index, k[here].transpose(0, 1), v[here].transpose(0, 1))
            wanted = min(self.policy.observation_queries, part.tokens)
            if wanted > 0:
                last = q[here][-wanted:].float()
                if (before := request.last_queries.get(index)) is not None:
                    last = torch.cat((before, last))[-wanted:]
                request.last_queries[index] = last
            if part.tokens < part.known:
                return
            ids = None
            if Needs.TOKEN_IDS in self.policy.needs:
                ids = torch.from_numpy(self.runner.input_batch.token_ids_cpu[part.row, :part.tokens]).to(torch.int32)
            request.state.prefill(index, part.tokens, queries=request.last_queries.pop(index, None), scale=layer.impl.scale,
                                  inverse_frequencies=self.frequencies, neighbours=self.neighbours, token_ids=ids)
            if index + 1 == self.shape.layers:
                request.prompt = part.tokens
        except Error as why:
            part.request = None
            self.leave(part.name, why)

    def steps(self, parts: list[Part], index: int, scale: float, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
              out: torch.Tensor) -> list[Part]:
        """One layer's attention of requests that make a step, into out; returns those whose rows it did not fill: what reads all
        that there is is the engine's own work, to the bit."""
        states = tuple(part.request.state for part in parts)
        if self.batch.states != states:
            self.batch = Batch(states, self.threads)
        at = torch.tensor([part.first for part in parts])
        whole = len(parts) == q.shape[0]
        rows, ids = (q, k, v) if whole else (q[at], k[at], v[at]), None
        if Needs.TOKEN_IDS in self.policy.needs:
            batch = self.runner.input_batch
            ids = torch.tensor([int(batch.token_ids_cpu[part.row, part.tokens - 1]) for part in parts], dtype=torch.int32)
        result = torch.empty(rows[0].shape, dtype=torch.float32)
        try:
            read = self.batch.step(index, rows[1], rows[2], rows[0].float(), scale, result, ids, leave_whole=True)
        except Error as why:
            read = list(self.batch.read)
            for part in [part for part, count in zip(parts, read) if count < 0]:
                self.leave(part.name, why)
                part.request = None
        left = []
        served = []
        for i, (part, count) in enumerate(zip(parts, read)):
            if (request := part.request) is None:
                left.append(part)
                continue
            if index == 0:
                request.steps += 1
                request.there += part.tokens
            request.read += count / (self.shape.layers * self.shape.kv_heads)
            if count == part.tokens * self.shape.kv_heads:
                left.append(part)
            else:
                served.append(i)
        if len(served) == q.shape[0]:
            out.copy_(result)
        elif served:
            out[at[served]] = result[served].to(out.dtype)
        return left

    def observe(self, logits: torch.Tensor | None) -> None:
        """Of the pass, [requests, vocabulary]."""
        if Needs.LOGITS not in self.policy.needs or logits is None:
            return
        for part in self.parts:
            if part.request is not None and part.request.steps > 0 and part.count == 1 and part.request.prompt < part.tokens:
                try:
                    part.request.state.observe(logits[part.row].float())
                except Error as why:
                    self.leave(part.name, why)

    def _import(self, part: Part, index: int, layer: Any, cache: torch.Tensor, blocks: torch.Tensor) -> None:
        if self.packing is None:
            self.packing = Packing(cache.shape[2], cache.shape[3] // 2, cache.dtype, layer.isa)
        used = -(-part.before // cache.shape[2])
        part.request.store.append(index, *self.packing.rows(cache, blocks[part.row, :used], part.before))

    def _rotation(self, model: torch.nn.Module) -> tuple[torch.Tensor, bool]:
        for module in model.modules():
            if hasattr(module, "_compute_inv_freq") and getattr(module, "mrope_section", None) is None:
                return module._compute_inv_freq(module.base).float(), not module.is_neox_style
        raise UnsupportedError(f"{self.policy.text}: the policy turns keys back, and the model has no rotary embedding that is known; "
                               "chess and infllm do without as pre_rope=0")


def policy_of(config: VllmConfig) -> str:
    """The configuration's, or that of KVPOLICY; empty: none."""
    more = config.additional_config
    said = more.get("kvpolicy", "") if isinstance(more, dict) else ""
    return said or os.environ.get("KVPOLICY", "")
