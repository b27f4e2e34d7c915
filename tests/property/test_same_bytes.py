"""A request's logits are the same bytes whatever runs beside it, however its prompt is cut, whatever of it was
cached, on any ISA, with any number of threads, from GCC or Clang.

Every comparison is with the same request alone in a new unit, its prompt in one chunk, plain C kernels, one
thread, nothing reused. What is compared is the hash of the logits' bytes at every event, and the tokens. Random
schedules name their seed where they fail. ISO_FULL=1 runs all types and many more schedules.
"""

import functools
import itertools
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import make_tiny
from unit_tool import BUILD_CLANG, FULL, Request, compile_plan, demo_model, isas, open_line, run, tiny_plan, tool

SEED = 1
BLOCK = 16  # tokens of a KV block: what is reused comes in these
CHUNKS = [1, 7, 16, 64, 0]  # 0: the whole prompt
SCHEDULES = 12 if FULL else 4
VOCAB = 331

ODD = dict(arch="qwen2", hidden=96, heads=6, kv_heads=3, ffn=224, layers=3)
MODELS = {"llama-mixed": dict(type="mixed"), "qwen2-mixed": dict(ODD, type="mixed"),
          "llama-k-mixed": dict(make_tiny.SUPER, type="k-mixed"),
          "qwen3-mixed": dict(arch="qwen3", head_dim=32, type="mixed"),
          "gemma3-mixed": dict(arch="gemma3", layers=7, window=24, type="mixed")}
if FULL:
    types = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"]
    MODELS |= {f"llama-{t}": dict(type=t) for t in types} | {f"qwen2-{t}": dict(ODD, type=t) for t in types}
    MODELS |= {f"llama-{t}": dict(make_tiny.SUPER, type=t) for t in make_tiny.SUPER_TYPES}
KVS = ["f16", "q8"]

SAMPLED = [
    dict(temperature=0.8, top_k=40, top_p=0.9, seed=7),
    dict(temperature=1.5, min_p=0.02, penalty=1.3, seed=123456789012, choice=2),
    dict(temperature=1.0, seed=3),
]


def ids(rng, n, vocab=VOCAB):
    return [rng.randrange(vocab) for _ in range(n)]


def some_requests():
    """Prompts around the block's edges, whole and partly shared beginnings, greedy, sampled and scored."""
    rng = random.Random(SEED)
    base = ids(rng, 64)
    prompts = [base[:1], base[:15], base[:16], base[:17], base[:33], base[:48], base[:64],
               base[:32] + ids(rng, 16),  # shares two blocks
               base[:20] + ids(rng, 80),  # shares one block and a part
               base[:40] + ids(rng, 9),
               ids(rng, 5), ids(rng, 32)]
    out = [Request(f"r{i}", p, 4 + i % 3 * 9) for i, p in enumerate(prompts)]
    out += [Request(f"s{i}", base[:48] if i == 0 else base[:20 + i] + ids(rng, 12), 20, s)
            for i, s in enumerate(SAMPLED)]
    out += [Request("score", base[:37] + ids(rng, 8), options=dict(score=1))]
    return out


