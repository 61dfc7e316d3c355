"""What tests/run.sh ends with: what failed, where the time went, and how many tests passed.

    summary.py BUILD SET_UP_SECONDS [STAGE BUILD_SECONDS TEST_SECONDS]...

Of each stage it reads BUILD/STAGE.xml, which ctest wrote, and what BUILD/STAGE/.ninja_log has more than BUILD/STAGE.before. Exits
with 1 where a test failed or none ran.
"""
import collections
import os
import re
import sys
import xml.etree.ElementTree as tree


def lines_of(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def compiled(build, stage):
    """Seconds by target of what this run built, a compiler's or a linker's each."""
    spent = collections.Counter()
    for line in set(lines_of(f"{build}/{stage}/.ninja_log")) - set(lines_of(f"{build}/{stage}.before")):
        fields = line.split("\t")
        if len(fields) == 5:
            target = re.search(r"CMakeFiles/([^/]+)\.dir/", fields[3])
            spent[target.group(1) if target else fields[3]] += (int(fields[1]) - int(fields[0])) / 1000
    return spent


def table(title, seconds):
    print(f"\n{title}")
    for name, spent in seconds.most_common(10):
        print(f"{spent:8.1f}  {name}")


build, set_up = sys.argv[1], sys.argv[2]
stages = [sys.argv[at:at + 3] for at in range(3, len(sys.argv), 3)]
built, tested = collections.Counter(), collections.Counter()
passed = failed = 0
skipped = []
for stage, _, _ in stages:
    suite = tree.parse(f"{build}/{stage}.xml").getroot()
    label = "" if stage in ("quick", "host") else f"{stage}: "
    for case in suite.iter("testcase"):
        name = label + case.get("name")
        tested[name] += float(case.get("time"))
        if case.get("status") == "run":
            passed += 1
        elif case.get("status") == "fail":
            failed += 1
            said = (case.findtext("system-out") or "").strip().splitlines()
            print(f"FAILED {name}", *said[-25:], sep="\n    ")
        elif case.get("status") == "disabled" or (case.find("skipped") is not None and
                                                  case.find("skipped").get("message", "").startswith("SKIP_")):
            skipped.append(name)
        else:
            failed += 1
            print(f"FAILED {name}\n    it was not run: its program was not built, or what it needs failed")
    for target, spent in compiled(build, stage).items():
        built[label + target] += spent
for name in skipped:
    print(f"skipped: {name}")
table("Slowest to build, seconds of compilers:", built)
table("Slowest tests, seconds:", tested)
print(f"\n{'seconds':10}{'set-up':>8}{'build':>8}{'tests':>8}")
for number, (stage, build_seconds, test_seconds) in enumerate(stages):
    print(f"{stage:10}{set_up if number == 0 else '':>8}{build_seconds:>8}{test_seconds:>8}")
print(f"\ntests: {passed} passed, {failed} failed, {len(skipped)} skipped")
sys.exit(1 if failed or not passed else 0)
