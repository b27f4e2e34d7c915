"""isochron chat: one answer, turns from standard input, and a person at a terminal."""

import datetime
import json
import os
import signal
import subprocess
import time

import pytest

import cli
import gguf_io
import make_tiny
from cli import FORMAT, LIMIT, OK, UNSUPPORTED, USAGE, Terminal, iso, ok, refused

CTRL_C, CTRL_D, BACKSPACE, UP = b"\x03", b"\x04", b"\x7f", b"\x1b[A"


def one(plan, text, *args):
    return ok("chat", plan, "-p", text, "-n", 20, "--json", *args).json


def turns(plan, text, *args, code=OK):
    r = iso("chat", plan, "-n", 20, "--json", *args, stdin=text)
    assert r.code == code, r
    return [json.loads(line) for line in r.out.splitlines()]


def test_one_answer(plan):
    told = one(plan, "hello")
    r = ok("chat", plan, "-p", "hello", "-n", 20)
    assert r.out.decode() == told["text"] + "\n" and r.notes == b""
    assert set(told) == set(ok("generate", plan, "-p", "x", "-n", 1, "--json").json)
    again = ok("chat", plan, "-p", "hello", "-n", 20, "--threads", 1, "--isa", "c").out
    assert again == r.out
    assert ok("chat", plan, "-p", "hello", "-n", 20, "--stats").out.startswith(r.out + b"\n  prompt tokens")


def test_template_makes_the_prompt(plan):
    """ChatML around the text: <|im_start|>user\\n...<|im_end|>\\n<|im_start|>assistant\\n."""
    plain = ok("generate", plan, "-p", "user\nhello", "-n", 1, "--json").json["usage"]["prompt_tokens"]
    rest = ok("generate", plan, "-p", "assistant\n", "-n", 1, "--json").json["usage"]["prompt_tokens"]
    assert one(plan, "hello")["usage"]["prompt_tokens"] == 1 + plain + 1 + 1 + 1 + rest


def test_system_message(plan):
    plain, asked = one(plan, "hello"), one(plan, "hello", "-S", "Be brief.")
    assert asked["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 5
    assert asked == {**one(plan, "hello", "--system=Be brief."), "timings": asked["timings"]}
    assert asked["text"] != plain["text"]


def test_odd_messages(plan):
    assert one(plan, "")["usage"]["prompt_tokens"] > 5
    bad = ok("chat", plan, "-p", b"a\xff\xfe", "-n", 5).out
    assert bad == ok("chat", plan, "-p", "a\ufffd\ufffd", "-n", 5).out
    quoted = one(plan, "{{ messages }} {% raw %} \"quotes\" \\n")
    assert quoted["usage"]["prompt_tokens"] > 20


def test_turns_from_standard_input(plan):
    """Each line is a turn; what was said before is kept, and its blocks are not computed again."""
    first, second, third = turns(plan, b"hello\n\nhow are you?\nbye")
    assert first["text"] == one(plan, "hello")["text"]
    assert first["usage"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]
    assert third["usage"]["prompt_tokens"] > second["usage"]["prompt_tokens"]
    assert third["usage"]["cached_tokens"] >= second["usage"]["cached_tokens"] >= 16
    assert second["usage"]["cached_tokens"] % 16 == 0
    r = ok("chat", plan, "-n", 20, stdin=b"hello\nhow are you?\nbye\n")
    assert r.out.decode() == "".join(t["text"] + "\n" for t in (first, second, third))
    assert r.notes == b""


def test_reuse_changes_no_byte(plan):
    """The second turn is what one prompt with the same conversation gives."""
    first, second = turns(plan, b"hello\nhow are you?\n", "--temperature", "1", "--seed", "4")
    fresh = turns(plan, b"x\n/reset\nhello\nhow are you?\n", "--temperature", "1", "--seed", "4")
    assert [t["text"] for t in fresh[1:]] == [first["text"], second["text"]]


def test_commands(plan):
    r = ok("chat", plan, "-n", 20, "--json", stdin=b"hello\n/reset\nhello\n/help\n/quit\nnever\n")
    first, second = [json.loads(line) for line in r.out.splitlines()]
    assert first["text"] == second["text"] and first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]
    assert b"starts anew" in r.notes and b"/quit ends" in r.notes
    assert ok("chat", plan, stdin=b"/exit\nnever\n").out == b""
    system = turns(plan, b"hello\n/reset\nhello\n", "-S", "Be brief.")
    assert system[0]["text"] == system[1]["text"] == one(plan, "hello", "-S", "Be brief.")["text"]


