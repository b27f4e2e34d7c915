"""isochron bench: every number is there and they agree with each other."""

import re

import pytest

import cli
from cli import LIMIT, iso, ok, refused


@pytest.fixture(scope="module")
def measured(plan):
    return ok("bench", plan, "--json", "--prompt-tokens", 40, "--output-tokens", 30, "--repeat", 2, "--threads", 2)


def test_json(measured):
    assert measured.err == b"", measured
    b = measured.json
    assert b["isa"] == cli.isas()[-1] and b["threads"] == 2 and b["rounds"] == 2
    assert b["prefill"]["tokens"] == 40 and b["decode"]["tokens"] == 30
    assert 0 < b["prefill"]["tokens_per_s"] <= b["prefill"]["tokens_per_s_best"]
    d = b["decode"]
    assert 0 < d["p50_ms"] <= d["p90_ms"] <= d["p99_ms"] <= d["max_ms"]
    assert d["p99_over_p50"] == pytest.approx(d["p99_ms"] / d["p50_ms"])
    assert 1000 / d["max_ms"] <= d["tokens_per_s"] * 1.001  # no mean is slower than the slowest
    n = b["host_noise"]
    assert n["spun_ms"] >= 1000 and 0 <= n["lost_ms"] <= n["spun_ms"]
    assert 0 <= n["p999_gap_ms"] <= n["longest_gap_ms"] <= n["spun_ms"]
    assert (n["gaps"] == 0) == (n["lost_ms"] == 0)
    assert n["gaps"] == 0 or n["lost_ms"] >= n["longest_gap_ms"] > 0.01


def test_text(plan):
    r = ok("bench", plan, "--repeat", 1, "--output-tokens", 5, "--prompt-tokens", 17, "--isa", "c", "--threads", 1)
    text = r.out.decode()
    assert text.startswith("kernels c, 1 threads, 1 rounds\n")
    assert re.search(r"^prefill +17 tokens +[\d.]+ tokens/s mean +[\d.]+ best$", text, re.M)
    assert re.search(r"^decode +5 tokens +[\d.]+ tokens/s mean$", text, re.M)
    assert re.search(r"^per token +P50 +[\d.]+ ms +P90 +[\d.]+ +P99 +[\d.]+ +max +[\d.]+ +P99/P50 [\d.]+$", text,
                     re.M)
    assert re.search(r"^host noise floor +a spinning thread lost [\d.]+ ms in \d.\d\d s \(\d+ gaps over 10 us\); "
                     r"longest gap [\d.]+ ms, P99.9 [\d.]+ us$", text, re.M)
    assert r.notes == b"round 1 of 1 done\n"


def test_lengths_follow_the_sequence(models, tmp_path):
    path = tmp_path / "short.plan"
    for length, prompt, output in [(20, 10, 10), (3, 1, 2), (200, 128, 64)]:
        ok("compile", models.llama, "-o", path, "-c", length)
        b = ok("bench", path, "--json", "--repeat", 1).json
        assert (b["prefill"]["tokens"], b["decode"]["tokens"]) == (prompt, output)
    refused(iso("bench", path, "--prompt-tokens", 190, "--output-tokens", 11), LIMIT, path, "190", "11", "200")
