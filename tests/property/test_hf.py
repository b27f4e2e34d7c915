"""Hugging Face folders: a folder compiles to what the GGUF file of the same model compiles to, and what is wrong or not
supported is refused in one sentence that names the file and the field."""

import json
import os
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "tools"), str(ROOT / "tests" / "property")]
import make_hf  # noqa: E402
import make_tiny  # noqa: E402
from test_compile import Plan  # noqa: E402

BUILD = pathlib.Path(os.environ.get("ISO_BUILD", ROOT / "build"))
TOOL = BUILD / "tests" / "tools" / "tool_compile"
USAGE, IO, FORMAT, UNSUPPORTED, LIMIT = 2, 3, 4, 5, 7

ATTENTION = 6  # an operation's code in the plan

GEMMA = dict(layers=7, window=24)
LLAMA3 = dict(type="llama3", factor=8.0, low=1.0, high=4.0, original=128)
CASES = {
    "llama": ("llama", "F32", {}, 1),
    "llama-untied-bf16-shards": ("llama", "BF16", dict(tied=False, bias=True), 3),
    "llama-linear": ("llama", "F16", dict(scaling=dict(type="linear", factor=4.0)), 1),
    "llama-yarn": ("llama", "F32", dict(scaling=dict(type="yarn", factor=4.0, original=64)), 1),
    "llama-llama3": ("llama", "F32", dict(scaling=LLAMA3), 1),
    "qwen2": ("qwen2", "F16", {}, 2),
    "qwen3": ("qwen3", "BF16", dict(head_dim=32), 1),
    "gemma3": ("gemma3", "BF16", GEMMA, 1),
}


def compile_model(model, plan):
    """Exit code and the error's text."""
    done = subprocess.run([TOOL, model, plan, "--max-seq-len", "64", "--slots", "2", "--batch-tokens", "16"], capture_output=True, text=True, timeout=120,
                          check=False)
    return done.returncode, done.stderr


def folder_of(tmp_path, arch="llama", type_name="F32", changes=None, shards=1):
    gguf, folder = tmp_path / "m.gguf", tmp_path / "model"
    make_tiny.make(gguf, arch=arch, type=type_name, **(changes or {}))
    make_hf.make(gguf, folder, shards, (changes or {}).get("scaling"))
    return gguf, folder


@pytest.mark.parametrize("name", CASES)
def test_folder_is_the_file(tmp_path, name):
    arch, type_name, changes, shards = CASES[name]
    gguf, folder = folder_of(tmp_path, arch, type_name, changes, shards)
    for model, plan in ((gguf, "a.plan"), (folder, "b.plan")):
        code, text = compile_model(model, tmp_path / plan)
        assert code == 0, text
    a, b = Plan(tmp_path / "a.plan"), Plan(tmp_path / "b.plan")
    assert (a.arch, a.model, a.limits, a.eog) == (b.arch, b.model, b.limits, b.eog)
    shape = [(t.kind, t.dtype, t.rows, t.cols, t.offset, t.bytes) for t in a.tensors]
    assert shape == [(t.kind, t.dtype, t.rows, t.cols, t.offset, t.bytes) for t in b.tensors]
    for section in (1, 2, 3, 4):  # operations, tokenizer, template, weights
        assert a.section(section) == b.section(section), f"section {section}"


@pytest.mark.parametrize("window", [None, 16])
def test_mistral(tmp_path, window):
    """Llama's graph; where the folder has a window, every layer's attention has it."""
    gguf, folder = folder_of(tmp_path)
    set_config(architectures=["MistralForCausalLM"], sliding_window=window)(folder)
    for model, plan in ((gguf, "a.plan"), (folder, "b.plan")):
        code, text = compile_model(model, tmp_path / plan)
        assert code == 0, text
    a, b = Plan(tmp_path / "a.plan"), Plan(tmp_path / "b.plan")
    assert b.arch == "mistral" and a.section(4) == b.section(4)
    ops = np.frombuffer(a.section(1), "<u4").reshape(-1, 16).copy()
    ops[ops[:, 0] == ATTENTION, 15] = window or 0
    assert (ops == np.frombuffer(b.section(1), "<u4").reshape(-1, 16)).all()
    assert (ops[:, 0] == ATTENTION).sum() == 2


