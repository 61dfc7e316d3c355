"""vLLM on CPUs: a policy for the attention of decoding steps, in the engine as it is.

    KVPOLICY=snapkv:tokens=512 python -m vllm.entrypoints.openai.api_server --model MODEL
    vllm.LLM(MODEL, additional_config={"kvpolicy": "snapkv:tokens=512"})

An entry point of group vllm.general_plugins calls register() in each of the engine's processes.
"""
from __future__ import annotations

import os

from kvpolicy import Policy, UnsupportedError

served = "0.32."  # of vLLM, which promises nothing of what is used here


def register() -> None:
    """Layers on CPUs ask for a policy from here on. Raises where KVPOLICY names one that can't be, or this vLLM is another one."""
    text = os.environ.get("KVPOLICY", "")
    if why := _unsupported():
        if text:
            raise UnsupportedError(f"KVPOLICY={text}: {why}; unset it, or install vLLM {served}x for CPUs")
        return
    if text:
        Policy(text)
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, "kvpolicy.vllm.backend.PolicyBackend")


def _unsupported() -> str | None:
    import vllm
    from vllm.platforms import current_platform

    if not vllm.__version__.startswith(served):
        return f"vLLM {vllm.__version__} is not one of {served}x, which this kvpolicy knows"
    if not current_platform.is_cpu():
        return f"vLLM runs on {current_platform.device_name}, and a policy is served on CPUs alone"
    return None
