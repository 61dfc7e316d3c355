"""mirrored.py ROOT: every header under include/ has a test at the same place, or a line in mirrored.txt that is right; and every
part's header is in the table of docs/concepts.md, every primitive's in that of docs/reference.md."""
import os
import re
import sys

root = sys.argv[1]
headers = set()
for folder, _, names in os.walk(os.path.join(root, "include", "kvpolicy")):
    relative = os.path.relpath(folder, os.path.join(root, "include", "kvpolicy"))
    headers |= {os.path.normpath(os.path.join(relative, name[:-4])) for name in names if name.endswith(".hpp")}
tested = {h for h in headers if os.path.exists(os.path.join(root, "tests", h + "_test.cpp"))}
listed = {}
with open(os.path.join(root, "tests", "mirrored.txt"), encoding="utf-8") as file:
    for line in file:
        if not line.startswith("#"):
            header, suite = line.split()
            listed[header] = suite
faults = [f"{h}.hpp has no test, and no line in tests/mirrored.txt" for h in sorted(headers - tested - set(listed))]
faults += [f"tests/mirrored.txt names {h}, which has a test or is not there" for h in sorted(set(listed) - (headers - tested))]
faults += [f"tests/mirrored.txt: there is no {s}" for s in sorted(set(listed.values())) if not os.path.exists(os.path.join(root, s))]
NO_PART = {"segments/sentence_mark", "selectors/rank_scores", "primitive/attention_terms"}
with open(os.path.join(root, "docs", "concepts.md"), encoding="utf-8") as file:
    shown = {row.split("`")[-2]: row for row in file if row.startswith("| ") and row.rstrip().endswith("/` |")}
with open(os.path.join(root, "docs", "reference.md"), encoding="utf-8") as file:
    shown["primitive/"] = file.read()
for header in sorted(headers - NO_PART):
    folder, name = os.path.split(header)
    row = shown.get(folder + "/")
    if row and folder != "tiers" and not re.search(rf"\b{name}\b", row):
        faults.append(f"{header}.hpp is not in docs/{'reference' if folder == 'primitive' else 'concepts'}.md")
print("\n".join(faults))
sys.exit(1 if faults else 0)
