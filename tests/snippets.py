#!/usr/bin/env python3
"""snippets.py ROOT: the code in the documents is code that the tests compile.

The blocks of the pages in PASTED are programs (tests/pasted.py). Elsewhere a block of C or C++ begins with `// from PATH`, and its
lines are in that file, in that order (comments and spaces aside). An outline, which has `...` where a reader fills in, needs no file.
A block of Python names a file in the same way (`# from PATH`), or is Python. Commands are not run, since many take hours or a model:
the files of this tree that they name exist.
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
PASTED = {root / "README.md", root / "docs/tutorial.md", root / "docs/adding-a-part.md"}


def bare(text):
    return re.sub(r"\s+", "", re.sub(r"//[^\n]*|/\*.*?\*/", "", text))


def fault(document, language, block):
    if language in ("", "sh"):
        named = re.findall(r"(?<![\w/.])(?:bench|cmake|examples|packaging|tests)/[\w./-]*\w", block)
        return next((f"there is no {path}" for path in named if not (root / path).exists()), None)
    named = re.match(r"(?://|#) from (\S+)[^\n]*\n", block)
    if language == "python":
        compile(block, document.name, "exec")
    if named is None:
        return None if language == "python" or "..." in block or (language == "cpp" and document in PASTED) else f"no `// from PATH` before: {block.splitlines()[0]}"
    source = bare((root / named[1]).read_text())
    at = 0
    for line in filter(None, map(bare, block[named.end():].split("\n"))):
        found = source.find(line, at)
        if found < 0:
            return f"not in {named[1]} there: {line}"
        at = found + len(line)
    return None


blocks, faults = 0, []
for document in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.S | re.M):
        if language not in ("cpp", "c", "python", "sh", ""):
            continue
        blocks += 1
        found = fault(document, language, block)
        if found:
            faults.append(f"{document.relative_to(root)}: {found}")
for found in faults:
    print(f"snippets.py: {found}", file=sys.stderr)
print(f"{blocks} blocks, {len(faults)} faults")
sys.exit(1 if faults or blocks == 0 else 0)
