"""The text of /metrics: read by Prometheus' own parser, and the same as its client library writes for the same observations."""
import math
import os
import pathlib
import random
import re
import subprocess

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ISO_BUILD", ROOT / "build"))
TOOLS = [BUILD / "tests/tools/tool_metrics", ROOT / "build-asan/tests/tools/tool_metrics"]

NS = 10**9
# vLLM's buckets.
TTFT = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
        640.0, 2560.0]
TOKEN = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0]
LATENCY = [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
           1920.0, 7680.0]
STEP = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]
FINISH = ["stop", "length", "abort", "error"]
REFUSED = ["invalid", "too_long", "auth", "rate", "queue", "not_ready"]
GAUGES = ["waiting", "running", "slots", "ready", "kv_usage", "block_tokens", "blocks", "weights", "activations", "kv", "runtime",
          "max_seq_len"]


def one_two_five(most):
    return [m * 10**e for e in range(8) for m in (1, 2, 5) if m * 10**e <= most]


class Model:
    """A model's commands to the tool, and what the client library makes of the same numbers."""

    def __init__(self, rng, name, max_seq_len=4096):
        self.name = name
        self.plan = "".join(rng.choice("0123456789abcdef") for _ in range(64))
        self.gauges = {g: rng.choice([0, 1, rng.randrange(2**32)]) for g in GAUGES}
        self.gauges |= {g: rng.randrange(2**53) for g in ("weights", "activations", "kv", "runtime", "blocks")}
        self.gauges |= {"kv_usage": rng.random(), "max_seq_len": max_seq_len}
        self.commands = []
        self.counts = {}
        self.times = {"step": [], "token": []}
        self.registry = CollectorRegistry()
        self.families = {}
        for metric, buckets in [("time_to_first_token_seconds", TTFT), ("inter_token_latency_seconds", TOKEN),
                                ("time_per_output_token_seconds", TOKEN), ("e2e_request_latency_seconds", LATENCY),
                                ("request_queue_time_seconds", LATENCY), ("request_prefill_time_seconds", LATENCY),
                                ("request_decode_time_seconds", LATENCY),
                                ("request_prompt_tokens", one_two_five(max_seq_len)),
                                ("request_generation_tokens", one_two_five(max_seq_len))]:
            self.make(Histogram, "vllm:" + metric, True, buckets=buckets)
        self.make(Histogram, "isochron_step_seconds", False, buckets=STEP)
        for metric in ("prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total"):
            self.make(Counter, "vllm:" + metric, True)
        for metric in ("step_tokens_total", "unit_restarts_total", "audit_errors_total", "reloads_total"):
            self.make(Counter, "isochron_" + metric, False)
        for reason in FINISH:
            self.make(Counter, "vllm:request_success_total", True, finished_reason=reason)
        for reason in REFUSED:
            self.make(Counter, "isochron_requests_refused_total", False, reason=reason)
        for metric, gauge in [("vllm:num_requests_waiting", "waiting"), ("vllm:num_requests_running", "running"),
                              ("vllm:kv_cache_usage_perc", "kv_usage"), ("vllm:gpu_cache_usage_perc", "kv_usage"),
                              ("isochron_ready", "ready"), ("isochron_slots", "slots"),
                              ("isochron_max_seq_len", "max_seq_len")]:
            self.make(Gauge, metric, metric.startswith("vllm:")).set(self.gauges[gauge])
        for of in ("weights", "activations", "kv", "runtime"):
            self.make(Gauge, "isochron_memory_bytes", False, **{"class": of}).set(self.gauges[of])

    def make(self, kind, metric, engine, buckets=None, **labels):
        """The metric with these labels; of the first use the others' names are known, too."""
        fixed = {"model_name": self.name} | ({"engine": "0"} if engine else {})
        if metric not in self.families:
            more = {"buckets": buckets} if buckets else {}
            self.families[metric] = kind(metric, "x", [*fixed, *labels], registry=self.registry, **more)
        return self.families[metric].labels(**fixed, **labels)

    def histogram(self, metric, value):
        self.make(Histogram, metric, metric.startswith("vllm:")).observe(value)

    def count(self, metric, n=1, **labels):
        self.make(Counter, metric, metric.startswith("vllm:"), **labels).inc(n)

    def answer(self, finish, prompt, cached, output, queue, ttft, decode, e2e):
        self.commands.append(f"answer {finish} {prompt} {cached} {output} {queue} {ttft} {decode} {e2e}")
        self.count("vllm:request_success_total", finished_reason=FINISH[finish])
        self.count("vllm:prompt_tokens_total", prompt)
        self.count("vllm:generation_tokens_total", output)
        self.count("vllm:prefix_cache_queries_total", prompt)
        self.count("vllm:prefix_cache_hits_total", cached)
        self.histogram("vllm:request_prompt_tokens", prompt)
        self.histogram("vllm:request_generation_tokens", output)
        self.histogram("vllm:e2e_request_latency_seconds", e2e / NS)
        self.histogram("vllm:request_queue_time_seconds", queue / NS)
        if output:
            self.histogram("vllm:time_to_first_token_seconds", ttft / NS)
            self.histogram("vllm:request_prefill_time_seconds", max(0, ttft - queue) / NS)
            self.histogram("vllm:request_decode_time_seconds", decode / NS)

    def token(self, ns):
        self.commands.append(f"token {ns}")
        self.times["token"].append(ns)
        self.histogram("vllm:inter_token_latency_seconds", ns / NS)
        self.histogram("vllm:time_per_output_token_seconds", ns / NS)

    def step(self, ns, tokens):
        self.commands.append(f"step {ns} {tokens}")
        self.times["step"].append(ns)
        self.histogram("isochron_step_seconds", ns / NS)
        self.count("isochron_step_tokens_total", tokens)

    def refused(self, reason):
        self.commands.append(f"refused {reason}")
        self.count("isochron_requests_refused_total", reason=REFUSED[reason])

    def more_counts(self, restarts, audit_errors, reloads):
        self.commands.append(f"counts {restarts} {audit_errors} {reloads}")
        self.count("isochron_unit_restarts_total", restarts)
        self.count("isochron_audit_errors_total", audit_errors)
        self.count("isochron_reloads_total", reloads)

    def lines(self):
        hexes = ["x" + s.encode("utf-8", "surrogateescape").hex() for s in (self.name, self.plan, "f32")]
        values = [repr(v) if isinstance(v, float) else str(v) for v in (self.gauges[g] for g in GAUGES)]
        return [" ".join(["model", *hexes, *values]), *self.commands]


