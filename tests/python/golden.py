"""golden.py CASES: what policies keep of the golden cases through the Python package, against kvpress's sets
(tests/golden/README.md). Rows are bound where they lie, transposed, on NumPy and on PyTorch in turn. 77 where NumPy is missing."""
import collections
import json
import pathlib
import sys

try:
    import numpy as np
except ImportError:
    print("no NumPy here: the Python binding is not tested")
    sys.exit(77)
try:
    import torch
except ImportError:
    print("no PyTorch here: NumPy alone")
    torch = None

sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent))
import compare
import kvpolicy

OBSERVING = "snapkv", "adakv"  # their published settings are what kvpress's options change
OF_KVPRESS = "chunkkv", "pyramidkv"  # these have settings that are kvpress's


def read_case(path):
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in tensor["data_offsets"])
            tensors[name] = np.frombuffer(data, np.float32, (end - begin) // 4, begin).reshape(tensor["shape"])
    return {k: int(v) for k, v in header["__metadata__"].items() if k in ("layers", "tokens", "q_heads", "kv_heads", "head_dim")}, tensors


def text_of(entry, tokens, folder):
    name, options = entry["policy"], dict(entry["options"])
    if "heads" in options:
        options["heads"] = str(folder / options["heads"])
    if name == "chunkkv" and tokens < int(options["chunk"]):  # kvpress then chooses single tokens
        name, options = "snapkv", {key: options[key] for key in ("window", "kernel")}
    items = ["kvpress"] if name in OF_KVPRESS else ["paper", "smooth=average"] if name in OBSERVING else []
    items += [] if "tokens" in options else [f"ratio={entry['ratio']}"]
    items += [f"{key.replace('-', '_')}={value}" for key, value in options.items() if key != "text"]
    return name + ":" + ",".join(items)


def kept_of(text, sizes, tensors, repeated):
    """`repeated`: the tokens that those behind them repeat, or None."""
    policy, tokens = kvpolicy.Policy(text), sizes["tokens"]
    state = kvpolicy.State(policy, kvpolicy.Shape(max_tokens=tokens, **{k: v for k, v in sizes.items() if k != "tokens"}))
    for layer in range(sizes["layers"]):
        keys, values = (tensors[f"{what}.{layer}"].swapaxes(0, 1) for what in ("keys", "values"))
        state.bind(layer, keys, values)
        queries = tensors[f"queries.{layer}"][max(0, tokens - policy.observation_queries):]
        known = repeated[1] if repeated else tokens
        state.prefill(layer, known, queries=queries, scale=sizes["head_dim"]**-.5, inverse_frequencies=tensors["rope.inv_freq"])
    for layer in range(sizes["layers"] if repeated else 0):
        state.prefill(layer, tokens, first=known, queries=tensors[f"queries.{layer}"][known:], scale=sizes["head_dim"]**-.5,
                      repeats=repeated)
    return [[[t for t in retained(state, layer, head) if t < known] for head in range(sizes["kv_heads"])]
            for layer in range(sizes["layers"])]


def retained(state, layer, head):
    return [t for r in state.retained(layer, head) for t in range(r.begin, r.end)]


def main():
    tally, failures = collections.Counter(), []
    for path in sorted(pathlib.Path(sys.argv[1]).glob("case-*.json")):
        sizes, tensors = read_case(path.with_suffix(".safetensors"))
        on_torch = {name: torch.from_numpy(array) for name, array in tensors.items()} if torch else tensors
        for number, entry in enumerate(json.loads(path.read_text())):
            outcome, layer, text = "identical", None, text_of(entry, sizes["tokens"], path.parent)
            repeated = tuple(map(int, entry["options"]["text"].split(","))) if "text" in entry["options"] else None
            try:
                for layer, kept in enumerate(kept_of(text, sizes, on_torch if number % 2 else tensors, repeated)):
                    if kept != entry["kept"][layer]:
                        compare.check_layer(entry, layer, kept, path.with_suffix(".scores.safetensors"))
                        outcome = "excused"
            except (compare.Different, kvpolicy.Error) as wrong:
                outcome = "different"
                failures.append(f"{path.name}, {text}, layer {layer}: {wrong}")
            tally[entry["policy"], outcome] += 1
    for policy in dict.fromkeys(name for name, _ in tally):
        print(f"{policy:<20}" + ", ".join(f"{tally[policy, outcome]} {outcome}" for outcome in ("identical", "excused", "different")))
    print(*failures[:10], sep="\n")
    if failures or not tally:
        sys.exit(1)

    # What is bound is the caller's memory, not a copy of it.
    array = np.ones((1, 8, 4), np.float32)
    state = kvpolicy.State(kvpolicy.Policy("knorm:ratio=0.5"), kvpolicy.Shape(1, 1, 1, 4, 8))
    state.bind(0, array)
    array[0, [1, 3, 5, 7]] = 9
    state.prefill(0, 8)
    assert retained(state, 0, 0) == [0, 2, 4, 6]
    for wrong in (np.ones((1, 8, 4)), np.ones((1, 8, 4), np.float32)[:, ::-1], np.ones((2, 8, 4), np.float32)):
        try:
            state.bind(0, wrong)
        except kvpolicy.Error as refusal:
            assert str(refusal).startswith("keys of layer 0: "), refusal
        else:
            sys.exit("a tensor that can't be was bound")


main()
