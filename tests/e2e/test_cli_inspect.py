"""isochron inspect: what it says of a GGUF file and of a plan is what is there, checked by readers of our own."""

import os
import re
import struct

import pytest

import cli
import gguf_io
import make_tiny
from cli import iso, ok, refused

OPS = {"embed", "rmsnorm", "quantize", "matmul", "rope", "kv_store", "attention", "add", "silu_mul", "gelu_mul", "gather"}
SECTIONS = ["tensors", "operations", "tokenizer", "template", "weights"]
A8_GROUP_BYTES = 48  # of 32 activations


@pytest.mark.parametrize("name", ["llama", "qwen2", "bare"])
def test_gguf(name, models):
    path = getattr(models, name)
    told = ok("inspect", path, "--json").json
    reader = gguf_io.Reader(path)
    assert (told["format"], told["version"], told["alignment"]) == ("GGUF", 3, 32)
    assert told["bytes"] == path.stat().st_size
    assert list(told["metadata"]) == list(reader.meta)
    for key, value in reader.meta.items():
        if isinstance(value, list):
            kind = "string" if isinstance(value[0], str) else "int32"
            assert told["metadata"][key] == f"{kind}[{len(value)}]"
        elif isinstance(value, float):
            assert struct.pack("<f", told["metadata"][key]) == struct.pack("<f", value)
        else:
            assert told["metadata"][key] == value and type(told["metadata"][key]) is type(value)
    assert [t["name"] for t in told["tensors"]] == list(reader.tensors)
    data = path.read_bytes()
    for t, want in zip(told["tensors"], reader.tensors.values()):
        assert (t["type"], t["shape"], t["bytes"]) == (want.type, want.dims, want.raw.nbytes)
        assert data[t["offset"]:t["offset"] + t["bytes"]] == want.raw.tobytes()


def test_gguf_values_of_all_kinds(tmp_path):
    path = tmp_path / "values.gguf"
    numbers = [("u8", 255), ("i8", -128), ("u16", 65535), ("i16", -32768), ("u32", 2**32 - 1), ("i32", -(2**31)),
               ("i64", -(2**63)), ("u64", 2**63 - 1), ("f64", 0.1), ("bool", True), ("bool", False)]
    meta = [(f"n.{i}", kind, value) for i, (kind, value) in enumerate(numbers)]
    meta += [("big", "u64", 2**64 - 1), ("nan", "f32", float("nan")), ("inf", "f64", float("-inf")),
             ("long", "str", "x" * 100000), ("text", "str", "a\n\tb\x1b[31m\x00c\x7f\u0085"), ("k" * 300, "u8", 1),
             ("k" * 299 + "l", "u8", 2), ("bytes", "str", "\udcff\udcfe"), ("floats", "[f32]", [1.0, 2.0])]
    gguf_io.write(path, meta, [("t", "F32", [1], lambda: make_tiny.floats("F32", "t", 1, 1))])
    told = ok("inspect", path, "--json").json["metadata"]
    for key, _, value in meta[:len(numbers)]:
        assert told[key] == value and type(told[key]) is type(value)
    assert told["big"] == str(2**64 - 1) and told["nan"] == "nan" and told["inf"] == "-inf"
    assert told["long"] == "x" * 100000 and told["text"] == "a\n\tb\x1b[31m\x00c\x7f\u0085"
    assert told["k" * 300] == 1 and told["k" * 299 + "l"] == 2
    assert told["bytes"] == "\ufffd\ufffd" and told["floats"] == "float32[2]"
    text = ok("inspect", path).out
    assert b"\x1b" not in text and b"\x7f" not in text and b"\xc2\x85" not in text and b"a\n\tb?[31m" in text


