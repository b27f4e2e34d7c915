"""A program built for 64-bit ARM writes the same plan and computes the same logits, byte for byte, as the release build
of this machine: with NEON and plain C kernels, one thread and two.

It runs under qemu-aarch64, so a few tokens of tiny models must do. Only where ISO_FULL=1 is set: `make test` neither
has nor needs the cross compiler.
"""

import itertools
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from unit_tool import BUILD_AARCH64, FULL, Request, open_line, run, tiny_plan, tool

QWEN2 = dict(arch="qwen2", hidden=96, heads=6, kv_heads=3, ffn=224, layers=3)
MODELS = {"llama-mixed": dict(type="mixed"), "qwen2-mixed": dict(QWEN2, type="mixed")}
LIMITS = dict(max_seq_len=96, slots=2, batch_tokens=32)

IDS = random.Random(1).sample(range(331), 37)
REQUESTS = [Request("greedy", IDS[:21], 6),
            Request("sampled", IDS[:18], 6, dict(temperature=0.9, top_k=50, top_p=0.95, penalty=1.1, seed=42)),
            Request("score", IDS, options=dict(score=1)),
            Request("one_token_off", IDS[:20] + [IDS[20] ^ 1], 6)]


def script(*config):
    return [open_line(*config, reuse=0), *(r.line() for r in REQUESTS), "drain"]


def compare(folder, model, kv):
    here, there = (tiny_plan(folder, model, MODELS[model], kv=kv, **LIMITS, **build)
                   for build in ({}, dict(build=BUILD_AARCH64)))
    assert here.read_bytes() == there.read_bytes(), f"{model}, {kv}: the builds write different plans"

    wanted = {r["name"]: r for r in run(here, script())}
    assert len(wanted) == len(REQUESTS)
    # What is compared shows the smallest change of a prompt.
    assert not set(wanted["greedy"]["logits"]) & set(wanted["one_token_off"]["logits"])
    for isa, threads in itertools.product(("c", "neon"), (1, 2)):
        got = {r["name"]: r for r in run(there, script(isa, threads), BUILD_AARCH64)}
        assert got == wanted, f"{model}, {kv}, {isa}, {threads} threads"


@pytest.mark.skipif(not FULL, reason="64-bit ARM is emulated only where ISO_FULL=1 is set (make test-full)")
def test_same_bytes(tmp_path):
    tool(build=BUILD_AARCH64)
    for model, kv in itertools.product(MODELS, ("f16", "q8")):
        compare(tmp_path, model, kv)
