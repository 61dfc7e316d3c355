"""comparison.py KVPOLICY_RUN MODEL EXAMPLES: runs a small comparison and checks what it wrote against itself."""
import json
import os
import subprocess
import sys
import tempfile

run, model, examples = sys.argv[1:]
if not os.path.exists(model):
    sys.exit(77)

with tempfile.TemporaryDirectory() as work:
    path = lambda name: os.path.join(work, name)
    prompts = []
    for depth in ("0.2", "0.8"):
        prompts.append(path(f"depth-{depth}.txt"))
        with open(prompts[-1], "w") as file:
            subprocess.run([sys.executable, os.path.join(examples, "haystack.py"), "--words", "300", "--depth", depth], stdout=file, check=True)
    command = [run, "--model", model, "--compare", "--predict", "8", "--json", path("c.json"), "--trace", path("t.jsonl"), "--mark",
               "special magic numbers for Oslo"]
    for prompt in prompts:
        command += ["--prompt-file", prompt]
    budgets = {"full": None, "streaming_llm": 64, "snapkv": 64, "quest": 64, "chess": None, "h2o": 64, "tova": 64, "adakv": 64,
               "snapkv+quest": 64}
    waits = {"snapkv": 3, "adakv": 0}  # tokens of the answer that a choice waits for
    for name, tokens in budgets.items():
        after = f",after={waits[name]}" if name in waits else ""
        command += ["--policy", name if tokens is None else name.replace("+", ":tokens=128,after=0+") + f":tokens={tokens}{after}"]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = json.load(open(path("c.json")))
    trace = [json.loads(line) for line in open(path("t.jsonl"))]
    subprocess.run([sys.executable, os.path.join(examples, "report.py"), path("c.json"), path("r.html")], check=True)
    page = open(path("r.html")).read()
    subprocess.run([run, "--model", model, "--compare", "--predict", "4", "--json", path("q.json"), "--prompt-file", prompts[0],
                    "--cache-type-k", "q8_0", "--cache-type-v", "q4_0", "--policy", "snapkv:tokens=64,after=0", "--prompt-policy",
                    "pages:share=.2,least=32,page=16,sinks=16,recent=32,from=64"], check=True, capture_output=True)
    blocks = json.load(open(path("q.json")))
    with open(path("profile.json"), "w") as file:
        heads = [{"role": "anchor", "stability": 0.5} for _ in range(90)]
        json.dump({"format": "kvpolicy-profile/1", "layers": 30, "kv_heads": 3, "heads": heads}, file)
    still = subprocess.run([run, "--model", model, "--predict", "3", "--json", path("s.json"), "--prompt-file", prompts[0],
                            "--policy", f"heterocache:profile={path('profile.json')},tokens=64,after=0"], check=True, capture_output=True, text=True)
    chess = subprocess.run([run, "--model", model, "--predict", "40", "--json", path("e.json"), "--prompt-file", prompts[0],
                            "--policy", "chess:page=8,tokens=96,entropy=.01,rest=0"], check=True, capture_output=True, text=True)
    still_at_work = json.load(open(path("s.json")))["at_work"]
    chess_at_work = json.load(open(path("e.json")))["at_work"]
    chess_prompt = json.load(open(path("e.json")))["prompt_tokens"]
    subprocess.run([sys.executable, os.path.join(examples, "report.py"), path("q.json"), path("q.html")], check=True)

dense = result["dense"]
assert result["baseline"]["ms_per_token"] == min(dense["flash_on"]["ms_per_token"], dense["flash_off"]["ms_per_token"])
assert result["baseline"]["request_ms"] == min(dense["flash_on"]["request_ms"], dense["flash_off"]["request_ms"])
assert abs(result["prompt_kl"]["session"]) < 0.02, result["prompt_kl"]
assert "policy" not in result["prompt"] and result["prompt"]["attend_ms"] > 0
assert result["left_to_the_engine"] == [] and result["cache_types"] == ["f16", "f16"]
for prompt, share in zip(result["prompts"], (0.2, 0.8)):
    first, last = prompt["marked"]
    assert 3 <= last - first <= 9 and abs(first / prompt["tokens"] - share) < 0.25, prompt
