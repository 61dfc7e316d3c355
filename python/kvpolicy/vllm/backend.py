"""The attention backend that vLLM's layers get in place of CPU_ATTN: its prompts are the engine's own, its steps the policy's."""
from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm import envs
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl, CPUAttentionMetadata
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from kvpolicy import UnsupportedError
from kvpolicy.vllm.requests import Part, Requests, policy_of


class PolicyBackend(CPUAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type[PolicyImpl]:
        return PolicyImpl


class PolicyImpl(CPUAttentionBackendImpl):
    """Serves decoder layers that attend to all tokens; others are the engine's, as everything is without a policy."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.requests: Requests | None = None
        config = get_current_vllm_config()
        policy = policy_of(config)
        if not policy or self.attn_type != AttentionType.DECODER or self.sliding_window != -1 or self.kv_sharing_target_layer_name:
            return
        for wrong, what in ((self.alibi_slopes is not None, "ALiBi"), (self.logits_soft_cap != 0, "capped logits"),
                            (self.sinks is not None, "attention sinks of the model's"), (self.is_fp8_kv_cache, "a cache in fp8")):
            if wrong:
                raise UnsupportedError(f"{policy}: a layer has {what}, which is not served with a policy")
        listen()
        if not hasattr(config, "kvpolicy_requests"):
            config.kvpolicy_requests = Requests(policy, config)
        self.requests = config.kvpolicy_requests

    def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                attn_metadata: CPUAttentionMetadata | None, output: torch.Tensor, output_scale: torch.Tensor | None = None,
                output_block_scale: torch.Tensor | None = None) -> torch.Tensor:
        requests = self.requests
        if requests is None or attn_metadata is None or requests.runner is None:
            return super().forward(layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale)
        parts = self._parts(requests, attn_metadata)
        index, count = requests.indices[layer.layer_name], attn_metadata.num_actual_tokens
        q, k, v = query[:count], key[:count], value[:count]
        steps = [part for part in parts if part.is_step]
        engines = [part for part in parts if not part.is_step]
        for part in engines:
            requests.prompt(part, index, layer, q, k, v, kv_cache, attn_metadata.block_table)
        if steps:
            engines += requests.steps(steps, index, self.scale, q, k, v, output[:count].view(q.shape))
        if len(engines) == len(parts):
            return super().forward(layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale)
        if engines:
            tokens, some = self._some(layer, attn_metadata, [part.row for part in engines], parts, query.dtype)
            result = torch.empty_like(q[tokens])
            super().forward(layer, q[tokens], key, value, kv_cache, some, result, output_scale, output_block_scale)
            output[:count].view(q.shape)[tokens] = result
        return output

    def _parts(self, requests: Requests, metadata: CPUAttentionMetadata) -> list[Part]:
        """Planned by the first layer of a pass."""
        if getattr(metadata, "kvpolicy_parts", None) is None:
            if not requests.parts:
                requests.parts = requests.plan(metadata.query_start_loc.tolist(), metadata.seq_lens.tolist())
            metadata.kvpolicy_parts, metadata.kvpolicy_some = requests.parts, {}
        return metadata.kvpolicy_parts

    def _some(self, layer: Any, metadata: CPUAttentionMetadata, rows: list[int], parts: list[Part],
              dtype: torch.dtype) -> tuple[torch.Tensor, CPUAttentionMetadata]:
        """Indices of these rows' tokens in the pass, and metadata for them alone."""
        known = metadata.kvpolicy_some
        if (found := known.get(key := tuple(rows))) is None:
            counts = [parts[row].count for row in rows]
            starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
            lengths = metadata.seq_lens[rows]
            scheduled = ops.cpu_attn_get_scheduler_metadata(
                num_reqs=len(rows), num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_size,
                seq_lens=lengths, dtype=dtype, query_start_loc=starts, causal=True, sliding_window_size=-1, isa=layer.isa,
                enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV, kv_cache_dtype=self.kv_cache_dtype)
            tokens = torch.cat([torch.arange(parts[row].first, parts[row].first + parts[row].count) for row in rows])
            found = known[key] = (tokens, dataclasses.replace(
                metadata, num_actual_tokens=sum(counts), max_query_len=max(counts), query_start_loc=starts, seq_lens=lengths,
                max_seq_len=int(lengths.max()), block_table=metadata.block_table[rows], scheduler_metadata=scheduled))
        return found


@functools.cache
def listen() -> None:
    """The runner has no interface for who hears of its layers' caches, of requests that ended, and of logits."""
    initialize, update, sample = GPUModelRunner.initialize_kv_cache, GPUModelRunner._update_states, GPUModelRunner._sample

    def initialize_kv_cache(self: GPUModelRunner, *arguments: Any, **named: Any) -> None:
        initialize(self, *arguments, **named)
        if (requests := getattr(self.vllm_config, "kvpolicy_requests", None)) is not None:
            layers = self.vllm_config.compilation_config.static_forward_context
            served = {name: one for name, one in layers.items() if getattr(getattr(one, "impl", None), "requests", None)}
            requests.see_layers(served, self.kv_cache_dtype, self.model)

    def _update_states(self: GPUModelRunner, scheduler_output: Any) -> Any:
        result = update(self, scheduler_output)
        if (requests := getattr(self.vllm_config, "kvpolicy_requests", None)) is not None:
            requests.begin(self, scheduler_output)
        return result

    def _sample(self: GPUModelRunner, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
        if (requests := getattr(self.vllm_config, "kvpolicy_requests", None)) is not None:
            requests.observe(logits)
        return sample(self, logits, spec_decode_metadata)

    GPUModelRunner.initialize_kv_cache = initialize_kv_cache
    GPUModelRunner._update_states, GPUModelRunner._sample = _update_states, _sample
