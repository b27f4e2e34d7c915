"""isochron eval: perplexity and distance against the float64 reference, accuracy against questions with known answers."""

import json
import os
import subprocess

import numpy as np
import pytest

from cli import BINARY, FORMAT, IO, LIMIT, OK, USAGE, iso
import make_tiny
import reference

WINDOW = 64


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval")
    make_tiny.make(folder / "m.gguf", arch="llama", type="F32", hidden=96, heads=6, kv_heads=2, head_dim=32, ffn=160)
    make_tiny.make(folder / "q.gguf", arch="qwen2", type="F32", hidden=96, heads=6, kv_heads=2, head_dim=32, ffn=160)
    rng = np.random.default_rng(3)
    (folder / "text.txt").write_text(" ".join("".join(chr(97 + c) for c in rng.integers(0, 26, 5)) for _ in range(60)))
    return folder


def test_perplexity_is_the_references(models, tmp_path):
    r = iso("eval", models / "m.gguf", "--text", models / "text.txt", "--window", WINDOW, "--json")
    assert r.code == OK, r
    ids = encoded(models, tmp_path)
    model = reference.Model(models / "m.gguf", keep_weights=True)
    bos = [model.file.meta["tokenizer.ggml.bos_token_id"]] if model.file.meta.get("tokenizer.ggml.add_bos_token") else []
    nll, n = 0.0, 0
    for at in range(0, len(ids), WINDOW - len(bos)):
        window = bos + ids[at : at + WINDOW - len(bos)]
        if len(window) < 2:
            break
        logits = model.run(window)
        rows = np.arange(len(window) - 1)
        nll += float(np.sum(reference.log_sum_exp(logits[:-1]) - logits[rows, window[1:]]))
        n += len(rows)
    assert r.json["tokens_scored"] == n
    assert r.json["model"]["nll"] == pytest.approx(nll / n, abs=1e-4)
    assert r.json["model"]["perplexity"] == pytest.approx(np.exp(nll / n), rel=1e-4)


def test_distance_from_a_narrower_model(models):
    narrow = ["--quant", "w4", "--quant-embedding", "w4"]
    r = iso("eval", models / "m.gguf", *narrow, "--against", models / "m.gguf", "--text", models / "text.txt",
            "--window", WINDOW, "--json")
    assert r.code == OK, r
    j = r.json
    assert j["model"]["quant"] == "w4" and j["against"]["quant"] == "keep"
    assert j["model"]["bytes"] < j["against"]["bytes"]
    assert 0 < j["kl_mean"] < j["kl_p99"] and 0 < j["top1"] < 1
    assert j["perplexity_ratio"] == pytest.approx(j["model"]["perplexity"] / j["against"]["perplexity"])
    assert 0 < j["perplexity_ratio_error"] < 0.2


def test_a_model_is_no_way_from_itself(models):
    r = iso("eval", models / "m.gguf", "--against", models / "m.gguf", "--text", models / "text.txt", "--json")
    assert r.code == OK, r
    assert (r.json["kl_mean"], r.json["kl_p99"], r.json["top1"], r.json["perplexity_ratio"]) == (0, 0, 1, 1)


def test_windows_and_slots_change_no_probability(models, tmp_path):
    seen = set()
    for slots, batch in ((1, 8), (5, 8), (16, 128)):
        plan = tmp_path / "m.plan"
        assert iso("compile", models / "m.gguf", "-o", plan, "--slots", slots, "--batch-tokens", batch).code == OK
        r = iso("eval", plan, "--text", models / "text.txt", "--window", WINDOW, "--json")
        assert r.code == OK, r
        seen.add(r.json["model"]["nll"])
    assert len(seen) == 1


def encoded(models, tmp_path):
    """The text's ids, from the C API."""
    plan = tmp_path / "ids.plan"
    assert iso("compile", models / "m.gguf", "-o", plan).code == OK
    done = subprocess.run([BINARY.parent / "tests/tools/tool_ids", plan, models / "text.txt"], capture_output=True, text=True,
                          check=True)
    return [int(word) for word in done.stdout.split()]


def write_questions(path, questions):
    path.write_text("".join(json.dumps(q) + "\n" for q in questions))
    return path


def test_choices(models, tmp_path):
    questions = [{"prompt": f"q{i}", "choices": [" one", " three", " a"], "answer": i % 3} for i in range(9)]
    r = iso("eval", models / "m.gguf", "--choices", write_questions(tmp_path / "q.jsonl", questions), "--json")
    assert r.code == OK and r.json["questions"] == 9, r
    a = r.json["model"]["accuracy"]
    assert 0 <= a["low_95"] <= a["share"] <= a["high_95"] <= 1
    # The same questions with their right answers moved round: each choice is preferred as often as before.
    total = 0
    for shift in range(3):
        moved = [{**q, "answer": (q["answer"] + shift) % 3} for q in questions]
        r = iso("eval", models / "m.gguf", "--choices", write_questions(tmp_path / "q.jsonl", moved), "--json")
        total += r.json["model"]["accuracy"]["share"]
    assert total == pytest.approx(1)


def test_the_interval_is_wilsons(models, tmp_path):
    questions = [{"prompt": "x", "choices": [" one", " two"], "answer": 0}] * 8
    r = iso("eval", models / "m.gguf", "--choices", write_questions(tmp_path / "q.jsonl", questions), "--json")
    a = r.json["model"]["accuracy"]
    assert a["share"] in (0, 1)
    bound = 8 / (8 + 1.959963984540054**2)  # Wilson's for 8 of 8
    assert (a["low_95"] if a["share"] == 1 else 1 - a["high_95"]) == pytest.approx(bound, abs=1e-9)


