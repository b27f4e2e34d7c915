"""libisochron as a user of it sees it: the example on both libraries, what they export, the header alone."""

import ctypes
import json
import os
import shutil
import subprocess

import pytest

import cli

BUILD = cli.BINARY.parent
TOOLS = BUILD / "tests" / "tools"
HEADER = cli.ROOT / "include" / "isochron.h"
DECLARED = {
    "iso_version", "iso_compile", "iso_plan_open", "iso_plan_close", "iso_plan_get_info", "iso_plan_account",
    "iso_encode", "iso_token_bytes", "iso_token_ends", "iso_unit_open", "iso_unit_close", "iso_unit_isa",
    "iso_unit_is_locked", "iso_submit", "iso_cancel", "iso_step", "iso_logits",
}


def run(*command, **options):
    return subprocess.run([str(c) for c in command], capture_output=True, timeout=120, check=False, **options)


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_example_says_what_the_command_line_says(kind, plan):
    for prompt in ("Once upon a time", "", "é"):
        example = run(TOOLS / f"example_{kind}", plan, prompt, 20)
        command = run(cli.BINARY, "generate", plan, "-p", prompt, "-n", 20, "--threads", 1)
        if prompt:
            assert (example.returncode, command.returncode) == (0, 0), example.stderr + command.stderr
            # The command line turns tokens' bytes into whole characters; the example writes the bytes.
            assert example.stdout.decode("utf-8", "replace") == command.stdout.decode("utf-8")
        else:
            assert example.returncode != 0 and b"prompt" in example.stderr


def test_example_errors_name_file_and_reason(tmp_path):
    missing = run(TOOLS / "example_shared", tmp_path / "no.plan", "x", 1)
    assert missing.returncode == 2 and b"no.plan" in missing.stderr and missing.stderr.count(b"\n") == 1
    (tmp_path / "garbage.plan").write_bytes(b"garbage" * 1000)
    garbage = run(TOOLS / "example_shared", tmp_path / "garbage.plan", "x", 1)
    assert garbage.returncode == 3 and b"garbage.plan" in garbage.stderr


class CompileOptions(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("max_seq_len", "slots", "batch_tokens", "kv_q8")] + [
        ("progress", ctypes.c_void_p), ("context", ctypes.c_void_p), ("quant", ctypes.c_char_p),
        ("quant_embedding", ctypes.c_char_p)]


def test_own_quantization(models, tmp_path):
    """The same bytes as the command line's; a width that there is not is refused."""
    library = ctypes.CDLL(str(BUILD / "src" / "api" / "libisochron.so"))
    ours, theirs = tmp_path / "a.plan", tmp_path / "b.plan"
    options = CompileOptions(quant=b"w4", quant_embedding=b"w8")
    assert library.iso_compile(bytes(models.llama), bytes(ours), ctypes.byref(options), None) == 0
    assert cli.iso("compile", models.llama, "-o", theirs, "--quant", "w4", "--quant-embedding", "w8").code == 0
    assert ours.read_bytes() == theirs.read_bytes()
    for wrong in (CompileOptions(quant=b"w5"), CompileOptions(quant_embedding=b"")):
        assert library.iso_compile(bytes(models.llama), bytes(tmp_path / "c.plan"), ctypes.byref(wrong), None) != 0
        assert not (tmp_path / "c.plan").exists()


@pytest.mark.parametrize("library, flag", [("libisochron.so", "-D"), ("libisochron.a", "-g")])
def test_only_the_api_is_visible(library, flag):
    out = run("nm", flag, "--defined-only", BUILD / "src" / "api" / library).stdout.decode()
    names = {parts[2] for parts in map(str.split, out.splitlines()) if len(parts) == 3}
    assert names == DECLARED


def test_header_is_short_and_stands_alone():
    text = HEADER.read_text()
    assert len(text.splitlines()) <= 300
    for compiler in (["cc", "-std=c11"], ["cc", "-std=c99", "-pedantic"], ["clang++", "-std=c++11"]):
        if shutil.which(compiler[0]) is None:
            pytest.skip(f"{compiler[0]} is not installed")
        language = "c++" if "++" in compiler[0] else "c"
        done = run(*compiler, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", language, HEADER)
        assert done.returncode == 0, done.stderr.decode()


def test_installed_with_pkg_config(tmp_path, plan):
    """`make install` into a folder, and the example compiled from there with what pkg-config says."""
    done = run("meson", "install", "-C", BUILD, "--no-rebuild", env={**os.environ, "DESTDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr.decode()
    pc = next(tmp_path.rglob("isochron.pc"))
    env = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent), "PKG_CONFIG_SYSROOT_DIR": str(tmp_path)}
    flags = run("pkg-config", "--cflags", "--libs", "isochron", env=env).stdout.decode().split()
    program = tmp_path / "generate"
    source = cli.ROOT / "examples" / "generate.c"
    done = run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", source, *flags, "-o", program)
    assert done.returncode == 0, done.stderr.decode()
    answer = run(program, plan, "Hello", 5, env={**os.environ, "LD_LIBRARY_PATH": str(pc.parent.parent)})
    assert answer.returncode == 0, answer.stderr.decode()
    assert answer.stdout == run(TOOLS / "example_shared", plan, "Hello", 5).stdout
    assert len(source.read_text().splitlines()) <= 65
    binary = next(tmp_path.rglob("bin/isochron"))
    assert json.loads(run(binary, "fit", plan, "--json").stdout)["fits"] is True