REQUESTS = some_requests()
FEW_STEPS = [r for r in REQUESTS if r.output in (0, 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("same_bytes")


class Case:
    """A model's plans and what each request gives alone. `build` is the default one for everything but Clang's."""

    def __init__(self, folder, name, kv, requests=REQUESTS, make_plan=None):
        self.requests = {r.name: r for r in requests}
        self.make_plan = make_plan or functools.partial(
            tiny_plan, folder, name, dict(MODELS[name], context=1280), kv=kv)
        lines = []
        for r in requests:
            lines += [open_line(reuse=0), r.line(), "drain"]
        self.alone = {r["name"]: r for r in run(self.plan(slots=1), lines)}
        assert len(self.alone) == len(requests)

    def plan(self, **limits):
        return self.make_plan(**limits)

    def check(self, results, what):
        """A result's name is its request's, with a dot and more behind it where there are several."""
        assert results
        for r in results:
            alone = self.alone[r["name"].split(".")[0]]
            n = len(r["tokens"])
            whole = r["finish"] != "cancelled"
            for key in ("tokens", "logits"):
                want = alone[key] if whole else alone[key][:n]
                if r[key] != want:
                    at = next((i for i, (a, b) in enumerate(zip(r[key], want)) if a != b), min(n, len(want)))
                    pytest.fail(f"{what}: {key} of {r['name']} (reused {r['reused']}, {r['finish']}) differ from"
                                f" those alone at event {at} of {n}")
            assert not whole or r["finish"] == alone["finish"], what


@functools.cache
def case_of(folder, name, kv):
    return Case(folder, name, kv)


def every_case(f):
    return pytest.mark.parametrize("kv", KVS)(pytest.mark.parametrize("model", MODELS)(f))


@every_case
def test_chunks_isas_threads(folder, model, kv):
    case = case_of(folder, model, kv)
    plan = case.plan(slots=1)
    lines = []
    for config, requests in configurations():
        lines.append(open_line(*config, reuse=0))
        for i, r in enumerate(requests):
            lines += [r.line(".".join([r.name, *map(str, config)])), "drain"]
    case.check(run(plan, lines), "request.isa.threads.chunk")


def configurations():
    """(isa, threads, chunk) and the requests to run with it."""
    for isa, threads, chunk in itertools.product(isas(), (1, 2, 3), CHUNKS):
        if threads == 1:
            yield (isa, threads, chunk), REQUESTS
        elif chunk in (16, 0) or FULL:
            # On a busy machine a barrier takes as long as the system takes to run the other thread.
            yield (isa, threads, chunk), FEW_STEPS


def random_schedule(seed, threads, chunk, reuse):
    """Submissions at varied times, a part of them cancelled at some time, on a unit of their own."""
    rng = random.Random(seed)
    rounds, requests = (30, REQUESTS) if threads == 1 else (8, FEW_STEPS)
    lines, alive = [open_line(rng.choice(isas()), threads, chunk, reuse)], []
    for n in range(rounds):
        r = rng.choice(requests)
        name = f"{r.name}.{n}.{seed}"
        lines.append(r.line(name))
        if rng.random() < 0.3:
            alive.append(name)
        lines.append(f"step {rng.choice((0, 0, 1, 1, 2, 5, 12))}")
        if alive and rng.random() < 0.4:
            lines.append(f"cancel {alive.pop(rng.randrange(len(alive)))}")
    return lines + ["drain"]


@pytest.mark.parametrize("mates", [1, 3, 7])
@every_case
def test_beside_others(folder, model, kv, mates):
    case = case_of(folder, model, kv)
    # The larger batch takes any prompt whole; in the smaller one prompts get what the others leave.
    for batch_tokens in (1280, 8 + mates):
        lines = []
        for i in range(SCHEDULES):
            seed = f"{SEED}/{mates}/{batch_tokens}/{i}"
            lines += random_schedule(seed, 2 if i == 0 else 1, CHUNKS[i % len(CHUNKS)], reuse=i % 3 > 0)
        results = run(case.plan(slots=mates + 1, batch_tokens=batch_tokens), lines)
        case.check(results, "request.number.seed")
        assert any(r["reused"] for r in results), "schedules that reuse nothing show nothing"


@every_case
def test_reuse_of_prefixes(folder, model, kv):
    case = case_of(folder, model, kv)
    names = list(case.requests)
    lines = [open_line(isas()[-1], reuse=1)]
    for i, name in enumerate(names + names):
        lines += [case.requests[name].line(f"{name}.{i}"), "drain"]
    results = run(case.plan(slots=2), lines)
    case.check(results, "one after another")
    assert any(r["reused"] for r in results[: len(names)])
    for r in results[len(names) :]:  # a repeated prompt is cached but for the block of its last token
        request = case.requests[r["name"].split(".")[0]]
        whole = (len(request.prompt) - 1) // BLOCK * BLOCK
        assert r["reused"] == (0 if "score" in request.options else whole), r["name"]


@every_case
def test_reuse_while_the_prefix_is_computed(folder, model, kv):
    """The same prompt again and again, submitted while the first is still in its prompt."""
    case = case_of(folder, model, kv)
    r = case.requests["r6"]
    for steps in (1, 2, 3):
        lines = [open_line(chunk=16)]
        for i in range(4):
            lines += [r.line(f"r6.{i}"), f"step {steps}"]
        results = run(case.plan(slots=4), lines + ["drain"])
        case.check(results, f"{steps} steps apart")
        assert {r["name"]: r["reused"] for r in results}["r6.1"] == steps * BLOCK


@every_case
def test_evicted_prefix(folder, model, kv):
    """A small pool, filled by other requests between two of the same prompt."""
    case = case_of(folder, model, kv)
    rng = random.Random(SEED)
    plan = case.plan(max_seq_len=96, slots=2)
    first, other = case.requests["r6"], case.requests["s0"]
    reused = []
    for fillers in range(6):
        lines = [open_line(), first.line("r6.1"), "step 3", other.line("s0.1"), "drain"]
        for i in range(fillers):  # each takes two blocks or more of twelve
            lines += [Request(f"fill{i}", ids(rng, 20), 12).line(), "drain"]
        lines += [first.line("r6.2"), "step 2", other.line("s0.2"), "drain"]
        results = [r for r in run(plan, lines) if not r["name"].startswith("fill")]
        case.check(results, f"{fillers} requests between")
        reused.append({r["name"]: r["reused"] for r in results}["r6.2"])
    assert reused[0] == 3 * BLOCK and reused[-1] < reused[0], reused
    assert reused == sorted(reused, reverse=True), "an older prefix is never better kept"


LONG = [Request("long0", ids(random.Random(10), 1000), 40, SAMPLED[0]),  # crosses 512 in its prompt, 1024 later
        Request("long1", ids(random.Random(11), 500), 20),  # crosses 512 while it decodes
        Request("long2", ids(random.Random(10), 992) + ids(random.Random(12), 1), 20),  # shares 992 tokens
        Request("long3", ids(random.Random(13), 512), 4), Request("long4", ids(random.Random(10), 513), 4)]


@pytest.mark.parametrize("kv", KVS)
@pytest.mark.parametrize("model", list(MODELS)[: 2 if FULL else 1])
def test_spans(folder, model, kv):
    """Sequences longer than the span of 512 keys that attention merges."""
    case = Case(folder, model, kv, LONG)
    for isa in isas():
        for chunk in (CHUNKS if FULL else [0, 7] if isa == "c" else [64]):
            rng = random.Random(f"{SEED}/{isa}/{chunk}")
            lines = [open_line(isa, rng.choice((1, 2)) if FULL else 1, chunk)]
            for i in range(2):
                for r in rng.sample(LONG, len(LONG)):
                    lines += [r.line(f"{r.name}.{i}"), f"step {rng.randrange(40)}"]
            results = run(case.plan(slots=4, batch_tokens=rng.choice((20, 1280))), lines + ["drain"])
            case.check(results, f"isa {isa}, chunk {chunk}")
            assert max(r["reused"] for r in results) >= 512, "no reused prefix was longer than a span"


def test_kv_types_differ(folder):
    """What is compared depends on every stored key and value: with coarser ones it is not the same."""
    f16, q8 = (case_of(folder, "llama-mixed", kv).alone for kv in KVS)
    assert all(f16[n]["logits"] != q8[n]["logits"] for n in f16)


@every_case
def test_clang(folder, model, kv):
    tool(build=BUILD_CLANG)
    case = case_of(folder, model, kv)
    plan = case.plan(slots=4)
    other = case.plan(slots=4, build=BUILD_CLANG)
    assert plan.read_bytes() == other.read_bytes(), "the compilers' builds write different plans"
    lines = []
    for isa in isas():
        lines.append(open_line(isa, chunk=7))
        for r in REQUESTS:
            lines += [r.line(f"{r.name}.{isa}"), "drain"]
    for i in range(SCHEDULES):
        lines += random_schedule(f"{SEED}/clang/{i}", 2 if i == 0 else 1, CHUNKS[i % len(CHUNKS)], reuse=1)
    case.check(run(other, lines, BUILD_CLANG), "clang, request.number.seed")


DEMO_TEXT = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182]
DEMO = [Request("d0", DEMO_TEXT, 6), Request("d1", DEMO_TEXT[:17], 5, SAMPLED[0]),
        Request("d2", DEMO_TEXT[:16] + [2, 198, 1, 4093], 4), Request("d3", DEMO_TEXT, 6, SAMPLED[1])]


@pytest.mark.parametrize("kv", KVS)
def test_demo_model(folder, kv):
    model = demo_model()
    path = folder / f"demo-{kv}.plan"
    compile_plan(model, path, 64, 4, 64, kv)
    case = Case(folder, "demo", kv, DEMO, make_plan=lambda **_: path)
    configs = [(isa, threads, chunk) for isa in isas() for threads, chunk in
               (itertools.product((1, 2, 3), CHUNKS) if FULL else [(2, 7)])]
    for isa, threads, chunk in configs:
        lines = [open_line(isa, threads, chunk)]
        for i in range(2):
            for n, r in enumerate(DEMO):
                lines += [r.line(f"{r.name}.{i}"), f"step {n}"]
        lines += ["cancel d2.1", "drain"]
        results = run(path, lines)
        case.check(results, f"isa {isa}, {threads} threads, chunk {chunk}")
        assert {r["name"]: r["reused"] for r in results}["d3.1"] == BLOCK
    if (BUILD_CLANG / "tests/tools/tool_unit").exists():
        case.check(run(path, [open_line(isas()[-1], 2), *(r.line() for r in DEMO), "drain"], BUILD_CLANG), "clang")
    path.unlink()
