"""Writes random cases and what kvpress 0.5.5 keeps of each, for compare.py. Needs kvpress==0.5.5 and torch.

A case is one prompt through a tiny random Llama model, run once. Every press then gets that run's own tensors, in the call
that kvpress's forward hook would make, so that both sides see the same numbers. Format: README.md.
"""
import argparse
import collections
import contextlib
import dataclasses
import json
import logging
import math
import pathlib
import random
import types
from unittest import mock

import kvpress
import numpy
import torch
from kvpress.utils import get_prerope_query_states
from safetensors.torch import save_file
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

# q heads = group * kv heads; tensors stay below 512 floats a token so that 200 cases stay below a gigabyte.
SMALL = dict(head_dims=[4, 4, 8], kv_heads=[1, 2, 2, 3], groups=[1, 2, 3], layers=[1, 2], floats=24, tokens=(20, 150))
LARGE = dict(head_dims=[8, 16, 32, 64, 80, 128], kv_heads=[1, 2, 3, 4, 8], groups=[1, 2, 3, 4, 7, 8], layers=[1, 2, 3],
             floats=512, tokens=(11, 600))
VOCABULARY = 1024  # a token that repeats has the same key norm each time: the larger this is, the fewer ties


def draw_ratio(rng, n, policy):
    if policy == "pyramidkv" and rng.random() < 0.4:
        return 1 - (rng.randrange(n) + 0.5) / n  # the budget lies within a rounding of a half: the order of operations tells
    boundary = 1 - rng.randint(1, n) / n  # n * (1 - R) lies within a rounding of an integer
    return rng.choice([0.0, 0.1, 0.5, 0.5, 0.9, 0.99, 1 / n, 1e-9, boundary, boundary] + [rng.random() for _ in range(5)])


def draw(rng, candidates, least, limit):
    """One of `candidates`, mostly one below `limit`; kvpress throws for the others, unless R = 0 keeps everything."""
    candidates = [c for c in candidates if c >= least]
    allowed = [c for c in candidates if c < limit]
    return rng.choice(allowed if allowed and rng.random() < 0.95 else candidates)


