"""The splitter of answers against a reference that sees the whole answer at once (regular expressions and Python's json
module), on seeded random texts of fragments of marks and JSON, in random cuts; and on calls that json itself wrote.
"""

import json
import os
import pathlib
import random
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ISO_BUILD", ROOT / "build"))
TOOL = BUILD / "tests/tools/tool_split"

SEED = 20250301
RANDOM_TEXTS = 30000
WELL_FORMED = 3000
CUTTINGS = 3  # of each text, beside the whole

NONE, QWEN, LLAMA, MISTRAL = range(4)
NO_THINK, MAY_THINK, IN_THINK = range(3)
REASONING, CONTENT, NAME, ARGUMENTS = range(4)
CALLS_MAX, DEPTH_MAX, NAME_MAX = 64, 64, 256
WHITE = " \n\t\r"


# ---- The reference. A text is read from the left by functions that look at all of it.


class Over(Exception):
    """The text's end came within a call."""


class NoCall(Exception):
    """At this place stands what can't be there."""

    def __init__(self, at):
        self.at = at


GOOD_STRING = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
LONE = re.compile("[\ud800-\udfff]")
SCALAR = re.compile(r"[-0-9A-Za-z][-+.0-9A-Za-z]*")
BLANK = re.compile(r"[ \n\t\r]*")
RAW_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.S)
WHOLE_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)
BARE_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def decoded(literal):
    return LONE.sub("\ufffd", json.loads(f'"{literal}"', strict=False))


def skip(text, at):
    return BLANK.match(text, at).end()


class Reader:
    """One call object, or a bare one; what is found is put into `pieces`."""

    def __init__(self, text, pieces, count):
        self.text, self.pieces, self.count = text, pieces, count
        self.name = self.arguments = None

    def byte(self, at):
        if at >= len(self.text):
            raise Over
        return self.text[at]

    def expect(self, at, wanted):
        at = skip(self.text, at)
        if self.byte(at) not in wanted:
            raise NoCall(at)
        return at

    def named(self, name, at):
        if self.count >= CALLS_MAX:
            raise NoCall(at)
        self.name = name
        self.pieces.append([NAME, self.count, name])
        if self.arguments is not None:
            self.argue("")

    def argue(self, more):
        self.arguments = (self.arguments or "") + more
        if self.name is not None and self.arguments:
            self.pieces.append([ARGUMENTS, self.count, more or self.arguments])

    def string(self, at, streams=False):
        """Behind the quote. (Text, end); a streaming one gives its text even where it is not complete."""
        end = GOOD_STRING.match(self.text, at).end()
        whole = end < len(self.text) and self.text[end] == '"'
        literal = self.text[at:end]
        if not whole:
            pending = re.search(r"(?:^|[^\\])(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})$", literal)
            if pending and not re.search(r"\\u[dD][c-fC-F]..$", literal):
                literal = literal[:pending.start(1)]
        if whole or streams:
            value = decoded(literal)
            if streams:
                self.argue(value)
        if whole:
            return value, end + 1
        begun = ESCAPE_BEGUN.match(self.text, end)
        end = begun.end() if begun else end
        if end == len(self.text):
            raise Over
        raise NoCall(end)

    def value_end(self, at):
        """(End, what is wrong there or None)."""
        first = self.byte(at)
        if first == '"':
            end = RAW_STRING.match(self.text, at).end()
            closed = WHOLE_STRING.match(self.text, at)
            return (end, None) if closed else (len(self.text), Over())
        if first not in "{[":
            m = SCALAR.match(self.text, at)
            if not m:
                return at, NoCall(at)
            return m.end(), Over() if m.end() == len(self.text) else None
        depth = 0
        while at < len(self.text):
            c = self.text[at]
            if c == '"':
                at = RAW_STRING.match(self.text, at).end()
                continue
            if c == "<" or (c in "{[" and depth == DEPTH_MAX):
                return at, NoCall(at)
            depth += (c in "{[") - (c in "}]")
            at += 1
            if depth == 0:
                return at, None
        return len(self.text), Over()

    def value(self, at, streams):
        end, wrong = self.value_end(at)
        if streams:
            self.argue(self.text[at:end])
        if wrong:
            raise wrong
        return end

    def member(self, at):
        key, at = self.string(at)
        at = self.expect(at, ":") + 1
        at = skip(self.text, at)
        first = self.byte(at)
        if key == "name" and self.name is None:
            if first != '"':
                raise NoCall(at)
            try:
                name, at = self.string(at + 1)
            except NoCall as e:
                raise NoCall(None) from e  # before the name it is all the same where
            if not name or len(name.encode()) > NAME_MAX:
                raise NoCall(None)
            self.named(name, at - 1)
            return at
        if key in ("arguments", "parameters") and self.arguments is None and first != "n":
            self.arguments = ""
            return self.string(at + 1, True)[1] if first == '"' else self.value(at, True)
        return self.value(at, False)

    def object(self, at):
        """Behind the opening brace."""
        at = skip(self.text, at)
        while True:
            if self.byte(at) == "}":
                if self.name is None:
                    raise NoCall(at)
                return at + 1
            at = self.expect(at, '"') + 1
            at = self.member(at)
            at = self.expect(at, ",}")
            if self.text[at] == ",":
                at = skip(self.text, at + 1)


