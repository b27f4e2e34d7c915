"""The tokenizer against Hugging Face `tokenizers`: the same ids on 10,000 varied lines for each pre-tokenizer,
round trips, invalid UTF-8, and time on hostile input.

The vocabulary is the demo model's, under each of the pre-tokenizers of byte-level BPE. The Hugging Face objects are set up
as the models' own tokenizer.json files do.
"""

import functools
import os
import pathlib
import random
import struct
import subprocess
import unicodedata

import gguf
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ISO_BUILD", ROOT / "build"))
MODEL = pathlib.Path(
    os.environ.get("ISO_MODEL", pathlib.Path.home() / ".cache/isochron/models/SmolLM2-135M-Instruct.Q4_1.gguf")
)
TOOL = BUILD / "tests/tools/tool_tokenize"
# How much longer than a release build may the hostile inputs take (for sanitizer builds).
TIME_FACTOR = float(os.environ.get("ISO_TIME_FACTOR", "1"))

SEED = 20240607
LINES = 10_000
PRES = ["gpt-2", "smollm", "qwen2", "llama-bpe", "tekken"]
PLAIN, SPECIAL = 0, 1
NONE = 0xFFFFFFFF
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

# Tokens of our own behind the model's, so that user-defined ones and prefixes of each other occur.
ADDED = [
    ("<tool_call>", USER_DEFINED),
    ("</tool_call>", USER_DEFINED),
    ("<tool_call>x", USER_DEFINED),
    ("<|im", USER_DEFINED),
    ("<|im_sep|>", CONTROL),
    ("    ", USER_DEFINED),
    ("é\u0301", USER_DEFINED),
    ("日本", USER_DEFINED),
]

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


@functools.cache
def vocabulary():
    fields = gguf.GGUFReader(MODEL).fields

    def strings(key):
        field = fields[key]
        return [bytes(field.parts[i]).decode() for i in field.data]

    types = [int(fields["tokenizer.ggml.token_type"].parts[i][0]) for i in fields["tokenizer.ggml.token_type"].data]
    return strings("tokenizer.ggml.tokens"), types, strings("tokenizer.ggml.merges")


@functools.cache
def vocabulary_file(pre, tmp, all_bytes, added=True):
    tokens, types, merges = vocabulary()
    tokens, types = list(tokens), list(types)
    if all_bytes:  # the demo model has no tokens for some bytes
        for symbol in missing_bytes():
            tokens.append(symbol)
            types.append(NORMAL)
    if added:
        tokens += [text for text, _ in ADDED]
        types += [kind for _, kind in ADDED]
    out = bytearray()

    def text(s):
        raw = s.encode()
        out.extend(struct.pack("<I", len(raw)) + raw)

    text(pre)
    out += struct.pack("<I", len(tokens))
    for token, kind in zip(tokens, types):
        out += struct.pack("<I", kind)
        text(token)
    out += struct.pack("<I", len(merges))
    for merge in merges:
        text(merge)
    out += struct.pack("<9I", 1, 2, NONE, 2, 0, 0, 0, 0, 0)
    path = pathlib.Path(tmp) / f"{pre}-{all_bytes}-{added}.vocabulary"
    path.write_bytes(out)
    return path


@functools.cache
def alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + k) for k, b in enumerate(others)}


def missing_bytes():
    have = set(vocabulary()[0])
    return [symbol for _, symbol in sorted(alphabet().items()) if symbol not in have]


