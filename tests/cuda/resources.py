#!/usr/bin/env python3
"""Reads what nvcc says of the library's kernels: no spills, no local memory, static shared memory that fits, and rows that are read
16 bytes at a time; with a disassembler, how many instructions a warp issues for 512 bytes of rows; and, with the tests' program, what
HeteroCache's step between looks costs beside attention over everything. Prints a table of all kernels with --table.

    resources.py NVCC SOURCE_DIR [--nvdisasm PROGRAM [--grids PROGRAM]] [--table]
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

GROUPS = ("step", "attention", "prompt")
# Instructions for 512 bytes: what a kernel may not go above. docs/kernels.md says of each what it is aimed at.
LIMITS = {
    "gather_rows<bf16>": 143, "gather_rows<f16>": 143, "gather_rows<f32>": 72, "pool_bounds<bf16>": 135, "pool_bounds<f16>": 135,
    "pool_bounds<f32>": 73, "pool_mean<bf16>": 81, "pool_mean<f16>": 81, "pool_mean<f32>": 45, "pool_mean_deviation<bf16>": 200,
    "pool_mean_deviation<f16>": 200, "pool_mean_deviation<f32>": 107, "pool_pre_rope<bf16>": 334, "pool_pre_rope<f16>": 334,
    "pool_pre_rope<f32>": 168, "score_dot": 36,
}
for body, limits in {"attend_tensor": (90, 65, 60, 55), "list_logits_tensor": (92, 80, 60, 40),
                     "list_statistics_tensor": (118, 95, 66, 47), "score_bounds_tensor": (75, 57, 45, 30),
                     "unit_logits_tensor": (104, 85, 60, 44)}.items():
    LIMITS |= {f"{body}<{kind},{chunks}>": limit for kind in ("bf16", "f16") for chunks, limit in zip((2, 3, 4, 8), limits)}
IDLE = .05  # of a dense step's instructions, at most, HeteroCache's step between looks at 128K
REGISTERS, SHARED, THREADS, BLOCKS = 65536, 233472, 2048, 32  # of an sm_90 multiprocessor


def compile_group(nvcc, root, group, folder):
    common = [nvcc, "-std=c++20", "-arch=sm_90", "--expt-relaxed-constexpr", f"-I{root}/cuda/include", f"-I{root}/include"]
    source = f"{root}/cuda/src/{group}_kernels.cu"
    cubin = subprocess.run([*common, "-cubin", "-Xptxas=-v", source, "-o", f"{folder}/{group}.cubin"], capture_output=True, text=True)
    if cubin.returncode != 0:
        sys.exit(f"resources.py: {source} does not compile:\n{cubin.stderr}")
    subprocess.run([*common, "-ptx", source, "-o", f"{folder}/{group}.ptx"], check=True)
    with open(f"{folder}/{group}.ptx") as file:
        return cubin.stderr, file.read()


def instructions(nvdisasm, cubin):
    """Of each kernel that reads rows 16 bytes a thread: instructions for each such load of a warp, 512 bytes, in its tightest loop with
    most of them, or in all of it where no loop has any. And of every kernel, instructions before the first place where it may end: what
    a warp with nothing to do issues at most."""
    listing = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    found, idle = {}, {}
    for part in re.split(r"(?=^\.text\.\w+:$)", listing, flags=re.M)[1:]:
        name = re.match(r"\.text\.(\w+):", part).group(1)
        code, labels = [], {}
        for line in part.split("\n"):
            label = re.match(r"(\.L_x_\d+):", line)
            if label:
                labels[label.group(1)] = len(code)
            operation = re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line)
            if operation:
                code.append(operation.group(1))
        idle[name] = next(i for i, operation in enumerate(code) if "EXIT" in operation) + 1
        spans = [(0, len(code))]
        for at, operation in enumerate(code):
            jump = re.search(r"\bBRA\b.*?`\((\.L_x_\d+)\)", operation)
            if jump and labels.get(jump.group(1), at + 1) <= at:
                spans.append((labels[jump.group(1)], at + 1))
        loads = {span: sum("LDG" in o and ".128" in o for o in code[span[0]:span[1]]) for span in spans}
        loops = [span for span in spans[1:] if loads[span]]
        most = max((loads[span] for span in loops), default=0)
        tight = [span for span in loops if loads[span] == most] or [span for span in spans[:1] if loads[span]]
        if tight:
            found[name] = min(round((last - first) / loads[first, last]) for first, last in tight)
    return found, idle


def idle_share(program, kernels, idle, per_row):
    """Warp instructions of one layer's idle step at 128K, without its attention over what it lists, beside those of attention over
    everything. Of a kernel for several types the dearest counts."""
    mine = {}  # by the name that a launch is told by: blocks on a multiprocessor, instructions of an idle warp
    for name, blocks in kernels.items():
        if "f32" in name or re.search(r"<f16", name):
            continue
        base = re.sub(r"<.*", "", name)
        before = mine.get(base, (blocks, 0))
        mine[base] = (min(before[0], blocks), max(before[1], idle[name]))
    occupancy = ",".join(f"{name}={blocks}" for name, (blocks, _) in mine.items())
    said = subprocess.run([program, "[.grids]"], capture_output=True, text=True, env=os.environ | {"KVPOLICY_OCCUPANCY": occupancy}).stdout
    grids = re.findall(r"^grid (\d+) (\d+) (.*)$", said, flags=re.M)
    if not grids:
        sys.exit(f"resources.py: {program} says nothing of grids")
    issued = sum(int(blocks) * int(warps) * mine[name][1] for blocks, warps, name in grids if not name.startswith("attend"))
    return issued / (131072 * 8 * per_row)


def demangled(names):
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.split("\n")
    return dict(zip(names, out))


def short(name):
    body = re.search(r"kernel_of<(.*?)>\(", name).group(1)
    body = body.replace("kvpolicy::gpu::detail::", "").replace("kvpolicy::gpu::", "").replace("kvpolicy::", "")
    for number, type_name in enumerate(("f32", "f16", "bf16")):
        body = body.replace(f"(element_type){number}", type_name)
    return re.sub(r"\s+", "", body).replace("_body", "")


def kernels(report, ptx):
    """One entry a kernel: registers, shared memory, spills, stack; whether its PTX has 128-bit loads and stores of global memory."""
    found = {}
    pattern = re.compile(r"Compiling entry function '(\w+)' for 'sm_90'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                         r"(\d+) bytes spill loads.*?Used (\d+) registers(?:.*?(\d+) bytes smem)?[^\n]*", re.S)
    for part in re.split(r"(?=ptxas info\s*: Compiling entry function)", report):
        match = pattern.search(part)
        if match:
            name, stack, stores, loads, registers, shared = match.groups()
            found[name] = dict(stack=int(stack), spills=int(stores) + int(loads), registers=int(registers), shared=int(shared or 0))
    for part in re.split(r"(?=\.(?:visible|weak) \.entry )", ptx):
        match = re.match(r"\.(?:visible|weak) \.entry (\w+)\(", part)
        if match and match.group(1) in found:
            found[match.group(1)]["wide"] = len(re.findall(r"ld\.global(?:\.nc)?\.v4\.(?:u32|b32|f32)", part))
            found[match.group(1)]["local"] = ".local .align" in part
            found[match.group(1)]["threads"] = int(re.search(r"\.maxntid (\d+)", part).group(1))
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("nvcc")
    parser.add_argument("root")
    parser.add_argument("--nvdisasm")
    parser.add_argument("--grids", help="the tests' program, for the grids of an idle step")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    every = {}
    issued, idle = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for group in GROUPS:
            every |= kernels(*compile_group(arguments.nvcc, arguments.root, group, folder))
            if arguments.nvdisasm:
                loops, ends = instructions(arguments.nvdisasm, f"{folder}/{group}.cubin")
                issued |= loops
                idle |= ends
    names = demangled(list(every))
    faults = []
    rows = []
    for mangled, kernel in sorted(every.items(), key=lambda item: short(names[item[0]])):
        name = short(names[mangled])
        size = kernel["threads"]
        blocks = min(REGISTERS // (-(-kernel["registers"] // 8) * 8 * size), SHARED // (kernel["shared"] + 1024), THREADS // size, BLOCKS)
        rows.append((name, size, kernel["registers"], kernel["shared"], blocks, f"{100 * blocks * size // THREADS} %",
                     issued.get(mangled, "")))
        if issued.get(mangled, 0) > LIMITS.get(name, 10**9):
            faults.append(f"{name}: {issued[mangled]} instructions for 512 bytes of rows; the limit is {LIMITS[name]}")
        if kernel["spills"] or kernel["stack"] or kernel["local"]:
            faults.append(f"{name}: {kernel['spills']} bytes spilled, {kernel['stack']} bytes of stack")
        if blocks == 0:
            faults.append(f"{name}: {kernel['registers']} registers and {kernel['shared']} bytes of shared memory fit no multiprocessor")
        apart = name.endswith("false>")  # element by element: any strides
        reads_rows = not apart and re.match(r"(pool_\w+|score_dot|score_bounds|attend|list_logits|window_\w+|row_norms|direction_sums|cosines|"
                              r"partition_deviation|following_queries|gaussian_logits|sentence_means)\b", name)
        if reads_rows and kernel["wide"] == 0:
            faults.append(f"{name}: rows are not read 16 bytes at a time")
    if arguments.nvdisasm and arguments.grids:
        by_name = {short(names[mangled]): mangled for mangled in every}
        share = idle_share(arguments.grids, {row[0]: row[4] for row in rows}, {name: idle[m] for name, m in by_name.items()},
                           issued[by_name["attend_tensor<bf16,4>"]])
        print(f"HeteroCache between looks, 128K: {share:.1%} of the instructions of attention over everything", file=sys.stderr)
        if share > IDLE:
            faults.append(f"HeteroCache's step between looks issues {share:.1%} of what attention over everything does; the limit is {IDLE:.0%}")
    if arguments.table:
        print("| kernel | threads | registers | shared, bytes | blocks on an sm_90 multiprocessor | occupancy | for 512 bytes |")
        print("|---|---|---|---|---|---|---|")
        for row in rows:
            print("| " + " | ".join(str(cell) for cell in row) + " |")
    names_there = {row[0] for row in rows}
    faults += [f"LIMITS names {name}, which is no kernel" for name in LIMITS if name not in names_there]
    if not arguments.nvdisasm:
        print("resources.py: no nvdisasm given: instructions were not counted", file=sys.stderr)
    for fault in faults:
        print(f"resources.py: {fault}", file=sys.stderr)
    print(f"{len(every)} kernels, {len(faults)} faults", file=sys.stderr)
    return 1 if faults or len(every) < 60 else 0


if __name__ == "__main__":
    sys.exit(main())
