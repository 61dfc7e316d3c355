"""on_device.py KVPOLICY_EXEC LIBRARY ENGINE_BIN MODEL STANDIN CHATS: a llama-server whose layers are on a device, the tests' own, with a
policy before it, answers as one without and as one on the host; in one slot and in several at once."""
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from server import library_lines, needle, programs, server
from harness import expect, finish, scratch

of, standin = programs(sys.argv[1:5]), sys.argv[5]
sure = 0.7  # a token that wins by so much wins with other kernels, too
policy = "quest:tokens=96,page=8,after=4"
questions = [needle(4826 + 311 * chat, 24 + chat % 9, (.2, .4, .6, .8)[chat % 4]) for chat in range(int(sys.argv[6]))]


def answers(work, how, *more):
    with server(work, of, how, "-c", "1024", "-np", "1", *more) as s:
        return [s.chat(text, 12, logprobs=True, top_logprobs=2) for text in questions], library_lines(s.said())


def before_device(by):
    return ["env", f"LD_PRELOAD={standin}", f"KVPOLICY={by}"]


def on_device(work, by):
    return answers(work, before_device(by), "-ngl", "99")


def at_once(work, by):
    """Answers in the slots that llama-server makes by itself, which share a cache; as many users as slots."""
    with server(work, of, before_device(by), "-c", "4096", "-ngl", "99") as s, ThreadPoolExecutor(4) as users:
        asked = [users.submit(s.chat, text, 12, logprobs=True, top_logprobs=2) for text in questions]
        return [each.result() for each in asked], library_lines(s.said())


def compare(what, wanted, got):
    compared = [(one, other) for one, other in zip(wanted, got) if one.margin > sure]
    near = [round(one.margin, 2) for one in wanted if one.margin <= sure]
    print(f"{what}: {len(compared)} of {len(wanted)} compared; the others were near-ties of {near}")
    expect(len(compared) > len(wanted) // 2, f"{what}: too many near-ties")
    for one, other in compared:
        expect(one.text == other.text, f"{what}: {one.text!r} and {other.text!r}")


with scratch() as work:
    plain, said = on_device(work, "")
    expect(not said, f"without a policy: {said}")
    full, said = on_device(work, "full")
    expect(any("full on CUDA0: 30 layers" in line for line in said), f"with full: {said}")
    compare("full, and no policy", plain, full)
    there, said = on_device(work, policy)
    expect(any(f"{policy} on CUDA0" in line for line in said) and not any("refused" in line for line in said), f"with {policy}: {said}")
    here, _ = answers(work, of.exec(policy))
    compare(f"{policy} on the device, and on the host", here, there)
    together, said = at_once(work, policy)
    expect(not any("refused" in line or "reads everything" in line for line in said), f"in slots: {said}")
    compare(f"{policy} in one slot, and in four at once", there, together)
    little, _ = on_device(work, "streaming_llm:tokens=48")  # answers do depend on what is read
    expect(sum(one.text != other.text for one, other in zip(plain, little)) > len(plain) // 2, "48 tokens are enough")
    refused = subprocess.run([of.kvpolicy_exec, "full", "--gpu", "--", of("llama-server"), "-m", of.model], capture_output=True, text=True, timeout=60)
    expect(refused.returncode == 2 and "no CUDA device" in refused.stderr, f"no GPU: {refused.returncode}, {refused.stderr[-300:]!r}")
    refused = subprocess.run([of.kvpolicy_exec, "full", "--gpu", "--compact", "--", "true"], capture_output=True, text=True)
    expect(refused.returncode == 2 and "--compact" in refused.stderr, f"--gpu and --compact: {refused.returncode}, {refused.stderr!r}")
finish()
