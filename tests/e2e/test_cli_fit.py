"""isochron fit: the numbers are right, sum up, and are the ones that a unit opens with."""

import itertools
import re

import pytest

import cli
import gguf_io
from cli import NOFIT, USAGE, iso, ok, refused

PAGE = 4096
THREADS = ["--threads", 2]
OPTIONS = [[], ["-c", 100], ["-np", 7], ["-c", 33, "-np", 3, "--kv", "q8"], ["--batch-tokens", 9, "-np", 9],
           ["-np", 200], ["-c", 2], ["--kv", "q8"]]


def fit(*args, code=None, pool="1TiB"):
    r = iso("fit", *args, *THREADS, "--pool", 2**40 if pool == "1TiB" else pool, "--json")
    assert r.code == (cli.OK if code is None else code), r
    return r.json


def rounded(n, to=PAGE):
    return -(-n // to) * to


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_model_file_and_plan_say_the_same(options, models, plan, tmp_path):
    """Before compiling, from the plan compiled so, and from a plan compiled otherwise."""
    path = tmp_path / "m.plan"
    ok("compile", models.llama, "-o", path, *options)
    told = fit(models.llama, *options)
    assert told == fit(path) == fit(path, *options) == fit(plan, *options)
    check_numbers(told, path, models.llama)


def check_numbers(told, path, gguf):
    """Each row by a formula of our own."""
    model = gguf_io.Reader(gguf).meta
    seen = ok("inspect", path, "--json").json
    layers, kv_heads = model["llama.block_count"], model["llama.attention.head_count_kv"]
    head_dim = model["llama.embedding_length"] // model["llama.attention.head_count"]
    token = 2 * layers * kv_heads * (head_dim * 2 if told["kv"] == "f16" else head_dim + 4)
    blocks = told["slots"] * -(-told["max_seq_len"] // 16)
    assert told["kv_parts"] == {"blocks": blocks, "block_bytes": 16 * token, "token_bytes": token}
    assert told["kv_cache"] == rounded(blocks * 16 * token)
    weights = sum(t["bytes"] for t in seen["tensors"] if t["kind"] in ("matrix", "vector", "angles"))
    assert told["weights"] == weights == seen["sections"][4]["bytes"]
    assert told["activations"] == rounded(seen["arena_bytes"])
    parts = told["runtime_parts"]
    assert parts["plan"] == rounded(path.stat().st_size) - weights
    assert parts["stacks"] % PAGE == 0 and 0 < parts["stacks"] <= 2**20  # of the one thread beside the caller's
    assert parts["tables"] % PAGE == 0
    biases = 512 * 8  # a slot's, id and number
    tables = told["slots"] * (told["max_seq_len"] * 4 + biases) + 28 * seen["model"]["vocab"]
    assert tables < parts["tables"] < tables + 160 * blocks + 1024 * told["slots"] + 64 * told["batch_tokens"] + PAGE
    assert told["runtime"] == sum(parts.values())
    assert told["sum"] == told["weights"] + told["activations"] + told["kv_cache"] + told["runtime"]


def test_text(plan):
    told = fit(plan)
    r = ok("fit", plan, *THREADS, "--pool", 2**40)
    text = r.out.decode()
    rows = {name.strip(): int(n) for name, n in re.findall(r"^  ([A-Za-z ]+?) +(\d+)  ", text, re.M)}
    assert rows == {"weights": told["weights"], "activations": told["activations"], "KV cache": told["kv_cache"],
                    "runtime": told["runtime"], "sum": told["sum"]}
    a, b, c, d, e, f = map(int, re.search(
        r"KV cache .* (\d+) x (\d+) layers x (\d+) KV heads x (\d+) head_dim x (\d+) bytes x (\d+) tokens",
        text).groups())
    assert a * b * c * d * e * f == told["kv_cache"]
    parts = re.search(r"tables (\d+) \+ plan (\d+) \+ stacks (\d+) \+ tokenizer (\d+) \+ program (\d+)", text).groups()
    assert list(map(int, parts)) == list(told["runtime_parts"].values())
    assert f"fits: the pool has {2**40} bytes (1024.00 GiB), {2**40 - told['sum']} (" in text
    r = iso("fit", plan, *THREADS, "--pool", told["sum"] - 5)
    assert r.code == NOFIT and r.err == b"", r
    assert f"does not fit: the pool has {told['sum'] - 5} bytes" in r.out.decode() and ", 5 (" in r.out.decode()
    q8 = ok("fit", plan, "--kv", "q8", "--pool", 2**40).out.decode()
    assert re.search(r"\(\d+ head_dim \+ 4\) bytes", q8)
    weights = re.search(r"matrices (\d+) \+ vectors (\d+) \+ rotary table (\d+) \((\d+) positions x (\d+) x 4", text)
    matrices, vectors, table, positions, head_dim = map(int, weights.groups())
    assert matrices + vectors + table == told["weights"] and table == positions * head_dim * 4


@pytest.mark.parametrize("options", [[], ["-np", 3, "-c", 100]], ids=str)
def test_a_pool_of_the_sum_is_enough_and_one_byte_less_is_not(options, models, tmp_path):
    """For fit and for a unit, which is refused before it loads anything."""
    path = tmp_path / "m.plan"
    ok("compile", models.llama, "-o", path, *options)
    total = fit(path)["sum"]
    assert fit(path, pool=total)["fits"] is True
    told = fit(path, pool=total - 1, code=NOFIT)
    assert told["fits"] is False and told["sum"] == total and told["pool"] == total - 1
    for command in (["generate", "-p", "x", "-n", 2], ["chat", "-p", "x", "-n", 2],
                    ["bench", "--repeat", 1, "--output-tokens", 2]):
        name, *rest = command
        ok(name, path, *rest, *THREADS, "--pool", total)
        refused(iso(name, path, *rest, *THREADS, "--pool", total - 1), NOFIT, path, total, total - 1, ", 1 too few")


def largest_cases():
    for seq, slots, kv, share in itertools.product((64, 500), (1, 6), ("f16", "q8"), (0.7, 1.0, 1.4)):
        yield seq, slots, kv, share


@pytest.mark.parametrize("seq, slots, kv, share", list(largest_cases()))
def test_largest_is_the_largest(seq, slots, kv, share, plan):
    """The value fits and the next one does not, by asking again."""
    options = {"-c": seq, "-np": slots, "--kv": kv}

    def again(pool, **changes):
        asked = {**options, **{f"-{k}": v for k, v in changes.items()}}
        r = iso("fit", plan, *itertools.chain(*asked.items()), *THREADS, "--pool", pool, "--json")
        assert r.code in (cli.OK, NOFIT), r
        assert (r.code == cli.OK) == r.json["fits"] == (r.json["sum"] <= pool)
        return r.json

    base = again(2**40)
    fixed = base["runtime"] + base["weights"]
    pool = int(fixed + share * (base["sum"] - fixed))
    told = again(pool)
    assert told["fits"] == (share >= 1)
    for value, name, most in [(told["largest_max_seq_len"], "c", 512), (told["largest_slots"], "np", 1024)]:
        if value:
            assert again(pool, **{name: value})["fits"]
        if value < most:
            assert not again(pool, **{name: max(value + 1, 2 if name == "c" else 1)})["fits"]


def test_nothing_fits(plan):
    told = fit(plan, pool=1000, code=NOFIT)
    assert told["largest_max_seq_len"] == told["largest_slots"] == 0
    r = iso("fit", plan, "--pool", "1000B")
    assert r.code == NOFIT and b"neither fewer tokens nor fewer slots" in r.out


def test_without_a_pool_the_machine_is_asked(plan):
    told = ok("fit", plan, "--json").json
    available = int(re.search(r"MemAvailable: +(\d+)", open("/proc/meminfo").read()).group(1)) * 1024
    assert told["fits"] and 0.2 * available < told["pool"] < 5 * available
    assert b"this machine has available" in ok("fit", plan).out


def test_units_of_pool(plan):
    for text, bytes_ in [("1GiB", 2**30), ("1G", 2**30), ("512MiB", 2**29), ("512M", 2**29),
                         ("9000000K", 9000000 * 1024), ("9000KiB", 9000 * 1024), ("1GB", 10**9),
                         ("99MB", 99 * 10**6), ("99000kB", 99 * 10**6),
                         ("99000000B", 99 * 10**6), ("99000000", 99 * 10**6)]:
        assert iso("fit", plan, "--pool", text, "--json").json["pool"] == bytes_


def test_limits_that_the_model_or_the_options_rule_out(models, plan):
    """The same sentence for a model file and for a plan."""
    for path in (models.llama, plan):
        refused(iso("fit", path, "-c", 513), USAGE, path, "--max-seq-len 513", "512")
        refused(iso("fit", path, "--batch-tokens", 3, "-np", 4), USAGE, path, "--batch-tokens 3", "(4)")


def test_more_threads_more_stacks(plan):
    one, two, four = (ok("fit", plan, "--threads", n, "--json").json for n in (1, 2, 4))
    stack = two["runtime_parts"]["stacks"]
    assert (one["runtime_parts"]["stacks"], four["runtime_parts"]["stacks"]) == (0, 3 * stack)
    assert (one["threads"], four["threads"]) == (1, 4)
    assert four["sum"] - one["sum"] == 3 * stack


def test_demo_model(demo_plan):
    assert fit(cli.demo_model(), "-c", 512) == fit(demo_plan)


def test_a_plan_has_its_widths(models, plan, tmp_path):
    """Sizes of other ones are had from the model file."""
    for option in ("--quant", "--quant-embedding"):
        refused(iso("fit", plan, option, "w4"), USAGE, plan, f"{option} is w4 and the plan was compiled with keep")
    ok("compile", models.llama, "-o", tmp_path / "m.plan", "--quant", "w8")
    told = fit(models.llama, "--quant", "w8")
    assert told == fit(tmp_path / "m.plan", "--quant", "w8") and told["weights"] != fit(models.llama)["weights"]
