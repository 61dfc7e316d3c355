"""refusals.py KVPOLICY_EXEC LIBRARY ENGINE_BIN MODEL CXX: what can't be meant is refused before the program starts, by
one line; what can't be served is said once, and fails where it was asked to; where there is no policy, nothing is
said or changed."""
import http.client
import os
import re
import shutil
import subprocess
import sys

from server import attempt, library_lines, needle, programs, request_of, server
from harness import at_once, contents, expect, finish, run, scratch

of = programs(sys.argv[1:5])
compiler = sys.argv[5]
text, code = needle(4826, 30, .3), "4826"
short = ["-m", of.model, "-t", "2", "--temp", "0", "-no-cnv", "-n", "8", "-p", "One, two, three, four,"]


def refused(work, command, *patterns):
    """Status 2 and one line, which holds every pattern."""
    result = run(work, command, limit=at_once)
    if not expect(result.status == 2, f"not refused: {result.text}"):
        return
    expect(len(result.err.splitlines()) == 1 and result.err.endswith("\n"), f"not one line: {result.text}")
    expect(result.out == "", f"refused behind {result.out[:40]!r}: {result.text}")
    for pattern in patterns:
        expect(re.search(pattern, result.err), f"the line lacks /{pattern}/: {result.text}")


def unknown_settings(work):
    """In KVPOLICY, and on the command line of kvpolicy-exec."""
    serve = [of("llama-server"), "-m", of.model]
    for said, *patterns in (("nosuch", "nosuch", "quest"), ("snapkv:tokenz=64", "tokenz", "did you mean 'tokens'"),
                            ("snapkv:tokens=many", "tokens", "many"), ("snapkv:tokens", "tokens"),
                            (" full", "did you mean 'full'"), ("snapkv:tokens=64+", "policy"),
                            ("snapkv:tokens=64,tokens=32", "tokens"), ("kvzip:tokens=64", "repeat a prompt", "duoattention")):
        refused(work, of.preloaded(f"KVPOLICY={said}") + serve, *patterns)
        refused(work, of.exec(said) + serve, *patterns)
    for said, *patterns in (("full;nosuch", "nosuch", "strict"), ("full;strick", "did you mean 'strict'"),
                            ("full;", "option"),
                            ("full;strict=1", "strict"), (";strict", "policy"), ("full;prompts=nosuch", "nosuch"),
                            ("full;prompts=pages:shar=.5", "shar", "did you mean 'share'"),
                            ("full;managed-cach", "did you mean 'managed-cache'"), ("full;managed-cache=yes", "managed-cache"),
                            ("quest;tier=nosuch", "nosuch", "disk:FILE"), ("quest;tier=", "tier ''"),
                            ("quest;tier=disk:", "disk:FILE"), ("quest;tier", "tier")):
        refused(work, of.preloaded(f"KVPOLICY={said}") + serve, *patterns)
    refused(work, of.exec("full", "--prompts", "nosuch") + serve, "nosuch", "pages")
    refused(work, of.exec("full", "--tier", "nosuch") + serve, "nosuch", "disk:FILE")


def no_program(work):
    refused(work, [of.kvpolicy_exec], "policy", "--help")
    for said in (["full"], ["full", "--"]):
        refused(work, [of.kvpolicy_exec, *said], "no program", "--")
    refused(work, of.exec("full") + ["no-such-program"], "no-such-program", "PATH")
    refused(work, of.exec("full") + ["./no-such-program"], "no-such-program", "No such file")
    refused(work, of.exec("full") + [work.write("not-a-program", "")], "not-a-program", "Permission denied")
    refused(work, of.exec("full") + [work.path], "Permission denied|Is a directory")
    refused(work, of.exec("full") + ["ls"], "/ls'", "libllama")
    refused(work, of.exec("") + [of("llama-server"), "--version"], "policy")