def test_unknown_commands_are_not_swallowed(plan):
    """Told, and told by the exit code; a space before the slash says it to the model."""
    r = iso("chat", plan, "-n", 5, stdin=b"/etc/passwd is a file\nhello\n")
    assert r.code == USAGE and r.out.count(b"\n") >= 1, r
    assert r.notes.count(b"\n") == 1 and b'no command "/etc/passwd is a file"' in r.notes
    assert len(turns(plan, b" /etc/passwd is a file\n")) == 1
    r = iso("chat", plan, "--json", stdin=b"/no\n")
    assert r.code == USAGE and "no command" in r.json["error"]["message"]


def test_nothing_to_say(plan):
    for stdin in (b"", b"\n\n\n"):
        r = ok("chat", plan, stdin=stdin)
        assert r.out == b"" and r.notes == b""


def test_long_conversation_is_refused_and_goes_on(plan):
    """A turn that does not fit leaves no trace; the next one is answered."""
    text = b"hello\n" + b"x" * 600 + b"\nhow are you?\n"
    r = iso("chat", plan, "-n", 20, stdin=text)
    assert r.code == LIMIT and r.notes.count(b"\n") == 1, r
    assert b"prompt tokens" in r.notes and b"512" in r.notes and os.fsencode(plan) in r.notes
    assert r.out == ok("chat", plan, "-n", 20, stdin=b"hello\nhow are you?\n").out
    errors = [t for t in turns(plan, text, code=LIMIT) if "error" in t]
    assert len(errors) == 1 and errors[0]["error"]["code"] == "ISO_E_LIMIT"
    refused(iso("chat", plan, "-p", "x" * 3000), LIMIT, plan, "3017 prompt tokens", "512")


def test_line_over_the_limit(plan):
    r = iso("chat", plan, stdin=b"x" * (2**20 + 1) + b"\n")
    assert r.code == LIMIT and b"longer than 1 MiB" in r.err, r


def test_model_without_a_template(models, tmp_path):
    path = tmp_path / "bare.plan"
    ok("compile", models.bare, "-o", path)
    refused(iso("chat", path, "-p", "hello"), UNSUPPORTED, path, "no chat template", "isochron generate")
    refused(iso("chat", path, stdin=b"hello\n"), UNSUPPORTED, path, "no chat template")
    assert ok("generate", path, "-p", "hello", "-n", 3).out
    assert ok("inspect", path, "--json").json["chat_template"] is None


def test_a_template_is_told_the_local_time(tmp_path):
    path = tmp_path / "clock.gguf"
    make_tiny.make(tmp_path / "m.gguf")
    reader = gguf_io.Reader(tmp_path / "m.gguf")
    meta = [(k, kind, "{{ raise_exception(strftime_now('%Y-%m-%d %H')) }}" if k == "tokenizer.chat_template" else v)
            for k, kind, v in gguf_io.typed_meta(reader)]
    gguf_io.write(path, meta, [(t.name, t.type, t.dims, lambda t=t: t.raw) for t in reader.tensors.values()])
    for zone, hours in (("UTC0", 0), ("JST-9", 9)):
        here = datetime.timezone(datetime.timedelta(hours=hours))
        before = datetime.datetime.now(here)
        r = iso("chat", path, "-p", "x", env={"TZ": zone})
        after = datetime.datetime.now(here)
        assert r.code == FORMAT and any(f"{t:%Y-%m-%d %H}".encode() in r.err for t in (before, after)), r