def draw_snapkv(rng, n):
    return {"window": draw(rng, [1, 2, 4, 8, 16, 32, 64, n // 2, n - 2, n - 1, n, n + 1], 1, n),
            "kernel": rng.choice([1, 3, 5, 5, 7, 15, 31])}


def draw_sinks(rng, n):
    return draw(rng, [0, 1, 2, 4, 4, 8, n // 2, n - 1, n], 0, n)


def draw_press(policy, rng, n, ratio):
    """The press of `policy` with random options, and those options by the tool's names."""
    snap = draw_snapkv(rng, n)
    snapkv = dict(compression_ratio=ratio, window_size=snap["window"], kernel_size=snap["kernel"])
    if policy == "streaming_llm":
        sinks = draw_sinks(rng, n)
        return kvpress.StreamingLLMPress(ratio, n_sink=sinks), {"sinks": sinks}
    if policy == "knorm":
        return kvpress.KnormPress(ratio), {}
    if policy == "snapkv":
        return kvpress.SnapKVPress(**snapkv), snap
    if policy == "pyramidkv":
        beta = rng.choice([1, 2, 3, 5, 20, 100])
        return kvpress.PyramidKVPress(**snapkv, beta=beta), snap | {"beta": beta}
    if policy == "adakv":
        alpha = rng.choice([0.0, 0.2, 0.2, 0.5, 1.0, rng.random()])
        return kvpress.AdaKVPress(kvpress.SnapKVPress(**snapkv), alpha_safeguard=alpha), snap | {"alpha": alpha}
    if policy == "chunkkv":
        chunk = rng.choice([1, 2, 3, 5, 10, 20, 20, max(1, n - 1), n, n + 1])
        return (kvpress.ChunkKVPress(kvpress.SnapKVPress(**snapkv), chunk_length=chunk),
                snap | {"chunk": chunk, "reduce": "mean", "window-in-budget": 1})
    if policy == "h2o":
        return kvpress.ObservedAttentionPress(ratio), {"reduce": "mean", "recent-share": 0.0}
    if policy == "tova":
        return kvpress.TOVAPress(ratio), {}
    if policy == "keydiff":
        return kvpress.KeyDiffPress(ratio), {}
    if policy == "expected_attention":
        sinks, future = draw_sinks(rng, n), rng.choice([1, 2, 64, 512])
        covariance, value_norm = rng.random() < 0.7, rng.random() < 0.7
        epsilon = rng.choice([0.0, 2e-05, 0.01, rng.random()])
        return (kvpress.ExpectedAttentionPress(ratio, n_future_positions=future, n_sink=sinks, use_covariance=covariance,
                                               use_vnorm=value_norm, epsilon=epsilon),
                {"sinks": sinks, "future": future, "covariance": int(covariance), "value-norm": int(value_norm),
                 "epsilon": epsilon})
    if policy == "lagkv":
        sinks, cross = draw_sinks(rng, n), rng.random() < 0.5
        rest = max(4, n - sinks)  # two partitions of rest / 2 just fit, of rest / 2 + 1 just not
        lag = rng.choice([2, 3, 8, 16, 32, 128, rest // 2, rest // 2, rest // 2 + 1, max(2, rest // 3), max(2, rest // 5)])
        return (kvpress.LagKVPress(ratio, n_sink=sinks, lag_size=lag, cross_scoring=cross),
                {"sinks": sinks, "lag": lag, "cross": int(cross)})
    if policy == "duoattention":
        sinks, recent = rng.choice([0, 1, 2, 4, 16, n // 3]), rng.choice([1, 1, 2, 8, 32, n // 3 + 1])
        press = kvpress.DuoAttentionPress(head_compression_ratio=ratio)
        press.sink_size, press.recent_size = sinks, recent
        return press, {"tokens": 0, "streaming": ratio, "sinks": sinks, "recent": recent}
    raise ValueError(policy)


def turns_on_a_bit(press, n, layers):
    """Whether the last bit of the ratio decides a layer's budget of PyramidKV: the order of operations does so as well."""
    def budgets(ratio):
        nudged = dataclasses.replace(press, compression_ratio=ratio)
        shape = types.SimpleNamespace(num_hidden_layers=layers)
        return [nudged.get_layer_budget(types.SimpleNamespace(config=shape, layer_idx=i), n) for i in range(layers)]

    ratio = press.compression_ratio
    if press.window_size > n * (1 - ratio) / press.beta:  # kvpress falls back to SnapKV's budget
        return False
    return ratio > 0 and not budgets(math.nextafter(ratio, 0)) == budgets(ratio) == budgets(math.nextafter(ratio, 1))


def draw_entry(policy, rng, n, layers):
    """Ratio, press and options of one entry."""
    for _ in range(rng.choice([1, 50]) if policy == "pyramidkv" else 1):
        ratio = draw_ratio(rng, n, policy)
        press, options = draw_press(policy, rng, n, ratio)
        if policy == "pyramidkv" and turns_on_a_bit(press, n, layers):
            break
    return ratio, press, options


POLICIES = ["streaming_llm", "knorm", "snapkv", "pyramidkv", "adakv", "chunkkv", "h2o", "tova", "keydiff",
            "expected_attention", "lagkv", "duoattention"]


def draw_model(rng, sizes):
    """A tiny Llama whose attention is not flat, and its RoPE's type."""
    while True:
        dim, kv_heads, group = rng.choice(sizes["head_dims"]), rng.choice(sizes["kv_heads"]), rng.choice(sizes["groups"])
        if dim * kv_heads * group <= sizes["floats"]:
            break
    rope = {"rope_type": "default", "rope_theta": rng.choice([1e3, 1e4, 5e5])}
    if rng.random() < 0.2:
        rope |= rng.choice([{"rope_type": "linear", "factor": rng.choice([2.0, 4.0, 8.0])},
                            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 64}])
    hidden = rng.choice([32, 48, 64])
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=rng.choice(sizes["layers"]),
        num_attention_heads=kv_heads * group, num_key_value_heads=kv_heads, head_dim=dim, max_position_embeddings=4096,
        rope_parameters=rope, attention_bias=rng.random() < 0.5, attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    # Each layer's input is normalised, so that the standard deviation of a logit q.k/sqrt(d) comes out as `logit`.
    logit = rng.choice([0.3, 1.0, 2.0, 4.0])
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
        for layer in model.model.layers:
            scales = {"q_proj": logit**0.5, "k_proj": logit**0.5, "v_proj": rng.choice([0.1, 1.0, 3.0])}
            for name, scale in scales.items():
                projection = getattr(layer.self_attn, name)
                projection.weight.normal_(std=scale * hidden**-0.5)
                if projection.bias is not None:
                    projection.bias.normal_(std=scale)
    return model, rope


def draw_prompt(rng, model, n):
    """Token ids [n]. Few different tokens without RoPE are exact ties between keys."""
    ids = range(VOCABULARY)
    kind = rng.choice(["random"] * 5 + ["few", "phrase", "ties"])
    if kind == "few":
        return rng.choices(rng.sample(ids, rng.randint(1, 4)), k=n)
    if kind == "phrase":
        words = rng.sample(ids, rng.randint(2, max(2, n // 3)))
        return [words[i % len(words)] for i in range(n)]
    if kind == "ties":
        model.model.rotary_emb.inv_freq.zero_()
        return rng.choices(rng.sample(ids, max(2, n // 4)), k=n)
    return (rng.sample if n <= VOCABULARY else rng.choices)(ids, k=n)


def run_model(model, prompt):
    """Runs the prompt once. One dictionary a layer: what kvpress's hook would hand to press.compress."""
    calls = []

    def hook(module, _, kwargs, output):
        cached = kwargs["past_key_values"].layers[module.layer_idx]
        module.rotary_emb = model.model.rotary_emb  # as kvpress does
        calls.append(dict(module=module, hidden_states=kwargs["hidden_states"], keys=cached.keys, values=cached.values,
                          attentions=output[1], kwargs=kwargs))

    hooks = [layer.self_attn.register_forward_hook(hook, with_kwargs=True) for layer in model.model.layers]
    model(torch.tensor([prompt]), past_key_values=DynamicCache(), use_cache=True)
    for handle in hooks:
        handle.remove()
    return calls


def case_tensors(model, calls, with_attention):
    tensors = {"rope.inv_freq": model.model.rotary_emb.inv_freq}
    for i, call in enumerate(calls):
        before = get_prerope_query_states(call["module"], call["hidden_states"])  # [1, heads, n, d], as in the model's run
        after, _ = apply_rotary_pos_emb(before, before, *call["kwargs"]["position_embeddings"])
        per_token = {"queries": after, "queries_pre": before, "keys": call["keys"], "values": call["values"]}
        tensors |= {f"{name}.{i}": tensor[0].transpose(0, 1) for name, tensor in per_token.items()}
        if with_attention:
            tensors[f"attention.{i}"] = call["attentions"][0]
    return {name: tensor.float().contiguous() for name, tensor in tensors.items()}


@contextlib.contextmanager
def recording(press, keys):
    """Records the scores (cloned: AdaKV writes into them) and the indices with which the press gathers `keys`."""
    scorer = getattr(press, "press", press)
    record = {}
    score, gather = scorer.score, torch.Tensor.gather

    def recorded_score(*args):
        scores = score(*args)
        record["scores"] = scores[0].clone()
        return scores

    def recorded_gather(self, dim, index):
        if self is keys:
            record["kept"] = index[0, :, :, 0]
        return gather(self, dim, index)

    patches = [mock.patch.object(scorer, "score", recorded_score), mock.patch.object(torch.Tensor, "gather", recorded_gather)]
    if isinstance(press, kvpress.LagKVPress):
        partition_score = press._get_states_score

        def recorded_states(states):  # of keys, then of values
            record.setdefault("partitions", []).append(partition_score(states))
            return record["partitions"][-1]

        patches.append(mock.patch.object(press, "_get_states_score", recorded_states))
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield record


def give_heads(press, path, rng, layers, heads):
    """Draws how much each head retrieves into a file of DuoAttention's kind, and has the press read that one.

    Clipping makes ties, and numpy's sort orders ties as it likes: none lies where the heads that stream end.
    """
    streaming = round(layers * heads * press.head_compression_ratio)
    while True:
        scores = torch.tensor(rng.sample(range(2000), layers * heads), dtype=torch.float64).view(layers, heads) / 1600 - .1
        ranked = sorted(scores.clamp(0, 1).flatten().tolist())
        if streaming in (0, len(ranked)) or ranked[streaming - 1] < ranked[streaming]:
            break
    lines = ["\t".join(repr(score) for score in row) for row in scores.tolist()]
    path.write_text("\n".join(lines) + "\n")
    pattern = press.sink_size, press.recent_size, numpy.clip(numpy.loadtxt(path, delimiter="\t", ndmin=2), 0, 1)
    with mock.patch.object(press, "load_attention_pattern", lambda model: pattern):
        press.post_init_from_model(types.SimpleNamespace(device="cpu"))


class NotANumber(Exception):
    """LagKV divides by the range of a partition: 0 / 0 where a channel is constant. Nothing to compare then."""


def kept_unmasked(module, heads, n):
    masked = module.masked_key_indices  # None: nothing
    dropped = set(zip(*(indices.tolist() for indices in masked[1:]))) if masked else set()
    return [[t for t in range(n) if (h, t) not in dropped] for h in range(heads)]


def compress(press, call, ratio, with_attention):
    """One layer: what the press keeps, [kv_heads][...], and its scores by kind, [kv_heads, tokens]; none if R = 0."""
    module, (_, heads, n, _) = call["module"], call["keys"].shape
    # AdaKV refuses eager and ChunkKV given attentions: for them the window's attention is computed, as under sdpa.
    attentions = call["attentions"] if with_attention else None
    module.masked_key_indices = None
    module.config._attn_implementation = "eager" if with_attention else "sdpa"  # read by AdaKV; the model has run
    if isinstance(press, kvpress.DuoAttentionPress):  # it has no scores of tokens, and masks what it does not keep
        press.compress(**call | {"attentions": None})
        return kept_unmasked(module, heads, n), {}
    with recording(press, call["keys"]) as record:
        press.compress(**call | {"attentions": attentions})
    if ratio == 0:
        return [list(range(n))] * heads, {}
    scores = {"": record["scores"].float()}
    if "partitions" in record and not press.cross_scoring:
        softmax = (record["partitions"][0] + record["partitions"][1])[0].flatten(1) / 2
        scores["_unranked"] = torch.zeros(heads, n)
        scores["_unranked"][:, press.n_sink:press.n_sink + softmax.shape[1]] = softmax
    if not all(tensor.isfinite().all() for tensor in scores.values()):
        raise NotANumber
    if isinstance(press, kvpress.AdaKVPress):
        return kept_unmasked(module, heads, n), scores
    return [sorted(kept) for kept in record["kept"].tolist()], scores


def kvzip_entry(model, calls, rng, n):
    """One choice for all layers: the tokens behind the text repeat it. kvpress keeps its sinks by giving them the score 1."""
    sinks = rng.randint(0, min(4, (n - 1) // 2))
    least = max(1, sinks)  # a smaller budget is refused
    end = rng.randint(sinks + least, n - 1)
    layers, heads = len(calls), calls[0]["keys"].shape[1]
    kept = rng.randint(least, end - sinks)  # of the text, on the mean; the sinks come beside it
    pruned = (end - sinks - kept) * layers * heads
    press = kvpress.KVzipPress(compression_ratio=(pruned + 0.5) / (end * layers * heads), n_sink=sinks)
    press.context_length, press.start_idx, press.end_idx = end, sinks, end
    press.score_val = torch.zeros((layers, 1, heads, end), dtype=calls[0]["keys"].dtype)
    press.score_val[..., :sinks] = 1
    for call in calls:
        call["module"].masked_key_indices = None
        call["module"].config._attn_implementation = "sdpa"
        turned = tuple(part[:, end:] for part in call["kwargs"]["position_embeddings"])
        press.score_kvzip(call["module"], call["hidden_states"][:, end:], call["keys"], call["values"], None,
                          call["kwargs"] | {"position_embeddings": turned})
    scores = press.score_val.clone()
    press.compress_post(model)
    entry = {"policy": "kvzip", "ratio": "0", "options": {"tokens": str(kept), "sinks": str(sinks), "text": f"{sinks},{end}"},
             "kept": [kept_unmasked(call["module"], heads, end) for call in calls]}
    return entry, {f"kvzip.{i}": layer[0].float().contiguous() for i, layer in enumerate(scores)}


def text(value):
    return value if isinstance(value, str) else repr(value)  # repr of a float reads back as the same double


def write_case(path, rng, seed, args, tally):
    sizes = SMALL if args.small else LARGE
    low, high = args.tokens_min or sizes["tokens"][0], args.tokens_max or sizes["tokens"][1]
    if args.tokens_min is None and rng.random() < 1 / 8:
        low, high = 2, min(10, high)
    n = rng.randint(min(low, high), high)
    model, rope = draw_model(rng, sizes)
    calls = run_model(model, draw_prompt(rng, model, n))

    entries, all_scores = [], {}
    for policy in POLICIES:
        ratio, press, options = draw_entry(policy, rng, n, len(calls))
        with_attention = policy == "h2o" or (policy not in ("adakv", "chunkkv", "duoattention") and rng.random() < 0.5)
        if policy == "duoattention":
            heads = path.with_name(path.name + ".heads.tsv")
            give_heads(press, heads, rng, len(calls), model.config.num_key_value_heads)
            options["heads"] = heads.name
        try:
            layers = [compress(press, call, ratio, with_attention) for call in calls]
        except (AssertionError, NotANumber) as reason:
            tally[policy, "without numbers" if isinstance(reason, NotANumber) else "refused by kvpress"] += 1
            continue
        all_scores |= {f"{policy}{kind}.{i}": tensor.contiguous()
                       for i, (_, scores) in enumerate(layers) for kind, tensor in scores.items()}
        entries.append({"policy": policy, "ratio": text(ratio), "options": {k: text(v) for k, v in options.items()},
                        "kept": [kept for kept, _ in layers]})
        tally[policy, "entries"] += 1

    if n > 2:
        entry, scores = kvzip_entry(model, calls, rng, n)
        entries.append(entry)
        all_scores |= scores
        tally["kvzip", "entries"] += 1

    config = model.config
    metadata = {"format": "kvpolicy-case/1", "layers": len(calls), "tokens": n, "q_heads": config.num_attention_heads,
                "kv_heads": config.num_key_value_heads, "head_dim": config.head_dim, "rope_theta": rope["rope_theta"],
                "rope_type": rope["rope_type"], "seed": seed}
    save_file(case_tensors(model, calls, args.attention and n <= 300), f"{path}.safetensors",
              {name: str(value) for name, value in metadata.items()})
    save_file(all_scores, f"{path}.scores.safetensors")
    pathlib.Path(f"{path}.json").write_text(json.dumps(entries, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--cases", required=True, type=int)
    parser.add_argument("--tokens-min", type=int, help="default: 20 (--small) or 11, and 2 to 10 in one case of eight")
    parser.add_argument("--tokens-max", type=int, help="default: 150 (--small) or 600")
    parser.add_argument("--small", action="store_true", help="few heads and channels, as in the committed set")
    parser.add_argument("--attention", action="store_true", help="also write attention.L where tokens <= 300")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("kvpress").setLevel(logging.ERROR)  # KVzip's press warns of its cost, each time
    torch.set_grad_enabled(False)
    args.out.mkdir(parents=True, exist_ok=True)
    tally = collections.Counter()
    for index in range(args.cases):
        seed = args.seed * 100000 + index  # a case depends on nothing but this
        torch.manual_seed(seed)
        write_case(args.out / f"case-{index:04}", random.Random(seed), seed, args, tally)
    for policy in [*POLICIES, "kvzip"]:
        print(f"{policy:<20}" + ", ".join(f"{what} {count}" for (name, what), count in tally.items() if name == policy))


if __name__ == "__main__":
    main()
