"""Drives tool_unit (tests/tools/tool_unit.c): compiles models, runs scripts, gives each request's result."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_tiny  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ISO_BUILD", ROOT / "build"))
BUILD_CLANG = Path(os.environ.get("ISO_BUILD_CLANG", ROOT / "build-clang"))
BUILD_AARCH64 = Path(os.environ.get("ISO_BUILD_AARCH64", ROOT / "build-aarch64"))
MODEL = Path(os.environ.get(
    "ISO_MODEL", Path.home() / ".cache/isochron/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
FULL = os.environ.get("ISO_FULL") == "1"

CPU_FLAGS = {"avx2": {"avx2", "fma", "f16c"},
             "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}}
CPU_FLAGS["amx"] = CPU_FLAGS["avx512"] | {"amx_tile", "amx_int8"}


def isas():
    """The ISAs that this machine can run; the definition comes first."""
    flags = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":")[1].split())
            break
    return ["c"] + [isa for isa, needs in CPU_FLAGS.items() if needs <= flags]


def tool(name="tool_unit", build=BUILD):
    path = build / "tests" / "tools" / name
    if not path.exists():
        pytest.skip(f"{path} has not been built")
    return path


def command(build):
    """tool_unit of a build; that of another processor through its emulator."""
    path = tool(build=build)
    if build != BUILD_AARCH64:
        return [path]
    if not shutil.which("qemu-aarch64"):
        pytest.skip("qemu-aarch64 is not installed")
    return ["qemu-aarch64", path]


def demo_model():
    if not MODEL.exists():
        pytest.skip(f"the demo model is not at {MODEL}")
    return MODEL


def compile_plan(model, plan, max_seq_len, slots, batch_tokens, kv="f16", build=BUILD):
    subprocess.run([*command(build), "compile", model, plan, *map(str, (max_seq_len, slots, batch_tokens)), kv],
                   check=True)
    return plan


def tiny_plan(folder, name, model, max_seq_len=1280, slots=8, batch_tokens=1280, kv="f16", build=BUILD):
    """A plan of a model that make_tiny makes with the arguments `model`; both files lie in `folder`."""
    gguf = folder / f"{name}.gguf"
    if not gguf.exists():
        make_tiny.make(gguf, **model)
    plan = folder / f"{name}-{max_seq_len}-{slots}-{batch_tokens}-{kv}-{build.name}.plan"
    if not plan.exists():
        compile_plan(gguf, plan, max_seq_len, slots, batch_tokens, kv, build)
    return plan


@dataclass
class Request:
    name: str
    prompt: list
    output: int = 0
    options: dict = field(default_factory=dict)

    def line(self, name=None):
        options = dict(self.options, output=self.output) if self.output else self.options
        words = [f"{key}={value}" for key, value in options.items()]
        return " ".join(["submit", name or self.name, *words, ":", *map(str, self.prompt)])


def open_line(isa="c", threads=1, chunk=0, reuse=1):
    return f"open isa={isa} threads={threads} chunk={chunk} reuse={int(reuse)}"


def run(plan, lines, build=BUILD):
    """Results in the order in which the requests ended: dicts with name, reused, finish, tokens, logits."""
    script = "".join(line + "\n" for line in lines)
    r = subprocess.run([*command(build), "run", plan], input=script, text=True, capture_output=True)
    assert r.returncode == 0, f"tool_unit ended with {r.returncode}: {r.stderr}\n{script[:2000]}"
    return [json.loads(line) for line in r.stdout.splitlines()]
