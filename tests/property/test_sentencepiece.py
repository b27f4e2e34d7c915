"""SentencePiece's BPE against Hugging Face `tokenizers`: the same ids on 10,000 varied lines with Gemma 3's vocabulary of
262,144 tokens, round trips, spaces in front of text, and time on hostile input.

The Hugging Face tokenizer is set up as such a model's own tokenizer.json is, with the merges that its converter makes of
the scores. Lines and helpers are those of test_tokenizer.py.
"""

import functools
import os
import pathlib
import random
import struct

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from test_tokenizer import (HOSTILE, LINES, NONE, PLAIN, SEED, SPECIAL, TIME_FACTOR, decode, encode, gguf, make_lines)

MODEL = pathlib.Path(os.environ.get(
    "ISO_GEMMA", pathlib.Path.home() / ".cache/isochron/models/gemma-3-270m-q4_k_m.gguf"))
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MARK = "\u2581"
PREFIXES = {"none": 0, "first": 1, "each": 2, "lacking": 3}
BOS, EOS, PAD, UNK = 2, 1, 0, 3

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL} is missing; scripts/fetch-model gemma3 fetches it")


@functools.cache
def vocabulary():
    """Tokens as the file has them, types, scores."""
    fields = gguf.GGUFReader(MODEL).fields
    tokens, types, scores = (fields["tokenizer.ggml." + key] for key in ("tokens", "token_type", "scores"))
    return ([bytes(tokens.parts[i]).decode() for i in tokens.data], [int(types.parts[i][0]) for i in types.data],
            [float(scores.parts[i][0]) for i in scores.data])


def merges_of_scores(vocab, tokens, types, scores):
    """Every way to make a normal token of two others, as Hugging Face's converter orders them."""
    found = []
    for token, kind, score in zip(tokens, types, scores):
        if kind != NORMAL:
            continue
        ways = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        found += [(pair, score) for pair in sorted(ways, key=lambda p: (vocab[p[0]], vocab[p[1]]))]
    return [pair for pair, _ in sorted(found, key=lambda f: f[1], reverse=True)]


@functools.cache
def merges():
    tokens, types, scores = vocabulary()
    keys = {t.replace(" ", MARK): i for i, (t, k) in enumerate(zip(tokens, types)) if k in (NORMAL, USER_DEFINED)}
    return merges_of_scores(keys, tokens, types, scores)


@functools.cache
def vocabulary_file(tmp, prefix, by_scores):
    tokens, types, scores = vocabulary()
    out = bytearray()

    def text(s):
        raw = s.encode()
        out.extend(struct.pack("<I", len(raw)) + raw)

    text("sentencepiece")
    out += struct.pack("<I", len(tokens))
    for token, kind in zip(tokens, types):
        out += struct.pack("<I", kind)
        text(token)
    pairs = [] if by_scores else merges()
    out += struct.pack("<I", len(pairs))
    for left, right in pairs:
        text(left + " " + right)
    out += struct.pack("<9I", BOS, EOS, NONE, PAD, UNK, 0, 0, PREFIXES[prefix], by_scores)
    if by_scores:
        out += struct.pack(f"<{len(scores)}f", *scores)
    path = pathlib.Path(tmp) / f"{prefix}-{by_scores}.vocabulary"
    path.write_bytes(out)
    return path


@functools.cache
def reference(prefix):
    tokens, types, _ = vocabulary()
    t = Tokenizer(models.BPE(vocab={t.replace(" ", MARK) if k == USER_DEFINED else t: i
                                    for i, (t, k) in enumerate(zip(tokens, types))},
                             merges=merges(), byte_fallback=True, fuse_unk=True, unk_token=tokens[UNK]))
    replace = normalizers.Replace(" ", MARK)
    if prefix in ("first", "lacking"):
        scheme = "first" if prefix == "first" else "always"
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    elif prefix == "each":
        t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), replace])
    else:
        t.normalizer = replace
        t.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    t.add_special_tokens([AddedToken(x, normalized=False, special=True) for x, k in zip(tokens, types) if k == CONTROL])
    # Text that the model writes as spaces is cut out of text as spaces.
    own = [(i, x) for i, (x, k) in enumerate(zip(tokens, types)) if k == USER_DEFINED]
    t.add_tokens([AddedToken(x, normalized=False) for _, x in own])
    return t, {t.token_to_id(x): i for i, x in own}


@pytest.fixture(scope="module")
def tmp(tmp_path_factory):
    return str(tmp_path_factory.mktemp("sentencepiece"))


def compare(prefix, lines, path, mode):
    hf, renumber = reference(prefix)
    hf.encode_special_tokens = mode == PLAIN
    lines = [line.replace(MARK, " ") for line in lines]  # to us they are one; test_mark_is_a_space
    got = encode(path, [line.encode() for line in lines], mode)
    want = [[renumber.get(i, i) for i in e.ids] for e in hf.encode_batch(lines, add_special_tokens=False)]
    for line, (ids, _), expected in zip(lines, got, want):
        assert ids == expected, f"seed {SEED}, {prefix}, mode {mode}: {line!r} gives {ids}, Hugging Face {expected}"


@pytest.mark.parametrize("by_scores", [0, 1])
def test_same_ids_as_hugging_face(by_scores, tmp):
    compare("none", make_lines(SEED + 400, LINES if by_scores else LINES // 10), vocabulary_file(tmp, "none", by_scores), SPECIAL)


@pytest.mark.parametrize("prefix", ["first", "each", "lacking"])
def test_space_in_front(prefix, tmp):
    names = [t for t, k in zip(*vocabulary()[:2]) if k == CONTROL and not t.startswith("<unused")]
    r = random.Random(SEED + 500)
    lines = [line for line in make_lines(SEED + 501, 1000)]
    lines += [r.choice(names) + line + r.choice(names) + " " + line for line in lines[:300]]
    compare(prefix, lines, vocabulary_file(tmp, prefix, 1), SPECIAL)


def test_plain_text_names_no_control_token(tmp):
    compare("none", ["<bos>", "a<end_of_turn>b\n\n  c", "<start_of_turn>user\nhi"], vocabulary_file(tmp, "none", 1), PLAIN)


def test_round_trip(tmp):
    path = vocabulary_file(tmp, "none", 1)
    lines = [line.replace(MARK, " ") for line in make_lines(SEED + 600, 3000)]
    ids = [i for i, _ in encode(path, [line.encode() for line in lines], PLAIN)]
    for line, text in zip(lines, decode(path, ids)):
        assert text == line.encode(), f"seed {SEED}: {line!r}"


def test_mark_is_a_space(tmp):
    path = vocabulary_file(tmp, "none", 1)
    (a, _), (b, _) = encode(path, ["a\u2581b".encode(), b"a b"])
    assert a == b


def test_hostile_megabyte_under_a_second(tmp):
    results = encode(vocabulary_file(tmp, "none", 1), [t.encode() for t in HOSTILE.values()])
    slow = {name: f"{ns / 1e9:.2f} s" for name, (_, ns) in zip(HOSTILE, results) if ns > 1e9 * TIME_FACTOR}
    assert not slow


@pytest.mark.parametrize("name", ["real_text", "odd_text"])
def test_texts_as_llama_cpp_has_them(name, tmp):
    """The committed ids are llama.cpp's (tests/tools/check_llama_cpp.py)."""
    data = pathlib.Path(__file__).resolve().parents[1] / "data"
    want = [int(x) for x in (data / f"{name}.gemma3.ids").read_text().split()]
    assert encode(vocabulary_file(tmp, "none", 1), [(data / f"{name}.txt").read_bytes()])[0][0] == want
