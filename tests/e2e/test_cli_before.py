"""What does not fit is refused before anything is compiled or loaded; long and odd lines; CPUs given twice."""

import os

import make_tiny
from cli import LIMIT, NOFIT, USAGE, iso, misused, ok, refused


def test_refused_before_loading(plan, tmp_path):
    """The plan's last weight is damaged, which loading would find."""
    data = bytearray(plan.read_bytes())
    data[-200] ^= 1
    damaged = tmp_path / "damaged.plan"
    damaged.write_bytes(data)
    assert iso("generate", damaged, "-p", "x").code == 9
    refused(iso("generate", damaged, "-p", "x", "--pool", "1MiB"), NOFIT, damaged, "--pool gives 1048576")


def test_refused_before_compiling(models, home):
    plans = home / ".cache" / "isochron" / "plans"
    before = set(os.listdir(plans)) if plans.exists() else set()
    refused(iso("generate", models.qwen2, "-p", "x", "-np", 7, "--pool", "1MiB"), NOFIT, models.qwen2, "--pool gives")
    assert (set(os.listdir(plans)) if plans.exists() else set()) == before


def test_without_a_pool_the_machine_is_the_limit(tmp_path):
    """1,024 sequences of 32,768 tokens, each of 4 KiB: 128 GiB."""
    model = tmp_path / "wide.gguf"
    make_tiny.make(model, layers=16, kv_heads=4, context=32768)
    r = iso("generate", model, "-p", "x", "-c", 32768, "-np", 1024)
    refused(r, NOFIT, model, "this machine has available")


def test_a_line_of_any_length_and_content(plan):
    lines = b"hi\0there\n" + b"x" * (3 << 20) + b"\nhello\n"
    r = iso("chat", plan, "-n", 2, "--json", stdin=lines)
    answers = r.out.splitlines()
    assert r.code == LIMIT and len(answers) == 3
    assert b"1 MiB" in answers[1] and b"text" in answers[0] and b"text" in answers[2]
    assert ok("chat", plan, "-n", 2, stdin=b"hi\0there\n").out != b""


def test_a_cpu_given_twice(plan):
    misused(iso("generate", plan, "-p", "x", "--cpus", "0,0"), "CPU 0 twice")
    r = iso("generate", plan, "-p", "x", "--cpus", "0,4000")
    assert r.code == USAGE and b"CPU 4000" in r.err
