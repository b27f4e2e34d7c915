"""isochron generate: the same text for the same request, streamed in whole characters, ended where asked."""

import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

import cli
from cli import FORMAT, IO, LIMIT, OK, UNSUPPORTED, USAGE, isas, iso, misused, ok, refused

PROMPT = "The quick brown fox jumps over the lazy dog"


def answer(plan, *args, prompt=PROMPT, tokens=60, **options):
    """The text, without the line end that closes it."""
    out = ok("generate", plan, "-p", prompt, "-n", tokens, *args, **options).out
    assert out.endswith(b"\n")
    return out[:-1]


@pytest.fixture(scope="module")
def text(plan):
    return answer(plan, "--isa", "c", "--threads", 1)


def test_same_text_whatever_computes_it(plan, text):
    assert len(text) > 20
    for isa in isas():
        for threads in (1, 2, 3):
            assert answer(plan, "--isa", isa, "--threads", threads) == text, (isa, threads)
    assert answer(plan, "--cpus", min(os.sched_getaffinity(0))) == text
    assert answer(plan) == text


def test_same_text_from_model_file_and_plan(models, plan, text):
    assert answer(models.llama) == text
    r = iso("generate", models.qwen2, "-p", PROMPT, "-n", 60)
    assert r.code == OK and r.out[:-1] != text


def test_json(plan, text):
    r = ok("generate", plan, "-p", PROMPT, "-n", 60, "--json", "--threads", 2, "--seed", 2**64 - 1)
    assert r.notes == b"", r
    j = r.json
    assert j["text"].encode() == text
    assert j["finish_reason"] == "length"
    assert j["usage"]["completion_tokens"] == 60 and j["usage"]["cached_tokens"] == 0
    assert 9 < j["usage"]["prompt_tokens"] <= len(PROMPT)
    assert j["seed"] == str(2**64 - 1) and j["threads"] == 2 and j["isa"] == isas()[-1]
    assert j["plan"] == ok("inspect", plan, "--json").json["hash"]
    t = j["timings"]
    assert 0 < t["per_token_p50_ms"] <= t["per_token_p99_ms"] <= t["per_token_max_ms"]
    assert t["ttft_ms"] > 0 and t["decode_tokens_per_s"] > 0


def test_stats(plan, text):
    out = ok("generate", plan, "-p", PROMPT, "-n", 60, "--stats").out
    assert out.startswith(text + b"\n\n  prompt tokens ")
    rows = [line.strip() for line in out[len(text):].decode().splitlines() if line.strip()]
    names = ["prompt tokens", "output tokens", "TTFT", "per token P50", "per token P99", "per token max", "decode",
             "kernels"]
    for row, name in zip(rows, names):
        assert row.startswith(name), rows
    assert len(rows) == 8


def test_seeds(plan):
    """With a temperature the seed decides, without one it doesn't matter."""
    texts = {seed: answer(plan, "--temperature", 1, "--seed", seed) for seed in (0, 1, 2, 2**63)}
    assert len(set(texts.values())) == 4
    assert answer(plan, "--temperature", "1.0", "--seed", 2) == texts[2]
    assert answer(plan, "--temperature", 1, "--seed", 2, "--isa", "c", "--threads", 3) == texts[2]
    assert answer(plan, "--temperature", 1) == texts[0]
    assert answer(plan, "--seed", 5) == answer(plan, "--seed", 6)


def test_sampling_options_take_part(plan, text):
    warm = ("--temperature", 2, "--seed", 3)
    assert answer(plan, *warm, "--top-k", 1) == text
    assert answer(plan, *warm, "--top-p", 0.000001) == text
    assert answer(plan, *warm, "--min-p", 1) == text
    assert answer(plan, "--repeat-penalty", 1) == text != answer(plan, "--repeat-penalty", 50)
    plain = answer(plan, *warm)
    assert plain == answer(plan, *warm, "--top-k", 0, "--top-p", 1, "--min-p", 0)
    for narrower in (("--top-k", 5), ("--top-p", 0.3), ("--min-p", 0.5)):
        assert answer(plan, *warm, *narrower) != plain


def test_max_tokens_is_a_beginning(plan, text):
    for n in (1, 2, 7, 59):
        shorter = ok("generate", plan, "-p", PROMPT, "-n", n, "--json").json
        assert shorter["usage"]["completion_tokens"] == n and shorter["finish_reason"] == "length"
        kept = shorter["text"].rstrip("\ufffd")  # an unfinished character ends it
        assert text.decode().startswith(kept)


