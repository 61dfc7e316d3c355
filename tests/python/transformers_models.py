"""All causal language models of transformers, tiny and with random weights: through a PolicyCache `full` gives the logits of eager
attention with transformers' own cache, or is refused by name. 77 where torch or transformers is missing.

    transformers_models.py [--table FILE] [MODEL_TYPE ...]

--table: writes the outcomes between the lines "<!-- models: begin -->" and "<!-- models: end -->" of a Markdown file."""
import argparse
import inspect
import re
import sys
import time
import warnings

try:
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError as missing:
    print(f"no {missing.name} in {sys.executable}: the models of transformers are not tested")
    sys.exit(77)

import kvpolicy
import kvpolicy.transformers

kvpolicy.transformers.register()
torch.set_grad_enabled(False)
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
warnings.simplefilter("ignore")

layers, vocabulary, window = 4, 300, 10
# What a tiny model has of what a config may name. All experts are chosen for every token: rounding can't choose others.
sizes = [
    (vocabulary, "vocab_size vocab_size_per_layer_input unpadded_vocab_size pronunciation_vocab_size shape_vocab_size "
                 "encoder_hash_byte_group_vocab"),
    (layers, "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers num_encoder_layers depth"),
    (64, "hidden_size d_model n_embd embedding_dim dim_model embedding_size input_embedding_size output_embedding_size "
         "hidden_size_global word_embed_proj_dim ffn_hidden_size"),
    (4, "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads attention_heads "
        "num_decoder_attention_heads num_encoder_attention_heads swa_num_attention_heads linear_num_value_heads num_experts "
        "num_local_experts n_routed_experts moe_num_experts num_experts_per_tok moe_topk moe_k moe_top_k top_k_experts"),
    (2, "num_key_value_heads num_kv_heads kv_n_heads swa_num_key_value_heads linear_num_key_heads n_groups mamba_n_groups "
        "num_kv_shared_layers n_layers_per_attn_res_block"),
    (1, "n_group topk_group first_k_dense_replace num_codebooks"),
    (16, "head_dim kv_channels attention_head_size swa_head_dim v_head_dim qk_nope_head_dim q_lora_rank kv_lora_rank o_lora_rank "
         "index_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim mamba_d_state state_size ssm_state_size "
         "mamba_head_dim hidden_size_per_layer_input pronunciation_embed_dim shape_embed_dim"),
    (8, "qk_rope_head_dim rotary_dim index_topk mamba_chunk_size chunk_size mamba_n_heads mamba_num_heads laurel_rank"),
    (48, "intermediate_size moe_intermediate_size decoder_ffn_dim encoder_ffn_dim ffn_dim n_inner dff dim_ff d_inner "
         "shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size dense_intermediate_size intermediate_size_mlp "
         "moe_shared_expert_intermediate_size shared_experts_intermediate_size prefix_dense_intermediate_size"),
    (256, "max_position_embeddings n_positions n_ctx max_target_positions max_source_positions max_seq_len"),
    (window, "sliding_window sliding_window_size window_size attention_chunk_size attention_window_size local_attention"),
    (0, "pad_token_id"), (1, "bos_token_id"), (2, "eos_token_id"), (True, "is_decoder"), (False, "use_mamba_kernels"),
]
tiny = {name: value for value, names in sizes for name in names.split()}
in_turn = lambda *kinds: list(kinds) * (layers // len(kinds))
set_if_none = {"num_key_value_heads", "head_dim", "num_experts_per_tok", "pad_token_id", "bos_token_id", "eos_token_id"}


# What some model types need besides.
special = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "cohere_compass_text": {"rope_parameters": {f"{kind}_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
                                                for kind in ("full", "sliding")}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
             "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 4}},
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "dots3_note_text": {"head_dim": 24, "swa_head_dim": 24, "swa_qk_nope_head_dim": 16, "swa_v_head_dim": 16, "swa_q_lora_rank": 16,
                        "swa_kv_lora_rank": 16, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4},
    "gemma4_text": {"global_head_dim": 32}, "gemma4_unified_text": {"global_head_dim": 32},
    "gpt_neo": {"attention_types": [[["global", "local"], layers // 2]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": in_turn("conv", "full_attention")}, "lfm2_moe": {"layer_types": in_turn("conv", "full_attention")},
    "longcat_flash": {"zero_expert_num": 2, "moe_topk": 6},
    "mamba2": {"num_heads": 8},
    "minimax_m3_vl_text": {"layer_types": in_turn("full_attention", "minimax_m3_sparse"), "index_block_size": 4, "index_topk_blocks": 2},
    "moshi": {"sliding_window": 256},  # its caches have windows, its masks have none
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
                       "indexer_compress_ratio": 4},
    "xlm": {"causal": True}, "xlstm": {"chunk_size": 64, "hidden_size": 128, "embedding_dim": 128}, "xmod": {"default_language": "en_XX"},
    "zamba2": {"use_mem_rope": True}, "zaya": {"num_experts_per_tok": 1},
}
whole_ids = {"cpmant", "xlm"}  # they are given the cached tokens' ids again


def small(cls, more={}):
    """A tiny config of this class."""
    made = cls()
    made.allow_global_per_layer_attribute_access = True

    def takes(name):
        fixed = isinstance(inspect.getattr_static(cls, name, None), property)
        return not fixed and hasattr(made, name) and (name in set_if_none or getattr(made, name) is not None)

    arguments = {name: value for name, value in tiny.items() if takes(name)}
    for name, value in vars(made).items():  # what is said of each layer: all kinds in turn
        if isinstance(value, list) and len(value) == vars(made).get("num_hidden_layers") and isinstance(value[0], (str, int)):
            kinds = list(dict.fromkeys(value))
            arguments[name] = [kinds[i % len(kinds)] for i in range(layers)]
    for name in cls.sub_configs:
        if getattr(made, name, None) is not None:
            arguments[name] = small(type(getattr(made, name))).to_dict()
    if "kv_lora_rank" in arguments and "num_key_value_heads" in arguments:
        arguments["num_key_value_heads"] = arguments["num_attention_heads"]
    if "qk_rope_head_dim" in arguments and "head_dim" in arguments:
        arguments["head_dim"] = arguments["qk_rope_head_dim"]
    if cls.model_type == "granitemoehybrid":
        arguments["layer_types"] = in_turn(*("linear_attention", "full_attention") if made.layer_types else ("mamba", "attention"))
    return cls(**arguments | special.get(cls.model_type, {}) | more)


def variants(cls):
    """Names and arguments of configs: the class's own, and where windows or scales are a choice the other one."""
    made = cls()
    kinds, windows = set(getattr(made, "layer_types", None) or []), vars(made).get("sliding_window")
    both = {"layer_types": in_turn("sliding_attention", "full_attention")} if kinds else {}
    yield "", {}
    if hasattr(made, "use_sliding_window"):
        yield " with windows", {"use_sliding_window": True, "sliding_window": window} | both
    elif windows and kinds in ({"sliding_attention"}, {"full_attention"}):
        yield " with windows in turn", both
    elif windows and not kinds and not cls.sub_configs:
        yield " without windows", {"sliding_window": None}
    if hasattr(made, "scale_attn_by_inverse_layer_idx"):
        yield " scaled by layer", {"scale_attn_by_inverse_layer_idx": True}


def build(cls, config):
    torch.manual_seed(0)
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in cls._from_config(config).parameters())
    if count > 2e7:
        raise ValueError(f"{count} parameters: a size is missing here")
    model = cls._from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():  # attention becomes far from uniform, and no term of it is lost in the rest
        some = parameter.shape[-1] ** -.5 if parameter.ndim > 1 else .1 * (parameter.square().mean().sqrt().item() or 1)
        parameter.add_(torch.randn_like(parameter) * some)
    return model


class Talk:
    """Token ids, of rows with padding on the left, and the parts in which they are fed: each with a name, a number of tokens and how
    far logits may be apart, in standard deviations."""

    def __init__(self, name, pads, parts):
        self.name, self.parts, length = name, parts, sum(tokens for _, tokens, _ in parts)
        self.ids = torch.randint(3, vocabulary, (len(pads), length), generator=torch.Generator().manual_seed(0))
        self.mask = torch.arange(length).ge(torch.tensor(pads)[:, None]).long()

    def feed(self, model, cache):
        """The logits of each part, but for padding; all parts are one if cache is False, and None leaves its choice to the model."""
        takes, end = inspect.signature(model.forward).parameters, 0
        name = "cache" if "cache" in takes else "past_key_values"  # transformers 5.24 and 5.2
        for tokens in [self.ids.shape[1]] if cache is False else [tokens for _, tokens, _ in self.parts]:
            begin, end = end, end + tokens
            first = 0 if model.config.model_type in whole_ids else begin
            positions = (self.mask.cumsum(1) - 1).clamp(min=0)[:, first:end].contiguous()
            given = {"attention_mask": self.mask[:, :end], "position_ids": positions,
                     "use_cache": cache is not False, name: None if cache is False else cache}
            out = model(input_ids=self.ids[:, first:end], **{key: value for key, value in given.items() if key in takes})
            cache = out[name] if cache is None else cache
            yield out.logits[:, -tokens:].float()[self.mask[:, begin:end].bool()]

    def whole(self, model):
        """The logits of each part without a cache."""
        logits, = self.feed(model, False)
        part = torch.arange(len(self.parts)).repeat_interleave(torch.tensor([tokens for _, tokens, _ in self.parts]))
        part = part.expand_as(self.mask)[self.mask.bool()]
        return [logits[part == i] for i in range(len(self.parts))]


exact, halves = 1e-4, .02  # prompts that go on are attended to in halves of 16 bits
steps = [(f"step {i + 1}", 1, exact) for i in range(4)]
talks = [Talk("", [0], [("prompt", 24, exact), *steps, ("second prompt", 9, halves), ("step after it", 1, halves)]),
         Talk("padded ", [0, 7], [("prompt", 24, exact), *steps[:3]])]


def apart(some, others):
    return ((some - others).abs().max() / others.std()).nan_to_num(float("inf")).item()


def text(error):
    """The first sentence of a message."""
    return re.split(r"[.;] ", re.sub(r"\s+", " ", str(error)).strip())[0].strip(".") or "no message"


def compare(model, talk):
    """The outcome of a talk."""
    model.set_attn_implementation("eager")
    whole, cached, why = talk.whole(model), [], None
    for cache in (lambda: transformers.DynamicCache(config=model.config.get_text_config(decoder=True))), lambda: None:
        try:
            for logits in talk.feed(model, cache()):
                cached.append(logits)
        except Exception as error:
            why = why or f"eager itself fails with a cache ({talk.name}{talk.parts[len(cached)][0]}): {type(error).__name__}: {text(error)}"
        if cached:
            break
    if not cached:
        try:
            model.generate(talk.ids[:, :8], attention_mask=talk.mask[:, :8], max_new_tokens=2)
            why = None  # with a cache of a class of its own
        except Exception:
            pass
    where = "construction"
    try:
        model.set_attn_implementation("kvpolicy")
        cache = kvpolicy.transformers.PolicyCache(model, "full")
        ours = talk.feed(model, cache)
        for i, ((part, _, within), uncached) in enumerate(zip(talk.parts, whole)):
            where, want = talk.name + part, cached[i] if i < len(cached) else uncached
            if not want.isfinite().all() or not want.std() > 1e-3:
                return f"not tried: eager's logits of the {where} say nothing"
            if not (worst := apart(next(ours), want)) < within:
                if why and i >= len(cached):
                    return f"not tried: {why}"
                if not apart(want, uncached) < .01:
                    return f"not tried: eager itself differs with a cache ({where})"
                return f"WRONG: the {where} differs by {worst:.1g} standard deviations"
    except (kvpolicy.UnsupportedError, kvpolicy.InvalidError) as error:
        return f"refused: {text(error)}" + ("" if where in ("construction", "prompt") else f" ({where})")
    except Exception as error:
        if why and where != "construction" and i >= len(cached):
            return f"not tried: {why}"
        return f"ACCIDENT: {where}: {type(error).__name__}: {text(error)}"
    return "right" if cache.bytes else "WRONG: the cache holds nothing"


order = ["right", "refused", "not tried", "WRONG", "ACCIDENT"]
rank = lambda outcome: order.index(outcome.split(":")[0])


def outcome(cls, config):
    """The worst of the talks' outcomes."""
    try:
        model = build(cls, small(*config))
    except Exception as error:
        return f"not tried: not built: {type(error).__name__}: {text(error)}"
    try:
        return max((compare(model, talk) for talk in talks), key=rank)
    except Exception as error:
        return f"not tried: eager does not run: {type(error).__name__}: {text(error)}"


def models(kind):
    """The variants of a model type: name, class, and arguments of small; none of those where the class has no use for a cache."""
    cls, config = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]), CONFIG_MAPPING[kind]
    if not {"cache", "past_key_values"} & set(inspect.signature(cls.forward).parameters):
        yield kind, cls, None
        return
    config = config if issubclass(config, cls.config_class) else cls.config_class  # the class may be of a part, its text model
    for name, more in variants(config):
        yield kind + name, cls, (config, more)


