"""Tokenizers as models come with them (scripts/fetch-tokenizers), against Hugging Face `tokenizers`: the same ids on varied
lines, with control tokens and without, and round trips."""

import json
import os
import pathlib
import random

import pytest
from tokenizers import Tokenizer

from test_tokenizer import PLAIN, SEED, SPECIAL, compare_with, decode, encode, make_lines

FOLDER = pathlib.Path(os.environ.get("ISO_TOKENIZERS", pathlib.Path.home() / ".cache/isochron/tokenizers"))
MODELS = sorted(p.parent for p in FOLDER.glob("*/tokenizer.json"))
MARK = "\u2581"
LINES = 10_000 if os.environ.get("ISO_FULL") else 1_000

pytestmark = pytest.mark.skipif(not MODELS, reason=f"{FOLDER} is empty; scripts/fetch-tokenizers fills it")


def lines_for(path, seed, n):
    """SentencePiece: without U+2581, a space to us."""
    j = json.loads((path / "tokenizer.json").read_text())
    marked = bool(j["model"].get("byte_fallback"))
    names = [t["content"] for t in j["added_tokens"]]
    r = random.Random(seed)
    lines = make_lines(seed, n)
    lines += ["".join(r.choice([r.choice(names), r.choice(lines), " ", "\n"]) for _ in range(r.randint(1, 6))) for _ in range(n // 10)]
    return [line.replace(MARK, " ") for line in lines] if marked else lines


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.name)
def test_same_ids_as_hugging_face(path):
    hf = Tokenizer.from_file(str(path / "tokenizer.json"))
    for mode, n in ((SPECIAL, LINES), (PLAIN, LINES // 5)):
        compare_with(hf, path, lines_for(path, SEED + 800 + mode, n), mode)


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.name)
def test_round_trip(path):
    j = json.loads((path / "tokenizer.json").read_text())
    normalizer = json.dumps(j["normalizer"]) + json.dumps(j["pre_tokenizer"])
    if "NFC" in normalizer:
        pytest.skip("its normalizer changes text")
    space = b" " if "Prepend" in normalizer or '"first"' in normalizer else b""
    lines = [line for line in lines_for(path, SEED + 900, 1000) if line and not any(t["content"] in line for t in j["added_tokens"])]
    ids = [i for i, _ in encode(path, [line.encode() for line in lines], PLAIN)]
    for line, text in zip(lines, decode(path, ids)):
        assert text in (line.encode(), space + line.encode()), repr(line)