def text_of(tool, models, server="server 3 1 5 1796283319 1"):
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    commands = "\n".join([server, *(line for m in models for line in m.lines())])
    return subprocess.run([tool], input=commands.encode(), capture_output=True, check=True).stdout.decode()


SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)\Z')


def check_format(text):
    """By the letter: HELP and TYPE once, before all samples of the family; no sample twice; sane histograms."""
    assert text.endswith("\n") and "\n\n" not in text
    family = kind = None
    seen, samples = set(), set()
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            _, _, family, help_text = line.split(" ", 3)
            assert family not in seen and help_text.strip() == help_text != ""
            seen.add(family)
            kind = None
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == family and kind is None
            kind = line.split(" ")[3]
            assert kind in ("counter", "gauge", "histogram")
            assert family.endswith("_total") == (kind == "counter")
        else:
            m = SAMPLE.match(line)
            assert m and kind, line
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            assert m[1] in [family + s for s in suffixes], (line, family)
            assert (m[1], m[2]) not in samples
            samples.add((m[1], m[2]))
            # Whole numbers without a point, others back to the same double by their shortest or longest form.
            if "." not in m[3] and "e" not in m[3] and m[3] not in ("NaN", "+Inf", "-Inf"):
                assert m[3] == str(int(m[3]))
            else:
                float(m[3])
    return seen


