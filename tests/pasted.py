"""pasted.py PAGE > PROGRAM: the page's blocks of C++ in their order, but for those that name the file that they are from."""
import pathlib
import re
import sys

blocks = re.findall(r"^```cpp\n(?!// from )(.*?)^```", pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"), re.S | re.M)
print("\n".join(blocks) if blocks else sys.exit(f"pasted.py: no block of C++ to paste in {sys.argv[1]}"))