def test_sigint_ends_a_chat_without_a_terminal(endless_plan):
    for args in (["-p", "hello"], []):
        p = subprocess.Popen(cli.arguments(["chat", endless_plan, "-n", 30000, *args]), stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if not args:
            p.stdin.write(b"hello\n")
            p.stdin.flush()
        assert p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        assert p.wait(cli.SECONDS_MAX) == -signal.SIGINT
        p.stdin.close()
        p.stdout.close()


def test_answers_nobody_reads_end_the_chat(endless_plan):
    with open("/dev/full", "w") as full:
        r = subprocess.run(cli.arguments(["chat", endless_plan, "-n", 30000]), input=b"hello\n" * 50, stdout=full,
                           stderr=subprocess.PIPE, timeout=cli.SECONDS_MAX)
    refused(cli.Result(r.returncode, b"", r.stderr), cli.IO, endless_plan, "No space left")


# ---- a terminal


@pytest.fixture
def state(tmp_path):
    return {"XDG_STATE_HOME": tmp_path}


def history(state):
    """The lines kept, without libedit's first one and its way to write a space."""
    path = state["XDG_STATE_HOME"] / "isochron" / "history"
    return path.read_text().replace("\\040", " ").splitlines()[1:]


def ready(t, after=0):
    return t.wait_for(b"> ", after)


def said(t, text):
    """Types a line, waits for the next prompt, gives what was on the screen between."""
    at = t.type(text)
    t.wait_for(b"\r\n> ", at)
    return t.screen[at:]


def answered(t, after):
    """The JSON object on the screen."""
    return json.loads(t.screen[t.screen.index(b"{", after):].split(b"\r\n")[0])


def test_terminal_answers(plan, state):
    want = ok("chat", plan, "-n", 5, stdin=b"hello\nthere\n").out.splitlines()
    with Terminal("chat", plan, "-n", 5, env=state) as t:
        ready(t)
        assert b"Ctrl-D ends" in t.screen and b"tiny llama" in t.screen
        assert want[0] in said(t, b"hello\r")
        assert want[1] in said(t, b"there\r")
        assert t.end(CTRL_D) == OK
        assert t.screen.endswith(b"\r\n")
    assert history(state) == ["hello", "there"]


def test_terminal_edits_lines(plan, state):
    want = ok("chat", plan, "-n", 5, stdin="hello\nh\u00e9\u4f60o\n".encode()).out.splitlines()
    with Terminal("chat", plan, "-n", 5, env=state) as t:
        ready(t)
        assert want[0] in said(t, b"help" + BACKSPACE + b"lo\r")
        said(t, b"/reset\r")
        assert want[0] in said(t, b"llo\x01he\x05\r")  # to the beginning and the end of the line
        assert want[1] in said(t, "h\u00e9x\u4f60o".encode() + b"\x02\x02\x08\r")  # back over two, delete one
        t.type(b"/quit\r")
        assert t.end() == OK
    assert history(state) == ["hello", "/reset", "hello", "h\u00e9\u4f60o", "/quit"]


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}, {"LANG": "nowhere"}], ids=str)
def test_terminal_takes_utf8_in_every_locale(locale, plan, state):
    text = "\u00fcber \u4f60\u597d \U0001f600"
    want = ok("chat", plan, "-n", 5, stdin=text.encode() + b"\n").out.strip()
    with Terminal("chat", plan, "-n", 5, env={**state, **locale}) as t:
        ready(t)
        assert want in said(t, text.encode() + b"\r")
        assert t.end(CTRL_D) == OK
    assert history(state) == [text]


def test_terminal_remembers(plan, state):
    for words in ([b"first\r", b"second\r"], [UP + UP + b"\r", UP + b"!\r"]):
        with Terminal("chat", plan, "-n", 2, env=state) as t:
            ready(t)
            for line in words:
                said(t, line)
            assert t.end(CTRL_D) == OK
    assert history(state) == ["first", "second", "first", "first!"]
    assert (state["XDG_STATE_HOME"] / "isochron").stat().st_mode & 0o077 == 0


