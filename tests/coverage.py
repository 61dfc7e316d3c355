"""Lines of include/, src/ and cuda/ that the tests run so far have executed, from gcov.

    coverage.py BUILD OUT.json       counts them after a run of the tests, and writes which they are
    coverage.py USUAL.json ALL.json  what share of the lines that ALL has executed USUAL has, by folder
"""
import collections
import concurrent.futures
import json
import os
import subprocess
import sys

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
folders = ("include/", "src/", "cuda/")


def lines_of(data):
    """Of one object file: (file, line) to whether it was executed."""
    made = subprocess.run(["gcov", "--json-format", "--stdout", data], capture_output=True, text=True, cwd=os.path.dirname(data))
    found = {}
    for document in made.stdout.splitlines():
        for file in json.loads(document)["files"]:
            path = os.path.normpath(os.path.join(os.path.dirname(data), file["file"]))
            name = os.path.relpath(path, root)
            if name.startswith(folders):
                for line in file["lines"]:
                    key = f"{name}:{line['line_number']}"
                    found[key] = found.get(key, False) or line["count"] > 0
    return found


def folder_of(key):
    parts = key.split("/")
    return "/".join(parts[:3 if "adapters" in parts else 2]) if parts[0] == "src" else parts[0]


def count(build, out):
    data = [os.path.join(at, name) for at, _, names in os.walk(build) for name in names if name.endswith(".gcda")]
    everything = {}
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as workers:
        for found in workers.map(lines_of, data):
            for key, executed in found.items():
                everything[key] = everything.get(key, False) or executed
    executed = sorted(key for key, yes in everything.items() if yes)
    with open(out, "w", encoding="utf-8") as file:
        json.dump(executed, file)
    print(f"{len(executed)} of {len(everything)} lines executed")


def compare(usual, all_of_them):
    usual, whole = (set(json.load(open(path, encoding="utf-8"))) for path in (usual, all_of_them))
    whole |= usual
    lines = collections.Counter(folder_of(key) for key in whole)
    both = collections.Counter(folder_of(key) for key in usual)
    print(f"{'folder':14}{'usual':>7}{'all':>9}")
    for folder in sorted(lines):
        print(f"{folder:14}{both[folder]:7}{lines[folder]:9}{both[folder] / lines[folder]:9.1%}")
    print(f"{'all':14}{len(usual):7}{len(whole):9}{len(usual) / len(whole):9.1%}")


if sys.argv[1].endswith(".json"):
    compare(*sys.argv[1:])
else:
    count(os.path.abspath(sys.argv[1]), sys.argv[2])