@functools.cache
def reference(pre):
    tokens, types, merges = vocabulary()
    vocab = {token: i for i, token in enumerate(tokens)}
    model = models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in merges], ignore_merges=pre in ("llama-bpe", "tekken"))
    t = Tokenizer(model)
    if pre == "gpt-2":
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    elif pre == "smollm":
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    else:
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex({"qwen2": QWEN2, "llama-bpe": LLAMA3, "tekken": TEKKEN}[pre]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    if pre == "qwen2":
        t.normalizer = normalizers.NFC()
    specials = [(text, kind) for text, kind in zip(tokens, types) if kind != NORMAL] + ADDED
    for text, kind in specials:  # one by one: ids stay in this order
        token = AddedToken(text, normalized=False, special=kind == CONTROL)
        if kind == CONTROL:
            t.add_special_tokens([token])
        else:
            t.add_tokens([token])
    for i, (text, _) in enumerate(ADDED):
        assert t.token_to_id(text) == len(tokens) + i
    return t


def run(path, action, stdin):
    return subprocess.run([TOOL, path, action], input=stdin, stdout=subprocess.PIPE, check=True).stdout


def encode(path, texts, mode=SPECIAL):
    """Ids and nanoseconds of each text (bytes)."""
    stdin = b"".join(struct.pack("<3I", mode, 0, len(t)) + t for t in texts)
    out, at, results = run(path, "encode", stdin), 0, []
    for _ in texts:
        (n,) = struct.unpack_from("<I", out, at)
        ids = list(struct.unpack_from(f"<{n}I", out, at + 4))
        (ns,) = struct.unpack_from("<Q", out, at + 4 + 4 * n)
        results.append((ids, ns))
        at += 12 + 4 * n
    assert at == len(out)
    return results


def decode(path, id_lists):
    stdin = b"".join(struct.pack(f"<I{len(ids)}I", len(ids), *ids) for ids in id_lists)
    out, at, texts = run(path, "decode", stdin), 0, []
    for _ in id_lists:
        (n,) = struct.unpack_from("<I", out, at)
        texts.append(out[at + 4 : at + 4 + n])
        at += 4 + n
    assert at == len(out)
    return texts


# Generators of lines -------------------------------------------------------------------------------------------


WORDS = """the a function return while import print self class value I'm you're they'll WE'VE it's IT'S don't DON'T
he'd 'tis rock'n'roll 'S 'ſ 'LL 'Re naïve façade Ünïcödé Straße ﬁn ŉ Ça garçon São señor Łódź Ελληνικά Привет мир
שלום עולם العربية مرحبا بالعالم السلام हिन्दी नमस्ते दुनिया ภาษาไทย สวัสดี 中文 你好世界 汉字 日本語 日本 ひらがな カタカナ ｶﾀｶﾅ 한국어 안녕
தமிழ் తెలుగు বাংলা ქართული Հայերեն አማርኛ ខ្មែរ မြန်မာ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ Việt""".split()
CODE = [
    "for (int i = 0; i < n; ++i) {",
    "\treturn x->y[i] != NULL ? *p++ : 0x1Fu;",
    "def f(self, *args, **kw):  # comment",
    "    if a == b and not c:\r\n        pass",
    'printf("%08.3f\\n", 3.14159e-10);',
    "SELECT * FROM t WHERE id='1';--",
    "<div class=\"a\">&nbsp;</div>",
    "https://example.org/a?b=c&d=%20#e",
    "#!/bin/sh\nset -eu\n\n\n",
    "a=1;b=22;c=333;d=4444;e=55555",
    "{{#if x}}…{{/if}}",
    "$\\frac{a}{b} \\leq \\sum_{i=0}^{n}$",
]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵🇺🇸", "❤️", "✈︎", "👨🏿‍🚀", "1️⃣", "🧑🏻‍🤝‍🧑🏾", "☕", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "‍", "🏽"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\r", "\v", "\f", "\x85", "\u00a0", "\u1680", "\u180e", "\u2003",
          "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"]  # fmt: skip
MARKS = [chr(c) for c in range(0x300, 0x370)] + list("\u0334\u093c\u05b0\u059a\u0651\u064b\u0f71\u0f74\u302a\u3099\u309a"
                                                     "\u0e38\u0eba\u1dce\u20d0\u0345\u1ab0\u0898\u1e08f\u1abf")  # fmt: skip
BASES = list("aeioucnAEIOUsy") + list("αιηωуевक़ड़তোகோ가각ㄱᄀ괵ᅡᆨかはウ") + ["\U00011935", "\U00011930", "Å", "Ω", "\u1fbe", "ﬀ"]


def any_code_point(r, low=0, high=0x110000):
    while True:
        c = r.randrange(low, high)
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


@functools.cache
def by_category():
    """Code points of every general category, unassigned ones included."""
    kinds = {}
    for c in range(0x110000):
        if not 0xD800 <= c <= 0xDFFF:
            kinds.setdefault(unicodedata.category(chr(c)), []).append(chr(c))
    return kinds


def words(r):
    return "".join(r.choice(WORDS) + r.choice([" ", " ", " ", "", "  ", ", ", ".", "\n"]) for _ in range(r.randint(1, 12)))


def code(r):
    return "\n".join(" " * r.choice([0, 0, 2, 4, 8, 12, 16]) + r.choice(CODE) for _ in range(r.randint(1, 4)))


def emoji(r):
    return "".join(r.choice(EMOJI) + r.choice(["", "", " ", "a", "!"]) for _ in range(r.randint(1, 8)))


def spaces(r):
    return "".join(r.choice(SPACES) * r.choice([1, 1, 2, 3, 7]) + r.choice(["", "", "x", "1", ".", "é"]) for _ in range(r.randint(1, 12)))


