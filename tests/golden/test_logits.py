"""Golden logits: what tiny generated models and the demo model compute, token by token, is what is committed.

logits.json holds for each case the model file's SHA-256 and for each request its tokens and, per event, XXH3 (64
bits) of the logits' bytes. A change means that the definition of the numerics changed: then PLAN_VERSION and
docs/internals/numerics.md change too, and

    ISO_BUILD=build python3 tests/golden/test_logits.py --write

(with the Python of the tests, build/venv) writes the file anew.
"""

import hashlib
import json
import random
import re
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from unit_tool import Request, compile_plan, demo_model, open_line, run, tiny_plan

GOLDEN = Path(__file__).with_name("logits.json")

QWEN2 = dict(arch="qwen2", hidden=96, heads=6, kv_heads=3, ffn=224, layers=3)
# name: (arguments of make_tiny or None for the demo model, KV type)
CASES = {
    "llama-mixed-f16": (dict(type="mixed"), "f16"),
    "llama-mixed-q8": (dict(type="mixed"), "q8"),
    "qwen2-mixed-f16": (dict(QWEN2, type="mixed"), "f16"),
    "qwen2-Q4_0-q8": (dict(QWEN2, type="Q4_0"), "q8"),
    "llama-k-mixed-f16": (dict(hidden=256, ffn=512, layers=4, type="k-mixed"), "f16"),
    "qwen3-mixed-f16": (dict(arch="qwen3", head_dim=32, type="mixed"), "f16"),
    "gemma3-mixed-f16": (dict(arch="gemma3", layers=7, window=24, type="mixed"), "f16"),
    "gemma3-Q8_0-q8": (dict(arch="gemma3", layers=7, window=520, type="Q8_0"), "q8"),
    "demo-f16": (None, "f16"),
    "demo-q8": (None, "q8"),
}
SAMPLED = dict(temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, penalty=1.1, seed=42)


def tiny_requests():
    rng = random.Random(5)
    ids = [rng.randrange(331) for _ in range(600)]
    return [Request("greedy", ids[:21], 12), Request("sampled", ids[:21], 12, SAMPLED),
            Request("score", ids[:16], options=dict(score=1)), Request("spans", ids, 4)]


def demo_requests():
    # "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    prompt = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    return [Request("greedy", prompt, 8), Request("sampled", prompt, 8, SAMPLED)]


def compute(name, folder):
    """What logits.json holds for a case."""
    arguments, kv = CASES[name]
    if arguments is None:
        model, requests, plan = demo_model(), demo_requests(), folder / f"{name}.plan"
        compile_plan(model, plan, 64, 2, 64, kv)
    else:
        requests = tiny_requests()
        plan = tiny_plan(folder, name, dict(arguments, context=640), max_seq_len=640, slots=2, batch_tokens=64, kv=kv)
        model = folder / f"{name}.gguf"
    lines = [open_line(isa="c", reuse=0)]
    for r in requests:
        lines += [r.line(), "drain"]
    results = run(plan, lines)
    plan.unlink()
    return {"model_sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
            "requests": {r["name"]: {"tokens": r["tokens"], "logits": r["logits"]} for r in results}}


def compare(got, want):
    assert got["model_sha256"] == want["model_sha256"], "another model file than the golden one"
    assert got["requests"] == want["requests"]


@pytest.mark.parametrize("name", CASES)
def test_logits(name, tmp_path):
    compare(compute(name, tmp_path), json.loads(GOLDEN.read_text())[name])


def test_a_changed_hash_is_seen(tmp_path):
    """The comparison fails where one hash differs by one bit."""
    got = compute("llama-mixed-f16", tmp_path)
    last = got["requests"]["greedy"]["logits"]
    last[-1] = f"{int(last[-1], 16) ^ 1:016x}"
    with pytest.raises(AssertionError):
        compare(got, json.loads(GOLDEN.read_text())["llama-mixed-f16"])


def write():
    with tempfile.TemporaryDirectory() as folder:
        golden = {name: compute(name, Path(folder)) for name in CASES}
    text = json.dumps(golden, indent=1)
    text = re.sub(r"\[[^\]]*\]", lambda m: re.sub(r"\s+", " ", m.group()).replace("[ ", "[").replace(" ]", "]"), text)
    GOLDEN.write_text(text + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