def edit_json(folder, name, change):
    path = folder / name
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def set_config(**values):
    return lambda folder: edit_json(folder, "config.json", lambda c: c.update(values))


def drop_config(key):
    return lambda folder: edit_json(folder, "config.json", lambda c: c.pop(key))


def set_tokenizer(path, value):
    def change(t):
        *way, last = path.split(".")
        for key in way:
            t = t[int(key) if key.isdigit() else key]
        t[last] = value

    return lambda folder: edit_json(folder, "tokenizer.json", change)


def set_header(change, data=None):
    """Changes the header of model.safetensors, a dict, or what `data` makes of the data's bytes."""

    def edit(folder):
        path = folder / "model.safetensors"
        raw = path.read_bytes()
        n = struct.unpack("<Q", raw[:8])[0]
        header, rest = json.loads(raw[8 : 8 + n]), raw[8 + n :]
        header = change(header) or header
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + (data(rest) if data else rest))

    return edit


def tensor(header, **values):
    header["model.norm.weight"].update(values)


def shift_first(header):
    first = min((v["data_offsets"][0], k) for k, v in header.items() if k != "__metadata__")[1]
    del header[first]


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


def remove(name):
    return lambda folder: (folder / name).unlink()


def link_out(folder):
    (folder / "model.safetensors").rename(folder.parent / "elsewhere")
    (folder / "model.safetensors").symlink_to("../elsewhere")


def link_absolute(folder):
    (folder / "config.json").rename(folder.parent / "elsewhere.json")
    (folder / "config.json").symlink_to(folder.parent / "elsewhere.json")


def unigram(vocab, unk=0):
    return lambda f: [set_tokenizer(k, v)(f) for k, v in (
        ("model.type", "Unigram"), ("model.vocab", vocab), ("model.unk_id", unk), ("normalizer", None),
        ("pre_tokenizer", {"type": "Metaspace", "replacement": "\u2581"}))]


def hard_link(folder):
    os.link(folder / "model.safetensors", folder.parent / "other")


