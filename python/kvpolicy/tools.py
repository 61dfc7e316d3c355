"""The command-line tools that the wheel holds, by their own names."""
import os
import sys

from kvpolicy._abi import folder


def run() -> None:
    """The tool that this was called as, with the same arguments."""
    name = os.path.basename(sys.argv[0])
    path = folder / "bin" / name
    if not path.exists():
        sys.exit(f"{name}: this kvpolicy was built without llama.cpp; build it where find_package(llama) succeeds: docs/python.md")
    os.execv(path, [name, *sys.argv[1:]])
