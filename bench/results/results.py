#!/usr/bin/env python3
"""Measures what the documents' tables show, and writes the tables from docs/results/data. run.sh says what there is.

    results.py measure NAME... | write | check
"""
import argparse
import json
import re
import sys

from measures import MEASURED, ROOT, commit, machine, output, problem
from tables import PICTURES, TABLES

DATA = ROOT / "docs/results/data"


def stored(name):
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def written():
    """Path -> text, of every page and picture as the stored results would have it."""
    files = {}
    for (page, mark), (names, made) in TABLES.items():
        names = names if isinstance(names, tuple) else (names,)
        text = files.setdefault(page, (ROOT / page).read_text(encoding="utf-8"))
        begin = f"<!-- bench/results/run.sh: {mark} -->\n"
        if not all((DATA / f"{name}.json").exists() for name in names):
            continue
        if begin not in text:
            raise problem(f"{page} has no line {begin.strip()}")
        data = [stored(name) for name in names]
        before, after = text.split(begin)
        after = re.sub(r"\A(?:<!--.*-->\n)?\n*(?:\|.*\n)*\n*", "", after, count=1)
        of = "; ".join(f"{of['commit']}, {of['date']}: {of['machine']}" for of in data)
        files[page] = (before + begin + f"<!-- {of} -->\n\n" + "\n".join(made(*(of["result"] for of in data))) + "\n\n" + after).rstrip("\n") + "\n"
    for path, (name, draw) in PICTURES.items():
        if (DATA / f"{name}.json").exists():
            files[path] = draw(stored(name)["result"])
    return files


def unmarked():
    """Tables of docs/results that name neither the measure nor the commit that they come from. gpu.md has a program of its own."""
    for page in sorted((ROOT / "docs/results").glob("*.md")):
        if page.name != "gpu.md":
            for before, line in re.findall(r"(.*)\n\n(\|.*)\n\|-", page.read_text(encoding="utf-8")):
                if not re.match(r"<!-- (by hand|\w{7}, )", before):
                    yield f"{page.name}: {line}"


def measure(names):
    if output("git", "status", "--porcelain", "--untracked-files=no", "--", "include", "src", "cuda", "tools", "bench"):
        raise problem("commit first: a result belongs to a commit")
    DATA.mkdir(exist_ok=True)
    for name in names:
        result = {"commit": commit(), "date": output("date", "+%F").strip(), "machine": machine(),
                  "command": f"bench/results/run.sh {name}", "result": MEASURED[name]()}
        (DATA / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=["measure", "write", "check"])
    parser.add_argument("names", nargs="*", choices=[*MEASURED, []])
    arguments = parser.parse_args()
    try:
        if arguments.verb == "measure":
            measure(arguments.names)
        for line in unmarked():
            raise problem(f"a table without a mark, of the measure that makes it or of the commit (\"by hand, before COMMIT\"): {line}")
        for path, text in written().items():
            if arguments.verb == "write":
                (ROOT / path).write_text(text, encoding="utf-8")
            elif arguments.verb == "check" and (ROOT / path).read_text(encoding="utf-8") != text:
                raise problem(f"{path} is not what docs/results/data says; run bench/results/run.sh")
    except problem as error:
        sys.exit(f"results.py: {error}")


if __name__ == "__main__":
    main()
