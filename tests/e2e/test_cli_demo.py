"""scripts/demo, which is what `make demo` runs after building: from a model file to an answer and a table of times."""

import os
import re
import subprocess

import pytest

import cli

DEMO = cli.ROOT / "scripts" / "demo"


@pytest.fixture(scope="module", autouse=True)
def is_the_build_that_the_demo_uses():
    if cli.BUILD.resolve() != cli.ROOT / "build":
        pytest.skip("scripts/demo runs build/isochron, and another build is being tested")


def demo(cache, **env):
    return subprocess.run([DEMO], env=cli.environment({"XDG_CACHE_HOME": cache, **env}), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=cli.SECONDS_MAX, cwd="/")


def check(r, prompt):
    assert r.returncode == 0, r
    steps = [r.stdout.index(f"\n== {name}") for name in ("compile", "fit", "chat")]
    assert steps == sorted(steps)
    assert "compiling: 100% of" in r.stderr and "\x1b" not in r.stderr + r.stdout
    for row in ("weights", "activations", "KV cache", "runtime", "sum"):
        assert re.search(rf"^  {row} +\d+ ", r.stdout, re.M), row
    assert "\nfits: " in r.stdout
    assert f"\n> {prompt}\n" in r.stdout
    for row in ("prompt tokens", "TTFT", "per token P50", "per token P99", "per token max"):
        assert re.search(rf"^  {row} +[\d.]+ *", r.stdout, re.M), row
    assert re.search(r"^  decode +[\d.]+ tokens/s$", r.stdout, re.M)


def test_any_model_any_prompt_without_a_terminal(models, tmp_path):
    for _ in range(2):  # the second time over what the first left
        check(demo(tmp_path, MODEL=models.llama, PROMPT="What is 'a \"substation\"'? $HOME"),
              "What is 'a \"substation\"'? $HOME")


def test_a_model_that_is_none_ends_it(tmp_path):
    r = demo(tmp_path, MODEL=tmp_path / "none.gguf")
    assert r.returncode == cli.IO and r.stderr.count("isochron: ") == 1 and "none.gguf" in r.stderr
    assert "== fit" not in r.stdout


def test_the_model_that_is_fetched(tmp_path):
    """With the file where fetch-model keeps it, nothing is fetched."""
    folder = tmp_path / "isochron" / "models"
    folder.mkdir(parents=True)
    os.link(cli.demo_model(), folder / cli.MODEL.name) if os.stat(cli.MODEL).st_dev == os.stat(
        tmp_path).st_dev else os.symlink(cli.MODEL, folder / cli.MODEL.name)
    r = demo(tmp_path, PROMPT="Say yes.")
    check(r, "Say yes.")
    assert "fetching" not in r.stderr and "SmolLM2" in r.stdout
