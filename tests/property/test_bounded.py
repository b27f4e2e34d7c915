"""Memory is bounded: the account agrees with what is resident, a pool too small is refused, and a unit that is
ready allocates nothing.
"""

import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from unit_tool import BUILD, FULL, compile_plan, demo_model, tiny_plan, tool

AGREEMENT = 0.01  # of the account's sum
EXIT_NOFIT = 6
# Pages of code and of thread stacks that are first touched under load, and the kernel's own inexact counting.
FLAT_PAGES = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bounded")


@pytest.fixture(scope="module")
def tiny(folder):
    return tiny_plan(folder, "tiny", dict(type="mixed"), max_seq_len=128, slots=8, batch_tokens=32)


@pytest.fixture(scope="module", params=[1, 2, 4])
def demo(folder, request):
    """The demo model for 1 to 4 slots of 2,048 tokens."""
    plan = folder / f"demo-{request.param}.plan"
    yield compile_plan(demo_model(), plan, 2048, request.param, 64)
    plan.unlink()


def bounded(*arguments):
    return subprocess.run([tool("tool_bounded"), *map(str, arguments)], capture_output=True, text=True)


def account(*arguments):
    r = bounded("account", *arguments)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def test_account_is_what_is_resident(demo):
    """Page for page for the plan and the pool; within 1% of the sum with stacks and the tokenizer's workspace.

    The program's own image is another than isochron's, whose row the next test compares.
    """
    a = account(demo, 2, 65536)
    assert a["rss_plan"] == a["weights"] + a["plan_rest"]
    assert a["rss_pool"] == a["pool"] == a["activations"] + a["kv"] + a["tables"]
    image = a["rss_files"] + a["rss_heap"] + a["rss_main_stack"]
    resident, promised = a["rss"] - image, a["total"] - a["image"]
    assert abs(resident - promised) <= AGREEMENT * a["total"], a
    assert a["rss"] <= a["total"], "more is resident than the account says"


def test_account_of_thread_stacks(tiny):
    few, many = account(tiny, 1, 1024), account(tiny, 17, 1024)
    promised = many["stacks"] - few["stacks"]
    touched = many["rss_other_anonymous"] - few["rss_other_anonymous"]
    # How much depends on which threads get to take a part of attention; starting alone touches 8 KiB of each.
    assert 16 * 8192 <= touched <= promised


def resident_of(pid):
    """Bytes resident of a process by the name of the mapping."""
    name, resident = "", Counter()
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)", line)
        if head:
            name = head.group(1)
        elif line.startswith("Rss:"):
            resident[name] += int(line.split()[1]) * 1024
    return resident


@pytest.mark.parametrize("slots", [1, 4])
def test_account_of_isochron_itself(folder, slots):
    """`isochron generate` while it generates, sampled at its largest."""
    program = BUILD / "isochron"
    if not program.exists():
        pytest.skip(f"{program} has not been built")
    plan = compile_plan(demo_model(), folder / "isochron.plan", 2048, slots, 64)
    a = account(plan, 2, 65536)
    p = subprocess.Popen([program, "generate", plan, "-p", "Once upon a time", "--max-tokens", "400", "--threads",
                          "2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        p.stdout.read(16)  # the first words: the unit is at work
        time.sleep(0.5)
        resident = resident_of(p.pid)
        running = p.poll() is None
    finally:
        p.kill()
        p.communicate()
    assert running, "generate ended before it could be looked at"
    image = sum(n for name, n in resident.items() if name.startswith("/") and "isochron-plan" not in name)
    image += resident["[heap]"] + resident["[stack]"]
    # Which pages of a library are resident differs a little between systems.
    assert 0.75 * a["image"] <= image <= 1.15 * a["image"], (image, a["image"])
    total = sum(resident.values())
    assert abs(a["total"] - total) <= AGREEMENT * a["total"], (total, a)


def test_a_pool_one_block_too_small_is_refused(folder, tiny):
    plans = [tiny] + ([compile_plan(demo_model(), folder / "fit.plan", 2048, 1, 64)] if FULL else [])
    for plan in plans:
        enough = bounded("fit", plan, 1 << 62)
        assert enough.returncode == 0, enough.stderr
        fit = json.loads(enough.stdout)
        assert bounded("fit", plan, fit["total"]).returncode == 0
        for missing in (1, fit["kv_block"]):
            r = bounded("fit", plan, fit["total"] - missing)
            assert r.returncode == EXIT_NOFIT
            assert f"needs {fit['total']} bytes" in r.stderr
            assert r.stderr.rstrip().endswith(f"the pool has {fit['total'] - missing}: {missing} too few"), r.stderr


def load(*arguments):
    r = bounded("load", *arguments)
    assert r.returncode == 0, f"ended with {r.returncode}: {r.stderr}"
    return json.loads(r.stdout)


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_allocated_after_ready(tiny, threads):
    """Thousands of requests with cancellations and reuse: no call of malloc or its like; no system call but the
    futex of the barrier, or the system would have ended the process; resident memory stays as it is."""
    # With two threads on a busy machine a step takes as long as the system takes to run both.
    requests = (20000 if threads == 1 else 4000) if FULL else (4000 if threads == 1 else 200)
    r = load(tiny, threads, requests)
    assert r["requests"] == requests and r["steps"] > requests
    assert r["allocations"] == 0
    assert r["most_pages"] - r["pages"] <= FLAT_PAGES


def test_nothing_is_allocated_after_ready_demo(folder):
    plan = compile_plan(demo_model(), folder / "load.plan", 48, 4, 16, "q8")
    r = load(plan, 2, 60 if FULL else 10)
    assert r["allocations"] == 0 and r["most_pages"] - r["pages"] <= FLAT_PAGES


def test_the_traps_work(tiny):
    assert load(tiny, 1, 20, "malloc")["allocations"] == 2  # a malloc and its free
    assert bounded("load", tiny, 1, 20, "mmap").returncode == -31  # SIGSYS