REFUSALS = {
    "no-config": (remove("config.json"), IO, "config.json cannot be opened"),
    "config-no-json": (write("config.json", "{"), FORMAT, "config.json: malformed JSON in line 1"),
    "config-list": (write("config.json", "[]"), FORMAT, "config.json: "),
    "config-deep": (write("config.json", "[" * 100 + "]" * 100), LIMIT, "config.json: the JSON nests deeper than 64"),
    "config-twice": (write("config.json", '{"a": 1, "a": 2}'), FORMAT, "config.json: malformed JSON"),
    "config-long": (write("config.json", " " * (5 << 20)), LIMIT, "config.json has 5242880 bytes; the limit is"),
    "no-class": (drop_config("architectures"), FORMAT, "\"architectures\" is no list of one name"),
    "other-class": (set_config(architectures=["GPT2LMHeadModel"]), UNSUPPORTED,
                    "architecture \"GPT2LMHeadModel\" is not supported; supported are LlamaForCausalLM"),
    "quantized": (set_config(quantization_config={"quant_method": "gptq"}), UNSUPPORTED, "quantized by gptq"),
    "hidden": (set_config(hidden_size=128), FORMAT, "where the parameters ask for 128"),
    "hidden-text": (set_config(hidden_size="64"), FORMAT, "config.json: hidden_size is not an integer"),
    "hidden-missing": (drop_config("hidden_size"), FORMAT, "config.json: hidden_size is missing"),
    "layers-negative": (set_config(num_hidden_layers=-1), FORMAT, "num_hidden_layers is not an integer"),
    "layers-many": (set_config(num_hidden_layers=5000), UNSUPPORTED, "num_hidden_layers is 5000; supported is 1 to"),
    "layers-fewer": (set_config(num_hidden_layers=1), UNSUPPORTED, "has no place in architecture"),
    "vocabulary": (set_config(vocab_size=1000), FORMAT, "vocab_size is 1000, but tensor \"model.embed_tokens.weight\""),
    "activation": (set_config(hidden_act="gelu"), UNSUPPORTED, "hidden_act is \"gelu\"; supported for this model is"),
    "window": (set_config(sliding_window=64), UNSUPPORTED, "sliding_window is set"),
    "layer-types": (set_config(layer_types=["full_attention", "linear_attention"]), UNSUPPORTED,
                    "layer_types calls layer 1 \"linear_attention\""),
    "rope": (set_config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), UNSUPPORTED,
             "rope_scaling.rope_type is \"dynamic\", which is not supported; none, linear, llama3 and yarn are"),
    "rope-factor": (set_config(rope_scaling={"rope_type": "linear"}), FORMAT, "rope_scaling.factor is missing"),
    "rope-part": (set_config(partial_rotary_factor=0.5), UNSUPPORTED, "partial_rotary_factor is set"),
    "experts": (set_config(num_local_experts=8), UNSUPPORTED, "is set, which is not supported"),
    "untied": (set_config(tie_word_embeddings=False), FORMAT, "tie_word_embeddings is false, but"),
    "no-weights": (remove("model.safetensors"), IO, "has neither model.safetensors nor"),
    "no-tokenizer": (remove("tokenizer.json"), IO, "tokenizer.json cannot be opened"),
    "word-piece": (set_tokenizer("model.type", "WordPiece"), UNSUPPORTED, "model.type is WordPiece"),
    "unigram-object": (set_tokenizer("model.type", "Unigram"), FORMAT, "model.vocab is no list of texts and scores"),
    "bpe-list": (set_tokenizer("model.vocab", [["a", 1]]), FORMAT, "model.vocab is no object of tokens"),
    "unigram-score": (unigram([["a", "b"]]), FORMAT, "model.vocab holds something that is not a text with a score"),
    "unigram-unknown": (unigram([["a", -1]], unk=1 << 20), FORMAT, "model.unk_id is no token's id"),
    "unigram-words": (lambda f: [unigram([["a", -1]])(f), set_tokenizer("pre_tokenizer", {"type": "WhitespaceSplit"})(f)],
                      UNSUPPORTED, "pre_tokenizer is of another kind"),
    "normalizer": (set_tokenizer("normalizer", {"type": "NFKC"}), UNSUPPORTED, "normalizer"),
    "pre-tokenizer": (set_tokenizer("pre_tokenizer", {"type": "Whitespace"}), UNSUPPORTED, "pre_tokenizer"),
    "metaspace": (lambda f: [set_tokenizer(k, v)(f) for k, v in (
        ("model.byte_fallback", True), ("normalizer", None),
        ("pre_tokenizer", {"type": "Metaspace", "replacement": "_", "split": False}))], UNSUPPORTED,
        "Metaspace by another character"),
    "added-flag": (set_tokenizer("added_tokens.0.lstrip", True), UNSUPPORTED, "an added token is lstrip"),
    "id-twice": (set_tokenizer("model.vocab.!", 5), FORMAT, "two tokens of one id"),
    "id-far": (set_tokenizer("model.vocab.!", 1 << 40), LIMIT, "model.vocab holds an id that is no integer from 0 to 1048575"),
    "merge": (set_tokenizer("model.merges", ["ab"]), FORMAT, "model.merges holds a text without a space"),
    "edges": (set_tokenizer("post_processor", {"type": "BertProcessing"}), UNSUPPORTED, "post_processor"),
    "template": (lambda f: edit_json(f, "tokenizer_config.json", lambda c: c.update(chat_template="{% if")), FORMAT,
                 "chat_template"),
    "link-out": (link_out, FORMAT, "model.safetensors is a symbolic link that leads out of the model's folder"),
    "link-absolute": (link_absolute, FORMAT, "config.json is a symbolic link that leads out"),
    "hard-link": (hard_link, FORMAT, "model.safetensors has another name (a hard link)"),
    "short": (lambda f: (f / "model.safetensors").write_bytes(b"abc"), FORMAT, "too short"),
    "header-long": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 16), LIMIT, "the limit is 100000000"),
    "header-past": (lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 99) + b"{}"), FORMAT,
                    "goes past the end of the file"),
    "type": (set_header(lambda h: tensor(h, dtype="F8_E4M3")), UNSUPPORTED,
             "\"model.norm.weight\" has type F8_E4M3, which is not supported; F32, F16 and BF16 are"),
    "shape": (set_header(lambda h: tensor(h, shape=[65])), FORMAT, "has 256 bytes where its type and shape give 260"),
    "shape-zero": (set_header(lambda h: tensor(h, shape=[0])), FORMAT, "a dimension that is no positive integer"),
    "shape-huge": (set_header(lambda h: tensor(h, shape=[1 << 50, 1 << 50])), FORMAT, "more bytes than can be counted"),
    "shape-deep": (set_header(lambda h: tensor(h, shape=[1] * 5)), FORMAT, "no shape of 1 to 4 dimensions"),
    "offsets": (set_header(lambda h: tensor(h, data_offsets=[0, 1 << 50])), FORMAT, "no range of the file's data"),
    "offsets-negative": (set_header(lambda h: tensor(h, data_offsets=[-4, 0])), FORMAT, "no range of the file's data"),
    "overlap": (set_header(lambda h: tensor(h, data_offsets=[0, 256])), FORMAT, "of the data, "),
    "gap": (set_header(shift_first), FORMAT, "but what is before it ends at 0"),
    "rest": (set_header(lambda h: None, lambda d: d + b"1234"), FORMAT, "the tensors end at byte"),
    "name-twice": (set_header(lambda h: b'{"a":{},"a":{}}'), FORMAT, "malformed JSON"),
    "nan": (set_header(lambda h: None, lambda d: np.full(len(d) // 4, np.nan, "<f4").tobytes()), 11, "holds a NaN"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal(tmp_path, name):
    change, code, says = REFUSALS[name]
    _, folder = folder_of(tmp_path)
    change(folder)
    got, text = compile_model(folder, tmp_path / "x.plan")
    assert got == code, text
    assert says in text and text.count("\n") == 1
    assert str(folder) in text
    assert not (tmp_path / "x.plan").exists()


INDEX = "model.safetensors.index.json"


def set_shard(name):
    def change(index):
        index["weight_map"]["model.norm.weight"] = name

    return lambda folder: edit_json(folder, INDEX, change)


SHARD_REFUSALS = {
    "parent": (set_shard("../x.safetensors"), FORMAT, "\"../x.safetensors\" is no name of a file"),
    "absolute": (set_shard("/etc/passwd"), FORMAT, "\"/etc/passwd\" is no name of a file"),
    "missing": (set_shard("x.safetensors"), IO, "x.safetensors cannot be opened"),
    "wrong": (set_shard("model-00001-of-00003.safetensors"), FORMAT, "is in model-0000"),
    "unlisted": (lambda f: edit_json(f, INDEX, lambda i: i["weight_map"].pop("model.norm.weight")), FORMAT,
                 "which the index does not say"),
    "unheld": (lambda f: edit_json(f, INDEX, lambda i: i["weight_map"].update(x="model-00001-of-00003.safetensors")),
               FORMAT, "tensors; the files hold"),
    "empty": (lambda f: edit_json(f, INDEX, lambda i: i.update(weight_map={})), FORMAT, "weight_map is no object"),
}


@pytest.mark.parametrize("name", SHARD_REFUSALS)
def test_refusal_of_shards(tmp_path, name):
    change, code, says = SHARD_REFUSALS[name]
    _, folder = folder_of(tmp_path, shards=3)
    change(folder)
    got, text = compile_model(folder, tmp_path / "x.plan")
    assert got == code, text
    assert says in text and text.count("\n") == 1


def test_gemma_says_its_base(tmp_path):
    """Where it is missing Gemma's own default is another than ours."""
    _, folder = folder_of(tmp_path, "gemma3", "F32", GEMMA)
    drop_config("rope_theta")(folder)
    code, text = compile_model(folder, tmp_path / "x.plan")
    assert code == FORMAT and "config.json: rope_theta is missing" in text


def test_absent_is_null(tmp_path):
    _, folder = folder_of(tmp_path)
    edit_json(folder, "tokenizer.json", lambda t: t.pop("normalizer"))
    assert compile_model(folder, tmp_path / "x.plan")[0] == 0


def test_link_inside_is_fine(tmp_path):
    _, folder = folder_of(tmp_path)
    (folder / "model.safetensors").rename(folder / "real.safetensors")
    (folder / "model.safetensors").symlink_to("real.safetensors")
    code, text = compile_model(folder, tmp_path / "x.plan")
    assert code == 0, text
