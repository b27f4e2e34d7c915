"""The compiler, seen from outside: the plan's bytes are unpacked here, from the format's description alone, and
compared with the model file; the same bytes come out whoever compiles; whatever goes wrong leaves no plan.
"""

import itertools
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import namedtuple

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tools"))
import gguf_io  # noqa: E402
import make_tiny  # noqa: E402

BUILD = pathlib.Path(os.environ.get("ISO_BUILD", ROOT / "build"))
BUILD_CLANG = pathlib.Path(os.environ.get("ISO_BUILD_CLANG", ROOT / "build-clang"))
MODEL = pathlib.Path(
    os.environ.get("ISO_MODEL", pathlib.Path.home() / ".cache/isochron/models/SmolLM2-135M-Instruct.Q4_1.gguf")
)
TOOL = "tests/tools/tool_compile"

SEED = 20240612
KILLS = 12
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
         "IQ4_XS"]
USAGE, IO, NONFINITE = 2, 3, 11  # exit codes

# The plan file, as src/plan/plan_format.h describes it.
PAGE, LANES, GROUP, PANEL_ALIGN = 4096, 16, 32, 64
HEADER = struct.Struct("<8sIIQ" + "QQ16s" * 5 + "64s64s8I" + "6I" + "Q" + "4I" + "8I" + "16s")
TENSOR = struct.Struct("<64s4IQQ")
BATCH, LOGITS, MATRIX, VECTOR, ANGLES = range(5)
PlanTensor = namedtuple("PlanTensor", "name kind dtype rows cols offset bytes")


class Plan:
    def __init__(self, path):
        self.bytes = pathlib.Path(path).read_bytes()
        f = HEADER.unpack_from(self.bytes)
        assert f[0] == b"ISOPLAN\n" and f[1] == 6 and f[2] == HEADER.size and f[3] == len(self.bytes)
        self.sections = [(f[4 + 3 * i], f[5 + 3 * i]) for i in range(5)]
        self.arch = f[19].rstrip(b"\0").decode()
        self.model = dict(zip("vocab hidden layers heads kv_heads head_dim ffn context".split(), f[21:29]))
        self.limits = dict(zip("max_seq_len slots batch_tokens kv_type quant quant_head".split(), f[29:35]))
        self.eog = f[40 : 40 + f[39]]
        table = self.section(0)
        self.tensors = []
        for at in range(0, len(table), TENSOR.size):
            name, *rest = TENSOR.unpack_from(table, at)
            self.tensors.append(PlanTensor(name.rstrip(b"\0").decode(), *rest))

    def section(self, i):
        offset, n = self.sections[i]
        return self.bytes[offset : offset + n]

    def raw(self, t):
        weights = self.section(4)
        assert t.offset % PANEL_ALIGN == 0 and t.offset + t.bytes <= len(weights)
        return np.frombuffer(weights, np.uint8, t.bytes, t.offset)

    def weights(self, kind):
        return [t for t in self.tensors if t.kind == kind]


def f16(raw):
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


# Of a grouped type: bits of a code, its zero, whether it has a minimum, sub-scales of a group.
GROUPED = {"Q4_0": (4, 8, 0, 0), "Q4_1": (4, 0, 1, 0), "Q5_0": (5, 16, 0, 0), "Q5_1": (5, 0, 1, 0), "Q8_0": (8, 0, 0, 0),
           "Q2_K": (2, 0, 1, 2), "Q3_K": (3, 4, 0, 2), "Q4_K": (4, 0, 1, 1), "Q5_K": (5, 0, 1, 1), "Q6_K": (6, 32, 0, 2),
           "IQ4_NL": (4, 0, 0, 0), "IQ4_XS": (4, 0, 0, 1)}


