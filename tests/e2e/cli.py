"""Runs the command line as a user does: a process, its two streams, its exit code.

Everything here uses a HOME of its own (conftest.py), so no test reads or writes the user's cache or history.
"""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tools"))

BUILD = Path(os.environ.get("ISO_BUILD", ROOT / "build"))
BUILD_ASAN = Path(os.environ.get("ISO_BUILD_ASAN", ROOT / "build-asan"))
# Before conftest changes HOME.
MODEL = Path(os.environ.get(
    "ISO_MODEL", Path.home() / ".cache/isochron/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
BINARY = BUILD / "isochron"
COMMANDS = ["compile", "inspect", "fit", "generate", "chat", "eval", "bench"]  # that take a model and --json
ALL_COMMANDS = [*COMMANDS[:-1], "serve", "replay", "bench"]
SECONDS_MAX = 120  # of any one process here, on the slowest machine; nothing waits for it but a hang

# Exit codes, as docs/cli.md and `isochron --help` say.
OK, USAGE, IO, FORMAT, UNSUPPORTED, NOFIT, LIMIT, CORRUPT, VERSION = 0, 2, 3, 4, 5, 6, 7, 9, 10

# Said on standard error where the memlock limit is low; no error.
LOCK_NOTE = b"could not be locked in memory"


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit code {self.code}\nstdout: {self.out!r}\nstderr: {self.err!r}"

    @property
    def json(self):
        """The one JSON value that is all of standard output."""
        assert self.out.endswith(b"\n") and self.out.count(b"\n") == 1, self
        return json.loads(self.out)

    @property
    def notes(self):
        """Standard error without the note about locking."""
        return b"".join(line for line in self.err.splitlines(True) if LOCK_NOTE not in line)


def arguments(args, binary=BINARY):
    return [os.fsencode(str(a)) if not isinstance(a, bytes) else a for a in (binary, *args)]


def iso(*args, binary=BINARY, stdin=b"", env=None, **options):
    """Runs isochron to its end. `env` is added to the environment; a value of None takes a variable away."""
    r = subprocess.run(arguments(args, binary), input=stdin, capture_output=True, timeout=SECONDS_MAX,
                       env=environment(env), **options)
    assert b"Sanitizer" not in r.stderr and b"runtime error" not in r.stderr, r.stderr.decode(errors="replace")
    return Result(r.returncode, r.stdout, r.stderr)


def ok(*args, **options):
    r = iso(*args, **options)
    assert r.code == OK, r
    return r


def environment(changes):
    env = dict(os.environ)
    for key, value in (changes or {}).items():
        env.pop(key, None)
        if value is not None:
            env[key] = str(value)
    return env


def refused(r, code, *says):
    """One sentence on standard error that holds each of `says`, nothing on standard output."""
    assert r.code == code, r
    assert r.out == b"", r
    lines = [line for line in r.notes.splitlines() if not line.startswith(b"compiling")]
    assert len(lines) == 1, r
    assert lines[0].startswith(b"isochron: ") and not lines[0].endswith(b"."), r
    lines[0].decode("utf-8")
    for text in says:
        assert os.fsencode(str(text)) in lines[0], r


def misused(r, *says):
    """A wrong command line: what is wrong, then where help is; exit code 2."""
    assert r.code == USAGE and r.out == b"", r
    first, *rest = r.err.decode().split("\n", 1)
    assert first.startswith("isochron"), r
    assert rest and rest[0].startswith("Try `isochron"), r
    for text in says:
        assert str(text) in first, r


def demo_model():
    if not MODEL.exists():
        pytest.skip(f"the demo model is not at {MODEL}")
    return MODEL


def isas():
    """The instruction sets that this machine runs, as isochron itself names them."""
    r = iso("fit", "none", "--isa", "none")
    assert b"this machine can run: " in r.err, r
    names = r.err.split(b"\n")[0].split(b"can run: ")[1].decode()
    return names.split(", ")


class Terminal:
    """isochron on a pseudo terminal: its three streams, or those given, with a user who types."""

    def __init__(self, *args, env=None, binary=BINARY, streams=(0, 1, 2)):
        self.master, slave = pty.openpty()
        files = {0: subprocess.DEVNULL, 1: subprocess.PIPE, 2: subprocess.PIPE}
        files.update({fd: slave for fd in streams})
        self.screen = b""

        def own_terminal():
            os.setsid()
            os.close(os.open(os.ttyname(slave), os.O_RDWR))  # makes it the controlling one: Ctrl-C is a signal

        self.process = subprocess.Popen(arguments(args, binary), stdin=files[0], stdout=files[1], stderr=files[2],
                                        env=environment({"TERM": "xterm", **(env or {})}),
                                        preexec_fn=own_terminal)
        os.close(slave)

    def read(self, seconds):
        """Reads what comes within that time; False at the end."""
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other side is closed
            return False
        self.screen += data
        return bool(data)

    def wait_for(self, text, after=0):
        """Where the text ends on the screen, from `after` on."""
        deadline = time.monotonic() + SECONDS_MAX
        while text not in self.screen[after:]:
            assert time.monotonic() < deadline and self.read(1), (text, self.screen[after:])
        return self.screen.index(text, after) + len(text)

    def type(self, text):
        """Types it; where the screen ended before."""
        before = len(self.screen)
        os.write(self.master, text)
        return before

    def end(self, press=b""):
        """The exit code, negative for a signal, once the program ended by itself or after a key.

        The key is pressed until it is seen: libedit shows its prompt a moment before it takes the terminal, and what
        is typed just then has the meaning of a plain terminal.
        """
        deadline = time.monotonic() + SECONDS_MAX
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.screen
            if press:
                os.write(self.master, press)
            self.read(0.3)
        while select.select([self.master], [], [], 0)[0] and self.read(0):
            pass
        return self.process.wait(SECONDS_MAX)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.master)
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
