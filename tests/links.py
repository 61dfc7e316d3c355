"""links.py ROOT: every relative link of the Markdown documents leads to a file that is there, and to a heading of it."""
import os
import re
import subprocess
import sys

root = sys.argv[1]


def anchor(heading):
    """As GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def headings(path):
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"^```.*?^```", "", file.read(), flags=re.S | re.M)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


found = subprocess.run(["git", "-C", root, "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
faults, links = [], 0
for document in found:
    with open(os.path.join(root, document), encoding="utf-8") as file:
        targets = re.findall(r"\]\(([^)\s]+)\)", file.read())
    for target in (t for t in targets if not re.match(r"\w+:", t)):
        links += 1
        path, _, part = target.partition("#")
        path = os.path.normpath(os.path.join(root, os.path.dirname(document), path)) if path else os.path.join(root, document)
        if not os.path.exists(path):
            faults.append(f"{document}: there is no {target}")
        elif part and path.endswith(".md") and part not in headings(path):
            faults.append(f"{document}: there is no heading for {target}")
print("\n".join(faults) or f"{links} links")
sys.exit(1 if faults or links == 0 else 0)