def marks(r):
    out = ""
    for _ in range(r.randint(1, 6)):
        out += r.choice(BASES) + "".join(r.choice(MARKS) for _ in range(r.choice([0, 1, 1, 2, 3, 5, 9])))
    return unicodedata.normalize("NFD", out) if r.random() < 0.3 else out


def digits(r):
    kinds = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३", "½¾²³", "ⅣⅨ", "㊿", "一二三", "𝟘𝟙𝟚"]
    return "".join(r.choice(r.choice(kinds)) * r.choice([1, 1, 2, 5]) + r.choice(["", "", "", " ", "  ", ",", ".", "a"]) for _ in range(r.randint(1, 14)))


def controls(r):
    return "".join(r.choice([chr(r.randrange(0x20)), "\x7f", chr(r.randrange(0x80, 0xA0)), "a", " ", "\u200d", "\u202e", "\x00"]) for _ in range(r.randint(1, 14)))


def any_points(r):
    low, high = r.choice([(0, 0x800), (0x800, 0x3000), (0x2000, 0x2C00), (0xA000, 0x10000), (0x10000, 0x20000), (0x1E000, 0x1F000), (0, 0x110000), (0xE000, 0xF900)])  # fmt: skip
    return "".join(any_code_point(r, low, high) + r.choice(["", "", " ", "a", "'", "0"]) for _ in range(r.randint(1, 10)))


def categories(r):
    kinds = by_category()
    return "".join(r.choice(kinds[r.choice(sorted(kinds))]) + r.choice(["", "", "", " ", "\n"]) for _ in range(r.randint(1, 10)))


def contractions(r):
    ends = ["s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Ve", "M", "lL", "D", "ſ", "x", "re've", "ß", "K", ""]
    return "".join(r.choice(["I", "we", " ", "é", "1", "", "."]) + r.choice("'''’`") + r.choice(ends) for _ in range(r.randint(1, 8)))


def specials(r):
    names = [t for t, k in zip(*vocabulary()[:2]) if k != NORMAL] + [t for t, _ in ADDED]
    parts = []
    for _ in range(r.randint(1, 8)):
        name = r.choice(names)
        parts.append(r.choice([name, name, name[: r.randrange(len(name))], name[1:], name.upper(), words(r), " ", "\n"]))
    return "".join(parts)


GENERATORS = [words, code, emoji, spaces, marks, digits, controls, any_points, categories, contractions, specials]


def make_lines(seed, n):
    r = random.Random(seed)
    lines = [""]
    while len(lines) < n:
        generator = r.choice(GENERATORS)
        line = generator(r)
        if r.random() < 0.3:
            line += r.choice(["", " "]) + r.choice(GENERATORS)(r)
        lines.append(line)
    return lines


# Tests ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tmp(tmp_path_factory):
    return str(tmp_path_factory.mktemp("vocabulary"))


def compare_with(hf, path, lines, mode):
    """The vocabulary at `path` gives the same ids as the Hugging Face tokenizer."""
    hf.encode_special_tokens = mode == PLAIN
    got = encode(path, [line.encode() for line in lines], mode)
    want = [e.ids for e in hf.encode_batch(lines, add_special_tokens=False)]
    for line, (ids, _), expected in zip(lines, got, want):
        assert ids == expected, f"seed {SEED}, {path}, mode {mode}: {line!r} gives {ids}, Hugging Face {expected}"


def compare(pre, lines, path, mode):
    compare_with(reference(pre), path, lines, mode)


@pytest.mark.parametrize("mode", [SPECIAL, PLAIN])
@pytest.mark.parametrize("pre", PRES)
def test_same_ids_as_hugging_face(pre, mode, tmp):
    compare(pre, make_lines(SEED + mode, LINES if mode == SPECIAL else LINES // 4), vocabulary_file(pre, tmp, False), mode)


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "tekken"])
def test_every_code_point(pre, tmp):
    """Each code point beside letters, digits, spaces and marks: its classes are what Hugging Face takes it for.
    The other two pre-tokenizers ask for the same classes. Of the long stretches without characters, samples."""
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and (c < 0x33480 or c % 31 == 0)]
    points += [chr(c) for c in range(0xE0000, 0xE0200)]
    context = {"smollm": "a{0}1{0} {0}.", "qwen2": "a{0}1{0} {0}.e\u0301{0}\u0316\u0301", "tekken": "aA{0}Aa{0}a1{0} {0}."}[pre]
    lines = ["".join(context.format(p) for p in points[i : i + 64]) for i in range(0, len(points), 64)]
    compare(pre, lines, vocabulary_file(pre, tmp, False), SPECIAL)


