#!/usr/bin/env python3
"""lease.sh and results.py on stand-ins of the programs and of the machine's tools: what it runs, skips, refuses and says."""
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))

# Stand-ins print what the real ones would, and fail where a file says so.
TESTS = '#!/bin/bash\necho "tests $*" >>"$LOG"\n[ ! -e "$LOG.broken" ] || { echo "a case failed"; exit 1; }\n'
BENCH = '#!/bin/bash\n[[ ! -e "$LOG.dies" || "$*" == *2048* ]] || exit 1\n[ -n "$GPU" ] || { echo "no GPU here" >&2; exit 77; }\ncat "$LOG.cases"\n'
SANITIZER = ('#!/bin/bash\ncase "$*" in\n  *--version*) echo "a version" ;;\n  *memcheck*planted*) [ -e "$LOG.blind" ] || echo "Invalid __global__ write"; exit 1 ;;\n'
             '  *initcheck*planted*) echo "Uninitialized __global__ memory read"; exit 1 ;;\n  *racecheck*planted*) echo "Race reported"; exit 1 ;;\n'
             '  *synccheck*planted*) echo "Barrier error detected"; exit 1 ;;\nesac\n')


class Lease(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.tools, self.out, self.log = self.folder / "tools", self.folder / "out", self.folder / "log"
        package = self.folder / "lease"
        for where in (package / "bin", self.tools):
            where.mkdir(parents=True)
        shutil.copy(ROOT / "tests/cuda/lease.sh", package)
        shutil.copy(ROOT / "bench/cuda/sdpa.py", package)
        self.program(package / "engines.sh", '#!/bin/bash\necho "engine $1"\n')
        self.program(package / "bin/kvpolicy_gpu_tests", TESTS)
        for name in ("kvpolicy_cuda_primitives", "kvpolicy_cuda_steps", "kvpolicy_cuda_claims"):
            self.program(package / "bin" / name, BENCH)
        self.cases([{"name": "ceiling read", "batch": 1, "context": 0, "us": 100, "bytes": 4e8, "gbps": 4000, "share_of_ceiling": 1, "floor_us": 93,
                     "us_least": 99, "us_most": 101}])

    def program(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def gpu(self, sanitizer=True, ncu=True):
        self.program(self.tools / "nvidia-smi", "#!/bin/bash\necho GPU 0\n")
        if ncu:
            self.program(self.tools / "ncu", "#!/bin/bash\necho counters\n")
        if sanitizer:
            self.program(self.tools / "compute-sanitizer", SANITIZER)
        self.program(self.tools / "python3", '#!/bin/bash\necho \'{"name": "PyTorch", "batch": 1, "context": 32768, "us": 50, "bytes": 1e8, "gbps": 2000}\'\n')

    def cases(self, cases):
        self.log.with_suffix(".cases").write_text("".join(json.dumps(case) + "\n" for case in cases))

    def lease(self, *arguments):
        on_gpu = (self.tools / "nvidia-smi").exists()
        environment = {"PATH": f"{self.tools}:/usr/bin:/bin", "LOG": str(self.log), "GPU": "1" if on_gpu else ""}
        done = subprocess.run([self.folder / "lease/lease.sh", *arguments], cwd=self.folder, env=environment, capture_output=True, text=True)
        lines = self.out / "lease.jsonl"
        return done, [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []

    def statuses(self, lines):
        return {line["stage"]: line["status"] for line in lines}

    def test_everything_ran(self):
        self.gpu()
        done, lines = self.lease(self.out)
        self.assertEqual(set(self.statuses(lines).values()), {"passed"}, done.stdout)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(len(lines), 16)
        self.assertTrue((self.out / "ncu-pool_mean.csv").exists())
        again, more = self.lease(self.out)
        self.assertEqual((again.returncode, len(more)), (0, 16))  # nothing is run twice
        self.assertEqual(again.stdout.count("passed before"), 16)

    def test_without_a_gpu_nothing_is_run(self):
        done, lines = self.lease(self.out)
        self.assertEqual((done.returncode, lines), (3, []))
        self.assertIn("no GPU here", done.stderr)

    def test_a_dry_run_passes_nothing(self):
        done, lines = self.lease("--dry", self.out)
        self.assertEqual(done.returncode, 3)
        found = self.statuses(lines)
        self.assertNotIn("passed", found.values())
        self.assertEqual({found[name] for name in ("facts", "suite", "primitives", "steps-128k", "sdpa")}, {"dry"})
        self.assertEqual({found[name] for name in ("memcheck", "initcheck")}, {"missing"})

    def test_what_failed_is_run_again_and_the_rest_is_not(self):
        self.gpu()
        self.log.with_suffix(".broken").touch()
        done, lines = self.lease(self.out)
        self.assertEqual((done.returncode, self.statuses(lines)["suite"]), (1, "failed"))
        self.assertIn("a case failed", [line["why"] for line in lines if line["stage"] == "suite"][0])
        self.log.with_suffix(".broken").unlink()
        done, lines = self.lease(self.out)
        self.assertEqual((done.returncode, self.statuses(lines)["suite"]), (0, "passed"))
        self.assertEqual(len([line for line in lines if line["stage"] == "facts"]), 1)

    def test_a_benchmark_that_died_has_failed_whatever_came_after(self):
        self.gpu()
        self.log.with_suffix(".dies").touch()
        done, lines = self.lease(self.out)
        found = self.statuses(lines)
        self.assertEqual((done.returncode, found["primitives"], found["steps-32k"]), (1, "failed", "failed"))

    def test_one_at_a_time_in_a_folder(self):
        self.gpu()
        self.out.mkdir()
        with open(self.out / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done, lines = self.lease(self.out)
        self.assertEqual((done.returncode, lines), (2, []))
        self.assertIn("another lease.sh", done.stderr)

    def test_what_a_stage_says_is_told_as_json(self):
        self.gpu()
        self.program(self.folder / "lease/bin/kvpolicy_gpu_tests", "#!/bin/bash\nprintf '\\033[1m\\t\"a\\\\b\" \\303'; exit 1\n")
        done, lines = self.lease(self.out)
        self.assertEqual([line["why"] for line in lines if line["stage"] == "suite"], ["exit 1: " + 4 * "[1m ab "])

    def test_a_tool_that_does_not_see_its_bug_has_failed(self):
        self.gpu()
        self.log.with_suffix(".blind").touch()
        done, lines = self.lease(self.out)
        found = self.statuses(lines)
        self.assertEqual((done.returncode, found["memcheck"], found["initcheck"]), (1, "failed", "passed"))

    def test_what_is_missing_is_not_passed(self):
        self.gpu(sanitizer=False, ncu=False)
        done, lines = self.lease(self.out)
        found = self.statuses(lines)
        self.assertEqual((done.returncode, found["memcheck"], found["ncu"], found["suite"]), (3, "missing", "missing", "passed"))

    def test_a_machine_without_python_lacks_one_stage(self):
        tools = ("bash", "cat", "cut", "date", "dirname", "env", "flock", "grep", "head", "mkdir", "nproc", "rm", "tail", "tee", "timeout", "tr", "uname")
        for tool in tools:
            (self.tools / tool).symlink_to(shutil.which(tool))
        environment = {"PATH": str(self.tools), "LOG": str(self.log), "GPU": ""}
        subprocess.run([self.folder / "lease/lease.sh", "--dry", self.out], cwd=self.folder, env=environment, capture_output=True, check=False)
        lines = [json.loads(line) for line in (self.out / "lease.jsonl").read_text().splitlines()]
        self.assertEqual([line["why"] for line in lines if line["stage"] == "sdpa"], ["no python3 here"])

    def test_a_tool_that_cannot_attach_is_missing_and_says_why(self):
        self.gpu()
        self.program(self.tools / "compute-sanitizer", SANITIZER.replace('[ -e "$LOG.blind" ] || echo "Invalid __global__ write"',
                                                                         'echo "========= Error: No attachable process found."'))
        done, lines = self.lease(self.out)
        found = self.statuses(lines)
        self.assertEqual((done.returncode, found["memcheck"], found["initcheck"]), (3, "missing", "passed"))
        self.assertIn("No attachable process", [line["why"] for line in lines if line["stage"] == "memcheck"][0])

    def test_stages_that_do_not_fit_are_left_for_the_next_call(self):
        self.gpu()
        done, lines = self.lease(self.out, "--within", "100", "--archive", self.folder / "found.tar.gz")
        found = self.statuses(lines)
        self.assertEqual((done.returncode, found["facts"], "suite" in found, "steps-32k" in found), (3, "passed", False, True))
        self.assertIn("suite: left for a later call", done.stdout)
        held = subprocess.run(["tar", "-tzf", self.folder / "found.tar.gz"], capture_output=True, text=True, check=True).stdout
        self.assertIn("./lease.jsonl", held)
        done, lines = self.lease(self.out, "--within", "3600")
        self.assertEqual((done.returncode, len(lines)), (0, 16), done.stdout)

    def test_a_package_has_what_a_bare_machine_needs(self):
        repository, package = self.folder / "repository", self.folder / "package.tar.gz"
        taken = ("tests/cuda/lease.sh", "tests/cuda/engines.sh", "bench/cuda/sdpa.py", "bench/transformers/steps.py", "python/kvpolicy/__init__.py",
                 "tests/python/transformers_device_test.py", "tests/python/on_device.py")
        for file in taken:
            (repository / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, repository / file)
        (repository / "build/sanitizer").mkdir(parents=True)
        self.program(repository / "build/sanitizer/compute-sanitizer", SANITIZER)
        self.program(self.tools / "nvcc", "#!/bin/bash\n")
        self.program(self.tools / "objdump", "#!/bin/bash\nprintf 'GLIBC_2.9 a\\nGLIBC_2.35 b\\n'\n")
        self.program(self.tools / "ldd", '#!/bin/bash\necho "libhwy.so.1 => $0 (0x0)"\n')
        self.program(self.tools / "strip", '#!/bin/bash\ncp "$3" "$2"\n')
        built = ('#!/bin/bash\n[[ "$*" == *--build* ]] || exit 0\nfor p in src/c/libkvpolicy.so tests/cuda/kvpolicy_gpu_tests bench/cuda/kvpolicy_cuda_{primitives,steps,claims}; do\n'
                 '  mkdir -p "build/lease/cmake/${p%/*}"; head -c BYTES /dev/urandom >"build/lease/cmake/$p"\ndone\n')

        def pack():
            environment = {"PATH": f"{self.tools}:/usr/bin:/bin"}
            return subprocess.run([repository / "tests/cuda/lease.sh", "--pack", package], cwd=self.folder, env=environment, capture_output=True, text=True)

        for build, why in (("#!/bin/bash\nexit 1\n", "not built"), (built.replace("BYTES", "14M"), "64 MiB")):
            self.program(self.tools / "cmake", build)
            done = pack()
            self.assertEqual((done.returncode, package.exists()), (2, False), done.stdout)
            self.assertIn(why, done.stderr)
        self.program(self.tools / "cmake", built.replace("BYTES", "9"))
        done = pack()
        self.assertEqual((done.returncode, done.stdout.split(", ", 1)[1]), (0, "for systems that have GLIBC_2.35\n"), done.stderr)
        held = subprocess.run(["tar", "-tf", package], capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual({name for name in held if not name.endswith("/")},
                         {"lease/" + name for name in ("lease.sh", "engines.sh", "sdpa.py", "steps.py", "transformers_device_test.py", "on_device.py",
                                                       "kvpolicy/__init__.py", "bin/libkvpolicy.so", "bin/ldd", "bin/kvpolicy_gpu_tests",
                                                       "bin/kvpolicy_cuda_primitives", "bin/kvpolicy_cuda_steps", "bin/kvpolicy_cuda_claims",
                                                       "sanitizer/compute-sanitizer")})

    def test_a_program_of_a_newer_system_is_refused_at_once(self):
        self.gpu()
        self.program(self.folder / "lease/bin/kvpolicy_gpu_tests",
                     "#!/bin/bash\necho \"$0: /lib/libc.so.6: version \\`GLIBC_2.36' not found (required by $0)\" >&2; exit 1\n")
        done, lines = self.lease(self.out)
        self.assertEqual((done.returncode, lines, done.stderr.count("\n")), (2, [], 1))
        self.assertIn("GLIBC_2.36", done.stderr)

    def test_bad_arguments(self):
        for arguments in ([], ["--fast", self.out], ["--pack"], ["--dry"], [self.out, "--within", "0"], [self.out, "--archive", "all.zip"],
                          [self.out, "--within"], [self.out, "now"]):
            done, lines = self.lease(*arguments)
            self.assertEqual((done.returncode, lines), (2, []), arguments)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def results(self):
        page = self.folder / "docs"
        (page / "results").mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "docs/results/gpu.md", page / "results")
        done = subprocess.run([sys.executable, ROOT / "bench/cuda/results.py", self.out, "--docs", page], capture_output=True, text=True)
        return done, (page / "results/gpu.md").read_text(), page / "results/gpu.svg"

    def test_results_are_what_was_found(self):
        self.gpu()
        row = {"batch": 1, "context": 131072, "bytes": 4e6, "gbps": 2000, "share_of_ceiling": .5, "floor_us": 1, "us_least": 8, "us_most": 9}
        lines = self.log.with_suffix(".cases").read_text()
        self.cases([json.loads(lines), {"device": "a device", "processors": 132, "memory_bytes": 2**36, "driver": 13, "runtime": 13, "shape": "a shape",
                                       "layout": "nhd", "floor_gbps": 4300}, row | {"name": "cascade of depth 3", "us": 28.25},
                    row | {"name": "attend to all", "us": 150}, row | {"name": "attend to all", "us": 160, "batch": 16, "share_of_ceiling": .45},
                    row | {"name": "claim chess: dense, 16-bit weights", "us": 7200, "context": 32768},
                    row | {"name": "claim chess, 16-bit weights", "us": 6000, "context": 32768},
                    {"name": "step full", "batch": 1, "context": 131072, "skipped": "no memory"}])
        self.lease(self.out)
        done, page, picture = self.results()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| lazy descent, 128K, batch 1 | 30 us | 28.2 us |", page)
        self.assertIn("| dense attend | 85 % of bandwidth | 45 % |", page)  # the worst
        self.assertIn("| top-k of 16K floats | 12 us | not yet measured |", page)
        self.assertIn("| 1.20 times (6 of 7.2 ms) | batch 1: weights bind, not rows |", page)
        self.assertIn("| 50.4 / 16.5 GB = 3.06 times | not timed |", page)
        for text in ("a device, 132 multiprocessors", "| suite | passed |", "| PyTorch | 1 | 32K |", "no memory"):
            self.assertIn(text, page)
        self.assertIn("<svg xmlns=", picture.read_text())

    def test_a_dry_run_measures_nothing(self):
        self.lease("--dry", self.out)
        done, page, picture = self.results()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Nothing is yet measured on a GPU.", page)
        self.assertFalse(picture.exists())

    def test_results_of_nowhere(self):
        done, page, _ = self.results()
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
        self.assertEqual(page, (ROOT / "docs/results/gpu.md").read_text())


if __name__ == "__main__":
    unittest.main()