def test_terminal_without_a_place_for_history(plan):
    for env in ({"HOME": None, "XDG_STATE_HOME": None}, {"XDG_STATE_HOME": "/dev/null"}):
        with Terminal("chat", plan, "-n", 2, env=env) as t:
            ready(t)
            said(t, b"hello\r")
            assert t.end(CTRL_D) == OK


def test_ctrl_c_stops_an_answer_only(endless_plan, state):
    """The chat goes on, what was said stays; at the prompt it begins the line anew."""
    with Terminal("chat", endless_plan, "-n", 20000, "--json", env=state) as t:
        ready(t)
        at = t.type(b"hello\r")
        t.wait_for(b"hello\r\n", at)
        time.sleep(0.5)
        t.type(CTRL_C)
        t.wait_for(b"\r\n> ", at)
        told = answered(t, at)
        assert told["finish_reason"] == "interrupted" and 0 < told["usage"]["completion_tokens"] < 20000
        at = t.type(b"not this")
        t.wait_for(b"not this", at)
        at = t.type(CTRL_C)
        t.wait_for(b"> ", at)
        assert b"Ctrl-D ends" in t.screen[at:]
        at = t.type(b"again\r")
        t.wait_for(b"again\r\n", at)
        time.sleep(0.2)
        t.type(CTRL_C)
        t.wait_for(b"\r\n> ", at)
        more = answered(t, at)
        assert more["usage"]["prompt_tokens"] > told["usage"]["prompt_tokens"]
        assert more["usage"]["cached_tokens"] >= 16
        assert t.end(CTRL_D) == OK
    assert history(state) == ["hello", "again"]


def test_ctrl_d_during_an_answer_is_not_in_the_way(endless_plan, state):
    with Terminal("chat", endless_plan, "-n", 300, "--json", env=state) as t:
        ready(t)
        at = t.type(b"hello\r")
        t.wait_for(b"\r\n", at)
        t.type(CTRL_D)
        t.wait_for(b"\r\n> ", at)
        assert answered(t, at)["finish_reason"] == "length"
        assert t.end(CTRL_D) == OK


def test_every_ctrl_c_at_the_prompt_is_seen(plan, state):
    """Also one that comes with a letter, just before the program waits for the next."""
    with Terminal("chat", plan, "-n", 2, env=state) as t:
        ready(t)
        for _ in range(500):
            ready(t, t.type(b"x" + CTRL_C))
        assert t.end(CTRL_D) == OK


def test_ctrl_c_stops_a_prompt_that_is_being_read(endless_plan, state):
    """Before its first token: the answer is empty, the turn is kept."""
    line = b"hello " * 300 + b"!"
    with Terminal("chat", endless_plan, "-n", 10, "--threads", 1, "--isa", "c", "--json", env=state) as t:
        ready(t)
        t.wait_for(b"!", t.type(line))
        at = t.type(b"\r")
        t.wait_for(b"\n", at)
        time.sleep(0.1)
        t.type(CTRL_C)
        t.wait_for(b"\r\n> ", at)
        told = answered(t, at)
        if told["usage"]["completion_tokens"] == 0:  # not on a machine that reads 1,500 tokens in 0.1 s
            assert told["finish_reason"] == "interrupted" and told["text"] == ""
        assert t.end(CTRL_D) == OK


def test_terminal_says_how_to_go_on_when_full(plan, state):
    with Terminal("chat", plan, "-n", 5, env=state) as t:
        ready(t)
        screen = said(t, b"y" * 900 + b"\r")
        assert b"do not fit" in screen and b"/reset starts" in screen
        said(t, b"/reset\r")
        said(t, b"hello\r")
        assert t.end(CTRL_D) == LIMIT


def test_output_elsewhere_gets_no_prompt(plan, state):
    """Typed at a terminal with the answers going to a file: the file has the answers and nothing else."""
    with Terminal("chat", plan, "-n", 5, env=state, streams=(0, 2)) as t:
        t.type(b"hello\n" + CTRL_D)
        assert t.end() == OK
        assert t.process.stdout.read() == ok("chat", plan, "-p", "hello", "-n", 5).out
