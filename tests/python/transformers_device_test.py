"""Hugging Face transformers with a PolicyCache on a device: tokens and logits are those of a PolicyCache on a CPU. The device is a GPU, or,
where the library's is an interpreter of PTX, the interpreter's managed memory stands for CUDA tensors. 77 where torch or transformers is
missing."""
import contextlib
import copy
import ctypes as c
import sys
import unittest
import unittest.mock

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"no {missing.name} in {sys.executable}: a cache on a device is not tested")
    sys.exit(77)

import kvpolicy
import kvpolicy.transformers
from kvpolicy import _abi
from kvpolicy.transformers import device
from kvpolicy.transformers.captured_steps import CapturedSteps
from on_device import Exported

kvpolicy.transformers.register()
torch.set_grad_enabled(False)
PolicyCache = kvpolicy.transformers.PolicyCache
runtime = _abi._library
sizes = dict(vocab_size=300, hidden_size=128, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
             max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=None)
codes = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.int32: (0, 32)}


class Counted(device.Memory):
    """A GPU's, that counts graphs."""

    captures = replays = 0

    def graph(self, like, work):
        Counted.captures += 1
        replay = self.captured(like, work)

        def counted():
            Counted.replays += 1
            return replay()

        return counted

    def captured(self, like, work):
        return super().graph(like, work)

    def put(self, model, there):
        return model.to("cuda" if there else "cpu")


class Interpreted(Counted):
    """PyTorch's CPU kernels reach what the interpreter's kernels do; all tensors are a device's while `on`."""

    on = False

    def put(self, model, there):
        self.on = there
        return model

    def has(self, tensor):
        return self.on

    def current(self, number):
        return contextlib.nullcontext()

    def empty(self, shape, like, dtype=None):
        dtype = dtype or like.dtype
        count, at = torch.Size(shape).numel(), c.c_void_p()
        size = count * torch.empty(0, dtype=dtype).element_size()
        assert runtime.cudaMallocManaged(c.byref(at), c.c_size_t(size), 1) == 0
        return torch.frombuffer((c.c_uint8 * size).from_address(at.value), dtype=dtype, count=count).view(shape)

    def integers(self, address, count, like):
        self.settle()
        numbers = (c.c_int32 * count)()
        assert runtime.cudaMemcpy(numbers, c.c_void_p(address), c.c_size_t(4 * count), 2) == 0
        return list(numbers)

    def exported(self, tensor):
        return Exported(tensor.data_ptr(), codes[tensor.dtype], tensor.shape, tensor.stride())

    def stream(self, like):
        return 0, 0

    def waits(self):
        return contextlib.nullcontext([])

    def captured(self, like, work):
        """PyTorch's CPU kernels can't be captured: a replay is the same forward over the same inputs."""
        return work

    def settle(self):
        assert runtime.cudaStreamSynchronize(c.c_void_p(0)) == 0


device.memory.__class__ = Interpreted if hasattr(runtime, "cudaMallocManaged") else Counted


def llama(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).to(dtype).eval()


