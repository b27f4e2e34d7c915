"""--prune-heads: the plan is that of a model whose KV groups were cut out of the file, and what goes is what matters least
by the float64 reference."""

import json
import os
import subprocess

import numpy as np
import pytest

import test_compile as packed
from test_quant import CLI, tiny, write_text

import gguf_io
import reference

HEAD_DIM = 32


def compile_(cache, *args):
    r = subprocess.run([CLI, "compile", *map(str, args), "--json"], capture_output=True, text=True, timeout=600,
                       env={**os.environ, "XDG_CACHE_HOME": str(cache / "cache")})
    return r, json.loads(r.stdout) if r.stdout else None


def cut(source, target, kept, heads, kv_heads):
    """The model with the KV groups kept[layer] of each layer alone. Rows and blocks are moved as bytes."""
    model = gguf_io.Reader(source)
    arch = model.meta["general.architecture"]
    per = heads // kv_heads

    def part(t):
        layer = int(t.name.split(".")[1]) if t.name.startswith("blk.") else None
        name = t.name.split(".")[-2]
        raw = np.asarray(t.raw)
        if name not in ("attn_q", "attn_k", "attn_v", "attn_output"):
            return list(t.dims), raw
        wide = per if name in ("attn_q", "attn_output") else 1
        rows = t.dims[1] if len(t.dims) > 1 else t.dims[0]
        grid = raw.reshape(rows, -1)
        if name == "attn_output":
            grid = grid.reshape(rows, kv_heads, -1)[:, kept[layer]]
            return [len(kept[layer]) * wide * HEAD_DIM, rows], np.ascontiguousarray(grid).reshape(-1)
        grid = grid.reshape(kv_heads, wide * HEAD_DIM, -1)[kept[layer]]
        n = len(kept[layer]) * wide * HEAD_DIM
        return ([t.dims[0], n] if len(t.dims) > 1 else [n]), np.ascontiguousarray(grid).reshape(-1)

    changed = {f"{arch}.attention.head_count": len(kept[0]) * per, f"{arch}.attention.head_count_kv": len(kept[0])}
    meta = [(k, kind, changed.get(k, v)) for k, kind, v in gguf_io.typed_meta(model)]
    tensors = []
    for t in model.tensors.values():
        dims, raw = part(t)
        tensors.append((t.name, t.type, dims, lambda raw=raw: raw))
    gguf_io.write(target, meta, tensors)


FIT_BLOCK = 1024