def matrix_bytes(kind, rows, cols):
    """Panels of 16 rows, each aligned to 64 bytes; a block type's blocks as they are."""
    _, per_block, block = gguf_io.TYPES[kind.upper()]
    return -(-rows // 16) * -(-16 * cols // per_block * block // 64) * 64


def row_bytes(t):
    return t["cols"] // 32 * A8_GROUP_BYTES if t["type"] == "a8" else t["cols"] * 4


@pytest.mark.parametrize("name, options", [("llama", []), ("qwen2", ["-c", 77, "-np", 5, "--kv", "q8"]),
                                           ("bare", ["--batch-tokens", 7])])
def test_plan(name, options, models, tmp_path):
    path, gguf = tmp_path / "m.plan", gguf_io.Reader(getattr(models, name))
    ok("compile", getattr(models, name), "-o", path, *options)
    told = ok("inspect", path, "--json").json
    arch = gguf.meta["general.architecture"]
    model = told["model"]
    assert told["format"] == "Isochron plan" and told["bytes"] == path.stat().st_size
    assert model["architecture"] == arch and model["name"] == gguf.meta["general.name"]
    assert model["hidden"] == gguf.meta[f"{arch}.embedding_length"]
    assert model["layers"] == gguf.meta[f"{arch}.block_count"]
    assert model["heads"] == gguf.meta[f"{arch}.attention.head_count"]
    assert model["kv_heads"] == gguf.meta[f"{arch}.attention.head_count_kv"]
    assert model["head_dim"] == model["hidden"] // model["heads"]
    assert model["ffn"] == gguf.meta[f"{arch}.feed_forward_length"]
    assert model["vocab"] == len(gguf.meta["tokenizer.ggml.tokens"])
    assert model["context"] == gguf.meta[f"{arch}.context_length"]
    assert told["chat_template"] == gguf.meta.get("tokenizer.chat_template")
    tokenizer = told["tokenizer"]
    assert tokenizer["tokens"] == model["vocab"]
    assert tokenizer["merges"] == len(gguf.meta["tokenizer.ggml.merges"])
    assert tokenizer["pre_tokenizer"] == gguf.meta["tokenizer.ggml.pre"]
    assert tokenizer["adds_bos"] is False and tokenizer["adds_eos"] is False
    tokens = gguf.meta["tokenizer.ggml.tokens"]
    assert {tokens[i] for i in tokenizer["end_of_generation"]} == {"<|endoftext|>", "<|im_end|>"}
    check_sections(told, path)
    check_weights(told, gguf)
    check_program(told)


def check_sections(told, path):
    """Contiguous, aligned, inside the file; the checksums are 128 bits and differ."""
    end = 0
    assert [s["name"] for s in told["sections"]] == SECTIONS
    for s in told["sections"]:
        assert s["offset"] % 4096 == 0 and s["offset"] >= end and s["offset"] - end < 2 * 4096
        end = s["offset"] + s["bytes"]
        assert re.fullmatch(r"[0-9a-f]{32}", s["xxh3"])
    assert end == told["bytes"] == path.stat().st_size
    assert told["sections"][0]["bytes"] == 96 * len(told["tensors"])
    assert told["sections"][1]["bytes"] == 64 * len(told["operations"])
    assert len({s["xxh3"] for s in told["sections"]} | {told["hash"]}) == 6


def check_weights(told, gguf):
    """Every parameter of the model once, in panels as large as the definition says, side by side."""
    weights = [t for t in told["tensors"] if t["kind"] in ("matrix", "vector", "angles")]
    at = 0
    for t in sorted(weights, key=lambda t: t["offset"]):
        if t["kind"] == "matrix":
            want = matrix_bytes(t["type"], t["rows"], t["cols"])
        else:
            want = 4 * t["cols"] * (told["limits"]["max_seq_len"] if t["kind"] == "angles" else 1)
        assert t["offset"] == at and t["bytes"] == -(-want // 64) * 64, t
        at += t["bytes"]
    assert at == told["sections"][4]["bytes"]
    count = sum(t["rows"] * t["cols"] if t["kind"] == "matrix" else t["cols"] for t in weights if t["kind"] != "angles")
    assert count == sum(int(tensor.raw.nbytes) // gguf_io.TYPES[tensor.type][2] * gguf_io.TYPES[tensor.type][1]
                        for tensor in gguf.tensors.values())


def check_program(told):
    """Operations in order: nothing is read before it is written, and no two values that live at once overlap."""
    tensors, limits = told["tensors"], told["limits"]
    known = {i for i, t in enumerate(tensors) if t["kind"] in ("matrix", "vector", "angles")}
    life = {}
    operand = re.compile(r"%(\d+)(?:\[(\d+):(\d+)\])?(?: .+)?")
    for at, op in enumerate(told["operations"]):
        assert op["op"] in OPS and 0 <= op["layer"] < told["model"]["layers"]
        for text in op["in"]:
            i, first, end = operand.fullmatch(text).groups()
            assert int(i) in known, (at, op)
            assert first is None or int(first) < int(end) <= tensors[int(i)]["cols"]
            life.setdefault(int(i), [at, at])[1] = at
        if op["out"]:
            i = int(operand.fullmatch(op["out"]).group(1))
            known.add(i)
            life.setdefault(i, [at, at])[1] = at
    names = [op["op"] for op in told["operations"]]
    layers = told["model"]["layers"]
    assert names[0] == "embed" and names.count("attention") == names.count("kv_store") == layers
    assert names.count("silu_mul") == layers and names.count("rmsnorm") == 2 * layers + 1
    assert [op["layer"] for op in told["operations"] if op["op"] == "attention"] == list(range(layers))
    values = [i for i in life if tensors[i]["kind"] in ("batch", "logits")]
    for i in values:
        t = tensors[i]
        rows = limits["batch_tokens"] if t["kind"] == "batch" else limits["slots"]
        assert t["bytes"] == -(-rows * row_bytes(t) // 64) * 64
    for a in values:
        for b in values:
            if a < b and life[a][0] <= life[b][1] and life[b][0] <= life[a][1]:
                assert (tensors[a]["offset"] + tensors[a]["bytes"] <= tensors[b]["offset"]
                        or tensors[b]["offset"] + tensors[b]["bytes"] <= tensors[a]["offset"]), (a, b)
    assert told["arena_bytes"] == max(tensors[i]["offset"] + tensors[i]["bytes"] for i in values)


def test_text_has_what_json_has(models, plan):
    """Each member's name and each tensor and operation is in the text too, in the same order."""
    for path in (models.llama, plan):
        told, text = ok("inspect", path, "--json").json, ok("inspect", path).out.decode()
        assert [m for m in re.findall(r"^(\w+):", text, re.M) if m in told] == list(told)
        at = 0
        for t in told["tensors"]:
            at = text.index(f"name {t['name']} ", at) + 1
        for op in told.get("operations", []):
            at = text.index(f"op {op['op']} ", at) + 1
        for s in told.get("sections", []):
            assert s["xxh3"] in text
    assert told["hash"] in text


def test_demo_model():
    told = ok("inspect", cli.demo_model(), "--json").json
    assert told["metadata"]["general.architecture"] == "llama"
    assert told["metadata"]["llama.block_count"] == 30 and len(told["tensors"]) == 272
    assert "Q4_1" in {t["type"] for t in told["tensors"]}


def test_flipped_bytes_are_found_wherever_they_are(plan, tmp_path):
    """A bit in the header, in each section, in the padding and at the end."""
    told = ok("inspect", plan, "--json").json
    data = plan.read_bytes()
    places = {len(data) - 1, 40, 300, 420, 1000}
    for s in told["sections"]:
        places |= {s["offset"], s["offset"] + s["bytes"] // 2, s["offset"] + s["bytes"] - 1, s["offset"] - 1}
    path = tmp_path / "flipped.plan"
    for at in sorted(places):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
        r = iso("inspect", path)
        assert r.code in (cli.FORMAT, cli.CORRUPT), (at, r)
        refused(r, r.code, path)
    os.truncate(path, len(data) - 1)
    refused(iso("inspect", path), cli.FORMAT, path, len(data), len(data) - 1)