assert [policy["name"] for policy in result["policies"]] == list(budgets)
assert len(result["prompts"]) == 2
assert max(map(len, filter(lambda line: line.startswith("|"), table.splitlines()))) <= 120, "a terminal's width"
for policy in result["policies"]:
    name = policy["name"]
    assert name in table and name in page, name
    assert abs(policy["speedup"] - result["baseline"]["ms_per_token"] / policy["ms_per_token"]) < 1e-9
    assert policy["request_ms"] > policy["first_token_ms"] > 0
    assert abs(policy["request_speedup"] - result["baseline"]["request_ms"] / policy["request_ms"]) < 1e-9
    split = policy["request_split"]
    assert abs(sum(split.values()) - 1) < 1e-9 and min(split.values()) >= 0 and split["attention"] > 0, split
    assert policy["managed_cache"]["most_bytes"] >= max(policy["managed_cache"]["bytes_after_step"]), policy["managed_cache"]
    assert 0 <= policy["choose_share"] < 1 and 0 <= policy["top1_agreement"] <= 1 and policy["kl"] > -1e-6
    assert len(policy["answers"]) == 2 and policy["answer"] == policy["answers"][0]
    assert len(policy["steps"]) == 2 * 7, "two prompts, seven decode steps each"
    assert len(policy["kept"]) == 7 and max(max(row) for row in policy["kept"]) == 100
    lines = [line for line in trace if line["policy"] == name]
    assert len(lines) == 2 * 7 * 30, "one line for each prompt, step and layer"
    for line in lines:
        counts = [sum(end - begin for begin, end, _ in kept) for kept in line["kept"]]
        if name == "adakv":
            assert sum(counts) == len(counts) * (budgets[name] + line["step"] + 1), "a layer's budget, and all later tokens"
        for kept in line["kept"]:
            ends = [edge for begin, end, _ in kept for edge in (begin, end)]
            assert ends == sorted(ends) and ends[-1] == line["tokens"], "ascending, and the current token is read"
            assert all(why in ("sink", "scored", "recent", "open") for _, _, why in kept)
            count = sum(end - begin for begin, end, _ in kept)
            if name in ("streaming_llm", "quest", "snapkv+quest"):
                assert count <= budgets[name]
            if name in ("h2o", "tova"):
                assert count == budgets[name] + 1, "the budget, and the step's own token"
            if name == "snapkv":
                waited = line["step"] + 1 - waits[name]
                assert count == (line["tokens"] if waited < 0 else budgets[name] + waited), "all at first, then the budget and later tokens"
            if name == "full":
                assert count == line["tokens"]
# What moved, counted again from the trace of the first prompt.
first = result["prompts"][0]
for policy in result["policies"]:
    lists, steps = {}, [line for line in trace if line["policy"] == policy["name"] and line["prompt"] == first["name"]]
    for line in steps:
        for i, kept in enumerate(line["kept"]):
            read = {t for begin, end, why in kept if why == "scored" for t in range(begin, min(end, first["tokens"]))}
            lists.setdefault((line["layer"], i), []).append(read)
    did = policy["at_work"]
    assert did["lists"] == len(lists)
    assert did["lists_changed"] == sum(any(read != reads[0] for read in reads) for reads in lists.values()), policy["name"]
    assert did["changes"] == sum(sum(a != b for a, b in zip(reads, reads[1:])) for reads in lists.values())
    for key, mean in (("scored_tokens_a_step", lambda reads: sum(map(len, reads)) / len(reads)), ("scored_tokens_ever", lambda reads: len(set().union(*reads)))):
        assert abs(did[key] - sum(map(mean, lists.values())) / len(lists)) < 1e-6, (policy["name"], key)
    if policy["name"] == "quest":
        assert did["lists_changed"] > 80 and did["scored_tokens_ever"] > did["scored_tokens_a_step"] > 0 and did["renewals"] == 6 * 90
    if policy["name"] == "snapkv":
        assert did["changes"] == did["lists_changed"] == 90 and did["scored_tokens_ever"] > did["scored_tokens_a_step"] > 0, "one choice"
assert still_at_work["following_heads"] == 0 and still_at_work["fixed_heads"] == 90 and still_at_work["fetches"] == 0
assert still.stderr.count("no head follows") == 1 and "no head follows" not in chess.stderr
ends = chess_at_work["page_end"]
assert len(ends) >= 2 and all(end % 8 == 0 and end > chess_prompt for end in ends), ends
assert len(chess_at_work["page_entropy"]) == len(chess_at_work["page_variance"]) == len(ends)
assert chess_at_work["renewals"] == len(chess_at_work["renewed_at"]) >= 1, "a threshold that every page passes"

mass = {policy["name"]: policy["attention_mass"] for policy in result["policies"]}
assert abs(mass["full"]["mean"] - 1) < 1e-4 and abs(mass["full"]["p10"] - 1) < 1e-4, mass["full"]
for name, share in mass.items():
    assert share["p10"] <= share["mean"] <= 1 + 1e-4, (name, share)
assert 0.3 < mass["streaming_llm"]["mean"] < mass["quest"]["mean"] < 1, mass

full = result["policies"][0]
assert full["kl"] < 0.02, full["kl"]
assert full["largest_top1_gap"] < 0.25, "where two kernels differ on a token, it is a near-tie: quantised weights move logits by .3"
assert (full["largest_top1_gap"] == 0) == (full["top1_agreement"] == 1), full
assert full["cache_share"] == 1

assert blocks["cache_types"] == ["q8_0", "q4_0"]
assert blocks["dense"]["flash_off"] is None, "the engine has no quantised values without flash attention"
assert blocks["baseline"]["name"] == "flash attention on"
assert blocks["prompt"]["policy"] == "pages" and 0 < blocks["prompt"]["read_share"] < 0.9, blocks["prompt"]
assert blocks["policies"][0]["tokens_read"] < 70