class Reference:
    def __init__(self, style, text):
        self.style, self.text, self.pieces = style, text, []
        self.calls = 0
        self.apart = False  # a call or reasoning was there

    def reasoning(self, thinking):
        at = 0
        if thinking == MAY_THINK:
            m = re.match(r"[ \n\t\r]*<think>", self.text)
            if not m:
                return 0
            at = m.end()
        elif thinking == NO_THINK:
            return 0
        self.apart = True
        end = self.text.find("</think>", at)
        thought = self.text[at:] if end < 0 else self.text[at:end]
        self.pieces.append([REASONING, 0, thought.strip(WHITE)])
        return len(self.text) if end < 0 else skip(self.text, end + len("</think>"))

    def call(self, at, begin, bare_name=None):
        """Behind the opening brace, or at that of a bare one; `begin` is content before it. Where it ends; None: no call."""
        r = Reader(self.text, self.pieces, self.calls)
        before = len(self.pieces)
        if begin.strip(WHITE):
            self.pieces.append([CONTENT, 0, begin])
        at_calls = len(self.pieces)
        self.over = False
        try:
            if bare_name is None:
                at = r.object(at)
            else:
                r.named(bare_name, at)
                at = r.value(at, True)
        except Over:
            self.over = True
            at = len(self.text)
        except NoCall as e:
            at = e.at
        if r.name is None:
            assert len(self.pieces) == at_calls
            del self.pieces[before:]
            return None
        self.calls += 1
        self.apart = True
        if not r.arguments and not self.over:
            self.pieces.append([ARGUMENTS, r.count, "{}"])
        return at

    def content(self, text):
        self.pieces.append([CONTENT, 0, text])

    def first_wrong(self, at):
        """Where an object that is no call fails: from there on the text is read again."""
        try:
            Reader(self.text, [], self.calls).object(at)
        except Over:
            return len(self.text)
        except NoCall as e:
            return self.name_wrong(at) if e.at is None else e.at
        raise AssertionError

    def name_wrong(self, at):
        """Where a bad or long name fails: the first prefix that can't be read on."""
        for end in range(at, len(self.text) + 1):
            r = Reader(self.text[:end], [], 0)
            try:
                r.object(at)
            except Over:
                continue
            except NoCall:
                return end - 1
        raise AssertionError

    def run(self, thinking):
        self.outside(self.reasoning(thinking))
        merged = []
        for kind, call, text in self.pieces:
            if not text:
                continue
            if merged and merged[-1][:2] == [kind, call] and kind != NAME:
                merged[-1][2] += text
            else:
                merged.append([kind, call, text])
        return merged

    def outside(self, at):
        """`at`: where text begins that is not given yet; `look`: from where on a mark may stand. `fresh`: no content came since
        the beginning or a call, `past`: a call."""
        look, fresh, past, in_list = at, True, False, False
        while True:
            m, opens, bare = self.find(at, look, fresh, past, in_list)
            if not m:
                return self.rest(at, past)
            kind = m.lastgroup
            if kind in ("close", "end"):
                in_list = in_list and kind != "end"
                past = past and kind != "close" and not (self.style == MISTRAL and kind == "end")
                at = look = m.end()
                continue
            if kind in ("open", "tag"):
                in_list = opens == "["
            start = skip(self.text, bare[1]) if bare else self.after_open(m, kind)
            before = self.text[at:m.start(kind)] if kind == "open" else ""
            after = None if start is None else self.call(start, before, bare[0] if bare else None)
            if after is None:
                look = start if bare else self.failed_at(m, kind, start)
                fresh = past = in_list = False
                if look >= len(self.text) or self.style == LLAMA:
                    return self.rest(at)
                continue
            if self.over:
                return None
            at = look = after
            fresh = past = True

    def find(self, at, look, fresh, past, in_list):
        """(The match of the next mark, the bracket behind it, a bare name with its end or None)."""
        text, m = self.text, None
        blank = r"[ \n\t\r]*"
        if past and look == at:
            if self.style == QWEN:
                m = re.compile(blank + r"(?P<close></tool_call>)").match(text, at)
            if in_list and not m:
                m = re.compile(blank + r"(?:(?P<end>\])|(?P<next>,))").match(text, at)
        if self.style == LLAMA and not m:
            gap = r"[ \n\t\r;]*" if past else blank
            m = re.compile(gap + r"(?:(?P<tag><\|python_tag\|>)|(?P<brace>\{))").match(text, at) if fresh else None
        if self.style in (QWEN, MISTRAL) and not m:
            m = re.compile(r"(?P<open><tool_call>)" if self.style == QWEN else r"(?P<open>\[TOOL_CALLS\])").search(text, look)
        if not m or m.lastgroup in ("close", "end", "next", "brace"):
            return m, "", None
        inside = skip(text, m.end())
        name = BARE_NAME.match(text, inside) if self.style == MISTRAL else None
        if name and len(name.group()) <= NAME_MAX and text[skip(text, name.end()):][:1] == "{":
            return m, "", (name.group(), name.end())
        return m, text[inside:inside + 1], None

    def after_open(self, m, kind):
        """Behind the opening brace of a call's object; None where there is none."""
        if kind == "brace":
            return m.end()
        at = skip(self.text, m.end())
        if kind == "open" and self.text[at:at + 1] == "[":
            at = skip(self.text, at + 1)
        return at + 1 if self.text[at:at + 1] == "{" else None

    def failed_at(self, m, kind, start):
        if start is not None:
            return self.first_wrong(start)
        at = skip(self.text, m.end())
        if kind == "open" and self.text[at:at + 1] == "[":
            return skip(self.text, at + 1)
        name = BARE_NAME.match(self.text, at) if self.style == MISTRAL else None
        if name:
            return at + NAME_MAX if len(name.group()) > NAME_MAX else skip(self.text, name.end())
        return at

    def rest(self, at, past=False):
        rest = self.text[at:]
        white = WHITE + (";" if self.style == LLAMA and self.calls and at > 0 else "")
        mark = rest.lstrip(white)
        if self.calls and mark and at > 0:  # markup cut off behind a call
            marks = {QWEN: ["<tool_call>"] + ["</tool_call>"] * past, LLAMA: ["<|python_tag|>"], MISTRAL: ["[TOOL_CALLS]"]}
            if any(m.startswith(mark) and m != mark for m in marks.get(self.style, [])):
                return
        if mark or not self.apart:
            self.content(rest)


