"""vLLM through kvpolicy.vllm, on a fresh random model: full against the engine alone, choices against kvpolicy.transformers on the same
weights, cached prefixes, preemption, ranks, failures, refusals. 77 where vLLM is missing (cmake/bootstrap.sh vllm)."""
import contextlib
import gc
import importlib.metadata
import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                  VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_ALLOW_INSECURE_SERIALIZATION="1")
os.environ.pop("KVPOLICY", None)
try:
    import vllm
except ImportError as missing:
    print(f"no {missing.name} in {sys.executable}: the integration with vLLM is not tested")
    sys.exit(77)
import torch
import transformers
from vllm import _custom_ops as ops

import kvpolicy
import kvpolicy.transformers
import kvpolicy.vllm
from kvpolicy.vllm.packed import Packing

layers, kv_heads, vocabulary = 3, 2, 300
near_tie = .01  # of logits that deviate by .17
chess = "chess:tokens=96,page=8,sink_pages=1,recent_pages=2"
heard = []


class Ears(logging.Handler):
    def emit(self, record):
        heard.append(record.getMessage())


ears = Ears()
kvpolicy.vllm.register()
kvpolicy.transformers.register()


def save_model(folder):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(num_hidden_layers=layers, vocab_size=vocabulary, hidden_size=128, intermediate_size=128,
                                      num_attention_heads=4, num_key_value_heads=kv_heads, max_position_embeddings=2048,
                                      initializer_range=.2, pad_token_id=0, bos_token_id=1, eos_token_id=None)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def save_opt():
    """A model whose positions are learnt. Returns its folder."""
    config = transformers.OPTConfig(num_hidden_layers=2, vocab_size=vocabulary, hidden_size=128, word_embed_proj_dim=128, ffn_dim=128,
                                    num_attention_heads=4, max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    transformers.OPTForCausalLM(config).save_pretrained(folder := os.path.join(model, "opt"))
    return folder


def prompts(*lengths, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(2, vocabulary, (length,), generator=draw).tolist() for length in lengths]


def chosen(worker):
    """In a worker: of each request, the tokens that its last step read, by layer and KV head."""
    requests = worker.model_runner.vllm_config.kvpolicy_requests
    return {name: [[request.state.tokens(layer, head) for head in range(requests.shape.kv_heads)] for layer in range(layers)]
            for name, request in requests.all.items() if request.steps > 0}


def left_alone(worker):
    return sorted(worker.model_runner.vllm_config.kvpolicy_requests.alone)


class Engine:
    """What came of requests: their tokens, and what their last steps chose before the first of them ended."""

    def __init__(self, policy=None, **more):
        settings = dict(dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=8, block_size=32,
                        kv_cache_memory_bytes=32 << 20, skip_tokenizer_init=True, enable_prefix_caching=False, disable_log_stats=True)
        if policy is not None:
            settings["additional_config"] = {"kvpolicy": policy}
        self.llm = vllm.LLM(model, **{**settings, **more})
        self.count = 0
        logger = logging.getLogger("vllm.kvpolicy")  # whose handlers an engine that starts takes away
        logger.addHandler(ears)
        logger.setLevel(logging.INFO)
        logger.propagate = False

    def run(self, ids, tokens=12, late=0):
        """late: so many of the requests come when the others have made a few steps."""
        engine, settings = self.llm.llm_engine, vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        names = [f"{self.count}-{index}" for index in range(len(ids))]
        self.count += 1
        for name, prompt in list(zip(names, ids))[:len(ids) - late]:
            engine.add_request(name, {"prompt_token_ids": prompt}, settings)
        made, choices, passes = {name: [] for name in names}, {}, 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                made[output.request_id] = list(output.outputs[0].token_ids)
            passes += 1
            if late and passes == 5:
                for name, prompt in list(zip(names, ids))[len(ids) - late:]:
                    engine.add_request(name, {"prompt_token_ids": prompt}, settings)
                late = 0
            if self.has_policy and not late and max(map(len, made.values())) < tokens:
                choices = self.call(chosen)
        # The worker's names have a suffix.
        self.choices = [{name.rsplit("-", 1)[0] if name not in made else name: lists for name, lists in rank.items()} for rank in choices]
        return [made[name] for name in names]

    @property
    def has_policy(self):
        return bool(self.llm.llm_engine.vllm_config.additional_config)

    def call(self, function):
        return self.llm.collective_rpc(function)

    def close(self):
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()


@contextlib.contextmanager
def engine(policy=None, **more):
    made = Engine(policy, **more)
    try:
        yield made
    finally:
        made.close()


def in_transformers(policy, prompt, tokens):
    """What a policy chooses behind this prompt and all but the last of these tokens; and by how much the worst of them misses the best
    logit, 0 where each is the best."""
    network = transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation="kvpolicy", dtype=torch.float32).eval()
    cache, ids, loss = kvpolicy.transformers.PolicyCache(network, policy, max_tokens=1024), torch.tensor([prompt]), 0.
    with torch.no_grad():
        for token in tokens:
            logits = network(ids, past_key_values=cache).logits[0, -1]
            loss = max(loss, float(logits.max() - logits[token]))
            ids = torch.tensor([[token]])
    state = cache.sequences[0].state
    return [[state.tokens(layer, head) for head in range(kv_heads)] for layer in range(layers)], loss