def programs_are_found(work):
    """As a shell does; their arguments and exit status are passed on."""
    path = f"PATH={of.folder}:{os.environ['PATH']}"
    result = run(work, ["env", path, *of.exec("full"), "llama-server", "--version"])
    expect(result.status == 0 and "version" in result.out + result.err, f"in PATH: {result.text}")
    result = run(work, of.exec("full") + [of("llama-server"), "--no-such-option"])
    expect(result.status not in (0, 2, None) and "no-such-option" in result.err, f"its own refusal: {result.text}")


def explained(work):
    for said, *patterns in (("full", "full: "), ("snapkv:tokens=77", "snapkv: .*arXiv", "tokens=77,"),
                            ("snapkv:tokens=128+quest:tokens=64", "snapkv: ", "quest: ", "tokens=128", "tokens=64")):
        result = run(work, [of.kvpolicy_exec, said, "--explain"])
        expect(result.status == 0 and result.err == "", f"--explain: {result.text}")
        for pattern in patterns:
            expect(re.search(pattern, result.out), f"--explain lacks /{pattern}/: {result.out!r}")
    refused(work, [of.kvpolicy_exec, "nosuch", "--explain"], "nosuch")


def said_where_it_should_be(work):
    """To standard error, to a file behind what it has, or nowhere."""
    command = [of("llama-completion"), *short]
    plain = run(work, command)
    expect(plain.status == 0 and library_lines(plain.err) == [], f"without the library: {plain.text}")
    for quiet in ([], ["KVPOLICY="], ["KVPOLICY=", "KVPOLICY_LOG=/no/such/folder/log"]):
        result = run(work, of.preloaded(*quiet) + command)
        expect(result.status == 0 and result.out == plain.out, f"{quiet} changes {plain.out!r} to {result.out!r}")
        expect("kvpolicy" not in result.err, f"{quiet} says something: {result.err[-300:]!r}")
    for choose in (lambda log: of.exec("full", "--log", log),
                   lambda log: of.preloaded("KVPOLICY=full", f"KVPOLICY_LOG={log}"),
                   lambda log: ["env", f"KVPOLICY_LOG={log}", *of.exec("full")]):
        log = work.write("log", "this was here before\n")
        result = run(work, choose(log) + command)
        lines = contents(log).decode().splitlines()
        expect(result.status == 0 and library_lines(result.err) == [], f"with a log: {result.text}")
        expect(lines[0] == "this was here before" and lines[1].startswith("kvpolicy: full ") and len(lines) == 3,
               f"the log: {lines}")
        result = run(work, choose("none") + command)
        expect(result.status == 0 and library_lines(result.err) == [], f"without a log: {result.text}")
        expect(not os.path.exists(work("none")), "a file called none")
        refused(work, choose("/no/such/folder/log") + command, "KVPOLICY_LOG", "/no/such/folder/log", "No such file")
        refused(work, choose(work.path) + command, "KVPOLICY_LOG", "directory")
    result = run(work, of.exec("full") + command)
    lines = library_lines(result.err)
    expect(result.status == 0 and len(lines) == 2 and request_of(lines[1]), f"to standard error: {lines}")


def from_a_script(work):
    """What is run need not be the engine's program itself."""
    become = work.write("become", '#!/bin/sh\nexec "$@"\n')
    wait = work.write("wait", '#!/bin/sh\n"$@"\nexit $?\n')
    for script in (become, wait):
        os.chmod(script, 0o755)
    with server(work, of, of.exec("snapkv:tokens=128,after=0") + [become], "-c", "1024", "-np", "1") as s:
        given = s.chat(text)
        line = s.requests(1)[0]
        expect(code in given.text, f"from a script: {given.text!r}")
        expect(line.read < line.tokens and line.left == 0, f"from a script: {line}")
    result = run(work, of.exec("full") + [wait, of("llama-completion"), *short])
    expect(result.status == 0 and len(library_lines(result.err)) == 2, f"from a script that waits: {result.text}")