def write_table(path, outcomes, summary):
    rows = {}
    for name, found in outcomes.items():
        rows.setdefault(found.replace("|", "/").replace("<", "&lt;"), []).append(name)
    lines = ["<!-- models: begin -->", summary, "", "| Outcome | Model types |", "| --- | --- |"]
    lines += [f"| {found} | {', '.join(names)} |" for found, names in sorted(rows.items(), key=lambda row: (rank(row[0]), row[0]))]
    with open(path, encoding="utf-8") as file:
        before, begin, rest = file.read().partition(lines[0] + "\n")
    _, end, after = rest.partition("<!-- models: end -->")
    if not begin or not end:
        sys.exit(f"{path} has no line {lines[0]}, or no line <!-- models: end --> after it")
    with open(path, "w", encoding="utf-8") as file:
        file.write(before + "\n".join(lines) + "\n" + end + after)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", metavar="FILE")
    parser.add_argument("types", nargs="*", metavar="MODEL_TYPE", help="only these")
    options = parser.parse_args()
    if unknown := set(options.types) - set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        parser.error(f"transformers {transformers.__version__} has no {', '.join(sorted(unknown))}")
    if options.table and options.types:
        parser.error("a table is of all model types")
    outcomes = {}
    for kind in options.types or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        for name, cls, config in models(kind):
            began = time.monotonic()
            outcomes[name] = outcome(cls, config) if config else "not tried: it has no cache of keys and values"
            print(f"{name}: {outcomes[name]} [{time.monotonic() - began:.1f} s]", flush=True)
    count = [sum(rank(found) == i for found in outcomes.values()) for i in range(len(order))]
    summary = f"transformers {transformers.__version__}: " + ", ".join(f"{n} {name}" for n, name in zip(count, order))
    print(summary)
    if options.table:
        write_table(options.table, outcomes, summary)
    if failed := [name for name, found in outcomes.items() if rank(found) >= order.index("WRONG") or name == "llama" and found != "right"]:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
