#!/usr/bin/env bash
# Policies on models of yours against dense decoding in llama.cpp. Prints one Markdown table; writes build/models/MODEL.json. What
# kvpolicy-run refuses is a row with its reason; the exit status is 1 then.
#
#   bench/models.sh [--model FILE.gguf]... [--tokens N] [--generate N]
#
#     --model      default: SmolLM2-135M-Instruct, as cmake/bootstrap.sh installs it
#     --tokens     length of the prompt, about (default 2000)
#     --generate   tokens that follow (default 64)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

complain() { echo "models.sh: $*" >&2; exit 2; }

tokens=2000 generate=64 models=()
while [ $# -gt 0 ]; do
  case "$1" in
    --tokens|--generate)
      [[ ${2:-} =~ ^[1-9][0-9]{0,6}$ ]] || complain "$1 needs a number from 1, not '${2:-}'"
      declare "${1#--}=$2" ;;
    --model)
      [ -f "${2:-}" ] || complain "--model: there is no file '${2:-}'"
      models+=("$2") ;;
    *) complain "unknown option '$1'; there are --model, --tokens and --generate" ;;
  esac
  shift 2
done
[ "$tokens" -ge 300 ] || complain "--tokens must be at least 300"

cmake/bootstrap.sh packages engine
[ ${#models[@]} -gt 0 ] || models=(build/engine/model.gguf)
mkdir -p build/models
cmake --preset release >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
cmake --build --preset release --target kvpolicy-run >build/build.log 2>&1 || { cat build/build.log >&2; exit 1; }

prompt=build/models/prompt-$tokens.txt
python3 examples/haystack.py --words $(((tokens - 150) * 7 / 8)) >"$prompt"  # about 8 tokens for 7 words, and 150 around them

python3 - build/release/tools/kvpolicy-run "$prompt" "$generate" "${models[@]}" <<'PY'
import json, pathlib, subprocess, sys

program, prompt, generate, *models = sys.argv[1:]
POLICIES = {"full": "full", "snapkv 512": "snapkv:tokens=512", "quest 512": "quest:tokens=512", "chess 512": "chess:tokens=512"}
refusals = 0


def compare(model, policies, into):
    """What kvpolicy-run measured, or why it did not."""
    command = [program, "--compare", "--model", model, "--prompt-file", prompt, "--predict", generate, "--json", str(into)]
    for policy in policies:
        command += ["--policy", POLICIES[policy]]
    run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if run.returncode == 0:
        return json.loads(into.read_text()), None
    said = [line for line in run.stderr.splitlines() if line.startswith("kvpolicy-run: ")]
    return None, said[-1].removeprefix("kvpolicy-run: ") if said else f"exit status {run.returncode}"


def row(*cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def measured(name, policies, told):
    for policy, m in zip(policies, told["policies"]):
        row(name, policy, f"{m['request_speedup']:.2f}x", f"{m['ms_per_token']:.2f}", f"{m['top1_agreement']:.1%}", f"{m['kl']:.4f}")


def refused(name, policies, reason):
    global refusals
    refusals += 1
    row(name, policies, "refused: " + reason.replace("|", "/"), "", "", "")


def report(name, model):
    policies, into = list(POLICIES), pathlib.Path("build/models", name.replace(" ", "-").lower() + ".json")
    told, reason = compare(model, policies, into)
    if told:
        dense = told["baseline"]
        way = told["dense"]["flash_on" if dense["request_name"] == "flash attention on" else "flash_off"]
        row(name, f"dense, {dense['request_name']}", "1.00x", f"{way['ms_per_token']:.2f}", "", "")
        measured(name, policies, told)
        return
    for i, policy in enumerate(policies):  # one may be refused, not all
        told, why = compare(model, [policy], into)
        if told:
            measured(name, [policy], told)
        elif i == 0 and why == reason:
            refused(name, "every policy", reason)
            return
        else:
            refused(name, policy, why)


row("model", "policy", "request, speed-up over best dense", "ms/token", "top-1", "KL")
print("|---|---|--:|--:|--:|--:|")
for model in models:
    name = "SmolLM2-135M" if model == "build/engine/model.gguf" else pathlib.Path(model).stem
    print(f"models.sh: {name}", file=sys.stderr, flush=True)
    report(name, model)
sys.exit(1 if refusals else 0)
PY
