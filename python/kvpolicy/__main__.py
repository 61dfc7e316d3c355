"""python -m kvpolicy: where the wheel has what is not Python's."""
import argparse

import kvpolicy
from kvpolicy._abi import folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kvpolicy", description=__doc__)
    parser.add_argument("--version", action="version", version=kvpolicy.__version__)
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--cmake-dir", action="store_true", help="for CMAKE_PREFIX_PATH or kvpolicy_DIR: find_package(kvpolicy)")
    asked.add_argument("--include-dir", action="store_true", help="headers")
    asked.add_argument("--library-dir", action="store_true", help="libkvpolicy, and libkvpolicy-llama.so where it was built")
    asked.add_argument("--policies", action="store_true", help="the names that there are")
    given = parser.parse_args()
    if given.cmake_dir:
        print(folder / "lib" / "cmake" / "kvpolicy")
    elif given.include_dir:
        print(folder / "include")
    elif given.library_dir:
        print(folder / "lib")
    elif given.policies:
        print(*kvpolicy.policies(), sep="\n")
    else:
        parser.print_help()


if __name__ == "__main__":
    main()