def samples_of(text):
    """{(name, labels): value}; histograms are checked on the way."""
    found = {}
    for family in text_string_to_metric_families(text):
        rows = {}
        for s in family.samples:
            key = (s.name, tuple(sorted(s.labels.items())))
            assert key not in found
            found[key] = s.value
            if family.type == "histogram":
                of = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
                rows.setdefault(of, []).append((s.name.removeprefix(family.name), s.labels.get("le"), s.value))
        for row in rows.values():
            buckets = [(float(le), v) for kind, le, v in row if kind == "_bucket"]
            assert [le for le, _ in buckets] == sorted({le for le, _ in buckets}) and buckets[-1][0] == math.inf
            assert [v for _, v in buckets] == sorted(v for _, v in buckets)
            assert [v for kind, _, v in row if kind == "_count"] == [buckets[-1][1]]
            assert len([1 for kind, _, _ in row if kind == "_sum"]) == 1
    return found


def wanted_of(model):
    text = generate_latest(model.registry).decode()
    return {key: value for key, value in samples_of(text).items() if not key[0].endswith("_created")}


def fill(model, rng, n):
    for _ in range(n):
        def time(edges):
            """Near an edge, on it, or anywhere."""
            return rng.choice([0, round(rng.choice(edges) * NS) + rng.randrange(-1, 2), rng.randrange(10**rng.randrange(1, 14))])
        prompt = rng.choice([1, 2, 3, 10, 11, 4096, 4097, rng.randrange(2**32)])
        model.answer(rng.randrange(4), prompt, rng.randrange(prompt + 1), rng.choice([0, 0, 1, 500, rng.randrange(10**6)]),
                     time(LATENCY), time(TTFT), time(LATENCY), time(LATENCY))
        model.token(time(TOKEN))
        model.step(time(STEP), rng.randrange(2**32))
        model.refused(rng.randrange(6))
    model.more_counts(rng.randrange(2**31), rng.randrange(5), rng.randrange(2**53))


# A name whose characters all need care.
NAMES = ["plain", "a/b:c", 'quote " and \\ and\nline', "\\n", "trailing\\", "ünïcödé 😀", ",} 1\t#", ""]


@pytest.fixture(params=TOOLS, ids=["release", "asan"])
def tool(request):
    return request.param


@pytest.mark.parametrize("seed", range(6))
def test_same_as_the_client_library(tool, seed):
    rng = random.Random(seed)
    models = [Model(rng, name, max_seq_len) for name, max_seq_len in
              zip(rng.sample(NAMES, 3), rng.sample([1, 4, 4096, 32768, 999999, 10**6, 5 * 10**7, 2**40], 3))]
    for model in models:
        fill(model, rng, rng.choice([0, 1, 200]))
    text = text_of(tool, models)
    check_format(text)
    got = samples_of(text)
    for model in models:
        wanted = wanted_of(model)
        assert len(wanted) > 150
        for key, value in wanted.items():
            # The same additions in the same order: sums, too, are equal to the last digit.
            assert got.pop(key) == value, key
    # Each edge is written as the library writes it: a label is a text.
    edges = set(re.findall(r'[{,]le="([^"]*)"', text))
    assert edges == {le for m in models for le in re.findall(r'[{,]le="([^"]*)"', generate_latest(m.registry).decode())}
    # What is left is of the server, or has no twin in the library.
    names = {name for name, _ in got}
    assert names == {"isochron_build_info", "isochron_plan_info", "vllm:cache_config_info", "isochron_step_quantile_seconds",
                     "isochron_jitter_ratio", "isochron_connections", "isochron_draining", "isochron_log_lines_lost_total",
                     "isochron_start_time_seconds", "isochron_config_stale"}