class Vllm(unittest.TestCase):
    def setUp(self):
        heard.clear()

    def same(self, ids, made, expected):
        """Tokens; where two kernels part, at a near-tie."""
        for prompt, here, there in zip(ids, made, expected, strict=True):
            apart = next((n for n, (a, b) in enumerate(zip(here, there)) if a != b), None)
            for tokens in () if apart is None else (here, there):
                self.assertLess(in_transformers("full", prompt, tokens[:apart + 1])[1], near_tie)

    def test_full_gives_the_engine_s_tokens(self):
        ids = prompts(300, 5, 190, 64, 33, 128)
        for more in ({"max_num_batched_tokens": 64}, {"dtype": "bfloat16"}, {"num_gpu_blocks_override": 20, "max_model_len": 512}):
            with self.subTest(**more):
                with engine(**more) as alone:
                    expected = alone.run(ids, late=2)
                with engine("full", **more) as with_policy:
                    self.same(ids, with_policy.run(ids, late=2), expected)
                    self.assertEqual(with_policy.call(left_alone), [[]])

    def test_what_is_chosen_is_what_is_chosen_in_transformers(self):
        ids = prompts(300, 190, 20)
        for policy in ("snapkv:tokens=40,after=0", "quest:tokens=32,page=8", "streaming_llm:tokens=40", "knorm:tokens=40", "tova:tokens=40",
                       "h2o:tokens=40", "snapkv:tokens=80,after=0+quest:tokens=32,page=8", chess):
            for more in ({}, {"max_num_batched_tokens": 64}):
                with self.subTest(policy=policy, **more), engine(policy, **more) as with_policy:
                    made = with_policy.run(ids)
                    (choices,) = with_policy.choices
                    self.assertEqual(len(choices), len(ids), choices.keys())
                    for prompt, tokens, (name, lists) in zip(ids, made, sorted(choices.items())):
                        steps = next(n for n in range(1, len(tokens)) if lists[0][0][-1] + 1 == len(prompt) + n)
                        expected, loss = in_transformers(policy, prompt, tokens[:steps + 1])
                        self.assertEqual(lists, expected, name)
                        self.assertLess(loss, near_tie)
                        if len(prompt) > 100:
                            self.assertLess(max(len(head) for layer in lists for head in layer), len(prompt) * .6)
                    if policy == chess:
                        for lists in choices.values():
                            self.assertEqual([lists[0]] * layers, lists)
                            self.assertEqual(lists[0][0], lists[0][1])
                    self.assertEqual(with_policy.call(left_alone), [[]])

    def test_what_is_read_whole_is_the_engine_s_to_the_bit_beside_what_is_not(self):
        ids = prompts(20, 300, 25, 200)
        with engine() as alone:
            expected = alone.run(ids)
        with engine("snapkv:tokens=60,after=0") as with_policy:
            made = with_policy.run(ids, late=1)
            self.assertEqual([made[0], made[2]], [expected[0], expected[2]])
            self.assertNotEqual([made[1], made[3]], [expected[1], expected[3]])

    def test_blocks_are_unpacked_as_they_were_written(self):
        draw = torch.Generator().manual_seed(1)
        for dtype, head_dim, block, isa in ((torch.bfloat16, 64, 32, "amx"), (torch.bfloat16, 64, 128, "vec"), (torch.float32, 32, 32, "vec"),
                                            (torch.float16, 128, 64, "vec"), (torch.float32, 80, 32, "vec16")):
            if isa == "amx" and not torch.cpu._is_amx_tile_supported():
                continue
            with self.subTest(dtype=dtype, head_dim=head_dim, block=block, isa=isa):
                rows = torch.randn(2, 3 * block, kv_heads, head_dim, generator=draw).to(dtype)
                cache, blocks = torch.zeros(5, kv_heads, block, 2 * head_dim, dtype=dtype), torch.tensor([3, 0, 4])
                keys, values = cache.view(5, kv_heads, 2 * block, head_dim).chunk(2, dim=2)
                slots = (blocks[:, None] * block + torch.arange(block)).flatten()
                ops.cpu_attn_reshape_and_cache(*rows, keys, values, slots, isa)
                count = 3 * block - 5
                for got, put in zip(Packing(block, head_dim, dtype, isa).rows(cache, blocks, count), rows):
                    self.assertTrue(torch.equal(got, put[:count].transpose(0, 1)))

    def test_a_cached_prefix_is_known_to_the_policy(self):
        (first,), (tail,) = prompts(256), prompts(40, seed=1)
        for policy in ("quest:tokens=32,page=8", "snapkv:tokens=40,after=0"):
            with engine(policy, enable_prefix_caching=True) as caching, engine(policy) as anew:
                caching.run([first])
                self.assertEqual(caching.run([first + tail]), anew.run([first + tail]))
                self.assertEqual(list(caching.choices[0].values()), list(anew.choices[0].values()))
                self.assertEqual(caching.call(left_alone), [[]])

    def test_a_prompt_whose_last_queries_were_not_computed_is_left_to_the_engine(self):
        (ids,) = prompts(260)
        with engine() as alone:
            expected = alone.run([ids])
        with engine("snapkv:tokens=40,after=0", enable_prefix_caching=True) as with_policy:
            with_policy.run([ids])
            for _ in range(2):
                self.assertEqual(with_policy.run([ids]), expected)
        said = [line for line in heard if "left to the engine" in line]
        self.assertEqual(len(said), 1, heard)
        self.assertRegex(said[0], "all but 4 tokens .* last 8 queries")

    def test_requests_that_are_preempted_begin_again(self):
        policy, ids = "quest:tokens=32,page=8", prompts(200, 180, 190)
        # Each has room, but together they grow out of it.
        with engine(policy, num_gpu_blocks_override=20, max_model_len=512) as tight:
            made = tight.run(ids, 60)
            self.assertEqual(tight.call(left_alone), [[]])
            tight.run(prompts(5), 1)
        again = 0
        for index, (prompt, tokens) in enumerate(zip(ids, made)):
            seen = [int(re.search(r"prompt of (\d+)", line)[1]) for line in heard if f"request 0-{index}" in line]
            self.assertEqual(len(tokens), 60)
            self.assertEqual(seen[0], len(prompt))
            again += len(seen) - 1
            # The last time, all that there was by then came as its prompt.
            whole = prompt + tokens
            _, loss = in_transformers(policy, whole[:seen[-1]], whole[seen[-1]:])
            self.assertLess(loss, near_tie)
        self.assertGreater(again, 0, heard)

    def test_a_request_that_fails_goes_on_alone(self):
        ids = prompts(300, 250)
        with engine() as alone:
            expected = alone.run(ids)
        arena, made = kvpolicy.Arena, []

        def narrow(shape, size):
            made.append(shape)
            blocks = layers * kv_heads * (-(-300 // 64)) if len(made) == 1 else 1000
            return arena(shape, blocks * 64 * 2 * shape.head_dim * 4)

        with unittest.mock.patch("kvpolicy.vllm.requests.Arena", narrow), engine("quest:tokens=32,page=8") as with_policy:
            tokens = with_policy.run(ids, 40)
            self.assertEqual(len(with_policy.call(left_alone)[0]), 1)
        self.assertEqual(len([line for line in heard if "memory is exhausted" in line]), 1, heard)
        with engine("quest:tokens=32,page=8") as with_policy:
            self.assertEqual(tokens[1], with_policy.run(ids, 40)[1])
        self.assertEqual(len(expected[0]), 12)

    def test_requests_are_told_of_when_they_end(self):
        with engine("snapkv:tokens=40,after=0") as with_policy:
            with_policy.run(prompts(300), 9)
            with_policy.run(prompts(10), 2)
        lines = [line for line in heard if "request 0-0" in line]
        self.assertEqual(len(lines), 1, heard)
        self.assertRegex(lines[0], r"prompt of 300 tokens, 8 steps; a step read 4\d of 304 tokens \(1\d\.\d%\); rows of 0\.\d MB")

    def test_two_ranks_choose_for_their_heads_and_for_requests_together(self):
        ids = prompts(300, 190)
        for policy in (None, "full", "snapkv:tokens=40,after=0", chess):
            with self.subTest(policy=policy):
                with engine(policy) as one, engine(policy, tensor_parallel_size=2, distributed_executor_backend="mp") as two:
                    made = two.run(ids), one.run(ids)
                    if policy == "full":
                        self.same(ids, made[0], expected)
                    if policy in (None, "full"):
                        expected = made[0]
                        continue
                    ranks, (whole,) = two.choices, one.choices
                    self.assertEqual(len(ranks), 2)
                    for name, lists in whole.items():
                        self.assertEqual([[rank[name][layer][0] for rank in ranks] for layer in range(layers)], lists, name)
                    if policy == chess:
                        self.assertEqual(ranks[0], ranks[1])
                        self.assertLess(len(ranks[0]["0-0"][0][0]), 150)
                    else:
                        self.assertNotEqual(ranks[0], ranks[1])

    def test_what_is_not_served_is_refused_at_the_start(self):
        speculation = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
        for why, policy, more in (("did you mean 'snapkv'", "snapk", {}), ("tokens is '-1'", "snapkv:tokens=-1", {}),
                                  ("speculative decoding is not served", "full", {"speculative_config": speculation}),
                                  ("a cache in fp8", "full", {"kv_cache_dtype": "fp8", "dtype": "bfloat16"}),
                                  ("no rotary embedding", "chess", {"model": save_opt()}),
                                  ("has the prompt repeated is not served", "kvzip", {})):
            # vLLM is not itself after an engine that failed, so each has a process.
            code = (f"import kvpolicy.vllm, vllm; kvpolicy.vllm.register(); vllm.LLM(enforce_eager=True, max_model_len=512, "
                    f"skip_tokenizer_init=True, kv_cache_memory_bytes={32 << 20}, additional_config={ {'kvpolicy': policy} }, **{ {'model': model} | more })")
            with self.subTest(why):
                told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
                self.assertEqual(told.returncode, 1, told.stderr)
                self.assertIn(why, told.stderr)

    def test_another_vllm_is_left_alone_unless_it_is_asked(self):
        for patch, why in ((unittest.mock.patch.object(vllm, "__version__", "0.33.1"), r"vLLM 0\.33\.1 is not one of 0\.32\.x"),
                           (unittest.mock.patch("vllm.platforms.current_platform.is_cpu", lambda: False), "on CPUs alone")):
            with patch:
                kvpolicy.vllm.register()
                with unittest.mock.patch.dict(os.environ, KVPOLICY="full"), self.assertRaisesRegex(kvpolicy.UnsupportedError, why):
                    kvpolicy.vllm.register()

    def test_the_engine_finds_the_entry_point(self):
        with tempfile.TemporaryDirectory() as folder:
            if not importlib.metadata.entry_points(group="vllm.general_plugins", name="kvpolicy"):
                installed = pathlib.Path(folder, "kvpolicy-0.dist-info")  # the source tree's is no distribution
                installed.mkdir()
                (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: kvpolicy\nVersion: 0\n")
                (installed / "entry_points.txt").write_text("[vllm.general_plugins]\nkvpolicy = kvpolicy.vllm:register\n")
            code = ("from vllm.plugins import load_general_plugins; load_general_plugins(); "
                    "from vllm.v1.attention.backends.registry import AttentionBackendEnum; print(AttentionBackendEnum.CPU_ATTN.get_path())")
            path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
            for policy, status in (("", 0), ("snapkv:tokens=64,after=0", 0), ("snapk", 1)):
                told = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path, "KVPOLICY": policy},
                                      capture_output=True, text=True)
                self.assertEqual(told.returncode, status, told.stderr)
                self.assertIn("kvpolicy.vllm.backend.PolicyBackend" if status == 0 else "did you mean 'snapkv'", told.stdout + told.stderr)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as model:
        save_model(model)
        sys.exit(not unittest.main(exit=False).result.wasSuccessful())