@pytest.mark.parametrize("pre", PRES)
def test_round_trip(pre, tmp):
    path = vocabulary_file(pre, tmp, True)
    lines = make_lines(SEED + 100, 3000)
    ids = [i for i, _ in encode(path, [line.encode() for line in lines], PLAIN)]
    nfc = normalizers.NFC().normalize_str
    for line, text in zip(lines, decode(path, ids)):
        if pre == "qwen2":  # user-defined tokens are cut out before normalizing, so only equivalence is left
            assert nfc(text.decode()) == nfc(line), f"seed {SEED}, {pre}: {line!r}"
        else:
            assert text == line.encode(), f"seed {SEED}, {pre}: {line!r}"


def test_invalid_utf8_reads_as_replacement(tmp):
    r = random.Random(SEED + 200)
    path = vocabulary_file("smollm", tmp, True)
    raw = []
    for line in make_lines(SEED + 201, 2000):
        damaged = bytearray(line.encode())
        for _ in range(r.randint(1, 4)):
            at = r.randrange(len(damaged) + 1)
            action = r.randrange(3)
            if action == 0:
                damaged.insert(at, r.choice([0x80, 0xBF, 0xC0, 0xC2, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xF5, 0xFF]))
            elif damaged and action == 1:
                del damaged[at % len(damaged)]
            elif damaged:
                damaged[at % len(damaged)] = r.randrange(256)
        raw.append(bytes(damaged))
    replaced = [t.decode("utf-8", errors="replace").encode() for t in raw]
    assert [i for i, _ in encode(path, raw)] == [i for i, _ in encode(path, replaced)], f"seed {SEED}"


def test_detokenizer_replaces_like_python(tmp):
    """Random ids, so that characters break anywhere."""
    path = vocabulary_file("smollm", tmp, True)
    tokens, types, _ = vocabulary()
    tokens, types = tokens + missing_bytes(), types + [NORMAL] * len(missing_bytes())
    to_byte = {symbol: b for b, symbol in alphabet().items()}
    r = random.Random(SEED + 300)
    singles = [i for i, t in enumerate(tokens) if len(t) == 1]
    lists = [[r.choice(singles) if r.random() < 0.7 else r.randrange(len(tokens)) for _ in range(r.randint(0, 30))] for _ in range(4000)]
    for ids, text in zip(lists, decode(path, lists)):
        raw = bytes(to_byte[c] for i in ids if types[i] == NORMAL for c in tokens[i])
        assert text == raw.decode("utf-8", errors="replace").encode(), f"seed {SEED}: {ids}"


MB = 1_000_000
HOSTILE = {
    "letters": "a" * MB,
    "spaces": " " * MB,
    "spaces and a letter": " " * (MB - 1) + "a",
    "newlines": "\n" * MB,
    "spaces and newlines": " \n" * (MB // 2),
    "carriage returns before a letter": "\r" * (MB - 1) + "a",
    "digits": "1" * MB,
    "words": "a " * (MB // 2),
    "spaces and digits": "  1" * (MB // 3),
    "combining marks, same class": "e" + "\u0301" * (MB // 2),
    "combining marks, falling classes": "e" + "\u0301" * (MB // 4) + "\u0316" * (MB // 4),
    "combining marks, alternating classes": "e" + "\u0301\u0316" * (MB // 4),
    "composed letters": "é" * (MB // 2),
    "decomposed letters": "e\u0301" * (MB // 3),
    "hangul jamo": "\u1100\u1161\u11a8" * (MB // 9),
    "emoji joined": "👩\u200d" * (MB // 7),
    "chinese": "汉字" * (MB // 6),
    "apostrophes": "'" * MB,
    "beginnings of special tokens": "<|im_star" * (MB // 9),
    "special tokens": "<|im_start|>" * (MB // 12),
    "punctuation and newlines": "!\n" * (MB // 2),
    "merging letters": "the" * (MB // 3),
    "unassigned": "\U0003fffd" * (MB // 4),
}


@pytest.mark.parametrize("pre", PRES)
def test_hostile_megabyte_under_a_second(pre, tmp):
    # Without our user-defined tokens, one of which would cut long runs of spaces.
    results = encode(vocabulary_file(pre, tmp, False, added=False), [t.encode() for t in HOSTILE.values()])
    slow = {name: f"{ns / 1e9:.2f} s" for name, (_, ns) in zip(HOSTILE, results) if ns > 1e9 * TIME_FACTOR}
    assert not slow
    print(pre, {name: f"{ns / 1e6:.0f} ms" for name, (_, ns) in zip(HOSTILE, results)})


@pytest.mark.parametrize("pre", PRES)
def test_hostile_kilobytes_equal_hugging_face(pre, tmp):
    compare(pre, [text[:5000] for text in HOSTILE.values()], vocabulary_file(pre, tmp, False), SPECIAL)
