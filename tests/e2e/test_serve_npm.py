"""isochron serve as OpenAI's client for JavaScript uses it (tests/npm). Only where ISO_FULL=1 is set: it fetches a package."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import cli
import scripted

SOURCE = Path(__file__).resolve().parents[1] / "npm"
FULL = os.environ.get("ISO_FULL") == "1"
pytestmark = [
    pytest.mark.skipif(not FULL, reason="the npm package is fetched only where ISO_FULL=1 is set (make test-full)"),
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="node and npm are not installed")]


@pytest.fixture(scope="module")
def package():
    """The pinned package, in the build folder; none of its scripts is run."""
    folder = cli.BUILD / "npm"
    folder.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json", "client.mjs"):
        shutil.copy(SOURCE / name, folder / name)
    r = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return folder


def test_client_in_javascript(package, tmp_path):
    with scripted.serve(tmp_path) as s, s.client() as client:
        r = subprocess.run(["node", "client.mjs", s.base + "/v1"], cwd=package, stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, timeout=120)
        assert r.returncode == 0, r.stderr
        got = json.loads(r.stdout)
        rows = [d.embedding for d in client.embeddings.create(model="qwen3", input=["x", "yz"]).data]
        s.wait(lambda: s.metric("vllm:num_requests_running") == 0, what="an idle unit after a closed stream")
    usage = got["stream"].pop("usage")
    assert got["stream"] == {"reasoning": scripted.REASONING, "content": scripted.CONTENT, "finish": "stop"}
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12 and usage["completion_tokens"] == 12
    for model in ("qwen3", "llama", "mistral"):
        assert got["calls"][model] == {"name": "mul", "arguments": {"a": 1}, "finish": "tool_calls"}
    assert got["agent"] == {"content": scripted.CONTENT, "given": [1], "roles": ["user", "assistant", "tool", "assistant"]}
    assert np.array_equal(np.float32(got["embeddings"]), np.float32(got["floats"]))
    assert np.array_equal(np.float32(got["embeddings"]), np.float32(rows))
    assert got["models"] == list(scripted.SCRIPTS) and got["several"] == [0, 1, 2, 3]
    assert got["bad"] == {"isKind": True, "status": 400, "param": "temperature", "code": "invalid_value",
                          "type": "invalid_request_error", "id": "string"}
    assert got["unknown"]["isKind"] and (got["unknown"]["status"], got["unknown"]["param"]) == (404, "model")
    assert got["left"] == "text_completion"
