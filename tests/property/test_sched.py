"""The scheduler (src/sched) in its simulator: seeded random machines and loads, on a virtual clock.

A failing seed is named with the command that runs it again. ISO_FULL=1 runs 10,000 seeds instead of 200."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIM = ROOT / "build/tests/tools/tool_sim"
RUNS = 10_000 if os.environ.get("ISO_FULL") else 200
PARTS = 4


def sim(*args):
    return subprocess.run([SIM, *map(str, args)], capture_output=True, text=True)


@pytest.mark.parametrize("part", range(PARTS))
def test_admitted_deadlines_are_kept(part):
    n = RUNS // PARTS
    r = sim(1 + part * n, n)
    assert r.returncode == 0, r.stdout + r.stderr
    counts = [int(x) for x in re.findall(r"\d+", r.stdout)]
    assert counts[0] == n and all(c > n for c in counts[1:]), r.stdout  # of each kind enough


def test_a_planted_bug_is_found():
    """Admission that doesn't ask what becomes of those that were admitted before."""
    r = sim(1, 100, "bug")
    assert r.returncode == 1 and "an admitted deadline was missed" in r.stdout
    again = re.search(r"again by: tool_sim (\d+) (\d+)", r.stdout)
    assert sim(*again.groups()).returncode == 0 and sim(*again.groups(), "bug").stdout == r.stdout
