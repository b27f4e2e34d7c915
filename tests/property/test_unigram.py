"""SentencePiece's unigram model against Hugging Face `tokenizers`, out of tokenizer.json files: the same ids on varied lines,
with and without bytes for unknown characters, by words or by the whole text, with scores that tie; and time on hostile input.

The vocabulary is trained here, by Hugging Face's own trainer on the texts that evaluate quantization and on lines of
test_tokenizer.py.
"""

import functools
import json
import pathlib
import random

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from test_tokenizer import HOSTILE, PLAIN, SEED, SPECIAL, TIME_FACTOR, compare_with, decode, encode, make_lines

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
MARK = "\u2581"
CONTROL = ["<unk>", "<s>", "</s>"]
ADDED = ["<tool>", "  \n", " zq"]  # the last is what a space in front makes of "zq"
FORMS = {
    "whole": ({"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": False}, None),
    "first": ({"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}, None),
    "words": ({"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True}, None),
    "plain": ({"type": "Metaspace", "replacement": MARK, "prepend_scheme": "never", "split": True}, None),
    "each": (None, {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": MARK}, {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}),
}


def normal(line):
    """Lines without U+2581, a space to us, and without the names of byte tokens, which Hugging Face finds in text."""
    return line.replace(MARK, " ").replace("<0x", "<0")


@functools.cache
def pieces():
    """Texts and scores, best first."""
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Replace(" ", MARK)
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=6000, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    lines = (DATA / "opticks_calibrate.txt").read_text().splitlines() + [normal(x) for x in make_lines(SEED + 700, 3000)]
    t.train_from_iterator(lines, trainer)
    return [(text, score) for text, score in json.loads(t.to_str())["model"]["vocab"] if text != "<unk>"]


@functools.cache
def folder(tmp, form, byte_fallback, ties=False):
    vocab = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0]]
    vocab += [[f"<0x{b:02X}>", 0.0] for b in range(256)] if byte_fallback else []
    vocab += [[text, float(round(score)) if ties else score] for text, score in pieces()]
    pre, normalizer = FORMS[form]
    added = [{"id": i, "content": t, "special": True} for i, t in enumerate(CONTROL)]
    added += [{"id": len(vocab) + i, "content": t, "special": False} for i, t in enumerate(ADDED)]
    for token in added:
        token |= {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    path = pathlib.Path(tmp) / f"{form}-{byte_fallback}-{ties}"
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": pre, "post_processor": None, "decoder": None,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": byte_fallback}}))
    (path / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))
    return path


@pytest.fixture(scope="module")
def tmp(tmp_path_factory):
    return str(tmp_path_factory.mktemp("unigram"))


def lines_for(seed, n):
    r = random.Random(seed)
    lines = ["zq", "zqzq", "a zq zq"] + [normal(line) for line in make_lines(seed, n)]
    names = [*ADDED, "<s>", "</s>", "<unk>"]
    return lines + [r.choice(names) + line + r.choice(["", " "]) + r.choice(names) for line in lines[: n // 10]]


def compare(path, lines):
    compare_with(Tokenizer.from_file(str(path / "tokenizer.json")), path, lines, SPECIAL)


@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_same_ids_as_hugging_face(form, byte_fallback, tmp):
    compare(folder(tmp, form, byte_fallback), lines_for(SEED + 710, 10_000 if form == "whole" else 1500))


def test_scores_that_tie(tmp):
    """Integers: many cuts have the same sum, and the one that Hugging Face finds first is wanted."""
    compare(folder(tmp, "whole", True, True), lines_for(SEED + 720, 3000))


def test_plain_text_names_no_control_token(tmp):
    """Hugging Face finds "<s>" in the vocabulary and gives its id; here text never becomes a control token."""
    path = folder(tmp, "whole", True)
    for text in (b"a<s>b", b"</s>", b"<unk>"):
        ((ids, _),) = encode(path, [text], PLAIN)
        assert not set(ids) & {0, 1, 2} and decode(path, [ids]) == [b" " + text]


def test_text_names_no_byte_token(tmp):
    path = folder(tmp, "plain", True)
    ((ids, _),) = encode(path, [b"<0x41>"])
    assert len(ids) > 1 and decode(path, [ids]) == [b"<0x41>"]


def test_round_trip(tmp):
    path = folder(tmp, "plain", True)
    lines = lines_for(SEED + 730, 2000)
    ids = [i for i, _ in encode(path, [line.encode() for line in lines], PLAIN)]
    for line, text in zip(lines, decode(path, ids)):
        assert text == line.encode(), repr(line)


def test_hostile_megabyte_under_a_second(tmp):
    results = encode(folder(tmp, "whole", True), [t.encode() for t in HOSTILE.values()])
    slow = {name: f"{ns / 1e9:.2f} s" for name, (_, ns) in zip(HOSTILE, results) if ns > 1e9 * TIME_FACTOR}
    assert not slow


def test_vocabulary_of_long_runs(tmp):
    """The most steps for a character: tokens of 1 to 256 times the same letter."""
    path = folder(tmp, "plain", False)
    long = pathlib.Path(tmp) / "long"
    long.mkdir()
    (long / "tokenizer_config.json").write_bytes((path / "tokenizer_config.json").read_bytes())
    j = json.loads((path / "tokenizer.json").read_text())
    j["model"]["vocab"] = j["model"]["vocab"][:3] + [["a" * n, -n / 8] for n in range(1, 257)]
    j["added_tokens"] = j["added_tokens"][:3]
    (long / "tokenizer.json").write_text(json.dumps(j))
    compare(long, ["a" * n for n in (1, 255, 256, 257, 700)])
    ((_, ns),) = encode(long, [b"a" * (1 << 20)])
    assert ns < 3e9 * TIME_FACTOR, f"{ns / 1e9:.2f} s"