class Panels:
    """Panels of a grouped type [panels][bytes]: their parts, one after the other, as kernels/dtype.h describes them."""

    def __init__(self, raw, name, k):
        self.raw, self.name, self.at, self.panels, self.groups = raw, name, 0, len(raw), k // GROUP
        self.bits, self.zero, self.has_min, self.subs = GROUPED[name]

    def part(self, n):
        """The next n bytes of each group."""
        self.at += self.groups * n
        return self.raw[:, self.at - self.groups * n : self.at].reshape(self.panels, self.groups, n)

    def vectors(self, n):
        return self.part(64 * n).reshape(self.panels, self.groups, n, LANES, 4)

    def quarters(self):
        v = self.vectors(2)
        return np.stack([v >> 2 * i & 3 for i in range(4)], axis=3).reshape(self.panels, self.groups, 8, LANES, 4)

    def codes(self):
        """[panel][group][vector][lane][4]"""
        if self.bits == 8:
            return self.vectors(8).view(np.int8).astype(np.int32)
        if self.bits <= 3:
            codes = self.quarters().astype(np.int32)
        else:
            v = self.vectors(4)
            nibbles = np.stack([v & 15, v >> 4], axis=3 if self.bits == 6 else 2)
            codes = nibbles.reshape(self.panels, self.groups, 8, LANES, 4).astype(np.int32)
        if self.bits == 6:
            codes |= self.quarters().astype(np.int32) << 4
        if self.bits in (3, 5):
            high = np.unpackbits(self.part(64), axis=2, bitorder="little")
            codes |= high.reshape(codes.shape).astype(np.int32) << self.bits - 1
        return gguf_io.IQ4_VALUES[codes] if self.name.startswith("IQ4") else codes - self.zero

    def scales(self):
        """d and m, [panel][group][vector][lane][1]."""
        ways = 1 + self.has_min
        subs = [self.part(LANES * self.subs).view(np.int8) for _ in range(ways if self.subs else 0)]
        for i in range(ways):
            n = self.groups // 8 if self.subs else self.groups
            d = f16(self.raw[:, self.at : self.at + n * 32]).reshape(self.panels, n, 1, LANES, 1)
            self.at += n * 32
            if self.subs:
                sub = subs[i].reshape(self.panels, self.groups, self.subs, LANES, 1).astype(np.float32)
                d = np.repeat(d, 8, axis=1) * np.repeat(sub, 8 // self.subs, axis=2)
            yield d


def unpack(plan, t):
    """The matrix [rows][cols] that panels hold, dequantized to float32, and the lanes past the last row."""
    name, k, panels = TYPES[t.dtype], t.cols, -(-t.rows // LANES)
    raw = plan.raw(t).reshape(panels, -1)
    if name in ("F32", "F16", "BF16"):
        size = 4 if name == "F32" else 2
        flat = np.ascontiguousarray(raw[:, : k * LANES * size]).reshape(-1)
        w = gguf_io.dequantize(flat, name).reshape(panels, k, LANES).transpose(0, 2, 1)
    else:
        p = Panels(raw, name, k)
        codes = p.codes().astype(np.float32)
        d, *m = p.scales()
        w = d * codes + m[0] if m else d * codes
        # [panel][group][vector][lane][4] to [panel][lane][group, vector, 4]
        w = w.transpose(0, 3, 1, 2, 4)
    w = w.reshape(panels * LANES, k)
    return w[: t.rows], w[t.rows :]


def part_names(name):
    """"blk.0.attn_q.weight+attn_k.weight" to both parts' names."""
    first, *others = name.split("+")
    prefix = ".".join(first.split(".")[:2]) + "."
    return [first] + [prefix + other for other in others]


def halves(rows, heads):
    """Rows of heads that keep pairs as neighbours, (pair, side), to (side, pair)."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def expected(plan, model, name):
    parts = []
    for part in part_names(name):
        w = model.tensors[part].f32()
        for letter, heads in (("q", plan.model["heads"]), ("k", plan.model["kv_heads"])):
            if plan.arch == "llama" and f".attn_{letter}." in part:
                w = halves(w, heads)
        parts.append(w)
    return np.concatenate(parts)


def run(model, plan, *options, build=BUILD, **kwargs):
    return subprocess.run([build / TOOL, model, plan, *map(str, options)], capture_output=True, text=True,
                          timeout=300, **kwargs)


def compiled(model, plan, *options, build=BUILD):
    r = run(model, plan, *options, build=build)
    assert r.returncode == 0, r.stderr
    return Plan(plan)


def assert_same_bits(got, want, what):
    assert got.shape == want.shape and got.dtype == want.dtype == np.float32, what
    differing = np.argwhere(got.view(np.uint32) != want.view(np.uint32))
    assert len(differing) == 0, f"{what}: {len(differing)} values differ, the first at {differing[0]}"


def check_weights(plan, model):
    """Every weight of the plan is the model's, and none of the model's is missing."""
    seen = []
    for t in plan.weights(MATRIX):
        got, padding = unpack(plan, t)
        assert_same_bits(got, expected(plan, model, t.name), t.name)
        assert np.all(padding == 0), t.name
        seen += part_names(t.name)
    for t in plan.weights(VECTOR):
        got = plan.raw(t).view("<f4")
        assert_same_bits(got[: t.cols], expected(plan, model, t.name), t.name)
        assert np.all(got[t.cols :] == 0), t.name
        seen += part_names(t.name)
    assert sorted(seen) == sorted(model.tensors)


@pytest.mark.parametrize("arch,type_name", list(itertools.product(["llama", "qwen2"], [*TYPES, *make_tiny.MIXED])))
def test_weights_are_the_models(tmp_path, arch, type_name):
    # Odd sizes: 331 outputs leave lanes of the last panel empty, and the heads are not hidden / heads wide.
    changes = dict(arch=arch, type=type_name, hidden=96, heads=6, kv_heads=2, head_dim=32, ffn=160)
    if type_name in make_tiny.SUPER_TYPES:
        changes |= dict(make_tiny.SUPER, heads=24, kv_heads=8)  # every K is a multiple of 256
    make_tiny.make(tmp_path / "m.gguf", **changes)
    check_weights(compiled(tmp_path / "m.gguf", tmp_path / "m.plan"), gguf_io.Reader(tmp_path / "m.gguf"))


def test_weights_of_the_demo_model(tmp_path):
    plan = compiled(MODEL, tmp_path / "m.plan", "--max-seq-len", 64)
    check_weights(plan, gguf_io.Reader(MODEL))


def test_other_alignment_and_version(tmp_path):
    make_tiny.make(tmp_path / "a.gguf", type="Q5_0", version=2, alignment=256)
    make_tiny.make(tmp_path / "b.gguf", type="Q5_0")
    a, b = (compiled(tmp_path / f"{x}.gguf", tmp_path / f"{x}.plan") for x in "ab")
    check_weights(a, gguf_io.Reader(tmp_path / "a.gguf"))
    assert a.bytes == b.bytes


def test_the_file_is_laid_out_as_described(tmp_path):
    make_tiny.make(tmp_path / "m.gguf", type="mixed")
    plan = compiled(tmp_path / "m.gguf", tmp_path / "m.plan", "--max-seq-len", 100, "--slots", 3)
    assert plan.limits == dict(max_seq_len=100, slots=3, batch_tokens=128, kv_type=0, quant=0, quant_head=0)
    assert plan.arch == "llama" and plan.eog == (328, 330)
    end = HEADER.size
    for offset, n in plan.sections:
        assert offset == -(-end // PAGE) * PAGE
        assert not any(plan.bytes[end:offset])
        end = offset + n
    assert end == len(plan.bytes)
    at = 0
    for t in plan.tensors:  # weights without gaps, in order
        if t.kind in (MATRIX, VECTOR, ANGLES):
            assert t.offset == at
            at += t.bytes
    assert at == plan.sections[4][1]


ROTARY = [(1e4, 512, 16), (1e5, 8192, 64), (5e5, 131072, 32), (1.0, 64, 16)]


@pytest.mark.parametrize("base,positions,head_dim", ROTARY)
def test_rotary_table(tmp_path, base, positions, head_dim):
    changes = dict(hidden=64, heads=2, kv_heads=1, head_dim=head_dim, context=positions, rope_base=base)
    make_tiny.make(tmp_path / "m.gguf", **changes)
    plan = compiled(tmp_path / "m.gguf", tmp_path / "m.plan", "--max-seq-len", positions)
    (t,) = plan.weights(ANGLES)
    assert t.cols == head_dim
    got = plan.raw(t).view("<f4")[: positions * head_dim].reshape(positions, 2, head_dim // 2)
    position = np.arange(positions, dtype=np.float64)[:, None]
    angle = position * np.float64(np.float32(base)) ** (-np.arange(0, head_dim, 2) / head_dim)
    want = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    rounded = want.astype(np.float32)
    # One unit in the last place, and what an angle of this size is off by itself in float64.
    allowed = np.spacing(np.abs(rounded)).astype(np.float64) + position[:, :, None] * 2.0**-50 + 1e-15
    assert np.all(np.abs(got.astype(np.float64) - want) <= allowed)
    assert np.mean(got == rounded) > 0.9999


def test_same_bytes_whatever_the_file_is_called(tmp_path):
    make_tiny.make(tmp_path / "m.gguf", type="Q4_1", arch="qwen2")
    compiled(tmp_path / "m.gguf", tmp_path / "1.plan")
    compiled(tmp_path / "m.gguf", tmp_path / "2.plan")
    (tmp_path / "folder with space").mkdir()
    other = tmp_path / "folder with space" / "another name"
    shutil.copyfile(tmp_path / "m.gguf", other)
    os.utime(other, (1, 1))
    env = dict(os.environ, TZ="Asia/Kathmandu", LC_ALL="C", HOME="/nonexistent")
    r = run(other, tmp_path / "3.plan", env=env, cwd=tmp_path)
    assert r.returncode == 0, r.stderr
    first = (tmp_path / "1.plan").read_bytes()
    assert (tmp_path / "2.plan").read_bytes() == first
    assert (tmp_path / "3.plan").read_bytes() == first


@pytest.mark.skipif(not (BUILD_CLANG / TOOL).exists(), reason=f"there is no clang build in {BUILD_CLANG}")
@pytest.mark.parametrize("arch,kv", [("llama", "f16"), ("qwen2", "q8")])
def test_same_bytes_from_gcc_and_clang(tmp_path, arch, kv):
    make_tiny.make(tmp_path / "m.gguf", type="mixed", arch=arch, context=8192, rope_base=1e6)
    a = compiled(tmp_path / "m.gguf", tmp_path / "a.plan", "--max-seq-len", 8192, "--kv", kv)
    b = compiled(tmp_path / "m.gguf", tmp_path / "b.plan", "--max-seq-len", 8192, "--kv", kv, build=BUILD_CLANG)
    assert a.bytes == b.bytes


def spoil(path, name, block, at, half):
    """Writes a 16-bit word at byte `at` of a block of a tensor."""
    model = gguf_io.Reader(path)
    t = model.tensors[name]
    data = bytearray(path.read_bytes())
    where = data.find(t.raw.tobytes())
    assert where > 0
    where += block * gguf_io.TYPES[t.type][2] + at
    data[where : where + 2] = struct.pack("<H", half)
    path.write_bytes(data)


# Type, tensor, byte in the block, the word: an infinite or NaN scale, minimum or value.
SPOILED = [
    ("Q4_0", "token_embd.weight", 0, 0x7C00), ("Q4_1", "blk.0.attn_q.weight", 2, 0xFC00),
    ("Q5_0", "blk.1.ffn_down.weight", 0, 0x7E00), ("Q5_1", "blk.0.attn_k.weight", 2, 0x7C01),
    ("Q8_0", "blk.1.attn_output.weight", 0, 0xFFFF), ("F16", "blk.0.ffn_up.weight", 0, 0x7C00),
    ("BF16", "blk.0.ffn_gate.weight", 0, 0x7F80), ("F32", "blk.1.attn_v.weight", 2, 0xFF80),
    ("Q4_0", "blk.1.ffn_norm.weight", 2, 0x7FC0),
]


@pytest.mark.parametrize("type_name,name,at,half", SPOILED)
def test_nonfinite_weights_are_refused_by_name(tmp_path, type_name, name, at, half):
    path, block = tmp_path / "m.gguf", 37
    make_tiny.make(path, type=type_name)
    spoil(path, name, block, at, half)
    r = run(path, tmp_path / "m.plan")
    what = "scale" if type_name.startswith("Q") and "norm" not in name else "value"
    assert r.returncode == NONFINITE
    assert f'{path}: tensor "{name}" holds a NaN or infinite {what} in block {block}' in r.stderr
    assert sorted(os.listdir(tmp_path)) == ["m.gguf"]


@pytest.mark.parametrize("options,says", [
    (["--max-seq-len", 513], "--max-seq-len 513 is over the model's context of 512 tokens"),
    (["--max-seq-len", 1], "--max-seq-len must be at least 2"),
    (["--slots", 1025, "--batch-tokens", 2000], "--slots 1025 is over the limit of 1024"),
    (["--slots", 65, "--batch-tokens", 64], "--batch-tokens 64 must be from the number of slots (65) to 8192"),
    (["--batch-tokens", 8193], "--batch-tokens 8193 must be from the number of slots (1) to 8192"),
])
def test_limits(tmp_path, options, says):
    make_tiny.make(tmp_path / "m.gguf")
    r = run(tmp_path / "m.gguf", tmp_path / "m.plan", *options)
    assert r.returncode == USAGE
    assert says in r.stderr and str(tmp_path / "m.gguf") in r.stderr
    assert not (tmp_path / "m.plan").exists()


def test_limits_at_their_ends(tmp_path):
    make_tiny.make(tmp_path / "m.gguf")
    limits = compiled(tmp_path / "m.gguf", tmp_path / "m.plan").limits
    assert limits == dict(max_seq_len=512, slots=1, batch_tokens=128, kv_type=0, quant=0, quant_head=0)
    options = ["--max-seq-len", 2, "--slots", 1024, "--batch-tokens", 8192, "--kv", "q8"]
    limits = compiled(tmp_path / "m.gguf", tmp_path / "m.plan", *options).limits
    assert limits == dict(max_seq_len=2, slots=1024, batch_tokens=8192, kv_type=1, quant=0, quant_head=0)
    assert compiled(tmp_path / "m.gguf", tmp_path / "m.plan", "--slots", 200).limits["batch_tokens"] == 200


def limit_file_size(n):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n, n))

    return limit


def test_no_room_leaves_nothing(tmp_path):
    make_tiny.make(tmp_path / "m.gguf")
    whole = len(compiled(tmp_path / "m.gguf", tmp_path / "whole").bytes)
    for n in [0, 1, 4096, 10_000, whole // 2, whole - 1]:
        r = run(tmp_path / "m.gguf", tmp_path / "m.plan", preexec_fn=limit_file_size(n))
        assert r.returncode == IO and "writing failed" in r.stderr and "m.plan" in r.stderr
        assert sorted(os.listdir(tmp_path)) == ["m.gguf", "whole"]
    r = run(tmp_path / "m.gguf", tmp_path / "m.plan", preexec_fn=limit_file_size(whole))
    assert r.returncode == 0


def test_where_nothing_can_be_written(tmp_path):
    make_tiny.make(tmp_path / "m.gguf")
    r = run(tmp_path / "m.gguf", tmp_path / "missing" / "m.plan")
    assert r.returncode == IO and "creating failed" in r.stderr
    (tmp_path / "folder").mkdir()
    r = run(tmp_path / "m.gguf", tmp_path / "folder")
    assert r.returncode == IO and "folder: exists and is no regular file" in r.stderr
    assert sorted(os.listdir(tmp_path)) == ["folder", "m.gguf"]


def test_killed_at_any_moment(tmp_path):
    # Some 40 MB of panels: long enough to be hit on the way.
    make_tiny.make(tmp_path / "m.gguf", type="F32", hidden=512, heads=8, kv_heads=8, ffn=1536, layers=3)
    start = time.monotonic()
    whole = compiled(tmp_path / "m.gguf", tmp_path / "whole").bytes
    seconds = time.monotonic() - start
    rng = random.Random(SEED)
    final, hit = tmp_path / "m.plan", 0
    for i in range(KILLS):
        if i % 2:
            final.write_bytes(b"old")
        else:
            final.unlink(missing_ok=True)
        p = subprocess.Popen([BUILD / TOOL, tmp_path / "m.gguf", final])
        time.sleep(rng.uniform(0, seconds))
        p.kill()
        hit += p.wait() == -signal.SIGKILL
        if final.exists():
            assert final.read_bytes() in (whole, b"old" if i % 2 else whole), f"seed {SEED}, kill {i}"
        elif i % 2:
            pytest.fail(f"seed {SEED}, kill {i}: what was there is gone")
    assert hit > 0
    assert compiled(tmp_path / "m.gguf", final).bytes == whole  # whatever was left behind
