"""What an attention mask says of a forward's tokens: which are padding."""
from __future__ import annotations

import torch

from kvpolicy import UnsupportedError


def new_tokens(mask: torch.Tensor | None, shown: torch.Tensor, count: int) -> torch.Tensor:
    """Of a forward's `count` tokens, which each row has: bool [rows, count]. Padding may stand before any of them, not behind.

    mask: bool [rows or 1, 1, count, tokens], or None: every token is seen. shown: bool [rows, tokens before], what each row has of
    the tokens before. Raises UnsupportedError for a mask that is not causal, hides tokens at the end, or shows other
    earlier tokens than before."""
    rows, before = shown.shape
    if mask is None:
        if not bool(shown.all()):
            raise UnsupportedError("a forward without the attention mask of the padded prompt before it; pass attention_mask for all tokens")
        return torch.ones(rows, count, dtype=torch.bool, device="cpu")
    if mask.dtype != torch.bool:
        if not bool(((mask == 0) | (mask <= torch.finfo(mask.dtype).min / 2)).all()):
            raise UnsupportedError("an attention mask that adds to logits; use attn_implementation='eager' with another cache")
        mask = mask == 0
    if mask.shape[1] != 1 or tuple(mask.shape[2:]) != (count, before + count):
        raise UnsupportedError(f"an attention mask {list(mask.shape)} for {count} tokens behind {before}; there must be one for all heads")
    mask = mask[:, 0].expand(rows, -1, -1)
    last = mask[:, -1]
    here = last.any(1)  # a row of padding alone sees nothing
    if not torch.equal(last[here, :before], shown[here]):
        raise UnsupportedError("an attention mask that hides tokens which earlier ones showed, or shows their padding")
    new = last[:, before:]
    if count > 0 and not bool(new[new.any(1), -1].all()):
        raise UnsupportedError("an attention mask that hides the last token of a row: pad on the left (tokenizer.padding_side = 'left'); "
                               "masks that are not causal are not served")
    if count > 1:
        causal = torch.ones(count, count, dtype=torch.bool, device="cpu").tril() & new[:, None]
        expected = torch.cat([shown[:, None].expand(-1, count, -1), causal], 2) & new[..., None]
        if bool((expected & ~mask).any()):
            raise UnsupportedError("an attention mask that hides earlier tokens from some of a prompt's, which is not served")
        if before > 0 and bool((mask & ~expected & new[..., None]).any()):
            raise UnsupportedError("an attention mask of a prompt that goes on, and sees later tokens; give such a prompt at once")
    return new