@pytest.mark.parametrize("line,says", [
    ("{", "line 1"),
    ('{"prompt": "x", "choices": [" a"], "answer": 0}', "2 to 16"),
    ('{"prompt": "x", "choices": [" a", " b"], "answer": 2}', "number of the right choice, from 0 to 1"),
    ('{"prompt": "x", "choices": [" a", ""], "answer": 0}', "choice 1 (from 0) is no text, or empty"),
    ('{"choices": [" a", " b"], "answer": 0}', '"prompt"'),
    ('{"prompt": "x", "choice": [" a", " b"], "answer": 0}', '"choices"'),
    ('\n \t\n{"prompt": "x", "choices": [" a", " b"], "answer": "0"}', "line 3"),
    ('{"prompt": "x", "choices": [" a", " b"], "answer": 0}\n{"prompt": "' + "x " * 3000 + '", "choices": [" a", " b"], "answer": 0}',
     "line 2"),
    ('{"prompt": "", "choices": [" a", " b"], "answer": 0}', "no token of its own"),
    ("", "no question"),
])
def test_bad_questions(models, tmp_path, line, says):
    (tmp_path / "q.jsonl").write_text(line)
    r = iso("eval", models / "m.gguf", "--choices", tmp_path / "q.jsonl")
    assert r.code in (FORMAT, LIMIT) and b"answering" not in r.err and says.encode() in r.notes and b"q.jsonl" in r.notes, r


@pytest.mark.parametrize("raw,at", [(b"caf\xe9 and more of it", 3), (b"\xff\xfet\x00e\x00", 0), (b"fine, but \xe2\x82", 10)])
def test_text_that_is_no_utf8(models, tmp_path, raw, at):
    (tmp_path / "t.txt").write_bytes(raw)
    r = iso("eval", models / "m.gguf", "--text", tmp_path / "t.txt")
    assert r.code == FORMAT and f"t.txt: the text is no UTF-8 at byte {at} (0x{raw[at]:02X})" in r.err.decode(), r


def test_text_that_grows_when_it_is_normalized(models, tmp_path):
    (tmp_path / "t.txt").write_text("\u0958\ufb1d\U0001d15e" * 60, encoding="utf-8")
    r = iso("eval", models / "q.gguf", "--text", tmp_path / "t.txt", "--json")
    assert r.code == OK and r.json["tokens_scored"] > 60, r


def test_a_plan_against_its_own_file(models, tmp_path):
    """Which is compiled with the plan's slots and batch."""
    plan = tmp_path / "m.plan"
    assert iso("compile", models / "m.gguf", "-o", plan, "--batch-tokens", 40).code == OK
    r = iso("eval", plan, "--against", models / "m.gguf", "--text", models / "text.txt", "--json")
    assert r.code == OK and r.json["kl_mean"] == 0, r
    assert r.json["model"]["threads"] == r.json["against"]["threads"] == len(os.sched_getaffinity(0))
    assert r.json["model"]["scoring_tokens_per_s"] > 0 and r.json["against"]["decode_tokens_per_s"] > 0


def test_refusals(models, tmp_path, monkeypatch):
    text = models / "text.txt"
    (tmp_path / "one.txt").write_text("a")
    for args, code, says in (
        ([models / "m.gguf"], USAGE, "measured on what"),
        ([models / "m.gguf", "--text", tmp_path / "none.txt"], IO, "none.txt: opening failed"),
        ([models / "m.gguf", "--text", tmp_path / "one.txt", "--tokens", 1], USAGE, "tokens"),
        ([models / "m.gguf", "--text", text, "--quant", "w5"], USAGE, "allowed are keep, f16, w8, w6 and w4"),
        ([models / "m.gguf", "--text", text, "--window", 100000], USAGE, "--window"),
        ([models / "m.gguf", "--text", text, "--window", 64, "-c", 32], USAGE, "--window is 64 and --max-seq-len 32"),
        ([models / "m.gguf", "--choices", text, "--window", 64], USAGE, "--window goes with --text"),
        ([models / "m.gguf", "--choices", text, "--tokens", 64], USAGE, "--tokens goes with --text"),
        ([models / "m.gguf", "--text", text, "--text", text], USAGE, "--text is given twice"),
    ):
        r = iso("eval", *args)
        assert r.code == code and says in r.err.decode(), r
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for args, says in ((["--text", tmp_path / "none.txt"], "none.txt: opening failed"),
                       (["--text", text, "--choices", tmp_path / "none"], "none: opening failed"),
                       (["--text", text, "--against", tmp_path / "none"], "none: opening failed"),
                       (["--text", tmp_path], "this is a folder")):
        r = iso("eval", models / "m.gguf", *args)
        assert r.code == IO and says in r.err.decode() and not (tmp_path / "cache").exists(), r
    monkeypatch.undo()
    plans = tmp_path / "a.plan", tmp_path / "b.plan"
    for plan, slots in zip(plans, (2, 3)):
        assert iso("compile", models / "m.gguf", "-o", plan, "--slots", slots).code == OK
    r = iso("eval", plans[0], "--against", plans[1], "--text", text)
    assert r.code == USAGE and b"2 and 3 slots" in r.notes and b"--slots 2" in r.notes, r
    r = iso("eval", plans[0], "--text", text, "--quant", "w8")
    assert r.code == USAGE and b"--quant is w8 and the plan was compiled with keep" in r.notes, r