def worths(path, ids, window=512):
    """Of each layer and KV group: the share of the mean square of what heads add, by the float64 reference. Of a head that
    lies in two blocks of the calibration, of its parts."""
    class Tapped(reference.Model):
        def attention(self, n, layer):
            out = super().attention(n, layer)
            seen[layer].append(out)
            return out

    model = Tapped(path, keep_weights=True)
    seen = [[] for _ in range(model.layers)]
    for at in range(0, len(ids), window):
        model.run(ids[at : at + window])
    result = []
    for layer in range(model.layers):
        a, w = np.concatenate(seen[layer]), model.weight(f"blk.{layer}.attn_output.weight")
        each = np.zeros(model.kv_heads)
        for k in range(0, model.heads * model.head_dim, 16):
            head, block = k // model.head_dim, k // FIT_BLOCK
            if k and k % model.head_dim and k % FIT_BLOCK:
                continue  # begun already
            end = min((head + 1) * model.head_dim, (block + 1) * FIT_BLOCK)
            each[head * model.kv_heads // model.heads] += np.sum((a[:, k:end] @ w[:, k:end].T) ** 2)
        result.append(each / each.sum())
    return np.array(result)


@pytest.mark.parametrize("arch,type_name,options", [
    ("llama", "F32", []),
    ("llama", "Q4_1", ["--quant", "w6"]),
    ("qwen2", "Q8_0", []),
    ("qwen2", "F16", ["--quant", "w8"]),
    ("qwen3", "BF16", ["--quant", "w4"]),
    ("gemma3", "Q4_0", []),
])
def test_the_plan_is_that_of_the_cut_model(tmp_path, arch, type_name, options):
    shape = dict(arch=arch, type=type_name, hidden=96, heads=8, kv_heads=4, layers=3)
    tiny(tmp_path / "m.gguf", **shape)
    write_text(tmp_path / "text.txt", 120)
    r, told = compile_(tmp_path, tmp_path / "m.gguf", "-o", tmp_path / "pruned.plan", "--prune-heads", 0.5, "--calibrate",
                       tmp_path / "text.txt", *(o for o in options))
    assert r.returncode == 0, r
    gone = [{p["kv_head"] for p in told["pruned"] if p["layer"] == layer} for layer in range(3)]
    assert [len(g) for g in gone] == [2, 2, 2]
    kept = [sorted(set(range(4)) - g) for g in gone]
    cut(tmp_path / "m.gguf", tmp_path / "cut.gguf", kept, 8, 4)
    if options:  # calibrated as the pruned model runs
        options = [*options, "--calibrate", tmp_path / "text.txt"]
    r, other = compile_(tmp_path, tmp_path / "cut.gguf", "-o", tmp_path / "cut.plan", *options)
    assert r.returncode == 0, r
    assert (tmp_path / "pruned.plan").read_bytes() == (tmp_path / "cut.plan").read_bytes()
    model = packed.Plan(tmp_path / "pruned.plan").model
    assert (model["heads"], model["kv_heads"], model["head_dim"]) == (4, 2, HEAD_DIM)


@pytest.mark.parametrize("arch,heads,head_dim", [("llama", 8, 32), ("gemma3", 8, 32), ("qwen2", 16, 96)])
def test_what_goes_is_what_matters_least(tmp_path, arch, heads, head_dim):
    tiny(tmp_path / "m.gguf", arch=arch, hidden=96, heads=heads, kv_heads=4, layers=4, head_dim=head_dim)
    write_text(tmp_path / "text.txt", 300)
    packed.compiled(tmp_path / "m.gguf", tmp_path / "m.plan")
    ids = subprocess.run([CLI.parent / "tests/tools/tool_ids", tmp_path / "m.plan", tmp_path / "text.txt"],
                         capture_output=True, text=True, check=True).stdout.split()
    r, told = compile_(tmp_path, tmp_path / "m.gguf", "-o", tmp_path / "p.plan", "--prune-heads", 0.25, "--calibrate",
                       tmp_path / "text.txt")
    assert r.returncode == 0, r
    want = worths(tmp_path / "m.gguf", [int(i) for i in ids])
    assert [p["layer"] for p in told["pruned"]] == [0, 1, 2, 3]
    for p in told["pruned"]:
        assert p["kv_head"] == int(np.argmin(want[p["layer"]])), (p, want[p["layer"]])
        assert abs(p["share"] - want[p["layer"]].min()) < 2e-3, (p, want[p["layer"]])


def test_text_says_what_went(tmp_path):
    tiny(tmp_path / "m.gguf", hidden=96, heads=8, kv_heads=4)
    write_text(tmp_path / "text.txt", 60)
    r = subprocess.run([CLI, "compile", tmp_path / "m.gguf", "-o", tmp_path / "m.plan", "--prune-heads", "0.99", "--calibrate",
                        tmp_path / "text.txt"], capture_output=True, text=True,
                       env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")})
    lines = r.stdout.splitlines()
    assert r.returncode == 0 and len(lines) == 2 * 3 + 1 and lines[-1].startswith(f"{tmp_path}/m.plan: "), r
    assert all(line.startswith(f"layer {i // 3}: without KV head ") and line.endswith("% of what its attention adds")
               for i, line in enumerate(lines[:-1])), lines


@pytest.mark.parametrize("changes,options,code,says", [
    ({}, ["--prune-heads", "0"], 2, "--prune-heads is \"0\"; allowed is a number from 0.001 to 0.999"),
    ({}, ["--prune-heads", "x"], 2, "--prune-heads is \"x\""),
    ({}, ["--prune-heads", "0.5", "no text"], 2, "--prune-heads needs --calibrate FILE"),
    ({}, ["--prune-heads", "0.1"], 2, "--prune-heads 0.1 of the 4 KV heads in each layer is none; 0.25 takes one"),
    (dict(kv_heads=1), ["--prune-heads", "0.5"], 5, "has one KV head in each layer: none can go"),
    (dict(type="Q4_K", hidden=256, ffn=256, heads=24, kv_heads=8), ["--prune-heads", "0.5"], 5,
     "a KV group is 96 inputs of tensor \"blk.0.attn_output.weight\", no multiple of 256 as its type q4_k needs; --quant w8, w6, w4"),
])
def test_refusals(tmp_path, changes, options, code, says):
    tiny(tmp_path / "m.gguf", **(dict(hidden=96, heads=8, kv_heads=4) | changes))
    write_text(tmp_path / "text.txt", 60)
    text = [] if "no text" in options else ["--calibrate", tmp_path / "text.txt"]
    r, _ = compile_(tmp_path, tmp_path / "m.gguf", "-o", tmp_path / "m.plan", *(o for o in options if o != "no text"), *text)
    assert r.returncode == code and says in (r.stdout.replace("\\\"", "\"") + r.stderr), r
    assert not (tmp_path / "m.plan").exists()


def test_weights_changed_since_the_cached_plan(tmp_path):
    """A NaN written behind the cache's back: the heads are compared by the file's weights, which are checked."""
    model = tmp_path / "m.gguf"
    tiny(model, hidden=96, heads=8, kv_heads=4)
    write_text(tmp_path / "text.txt", 60)
    options = [model, "-o", tmp_path / "m.plan", "--prune-heads", 0.5, "--calibrate", tmp_path / "text.txt"]
    r, _ = compile_(tmp_path, *options)
    assert r.returncode == 0, r
    (tmp_path / "m.plan").unlink()
    before = os.stat(model)
    raw = bytes(gguf_io.Reader(model).tensors["blk.0.attn_output.weight"].raw)
    at = model.read_bytes().index(raw)
    with open(model, "r+b") as f:
        f.seek(at)
        f.write(b"\x00\x00\xc0\x7f")
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    r, _ = compile_(tmp_path, *options)
    assert r.returncode == packed.NONFINITE and "attn_output.weight" in r.stdout and r.stdout.count("m.gguf") == 1, r
    assert not (tmp_path / "m.plan").exists()
