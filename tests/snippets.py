#!/usr/bin/env python3
"""Every code block whose first line is `// from PATH` (or `# from PATH`) has its lines in that file, in that order (comments and spaces aside).

    snippets.py SOURCE_DIR DOCUMENT...
"""
import re
import sys


def bare(text):
    return re.sub(r"\s+", "", re.sub(r"//[^\n]*|/\*.*?\*/", "", text))


def main():
    root, documents = sys.argv[1], sys.argv[2:]
    blocks, faults = 0, []
    for document in documents:
        with open(f"{root}/{document}") as file:
            text = file.read()
        for path, block in re.findall(r"^```\w+\n(?://|#) from (\S+)[^\n]*\n(.*?)^```", text, re.S | re.M):
            blocks += 1
            if path.endswith(".py"):
                compile(block, document, "exec")
            with open(f"{root}/{path}") as file:
                source = bare(file.read())
            at = 0
            for line in filter(None, map(bare, block.split("\n"))):
                found = source.find(line, at)
                if found < 0:
                    faults.append(f"{document}: not in {path} there: {line}")
                    break
                at = found + len(line)
    for fault in faults:
        print(f"snippets.py: {fault}", file=sys.stderr)
    print(f"{blocks} blocks, {len(faults)} faults")
    return 1 if faults or blocks == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