def reference(style, thinking, text):
    return Reference(style, text).run(thinking)


# ---- Texts


MARKS = {
    NONE: [],
    QWEN: ["<tool_call>", "</tool_call>", "<tool_call>", "</tool_call>", "<tool_", "<tool_call>[", "]</tool_call>"],
    LLAMA: ["<|python_tag|>", "; ", ";", "<|py"],
    MISTRAL: ["[TOOL_CALLS]", "[TOOL_CALLS] [", "[TOOL_", "[TOOL_CALLS]f", "get_it"],
}
FRAGMENTS = [
    "{", "}", "[", "]", ",", ":", '"', '"name"', '"name": "f"', '"name": "', '"arguments": {', '"arguments": ', "{}", "[]",
    '"parameters": {"a": 1}', '"arguments": "{\\"a\\": ', '"x": ', '"a"', "\\", '\\"', "\\u00e4", "\\ud83d", "\\ude00", "\\n",
    "null", "12", "-1.5", "true", "f", " ", "\n", " \n", "<", "</", "text", "\u00e4", "\U0001f600",
    '{"name": "f", "arguments": {',
    '{"name": "g", "arguments": {"b": [1, "}"]}}', '{"arguments": {"c": 3}, "name": "h"}', '"}', '"}}', "}}", ", ",
    "</tool_call>",
    '"name": 5', '""', '"name": ""', "'", '{"type": "function", "name": "i"}',
]


def random_text(rng, style, thinking):
    marks = MARKS[style]
    if thinking != NO_THINK:
        marks = marks + ["</think>", "<think>"]
    text = ""
    if thinking == MAY_THINK and rng.random() < 0.7:
        text = rng.choice(["", "\n"]) + "<think>" + rng.choice(["", "\n"])
    if style != NONE and rng.random() < 0.5:
        text += rng.choice(marks)
    for _ in range(rng.randrange(16)):
        text += rng.choice(marks if marks and rng.random() < 0.25 else FRAGMENTS)
    return text


def cuttings(rng, text):
    """Places in bytes between characters."""
    places, n = [], 0
    for c in text:
        n += len(c.encode())
        places.append(n)
    yield []
    yield places
    for _ in range(CUTTINGS - 1):
        yield sorted(rng.sample(places, rng.randrange(len(places) + 1)))


def split(cases):
    """Cases: (style, thinking, text, cuts)."""
    lines = "".join(json.dumps({"style": s, "thinking": t, "text": x, "cuts": c}) + "\n" for s, t, x, c in cases)
    out = subprocess.run([TOOL], input=lines.encode(), capture_output=True, timeout=300, check=True).stdout
    answers = [json.loads(line) for line in out.decode().splitlines()]
    assert len(answers) == len(cases)
    return answers


