"""layers.py ROOT: every #include of the library's own headers follows the picture in docs/concepts.md."""
import os
import re
import sys

root = sys.argv[1]
with open(os.path.join(root, "docs", "concepts.md"), encoding="utf-8") as file:
    page = file.read().split("## Layers")[1].split("\n## ")[0]
allowed = {a: {a, *re.split(r" & ", b)} for a, b in re.findall(r"^  (\w+) --> ([\w &]+)$", page, re.M)}
folders = {}
for layer, row in re.findall(r"^\| (\w+) \| (`.*?) \|", page, re.M):
    allowed.setdefault(layer, {layer})
    # The parts in brackets are folders of the first one.
    for folder in re.findall(r"`([^`]+)`", re.sub(r"\(.*?\)", "", row)):
        folders[folder.rstrip("/")] = layer
umbrella = "include/kvpolicy/kvpolicy.hpp"  # includes what an engine on CPUs starts with, the host's executor too


def layer_of(path):
    while path not in folders:
        if not path:
            return None
        path = os.path.dirname(path)
    return folders[path]


def header(name, source):
    """Where an included header lies: beside the source, or under one of the include folders."""
    for folder in ("include", "cuda/include", os.path.dirname(source), "src/text", "src/adapters", "src/c", "tools", "python"):
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.exists(os.path.join(root, path)):
            return path
    return None


faults, edges = [], set()
for top in ("include", "src", "cuda", "tools"):
    for folder, _, names in os.walk(os.path.join(root, top)):
        for name in names:
            source = os.path.relpath(os.path.join(folder, name), root)
            if not name.endswith((".hpp", ".cpp", ".cuh", ".cu", ".h")) or source == umbrella:
                continue
            layer = layer_of(source)
            if layer is None:
                faults.append(f"{source} is in none of the folders that docs/concepts.md names")
                continue
            with open(os.path.join(root, source), encoding="utf-8") as file:
                included = re.findall(r'^\s*#\s*include [<"]([^">]+)', file.read(), re.M)
            for path in filter(None, (header(i, source) for i in included)):
                edges.add((layer, layer_of(path)))
                if layer_of(path) not in allowed[layer]:
                    faults.append(f"{source} ({layer}) includes {path} ({layer_of(path)}), which docs/concepts.md does not allow")
if not faults and len(edges) < 10:
    faults.append(f"only {len(edges)} pairs of layers were seen; the folders in docs/concepts.md are not those of the tree")
print("\n".join(faults))
sys.exit(1 if faults else 0)
