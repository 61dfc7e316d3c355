"""The four papers' claims of speed beside what kvpolicy_cuda_claims timed in the same setting, with the arithmetic of bytes."""

WEIGHTS = 16.06e9           # bytes: Llama-3.1-8B, 16 bits each
ROW = 2 * 2 * 8 * 128 * 32  # bytes of a token's keys and values in all layers

# The claim, its case, batch and context; what share of the rows a step reads, and what else in bytes; why the two differ.
CLAIMS = [
    ("CHESS: up to 4.56 times dense's tokens a second at 32K (H20, batches of 1 to 192)", "chess", 1, 32768, .01, 0,
     "batch 1: weights bind, not rows"),
    ("the same, at what 80 GB hold", "chess", 14, 32768, .01, 0, "each token after the last choice is read, too"),
    ("CHESS: a choice takes 1.5 % of a step", "chess that chooses", 1, 32768, .01, 0, "a step that renews, which few do"),
    ("HeteroCache: about 3 times dense at 224K (A100)", "heterocache, idle", 1, 229376, .5, 0,
     "ratio .5 reads half of the rows; the paper's dense step is PyTorch's"),
    ("the same, in a step that looks", "heterocache, look", 1, 229376, .5, 0, "each pivot looks at every key"),
    ("the same, rows in host memory", "heterocache, rows in host memory, idle", 1, 229376, .5, 0, "nothing is fetched"),
    ("the same, fetching", "heterocache, rows in host memory, fetching", 1, 229376, .5, 0, "the look takes most of it"),
    ("SentenceKV: 17.8 ms a token at 256K, dense 84.9 ms (H100)", "sentencekv", 1, 262144, 1024 / 262144, 262144 / 28 * ROW / 4,
     "the paper's dense takes five times what its bytes need"),
    ("ChunkKV: 26.5 % more tokens a second at 10 % kept", "chunkkv", 1, 32768, .1, 0, "beyond what bytes allow at 32K"),
]
PROMPTS = ("ChunkKV: sharing a choice among two layers takes 20 % off the time of compression", "chunkkv, prompt, reuse ")


def bound(batch, context, share, more):
    """How many times dense's step a step can be at most, where only bytes count; the bytes of both."""
    rows = batch * context * ROW
    dense, ours = WEIGHTS + rows, WEIGHTS + rows * share + batch * more
    return dense / ours, dense, ours


def table(cases):
    """Rows of text: claim, setting, bound, ours, why they differ."""
    timed = {(c["name"], c["batch"], c["context"]): c["us"] for c in cases if c["name"].startswith("claim ")}
    for claim, name, batch, context, share, more, why in CLAIMS:
        most, dense, ours = bound(batch, context, share, more)
        ours_us = timed.get((f"claim {name}, 16-bit weights", batch, context))
        with_dense = name.replace("rows in host memory, idle", "idle").replace("rows in host memory, fetching", "look")
        dense_us = timed.get((f"claim {with_dense}: dense, 16-bit weights", batch, context))
        found = "not timed"
        if ours_us and dense_us:
            found = f"{dense_us / ours_us:.2f} times ({ours_us / 1e3:.3g} of {dense_us / 1e3:.3g} ms)"
        yield [claim, f"batch {batch}, {context // 1024}K", f"{dense / 1e9:.3g} / {ours / 1e9:.3g} GB = {most:.2f} times", found, why]
    alone, shared = (timed.get((f"claim {PROMPTS[1]}{reuse}", 1, 32768)) for reuse in (1, 2))
    found = f"{1 - shared / alone:.0%} less".replace("%", " %") if alone and shared else "not timed"
    yield [PROMPTS[0], "batch 1, 32K", "half the window attention", found, "what each layer keeps is written in any case"]
