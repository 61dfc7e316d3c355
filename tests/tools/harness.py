"""What the tests of the tools share: a scratch folder, a run of a tool, and what went wrong so far."""
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

long_enough = 120  # seconds that any run here may take; what is refused at once gets `at_once`
at_once = 10
_failures = []


def expect(holds, what):
    """Remembers what does not hold, and goes on."""
    if not holds:
        _failures.append(what)
    return holds


def finish():
    """The script's exit status: every failure is told."""
    for what in _failures:
        print("FAILED:", what)
    sys.exit(1 if _failures else 0)


def model_or_skip(path):
    if not os.path.exists(path):
        sys.exit(77)
    return path


class scratch:
    """A folder that goes in the end, with another one in it that temporary files of the tools go to."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._folder.name, "work")
        self.temporary = os.path.join(self._folder.name, "tmp")
        os.mkdir(self.path)
        os.mkdir(self.temporary)
        return self

    def __exit__(self, *_):
        self._folder.cleanup()

    def __call__(self, *names):
        return os.path.join(self.path, *names)

    def write(self, name, text):
        with open(self(name), "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return self(name)

    def names(self):
        """Everything in both folders."""
        found = set()
        for folder in (self.path, self.temporary):
            for where, folders, files in os.walk(folder):
                found |= {os.path.relpath(os.path.join(where, name), folder) for name in folders + files}
        return found


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def begin(work, command, memory=None, **more):
    """A tool in the folder, with its standard output and error in pipes; `memory`: bytes of address space that it may have."""

    def in_the_child():
        # What a shell's background or nohup left ignored would hide what these signals do.
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(s, signal.SIG_DFL)
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen(command, cwd=work.path, env=os.environ | {"TMPDIR": work.temporary}, preexec_fn=in_the_child,
                            bufsize=0, **more)


def read_some(process, count):
    """The first so many bytes of its standard output, or all there are; the rest is for whoever waits for it."""
    read = b""
    while len(read) < count and (more := process.stdout.read(count - len(read))):
        read += more
    return read


class ended:
    """How a run ended: status (None: it was killed because it took too long), out, err, seconds."""

    def __init__(self, command, process, limit, started):
        try:
            out, err = process.communicate(timeout=limit)
            self.status = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.status = None
        self.seconds = time.monotonic() - started
        self.out = (out or b"").decode(errors="replace")
        self.err = (err or b"").decode(errors="replace")
        words = " ".join(repr(word) if word == "" or " " in word else word.removeprefix(os.path.dirname(command[0]) + "/")
                         for word in command)
        self.text = f"{words} ({self.seconds:.1f} s) -> status {self.status}, said {self.err[:300]!r}"


def run(work, command, limit=long_enough, **more):
    started = time.monotonic()
    return ended(command, begin(work, command, **more), limit, started)