@pytest.mark.parametrize("seed", range(4))
def test_ours(tool, seed):
    rng = random.Random(seed)
    models = [Model(rng, name) for name in rng.sample(NAMES, seed)]
    for model in models:
        fill(model, rng, 100)
    got = samples_of(text_of(tool, models))
    server = {"isochron_connections": 3, "isochron_draining": 1, "isochron_log_lines_lost_total": 5,
              "isochron_start_time_seconds": 1796283319, "isochron_config_stale": 1}
    for name, value in server.items():
        assert got[name, ()] == value
    version = re.search(r"version: '([^']*)'", (ROOT / "meson.build").read_text())[1]
    assert got["isochron_build_info", (("version", version),)] == 1

    def near(value, times, fraction):
        """Within the histogram's 1.6%, from the rank that the fraction says."""
        exact = sorted(times)[max(0, math.ceil(fraction * len(times)) - 1)]
        assert exact <= value <= exact * (1 + 1 / 64) + 1
        return value

    for model in models:
        name = ("model_name", model.name)
        assert got["isochron_plan_info", (name, ("plan", model.plan))] == 1
        assert got["vllm:cache_config_info", (("block_size", str(model.gauges["block_tokens"])), ("cache_dtype", "f32"),
                                              ("engine", "0"), name,
                                              ("num_gpu_blocks", str(model.gauges["blocks"])))] == 1
        for quantile in ("0.5", "0.99", "1"):
            value = got["isochron_step_quantile_seconds", (name, ("quantile", quantile))]
            near(round(value * NS), model.times["step"], float(quantile))
        assert got["isochron_step_quantile_seconds", (name, ("quantile", "1"))] == max(model.times["step"]) / NS


def test_jitter(tool):
    model = Model(random.Random(1), "m")
    assert samples_of(text_of(tool, [model]))["isochron_jitter_ratio", (("model_name", "m"),)] == 0
    for i in range(1000):
        model.token(1000 if i < 980 else 1504 if i < 995 else 9000)
    ratio = samples_of(text_of(tool, [model]))["isochron_jitter_ratio", (("model_name", "m"),)]
    # Both lie in a bucket of 16 or 32 ns width, of which the upper edge counts.
    assert 1000 * (1 + ratio) == pytest.approx(1504, rel=0.02)
    for _ in range(1000):
        model.token(0)
    assert samples_of(text_of(tool, [model]))["isochron_jitter_ratio", (("model_name", "m"),)] == 0


def test_no_model(tool):
    text = text_of(tool, [])
    families = check_format(text)
    assert {name for name, _ in samples_of(text)} < families
    some = text_of(tool, [Model(random.Random(2), "m")])
    assert check_format(some) == families and len(families) == 38


def test_no_length_yet(tool):
    model = Model(random.Random(6), "m")
    model.gauges["max_seq_len"] = 0
    fill(model, random.Random(6), 10)
    text = text_of(tool, [model])
    check_format(text)
    assert [le for le in re.findall(r'request_prompt_tokens_bucket.*le="([^"]*)"', text)] == ["+Inf"]
    samples_of(text)


def test_invalid_utf8(tool):
    text = text_of(tool, [Model(random.Random(3), "a\udcff\udcc3b\udcf0\udc9f")])
    assert samples_of(text)["isochron_max_seq_len", (("model_name", "a\ufffd\ufffdb\ufffd"),)] == 4096
    assert 'model_name="a\ufffd\ufffdb\ufffd"' in text


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, 1e22, -2.5, 123456789012345.6])
def test_numbers_come_back(tool, value):
    model = Model(random.Random(4), "m")
    model.gauges["kv_usage"] = value
    line = re.search(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", text_of(tool, [model]), re.M)[1]
    assert float(line) == value and len(line) <= max(len(repr(value)), 17 + 7)


@pytest.mark.parametrize("value,shown", [("nan", "NaN"), ("inf", "+Inf"), ("-inf", "-Inf")])
def test_not_finite(tool, value, shown):
    model = Model(random.Random(5), "m")
    model.gauges["kv_usage"] = float(value)
    text = text_of(tool, [model])
    assert re.search(r"^vllm:gpu_cache_usage_perc\{.*\} (\S+)$", text, re.M)[1] == shown
    check_format(text)
