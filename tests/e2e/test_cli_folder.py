"""A Hugging Face folder given to every command: the same answers as from the GGUF file of the same model."""

import json
import os

import pytest

import cli
import make_hf
import make_tiny
from cli import ok, refused


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folder")
    gguf = folder / "m.gguf"
    make_tiny.make(gguf, arch="gemma3", type="F16", layers=7)
    make_hf.make(gguf, folder / "model", shards=2)
    return gguf, folder / "model"


def test_generate_and_cache(pair):
    gguf, folder = pair
    answers = [ok("generate", path, "-p", "hello", "-n", "12", "--json").json["text"] for path in (gguf, folder, folder)]
    assert answers[0] == answers[1] == answers[2]


def test_a_changed_file_is_seen(pair):
    _, folder = pair
    before = ok("fit", folder, "--json", "--pool", "1GiB").json
    path = folder / "config.json"
    text = path.read_text()
    config = json.loads(text)
    path.write_text(json.dumps(config | {"num_hidden_layers": 6}))
    try:
        refused(cli.iso("generate", folder, "-p", "hello", "-n", "2"), cli.UNSUPPORTED, "has no place")
    finally:
        path.write_text(text)
        os.utime(path)
    assert ok("fit", folder, "--json", "--pool", "1GiB").json == before


def test_inspect(pair):
    _, folder = pair
    told = ok("inspect", folder, "--json").json
    assert told["format"] == "Hugging Face folder"
    assert told["config"] == json.loads((folder / "config.json").read_text())
    tensors = {t["name"]: t for t in told["tensors"]}
    q = tensors["model.layers.3.self_attn.q_proj.weight"]
    assert q["type"] == "F16" and q["shape"] == [64, 64] and q["file"].startswith("model-0000")
    assert sum(t["bytes"] for t in tensors.values()) + sum(
        8 + int.from_bytes(p.read_bytes()[:8], "little") for p in folder.glob("*.safetensors")
    ) == sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    assert "model.norm.weight" in ok("inspect", folder).out.decode()