def compare(rng, texts):
    cases, want = [], []
    for style, thinking, text in texts:
        expected = reference(style, thinking, text)
        for cuts in cuttings(rng, text):
            cases.append((style, thinking, text, cuts))
            want.append(expected)
    for case, expected, got in zip(cases, want, split(cases)):
        assert got == expected, f"seed {SEED}: {case}\nwant {expected}\ngot  {got}"


def test_random_texts():
    rng = random.Random(SEED)
    texts, seen = [], {}
    for _ in range(RANDOM_TEXTS):
        style, thinking = rng.randrange(4), rng.randrange(3)
        texts.append((style, thinking, random_text(rng, style, thinking)))
        for kind in {p[0] for p in reference(*texts[-1])}:
            seen[style, kind] = seen.get((style, kind), 0) + 1
    # The texts are worth something only where they hold calls.
    for style in (QWEN, LLAMA, MISTRAL):
        assert seen[style, NAME] > 100 and seen[style, ARGUMENTS] > 100, seen
    compare(rng, texts)


# ---- What json writes comes back.


def random_value(rng, depth):
    kind = rng.randrange(7 if depth > 0 else 5)
    if kind == 5:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {random_string(rng): random_value(rng, depth - 1) for _ in range(rng.randrange(4))}
    return [None, True, rng.randrange(-999, 999), rng.random() * 1e9, random_string(rng)][kind]


def random_string(rng):
    parts = ["a", "\\", '"', "{", "]", "</tool_call>", "<tool_call>", "\n", "\u00e4", "\U0001f600", "\x01", " ", "[TOOL_CALLS]"]
    return "".join(rng.choice(parts) for _ in range(rng.randrange(6)))


def write_calls(rng, style, calls):
    ascii_only, indent = rng.random() < 0.5, rng.choice([None, None, 2])
    key = rng.choice(["arguments", "parameters"])

    def write(value):
        return json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    def one(name, arguments, as_text):
        members = [("name", name), (key, write(arguments) if as_text else arguments), ("id", rng.randrange(9))]
        rng.shuffle(members)
        return write(dict(members))

    texts = [one(*call) for call in calls]
    if style == LLAMA:
        return rng.choice(["", "<|python_tag|>"]) + rng.choice(["; ", "\n", ";"]).join(texts)
    if style == MISTRAL:
        return "[TOOL_CALLS] [" + ", ".join(texts) + "]"
    if rng.random() < 0.3:
        return "<tool_call>[" + ", ".join(texts) + "]</tool_call>"
    return "\n".join(f"<tool_call>\n{t}\n</tool_call>" for t in texts)


def test_well_formed_calls_come_back():
    rng = random.Random(SEED + 1)
    cases, want = [], []
    for _ in range(WELL_FORMED):
        style = rng.choice([QWEN, LLAMA, MISTRAL])
        calls = [("f" + random_string(rng), {"a": random_value(rng, 3)}, rng.random() < 0.3)
                 for _ in range(rng.randrange(1, 4))]
        text = write_calls(rng, style, calls)
        for cuts in cuttings(rng, text):
            cases.append((style, NO_THINK, text, cuts))
            want.append(calls)
    for case, calls, got in zip(cases, want, split(cases)):
        assert [(k, c) for k, c, _ in got] == [(k, i) for i in range(len(calls)) for k in (NAME, ARGUMENTS)], case
        assert [t for k, _, t in got if k == NAME] == [name for name, _, _ in calls], case
        assert [json.loads(t) for k, _, t in got if k == ARGUMENTS] == [arguments for _, arguments, _ in calls], case


def test_long_texts():
    """Over the limits, in pieces of every length."""
    rng = random.Random(SEED + 2)
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    texts = [(QWEN, NO_THINK, call * n) for n in (CALLS_MAX, CALLS_MAX + 1)]
    texts += [(MISTRAL, NO_THINK, "[TOOL_CALLS]f{}" * n) for n in (CALLS_MAX, CALLS_MAX + 1)]
    texts += [(QWEN, NO_THINK, '<tool_call>{"name": "' + "n" * n + '"}</tool_call>' + call) for n in (NAME_MAX, NAME_MAX + 1)]
    texts += [(MISTRAL, NO_THINK, "[TOOL_CALLS]" + "n" * n + "{}[TOOL_CALLS]f{}") for n in (NAME_MAX, NAME_MAX + 1)]
    texts += [(QWEN, NO_THINK, '<tool_call>{"name": "f", "arguments": ' + "[" * n + call) for n in (DEPTH_MAX, 10000)]
    compare(rng, texts)