def test_stop_strings(plan, text):
    """Whatever part of the answer is the stop string, the answer is what comes before its first end."""
    whole = text.decode()
    assert len(whole) > 30
    tried = 0
    for first in range(2, len(whole) - 6, 7):
        for length in (1, 2, 5):
            stop = whole[first:first + length]
            if "\x00" in stop:
                continue
            tried += 1
            r = ok("generate", plan, "-p", PROMPT, "-n", 60, "--json", "--stop", stop).json
            assert r["text"] == whole[:whole.index(stop)], (stop, r)
            assert r["finish_reason"] == "stop"
            assert r["usage"]["completion_tokens"] <= 60
    assert tried > 10
    nearly = whole[5:10] + "\u2603"
    assert answer(plan, "--stop", nearly, "--stop", "\u2603\u2603") == text
    several = ok("generate", plan, "-p", PROMPT, "-n", 60, "--stop", whole[20:24], "--stop", whole[8:11], "--json").json
    assert several["text"] == whole[:min(whole.index(whole[20:24]), whole.index(whole[8:11]))]


def test_stop_strings_that_are_none(plan):
    misused(iso("generate", plan, "-p", "x", "--stop", ""), "--stop", "0 bytes", "256")
    misused(iso("generate", plan, "-p", "x", "--stop", "s" * 257), "--stop", "257", "256")
    refused(iso("generate", plan, "-p", "x", "--stop", b"\xff"), FORMAT, plan, "stop string 1", "UTF-8")
    ok("generate", plan, "-p", "x", "-n", 2, "--stop", "s" * 256)


