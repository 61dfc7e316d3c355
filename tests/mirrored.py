"""mirrored.py ROOT: every header under include/ has a test at the same place, or a line in mirrored.txt that is right."""
import os
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
print("\n".join(faults))
sys.exit(1 if faults else 0)