def from_a_folder_with_spaces(work):
    """The tool and its library may lie anywhere."""
    tools, libraries = work("with a space/tools"), work("with a space/src/adapters/preload")
    os.makedirs(tools)
    os.makedirs(libraries)
    shutil.copy(of.kvpolicy_exec, tools)
    shutil.copy(of.library, libraries)
    result = run(work, [os.path.join(tools, "kvpolicy-exec"), "full", "--", of("llama-completion"), *short])
    expect(result.status == 2 or len(library_lines(result.err)) == 2, f"neither refused nor served: {result.text}")


def not_served(work, policy, why, *options):
    """Strict: nothing starts. Otherwise it is said once, and the engine answers."""
    serve = [of("llama-server"), "-m", of.model, "-t", "2", *options]
    result = run(work, of.exec(policy, "--strict") + serve)
    lines = library_lines(result.err)
    expect(result.status not in (0, None), f"strict, and it started: {result.text}")
    expect(len(lines) == 1 and why in lines[0] and policy in lines[0], f"strict: {lines}")
    with server(work, of, of.exec(policy), *options) as s:
        for _ in range(2):
            given = s.chat(text)
            expect(code in given.text, f"left to the engine: {given.text!r}")
        lines = s.lines()
        expect(len(lines) == 1 and why in lines[0] and "the engine" in lines[0], f"left to the engine: {lines}")


def strict_request(work):
    """One that can't be served once the server runs fails alone, with one line; here, behind a shift."""
    options = ("-c", "256", "-np", "1", "--context-shift")
    with server(work, of, of.exec("snapkv:tokens=64,kernel=31,after=0", "--strict"), *options) as s:
        try:
            given = s.chat(needle(4826, 24, .5), 220, ignore_eos=True)
            expect(False, f"strict, and it was answered: {given}")
        except (RuntimeError, OSError, http.client.HTTPException) as why:
            expect("status 500" in str(why), f"strict: {why!r}")
        refusals = [line for line in s.other_lines() if "prompt's last queries" in line]
        expect(len(refusals) == 1, f"strict: {refusals}")
        expect("2594" in s.chat(needle(2594, 32, .7)).text, "strict, the next request")


def another_version(work):
    """Preloaded behind the library, this is what it takes the engine for."""
    work.write("version.cpp", 'extern "C" char const* llama_version() { return "9.9.9"; }\n')
    other = work("libversion.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", other, work("version.cpp")], check=True)
    command = [of("llama-completion"), *short]
    versions = (r"9\.9\.9", r"built for llama\.cpp \d+\.\d+")
    plain = run(work, command)
    for begin in (of.preloaded("KVPOLICY=snapkv:tokens=64", behind=other),
                  ["env", f"LD_PRELOAD={other}", *of.exec("snapkv:tokens=64")]):
        result = run(work, begin + command)
        lines = library_lines(result.err)
        expect(result.status == 0 and result.out == plain.out, f"another version: {result.out!r}, {plain.out!r}")
        expect(len(lines) == 1, f"another version: {lines}")
        for pattern in (*versions, "goes on without"):
            expect(re.search(pattern, lines[0]), f"another version, the line lacks /{pattern}/: {lines}")
    with server(work, of, of.preloaded("KVPOLICY=snapkv:tokens=128,after=0", behind=other), "-c", "1024", "-np", "1") as s:
        expect(code in s.chat(text).text and len(s.lines()) == 1, f"another version: {s.lines()}")
    refused(work, of.preloaded("KVPOLICY=snapkv:tokens=64;strict", behind=other) + command, *versions)


with scratch() as work:
    attempt(unknown_settings, work)
    attempt(no_program, work)
    attempt(programs_are_found, work)
    attempt(explained, work)
    attempt(said_where_it_should_be, work)
    attempt(from_a_script, work)
    attempt(from_a_folder_with_spaces, work)
    attempt(not_served, work, "full", "--flash-attn on", "-c", "1024", "-np", "1", "-fa", "off")
    attempt(not_served, work, "snapkv:tokens=4", "budget", "-c", "1024", "-np", "1")
    attempt(strict_request, work)
    attempt(another_version, work)
finish()
