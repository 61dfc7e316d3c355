"""pasted.py PAGE PROGRAM: writes the page's blocks of C++ in their order, but for those that name the file that they are from."""
import pathlib
import re
import sys

page, program = map(pathlib.Path, sys.argv[1:])
blocks = re.findall(r"^```cpp\n(?!// from )(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
if not blocks:
    sys.exit(f"pasted.py: {page} has no block of C++ to paste")
program.write_text("\n".join(blocks), encoding="utf-8")
