"""A model's rotary embedding, for policies that turn keys back."""
from __future__ import annotations

import sys

import torch
from transformers import PreTrainedModel

from kvpolicy import UnsupportedError


def rotation_of(model: PreTrainedModel) -> tuple[torch.Tensor, bool]:
    """Inverse frequencies [pairs], and whether a pair is two neighbouring channels. Raises UnsupportedError where keys can't be
    turned back: they are scaled too, their first channels are not those that turn, or the model's code can't be asked."""
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "kv_lora_rank", None) or getattr(config, "qk_rope_head_dim", None):
        raise UnsupportedError("the policy turns keys back, and this model turns only their last channels (latent attention)")
    for module in model.modules():
        frequencies = getattr(module, "inv_freq", None)
        if not isinstance(frequencies, torch.Tensor):
            continue
        if getattr(module, "attention_scaling", 1) != 1:
            raise UnsupportedError("the policy turns keys back, and this model scales them as it turns them (YaRN)")
        return frequencies.float().cpu(), _neighbours(model, frequencies.numel())
    raise UnsupportedError("the policy turns keys back, and the model has no rotary embedding (inv_freq)")


def _neighbours(model: PreTrainedModel, pairs: int) -> bool:
    """Turns channel 0 of a row by the model's own function: its partner is channel 1, or channel `pairs`."""
    turns = {getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None) for module in model.modules()} - {None}
    row = torch.zeros(1, 1, 1, 2 * pairs)
    row[..., 0] = 1
    partners = set()
    for turn in turns:
        try:
            turned = turn(row, row, torch.zeros(1, 1, 2 * pairs), torch.ones(1, 1, 2 * pairs))[0].flatten()
        except (TypeError, RuntimeError, IndexError):
            turned = torch.zeros(1)
        partners.add(int(turned.abs().argmax()) if bool(turned.any()) else 0)
    if pairs > 1 and partners in ({1}, {pairs}):
        return partners == {1}
    raise UnsupportedError("the policy turns keys back, and how this model pairs channels is not known")
