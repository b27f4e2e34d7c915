"""Files that are not what they should be, and streams that are closed or full: one sentence, the exit code of the
page, no crash. Run with the sanitizers' build too, where there is one."""

import os
import random
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

import cli
import gguf_io
import make_tiny
from cli import COMMANDS, CORRUPT, FORMAT, IO, OK, UNSUPPORTED, USAGE, VERSION, iso, ok, refused

SEED = 20240607
BINARIES = [cli.BINARY, pytest.param(cli.BUILD_ASAN / "isochron", marks=pytest.mark.skipif(
    not (cli.BUILD_ASAN / "isochron").exists(), reason="there is no build with sanitizers"))]
BINARY = pytest.mark.parametrize("binary", BINARIES, ids=["release", "asan"])


def ask(command, path, binary, tmp_path):
    extra = {"compile": ["-o", tmp_path / "out.plan"], "generate": ["-p", "x", "-n", 2], "chat": ["-p", "x", "-n", 2],
             "eval": ["--text", __file__, "--tokens", 40],
             "bench": ["--repeat", 1, "--output-tokens", 2]}
    r = iso(command, path, *extra.get(command, []), binary=binary)
    assert not (tmp_path / "out.plan").exists()
    return r


@BINARY
def test_what_is_no_file(binary, tmp_path):
    """A pipe would be waited for, a folder can be opened: told, not tried."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(tmp_path / "socket"))
        for command in COMMANDS:
            for name in ("fifo", "folder", "loop", "socket", "none", "none/none", "\x1b[31mred\n", "n" * 300):
                r = ask(command, tmp_path / name, binary, tmp_path)
                assert r.code == IO, r
                if name.isprintable() and len(name) < 100:
                    refused(r, IO, tmp_path / name)
                else:
                    refused(r, IO)
                    assert b"\x1b" not in r.err
            refused(ask(command, "/dev/zero", binary, tmp_path), IO, "/dev/zero")
            refused(ask(command, "", binary, tmp_path), IO)


@BINARY
def test_files_of_other_kinds(binary, tmp_path):
    rng = random.Random(SEED)
    files = {"empty": b"", "short": b"GG", "magic": b"GGUF", "text": b"hello world\n" * 100, "zeros": bytes(5000),
             "random": rng.randbytes(5000), "plan-magic": b"ISOPLAN", "reversed": b"FUGG" + bytes(100),
             "magic-and-random": b"GGUF" + struct.pack("<I", 3) + rng.randbytes(5000),
             "asks-for-much": b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62) + bytes(136)}
    for name, content in files.items():
        path = tmp_path / name
        path.write_bytes(content)
        for command in COMMANDS:
            r = ask(command, path, binary, tmp_path)
            asked_twice = (name, command) == ("plan-magic", "compile")  # of what is a plan already, if a damaged one
            assert r.code in (FORMAT, cli.LIMIT, UNSUPPORTED) or (asked_twice and r.code == cli.USAGE), (name, r)
            refused(r, r.code, path)


@BINARY
def test_versions_are_told(binary, models, plan, tmp_path):
    data = bytearray(plan.read_bytes())
    version = struct.unpack_from("<I", data, 8)[0]
    path = tmp_path / "other.plan"
    for other in (0, version + 1, 2**32 - 1):
        struct.pack_into("<I", data, 8, other)
        path.write_bytes(data)
        for command in COMMANDS[1:]:
            refused(ask(command, path, binary, tmp_path), VERSION, path, f"version {other}", "compile the model again")
    data = bytearray(models.llama.read_bytes())
    for other in (0, 1, 4):
        struct.pack_into("<I", data, 4, other)
        path.write_bytes(data)
        for command in COMMANDS:
            refused(ask(command, path, binary, tmp_path), UNSUPPORTED, path, f"version {other}")


@BINARY
def test_cut_files(binary, models, plan, tmp_path):
    path = tmp_path / "cut"
    for whole, commands in ((plan, COMMANDS[1:]), (models.llama, COMMANDS)):
        data = whole.read_bytes()
        for size in (9, 100, 500, 4095, 5000, 20000, len(data) - 1):
            path.write_bytes(data[:size])
            for command in commands if size in (500, len(data) - 1) else ["generate", "fit"]:
                refused(ask(command, path, binary, tmp_path), FORMAT, path)


@BINARY
def test_flipped_bits(binary, models, plan, tmp_path):
    """Anywhere in a plan: found. Anywhere in a model file: refused or compiled, never a crash."""
    rng = random.Random(SEED)
    path = tmp_path / "flipped"
    data = plan.read_bytes()
    for _ in range(12):
        at, bit = rng.randrange(len(data)), rng.randrange(8)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1:])
        r = ask("generate", path, binary, tmp_path)
        assert r.code in (FORMAT, CORRUPT, VERSION), (SEED, at, bit, r)
        refused(r, r.code, path)
    data = models.llama.read_bytes()
    for _ in range(25):
        at, bit = rng.randrange(8500), rng.randrange(8)  # the header and a little more
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1:])
        for command in ("fit", "inspect"):
            r = ask(command, path, binary, tmp_path)
            if r.code != OK:
                assert r.code in (FORMAT, UNSUPPORTED, cli.LIMIT), (SEED, at, bit, r)
                refused(r, r.code, path)


@BINARY
def test_numbers_that_are_none(binary, models, tmp_path):
    """NaN in the weights: refused with tensor and file when compiling, by every command that compiles."""
    reader = gguf_io.Reader(models.bare)
    data = bytearray(models.bare.read_bytes())
    at = data.index(reader.tensors["blk.1.ffn_up.weight"].raw.tobytes())
    struct.pack_into("<e", data, at, float("nan"))
    path = tmp_path / "nan.gguf"
    path.write_bytes(data)
    for command in ("compile", "generate", "bench"):
        r = ask(command, path, binary, tmp_path)
        assert r.code in (FORMAT, cli.LIMIT, 11), r
        refused(r, r.code, path, "blk.1.ffn_up.weight")


@BINARY
def test_unsupported_models_are_refused_by_name(binary, tmp_path):
    path = tmp_path / "m.gguf"
    c = dict(make_tiny.SHAPES["tiny"], type="Q8_0", tied=True, bias=False, head_dim=16)

    def write(**changes):
        meta = [(k, kind, changes.get(k.replace(".", "_"), v)) for k, kind, v in make_tiny.metadata("odd", c)]
        gguf_io.write(path, meta, make_tiny.tensor_list(c, 1))

    write(general_architecture="mamba")
    for command in ("compile", "fit", "generate"):
        refused(ask(command, path, binary, tmp_path), UNSUPPORTED, path, "mamba")
    write(tokenizer_ggml_model="t5")
    refused(ask("compile", path, binary, tmp_path), UNSUPPORTED, path, "tokenizer")
    write(tokenizer_ggml_pre="never-heard-of")
    refused(ask("fit", path, binary, tmp_path), UNSUPPORTED, path, "never-heard-of")
    write(tokenizer_chat_template="{% call x() %}{% endcall %}")
    plan = tmp_path / "m.plan"
    r = iso("compile", path, "-o", plan, binary=binary)
    if r.code == OK:  # told by whoever needs the template
        r = ask("chat", plan, binary, tmp_path)
        refused(r, UNSUPPORTED, plan)
    else:
        refused(r, UNSUPPORTED, path)


@BINARY
def test_normal_use_is_clean(binary, models, tmp_path):
    """Under the sanitizers this is where leaks would be seen."""
    path = tmp_path / "m.plan"
    ok("compile", models.qwen2, "-o", path, "-np", 2, binary=binary)
    for name in (models.qwen2, path):
        ok("inspect", name, binary=binary)
        ok("inspect", name, "--json", binary=binary)
        ok("fit", name, binary=binary)
    ok("generate", path, "-p", "hello", "-n", 9, "--stats", "--temperature", 1, "--stop", "zz", binary=binary)
    ok("generate", models.llama, "-p", "hello", "-n", 9, "--json", "--threads", 3, binary=binary)
    ok("chat", path, "-n", 9, "--json", "-S", "x", stdin=b"a\nb\n/reset\nc\n", binary=binary)
    with cli.Terminal("chat", path, "-n", 3, binary=binary) as t:
        t.wait_for(b"> ")
        t.wait_for(b"\r\n> ", t.type("h\u00e9llo\r".encode()))
        t.wait_for(b"> ", t.type(b"x\x03"))
        assert t.end(b"\x04") == OK, t.screen
        assert b"Sanitizer" not in t.screen and b"runtime error" not in t.screen


# ---- streams


def outputs(models, plan, tmp_path):
    yield ["--help"]
    yield ["--version"]
    yield ["compile", models.llama, "-o", tmp_path / "m.plan"]
    yield ["compile", models.llama, "-o", tmp_path / "m.plan", "--json"]
    yield ["inspect", plan]
    yield ["inspect", models.llama, "--json"]
    yield ["fit", plan]
    yield ["fit", plan, "--json"]
    yield ["generate", plan, "-p", "x", "-n", 3]
    yield ["generate", plan, "-p", "x", "-n", 3, "--json"]
    yield ["chat", plan, "-p", "x", "-n", 3]
    yield ["chat", plan, "-p", "x", "-n", 3, "--json"]
    yield ["bench", plan, "--repeat", 1, "--output-tokens", 2]


def test_output_to_a_full_disk(models, plan, tmp_path):
    """What could not be written is said, once, and by the exit code."""
    for args in outputs(models, plan, tmp_path):
        with open("/dev/full", "w") as full:
            p = subprocess.run(cli.arguments(args), stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                               timeout=cli.SECONDS_MAX)
        lines = [line for line in cli.Result(0, b"", p.stderr).notes.splitlines()
                 if not line.startswith((b"compiling", b"round "))]
        assert p.returncode == IO and len(lines) == 1, (args, p)
        assert lines[0].startswith(b"isochron: ") and b"failed" in lines[0], (args, lines)


def test_closed_streams(models, plan, tmp_path):
    """The plan is what it always is, and the exit code says whether the result was told."""
    want = tmp_path / "want.plan"
    ok("compile", models.llama, "-o", want)
    for closed in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)):
        path = tmp_path / "m.plan"
        redirect = " ".join(f"{fd}>&-" for fd in closed)
        command = cli.arguments(["compile", models.llama, "-o", path])
        p = subprocess.run(["sh", "-c", f'"$@" {redirect}', "sh", *command],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=cli.SECONDS_MAX)
        assert path.read_bytes() == want.read_bytes()
        assert p.returncode == (IO if 1 in closed else OK), (closed, p)
        path.unlink()
    p = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *cli.arguments(["chat", plan])], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=cli.SECONDS_MAX)
    assert p.returncode == OK and p.stdout == b""


def test_a_closed_streams_number_goes_to_no_file_of_ours(plan):
    p = subprocess.Popen(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *cli.arguments(["chat", plan])],
                         stdin=subprocess.PIPE)
    descriptors = Path(f"/proc/{p.pid}/fd")
    deadline = time.monotonic() + cli.SECONDS_MAX
    while os.readlink(f"/proc/{p.pid}/exe") != str(cli.BINARY.resolve()) or not (descriptors / "2").is_symlink():
        assert p.poll() is None and time.monotonic() < deadline
    assert [os.readlink(descriptors / fd) for fd in ("1", "2")] == ["/dev/null"] * 2
    p.stdin.close()
    assert p.wait(cli.SECONDS_MAX) == OK


def test_messages_nobody_reads(models, tmp_path):
    """Errors on a full or closed standard error still give their exit code."""
    with open("/dev/full", "w") as full:
        p = subprocess.run(cli.arguments(["fit", tmp_path / "none"]), stderr=full, stdout=subprocess.PIPE)
        assert p.returncode == IO and p.stdout == b""
        p = subprocess.run(cli.arguments(["compile", models.llama, "-o", tmp_path / "m.plan"]), stderr=full,
                           stdout=subprocess.PIPE)
        assert p.returncode == OK and p.stdout
    assert subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *cli.arguments(["none"])]).returncode == USAGE