def test_text_comes_before_the_end(endless_plan):
    """The first bytes are there while the program still computes; each piece read is whole characters."""
    p = subprocess.Popen(cli.arguments(["generate", endless_plan, "-p", "x", "-n", 30000, "--temperature", 1]),
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pieces = b""
    while len(pieces) < 500:
        piece = os.read(p.stdout.fileno(), 65536)
        piece.decode("utf-8")  # strict: a cut character would fail
        pieces += piece
        assert p.poll() is None
    p.send_signal(signal.SIGINT)
    assert p.wait(cli.SECONDS_MAX) == -signal.SIGINT
    p.stdout.close()


def test_no_character_is_cut(demo_plan):
    """A model that answers in emoji, whose tokens are parts of characters."""
    prompt = "Party: 😀🎉😀🎉😀🎉😀🎉😀"
    p = subprocess.Popen(cli.arguments(["generate", demo_plan, "-p", prompt, "-n", 15]), stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL)
    pieces = []
    while select.select([p.stdout], [], [], cli.SECONDS_MAX)[0]:
        piece = os.read(p.stdout.fileno(), 65536)
        if not piece:
            break
        pieces.append(piece.decode("utf-8"))
    p.stdout.close()
    assert p.wait() == OK
    assert len(pieces) > 2 and "\ufffd" not in "".join(pieces[:-2]), pieces  # the limit may cut the last
    assert any(ord(c) > 0xffff for c in "".join(pieces)), pieces


def test_demo_model_knows_paris(demo_plan):
    assert answer(demo_plan, prompt="The capital of France is", tokens=2) == b" Paris."


def prompt_tokens(plan, text):
    return ok("generate", plan, "-p", text, "-n", 1, "--json").json["usage"]["prompt_tokens"]


def test_prompts_of_all_kinds(plan):
    assert prompt_tokens(plan, "") == 1  # BOS, because there must be one
    assert prompt_tokens(plan, "a") == 1
    assert prompt_tokens(plan, "😀") == 4
    assert prompt_tokens(plan, "<|im_end|>") > 5 and prompt_tokens(plan, "<|endoftext|><|im_start|>") > 10
    assert prompt_tokens(plan, "\n") == 1
    assert prompt_tokens(plan, "--stop") == prompt_tokens(plan, b"--stop")


def test_control_tokens_in_a_prompt_are_text(plan):
    """The same answer as for their bytes: nothing in a prompt is a control token."""
    one = ok("generate", plan, "-p", "<|im_end|>", "-n", 8, "--json").json
    assert one["usage"]["prompt_tokens"] == prompt_tokens(plan, "<|im_end") + prompt_tokens(plan, "|>")


def test_invalid_utf8_is_replaced(plan):
    """A prompt that is no UTF-8 is read with U+FFFD in place of each bad part."""
    for raw, clean in [(b"a\xffb", "a\ufffdb"), (b"\xf0\x9f\x98", "\ufffd"), (b"\xc0\x80\xed\xa0\x80", "\ufffd" * 5)]:
        r = ok("generate", plan, "-p", raw, "-n", 20)
        assert r.out == ok("generate", plan, "-p", clean, "-n", 20).out
        r.out.decode("utf-8")


def test_too_long_prompts_are_refused_with_the_numbers(plan):
    refused(iso("generate", plan, "-p", "x" * 513), LIMIT, plan, "513 prompt tokens", "512")
    refused(iso("generate", plan, "-p", "x" * 512), LIMIT, plan, "512 prompt tokens", "512")
    refused(iso("generate", plan, "-p", "x" * 5000), LIMIT, plan, "5000 prompt tokens", "512")
    refused(iso("generate", plan, "-p", "x" * 500, "-n", 13), LIMIT, plan, "500 prompt tokens", "13 output", "512")
    refused(iso("generate", plan, "-p", "x" * 70000), LIMIT, plan, "65536 bytes")
    r = ok("generate", plan, "-p", "x" * 500, "--json").json
    assert r["usage"] == {"prompt_tokens": 500, "cached_tokens": 0, "completion_tokens": 12}
    assert ok("generate", plan, "-p", "x" * 511, "--json").json["usage"]["completion_tokens"] == 1


def test_options_of_the_plan_must_agree(plan):
    ok("generate", plan, "-p", "x", "-n", 1, "-c", 512, "-np", 1, "--kv", "f16", "--batch-tokens", 128)
    for option, value, has in [("max-seq-len", 100, 512), ("slots", 2, 1), ("batch-tokens", 129, 128)]:
        refused(iso("generate", plan, "-p", "x", f"--{option}={value}"), USAGE, plan, f"--{option}", value, has)
    refused(iso("generate", plan, "-p", "x", "--kv", "q8"), USAGE, plan, "--kv")


def test_cpus_that_are_not_there(plan):
    refused(iso("generate", plan, "-p", "x", "--cpus", 60000), USAGE, plan, "CPU 60000")


def test_json_errors_are_json(plan, tmp_path):
    r = iso("generate", plan, "-p", "x" * 600, "--json")
    assert r.code == LIMIT and r.notes == b"", r
    e = r.json["error"]
    assert e["code"] == "ISO_E_LIMIT" and str(plan) in e["message"] and e["field"] == "prompt" and e["offset"] == 0
    r = iso("generate", tmp_path / "none", "-p", "x", "--json")
    assert r.code == IO and r.json["error"]["code"] == "ISO_E_IO" and r.notes == b""


def test_reader_that_goes_away(plan):
    """As everywhere: the writer dies of SIGPIPE, without a word."""
    p = subprocess.Popen(cli.arguments(["generate", plan, "-p", PROMPT, "-n", 400]), stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    err = p.stderr.read()
    p.stderr.close()
    assert p.wait(cli.SECONDS_MAX) in (-signal.SIGPIPE, OK)
    assert cli.Result(0, b"", err).notes == b""


def test_answer_that_cannot_be_written_ends_at_once(endless_plan):
    start = time.monotonic()
    with open("/dev/full", "w") as full:
        r = subprocess.run(cli.arguments(["generate", endless_plan, "-p", "x", "-n", 32000]), stdout=full,
                           stderr=subprocess.PIPE, timeout=cli.SECONDS_MAX)
    refused(cli.Result(r.returncode, b"", r.stderr), IO, endless_plan, "No space left")
    assert time.monotonic() - start < 10  # the whole answer takes much longer


def test_real_time_scheduling_is_refused_or_said(plan):
    r = iso("generate", plan, "-p", PROMPT, "--sched", "rt")
    assert r.code == USAGE and b"other and fifo" in r.err, r
    usual = iso("generate", plan, "-p", PROMPT, "-n", 4)
    assert iso("generate", plan, "-p", PROMPT, "-n", 4, "--sched", "other").out == usual.out
    whole = int(Path("/proc/sys/kernel/sched_rt_runtime_us").read_text()) < 0
    r = iso("generate", plan, "-p", PROMPT, "-n", 4, "--sched", "fifo")
    if whole and r.code == OK:
        assert r.out == usual.out
    else:
        refused(r, UNSUPPORTED, plan, "CAP_SYS_NICE" if whole else "kernel.sched_rt_runtime_us")
