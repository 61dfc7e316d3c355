"""lists.py RUN ROOT: the policies that README.md and docs/methods.md list, and docs/cuda.md counts, are those that there are."""
import os
import re
import subprocess
import sys

kvpolicy_run, root = sys.argv[1:]
listed = subprocess.run([kvpolicy_run, "--list-policies"], capture_output=True, check=True, text=True).stdout
names = set(re.findall(r"^(\w+): ", listed, re.MULTILINE))


def text(*path):
    with open(os.path.join(root, *path), encoding="utf-8") as file:
        return file.read()


def quoted(part):
    return set(re.findall(r"`(\w+)`", part))


row = re.search(r"^\| (`chess`, .*?) \(\[docs/methods", text("README.md"), re.MULTILINE)
headings = re.findall(r"^## (.*)$", text("docs", "methods.md"), re.MULTILINE)
lists = {"README.md": quoted(row.group(1)) if row else set(),
         "the headings of docs/methods.md": {word for heading in headings for word in re.findall(r"[a-z]\w*", heading)} & names}
failed = [f"{where}: lacks {sorted(names - there)}, has {sorted(there - names)}" for where, there in lists.items() if there != names]
if f"A decoder serves all {len(names)} policies" not in text("docs", "cuda.md"):
    failed.append(f"docs/cuda.md: there are {len(names)} policies; say whether a decoder serves all of them")
print("\n".join(failed))
sys.exit(1 if failed or len(names) < 10 else 0)