def prompts(batch, tokens, seed=0):
    return torch.randint(2, 300, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def cache_for(model, policy, there, **more):
    device.memory.put(model, there)
    return PolicyCache(model, policy, max_tokens=192, **more)


def generate(model, cache, ids, mask=None, tokens=6):
    model.set_attn_implementation("kvpolicy")
    mask = torch.ones_like(ids) if mask is None else mask
    with kvpolicy.transformers.captured(model):  # which leaves a cache on a CPU alone
        made = model.generate(ids.to(model.device), attention_mask=mask.to(model.device), past_key_values=cache, max_new_tokens=tokens,
                              do_sample=False, output_logits=True, return_dict_in_generate=True)
    return made.sequences.cpu(), torch.stack(made.logits).cpu()


as_it_is = unittest.mock.patch.object(CapturedSteps, "_is_watched", lambda _: True)  # steps are not captured


class AsOnACpu(unittest.TestCase):
    def check(self, model, policy, ids, mask=None, tokens=6, within=1e-4):
        here = generate(model, cache_for(model, policy, False), ids, mask, tokens)
        cache = cache_for(model, policy, True)
        there = generate(model, cache, ids, mask, tokens)
        self.assertIsNotNone(cache.device)
        self.same(here, there, within)

    def same(self, here, there, within):
        """Logits, up to the first token that differs; that one is a near-tie."""
        for row, (one, other) in enumerate(zip(here[0], there[0])):
            count = len(here[1])
            apart = (one[-count:] != other[-count:]).nonzero()[:1, 0].tolist() or [count - 1]
            self.assertLess((here[1][:, row] - there[1][:, row])[:apart[0] + 1].abs().max().item(), within)

    def test_policies(self):
        for policy in ("full", "streaming_llm:tokens=48", "snapkv:tokens=40,after=0", "snapkv:tokens=40,after=3", "knorm:tokens=40",
                       "quest:tokens=48,page=8", "quest:tokens=48,page=8,after=2", "h2o:tokens=48", "tova:tokens=40",
                       "chess:tokens=64,page=8,sink_pages=1,recent_pages=2,after=0", "expected_attention:ratio=0.5,future=16",
                       "infllm:tokens=48,block=8,local=4,sink_blocks=1,recent_blocks=2", "pyramidkv:tokens=48,window=4,after=0",
                       "adakv:tokens=40,after=0", "chunkkv:tokens=48,chunk=6,after=0", "keydiff:tokens=30,sinks=2,recent=3",
                       "lagkv:ratio=0.5,lag=8", "omnikv:tokens=40,dense_first=0,reuse=2", "rkv:tokens=60,keep_prompt=0,every=3",
                       "twilight:tokens=40,page=8,mass=0.6", "rocketkv:tokens=24,kept=60,channels=3,after=0",
                       "snapkv:tokens=60,window=8,after=0+quest:tokens=24,page=4"):
            with self.subTest(policy):
                self.check(llama(), policy, prompts(1, 100))

    def test_rows_that_a_policy_drops_are_freed(self):
        ids = prompts(3, 90)
        mask = torch.ones_like(ids)
        mask[1, :40], mask[2, :7] = 0, 0
        for policy in ("snapkv:tokens=40,after=0", "snapkv:tokens=40,after=3", "knorm:tokens=40", "keydiff:tokens=30,sinks=2,recent=3",
                       "lagkv:ratio=0.5,lag=8", "chunkkv:tokens=48,chunk=6,after=0", "expected_attention:ratio=0.5,future=16"):
            with self.subTest(policy):
                model = llama(1)
                here = generate(model, cache_for(model, policy, False), ids, mask, 12)
                cache = cache_for(model, policy, True, compact=True)
                self.same(here, generate(model, cache, ids, mask, 12), 1e-4)
                self.assertLess(cache.bytes, 2 * 2 * 2 * 3 * 192 * 32 * 4)  # layers, keys and values, rows, heads, channels, bytes
                self.assertEqual(cache.get_seq_length(), 101)

    def test_rows_are_looked_at_once_where_none_can_be_freed(self):
        with unittest.mock.patch.object(type(device.memory), "integers", autospec=True, side_effect=type(device.memory).integers) as looks:
            cache = cache_for(llama(), "snapkv:tokens=100,after=2", True, compact=True)
            generate(llama(), cache, prompts(1, 60), tokens=8)
        self.assertLessEqual(looks.call_count, 4 * sizes["num_hidden_layers"])
        self.assertEqual(cache.bytes, 2 * 2 * 2 * 192 * 32 * 4)

    def test_what_freed_rows_can_and_can_not(self):
        torch.manual_seed(6)
        model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(attn_logit_softcapping=.2, **sizes, head_dim=32)).eval()
        ids = prompts(1, 60)
        made = []
        for there in (False, True):
            cache = cache_for(model, "snapkv:tokens=30,after=0", there, **(dict(compact=True) if there else {}))
            text = generate(model, cache, ids)[0]
            cache.crop(63)
            made.append(generate(model, cache, text[:, :64]))
        self.same(*made, 1e-4)
        self.assertEqual(cache.bytes, 2 * 2 * 2 * (30 + 192 - 60) * 32 * 4)  # of the prompt's 60 tokens 30 stay
        with self.assertRaisesRegex(kvpolicy.UnsupportedError, "first 60 were freed"):
            cache.crop(59)
        cache.reset()
        with self.assertRaisesRegex(kvpolicy.UnsupportedError, "quest:tokens=32 can't be compacted: there are snapkv"):
            PolicyCache(model, "quest:tokens=32", max_tokens=192, compact=True)
        with self.assertRaisesRegex(kvpolicy.UnsupportedError, "can't be compacted"):
            PolicyCache(model, "snapkv:tokens=64+quest:tokens=32", max_tokens=192, compact=True)

    def test_a_prompt_behind_freed_rows_reads_what_is_left(self):
        """As its tokens do one by one."""
        model, further, made = llama(2), prompts(2, 9, seed=3), []
        for pieces in ([further], further.split(1, 1)):
            cache = cache_for(model, "snapkv:tokens=30,after=0", True, compact=True)
            text = generate(model, cache, prompts(2, 60))[0]
            self.assertTrue(any(cache.device.gone))
            for ids in (text[:, -1:], *pieces):
                logits = model(ids.to(model.device), past_key_values=cache).logits[:, -1].cpu()
            made.append(logits)
        self.assertLess((made[0] - made[1]).abs().max().item(), 1e-4)

    def test_a_batch_of_rows_that_are_padded(self):
        ids = prompts(3, 90)
        mask = torch.ones_like(ids)
        mask[1, :40], mask[2, :7] = 0, 0
        for policy in ("full", "snapkv:tokens=40,after=0", "quest:tokens=40,page=8"):
            with self.subTest(policy):
                self.check(llama(1), policy, ids, mask)

    def test_what_a_model_adds(self):
        more = {**sizes, "num_hidden_layers": 4, "head_dim": 32, "sliding_window": 40}
        torch.manual_seed(5)
        models = (transformers.GptOssForCausalLM(transformers.GptOssConfig(num_local_experts=2, num_experts_per_tok=1, **more)),
                  transformers.Gemma2ForCausalLM(transformers.Gemma2Config(attn_logit_softcapping=.5, **more)))
        for model in models:
            for policy in ("full", "quest:tokens=40,page=8", "snapkv:tokens=40,after=0"):
                with self.subTest(f"{type(model).__name__}, {policy}"):
                    self.check(model.eval(), policy, prompts(2, 90))

    def test_copies_of_an_empty_cache_and_forwards_without_gradients(self):
        torch.manual_seed(6)
        model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(attn_logit_softcapping=.2, **sizes, head_dim=32)).eval()
        ids, first = prompts(1, 60), cache_for(model, "full", True)
        second = copy.deepcopy(first)
        made = [generate(model, cache, ids) for cache in (first, second)]
        self.same(*made, 1e-6)
        begun = cache_for(model, "full", True)
        with torch.inference_mode():
            model(ids.to(model.device), past_key_values=begun)
        generate(model, begun, torch.cat([ids, prompts(1, 3)], 1))

    def test_half_precision(self):
        for dtype in (torch.float16, torch.bfloat16):
            self.check(llama(2, dtype), "quest:tokens=48,page=8", prompts(2, 80), within=.03)

    def test_a_chat_that_goes_on(self):
        for policy in ("full", "quest:tokens=64,page=8"):
            with self.subTest(policy):
                model, ids = llama(3), prompts(2, 60)
                caches = [cache_for(model, policy, there) for there in (False, True)]
                for turn in range(2):
                    made = []
                    for there, cache in zip((False, True), caches):
                        device.memory.put(model, there)
                        made.append(generate(model, cache, ids, tokens=4))
                    self.same(*made, .01)
                    ids = torch.cat([made[0][0], prompts(2, 20, seed=turn)], 1)

    def test_a_cache_that_was_cropped_or_begun_anew(self):
        model, ids = llama(4), prompts(2, 80)
        for policy in ("full", "snapkv:tokens=40,after=0"):
            with self.subTest(policy):
                made = []
                for there in (False, True):
                    cache = cache_for(model, policy, there)
                    text = generate(model, cache, ids)[0]
                    cache.crop(82)
                    made.append(generate(model, cache, text[:, :83]))
                self.same(*made, 1e-4)
        cache.reset()
        self.assertEqual(cache.get_seq_length(), 0)
        self.assertEqual(generate(model, cache, ids[:, :50])[0].shape, (2, 56))
        cache = cache_for(model, "quest:tokens=48,page=8", True)
        generate(model, cache, ids)
        with self.assertRaisesRegex(kvpolicy.UnsupportedError, "learns from steps"):
            cache.crop(82)
        self.assertEqual(cache.get_seq_length(), 85)

    def test_steps_are_replayed(self):
        def counted(policy, ids, mask=None, change=None):
            Counted.captures = Counted.replays = 0
            model = llama()
            if change is not None:
                change(model)
            generate(model, cache_for(model, policy, True), ids, mask, 12)
            self.assertNotIn("forward", model.__dict__)
            return Counted.captures, Counted.replays

        self.assertEqual(counted("full", prompts(1, 50)), (1, 10))  # the prompt gives the first token, a step as it is the second
        padded = torch.ones(2, 50, dtype=torch.long)
        padded[1, :9] = 0
        self.assertEqual(counted("quest:tokens=32,page=8,after=2", prompts(2, 50), padded), (1, 10))
        hooked = lambda model: model.model.layers[1].register_forward_hook(lambda *_: None)
        self.assertEqual(counted("full", prompts(1, 50), change=hooked), (0, 0))
        waiting = unittest.mock.patch.object(device.Memory if type(device.memory) is Counted else Interpreted, "waits",
                                             lambda _: contextlib.nullcontext(["a wait"]))
        with waiting:
            self.assertEqual(counted("full", prompts(1, 50)), (0, 0))

    def test_a_step_that_can_not_be_captured(self):
        def refused(*_):
            raise RuntimeError("the stream waits")

        model, ids = llama(), prompts(1, 60)
        plain = generate(model, cache_for(model, "full", True), ids)
        with unittest.mock.patch.object(Counted, "graph", refused), self.assertWarnsRegex(UserWarning, "LlamaForCausalLM.*stream waits"):
            self.same(plain, generate(model, cache_for(model, "full", True), ids), 1e-6)

    def steps(self, model, cache, ids, **asked):
        """One-token forwards behind what the cache has, and their logits."""
        made = []
        for token in ids:
            place = torch.tensor([[cache.get_seq_length()]], device=model.device)
            made.append(model(token.reshape(1, 1), past_key_values=cache, position_ids=place, **asked).logits[:, -1].cpu())
        return torch.stack(made)

    def begun(self, policy="full", seed=0):
        model = llama(seed)
        model.set_attn_implementation("kvpolicy")
        cache = cache_for(model, policy, True)
        ids = prompts(1, 60).to(model.device)
        model(ids, past_key_values=cache)
        return model, cache, ids

    def test_a_graph_of_each_way_to_ask(self):
        model, cache, ids = self.begun()
        Counted.captures = Counted.replays = 0
        with kvpolicy.transformers.captured(model):
            for keep in (1, 1, 0, 1, 0, 0):
                self.assertEqual(tuple(self.steps(model, cache, ids[0, :1], logits_to_keep=keep).shape), (1, 1, 300))
            self.assertEqual((Counted.captures, Counted.replays), (2, 4))
            model(ids[:, :1], past_key_values=cache)  # positions are the model's own: as it is
            with as_it_is:
                self.steps(model, cache, ids[0, :1])
            self.assertEqual(Counted.replays, 4)
            with self.assertRaisesRegex(kvpolicy.UnsupportedError, "hides tokens"):
                model(ids[:, :1], past_key_values=cache, attention_mask=1 - torch.eye(1, 69, device=model.device),
                      position_ids=torch.tensor([[68]], device=model.device))

    def test_a_cache_that_is_reset_has_graphs_of_its_own(self):
        model, cache, ids = self.begun()
        wanted = None
        with kvpolicy.transformers.captured(model):
            for turn in range(2):
                if turn > 0:
                    cache.reset()
                    model(ids, past_key_values=cache)
                captures = Counted.captures
                made = self.steps(model, cache, ids[0, :4])
                self.assertEqual(Counted.captures, captures + 1)
                wanted = made if wanted is None else wanted
                self.assertLess((made - wanted).abs().max().item(), 1e-5)

    def test_a_model_that_is_copied_or_another_than_the_caches(self):
        model, cache, ids = self.begun()
        other, _, _ = self.begun(seed=7)
        with kvpolicy.transformers.captured(model), kvpolicy.transformers.captured(other):
            self.steps(model, cache, ids[0, :3])
            replays = Counted.replays
            self.steps(other, cache, ids[0, :1])
            self.assertEqual(Counted.replays, replays)
        twin = copy.deepcopy(model)
        twin.lm_head.weight.zero_()
        self.assertEqual(twin(ids).logits.abs().max().item(), 0)

    def test_a_step_that_failed_is_not_repeated_unseen(self):
        model, cache, ids = self.begun()
        with kvpolicy.transformers.captured(model):
            self.steps(model, cache, ids[0, :3])
            with unittest.mock.patch.object(cache.device, "step", side_effect=MemoryError), self.assertRaises(MemoryError):
                with as_it_is:
                    self.steps(model, cache, ids[0, :1])
            with self.assertRaisesRegex(kvpolicy.UnsupportedError, "ended in the middle"):
                self.steps(model, cache, ids[0, :1])
            cache.crop(63)
            self.steps(model, cache, ids[0, :3])

    def test_steps_read_what_the_policy_chose(self):
        model, ids = llama(), prompts(1, 100)
        full, little = (generate(model, cache_for(model, policy, True), ids)[1] for policy in ("full", "streaming_llm:tokens=16,sinks=4"))
        self.assertLess((full[0] - little[0]).abs().max().item(), 1e-6)  # of the prompt
        self.assertGreater((full[1] - little[1]).abs().max().item(), 1e-3)

    def test_what_is_refused(self):
        model, ids = llama(), prompts(2, 30)
        device.memory.put(model, True)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "max_tokens="):
            generate(model, PolicyCache(model, "full"), ids)
        cache = cache_for(model, "full", True)
        generate(model, cache, ids)
        self.assertEqual(cache.bytes, 2 * 2 * 2 * 2 * 192 * 32 * 4)  # layers, keys and values, rows, heads, channels, bytes
        for call in (lambda: cache.reorder_cache(torch.tensor([1, 0])), lambda: cache.batch_repeat_interleave(2)):
            with self.assertRaisesRegex(kvpolicy.UnsupportedError, "on a device"):
                call()
        with self.assertRaisesRegex(kvpolicy.InvalidError, "this cache was made for 192"):
            generate(model, cache_for(model, "full", True), prompts(1, 190), tokens=5)
        with self.assertRaisesRegex(kvpolicy.UnsupportedError, "repeated"):
            cache_for(model, "kvzip", True)
        cache = cache_for(model, "infllm:tokens=48,block=8,local=4,sink_blocks=1,recent_blocks=2", True)
        text = generate(model, cache, prompts(1, 60))[0]
        with self.assertRaisesRegex(kvpolicy.UnsupportedError, "no further prompt"):
            generate(model, cache, torch.cat([text, prompts(1, 20)], 1))
        self.assertEqual(cache.get_seq_length(), 65)
        model.set_attn_implementation("kvpolicy")  # a forward that was refused leaves other caches alone
        model(prompts(1, 5).to(model.device), past_key_values=transformers.DynamicCache(config=model.config))


if __name__ == "__main__":
    unittest.main()
