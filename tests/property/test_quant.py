"""--quant: the compiler's own widths, against an implementation in numpy from the description in
docs/internals/quantization.md, and what they cost."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import test_compile as packed

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tools"))
import gguf_io  # noqa: E402
import make_hf  # noqa: E402
import make_tiny  # noqa: E402
import reference  # noqa: E402

CLI = packed.BUILD / "isochron"
GROUP = 32
F = np.float32
# Width: name of the type in the plan, least and greatest code, distance of the candidates.
WIDTHS = {"w8": ("Q8_0", -127, 127, 0.1), "w6": ("W6", -32, 31, 0.15), "w4": ("IQ4_NL", -127, 113, 2.0)}
STEPS = 9


def nearest(v, width):
    """The value of the code nearest to v."""
    _, low, high, _ = WIDTHS[width]
    if width != "w4":
        return np.rint(np.clip(v, F(low), F(high))) + F(0)  # no -0
    table = gguf_io.IQ4_VALUES.astype(F)
    return table[np.searchsorted((table[1:] + table[:-1]) / 2, v, side="left")]


def ascending_sum(x):
    """Over the last axis, in float32, one after the other."""
    total = np.zeros(x.shape[:-1], F)
    for i in range(x.shape[-1]):
        total = total + x[..., i]
    return total


def quantize(w, width):
    """The matrix that codes of this width stand for, all inputs counting alike."""
    _, low, high, step = WIDTHS[width]
    g = w.astype(F).reshape(len(w), -1, GROUP)
    at = np.abs(g).argmax(axis=2)
    most = np.take_along_axis(g, at[..., None], 2)[..., 0]
    some = np.abs(most) > F(2.0**-60)
    inverse = np.where(some, F(1) / np.where(some, most, F(1)), F(0))
    gain, best = np.zeros_like(most), np.zeros_like(most)
    for end in (low, high):
        for i in range(-STEPS, STEPS + 1):
            t = F(end) + F(i) * F(step)
            q = nearest(g * (t * inverse)[..., None], width).astype(F)
            wq, qq = ascending_sum(q * g), ascending_sum(q * q)
            d = wq / np.where(qq > 0, qq, F(1))
            reached = wq * d
            better = reached > gain
            gain, best = np.where(better, reached, gain), np.where(better, d, best)
    d = best.astype(np.float16).astype(F)
    inverse = np.where(d != 0, F(1) / np.where(d != 0, d, F(1)), F(0))
    return (d[..., None] * nearest(g * inverse[..., None], width).astype(F)).reshape(w.shape)


@pytest.fixture(autouse=True)
def own_types(monkeypatch):
    monkeypatch.setattr(packed, "TYPES", [*packed.TYPES, "W6"])
    monkeypatch.setitem(packed.GROUPED, "W6", (6, 32, 0, 0))


def tiny(path, **changes):
    make_tiny.make(path, **(dict(arch="llama", type="F32", hidden=96, heads=6, kv_heads=2, head_dim=32, ffn=160) | changes))
    return gguf_io.Reader(path)


def type_name(t):
    return packed.TYPES[t.dtype]


@pytest.mark.parametrize("source", ["F32", "BF16", "Q4_0", "Q5_1", "k-mixed"])
@pytest.mark.parametrize("width", WIDTHS)
def test_codes_are_those_of_the_description(tmp_path, width, source):
    shape = dict(make_tiny.SUPER, heads=24, kv_heads=8) if source in make_tiny.SUPER_TYPES else {}
    model = tiny(tmp_path / "m.gguf", type=source, **shape)
    plan = packed.compiled(tmp_path / "m.gguf", tmp_path / "m.plan", "--quant", width, "--quant-embedding", width)
    for t in plan.weights(packed.MATRIX):
        got, padding = packed.unpack(plan, t)
        assert type_name(t) == WIDTHS[width][0]
        packed.assert_same_bits(got, quantize(packed.expected(plan, model, t.name), width), t.name)
        assert np.all(padding == 0), t.name


@pytest.mark.parametrize("source", ["F32", "BF16", "Q8_0"])
def test_f16_is_rounded_to_nearest(tmp_path, source):
    model = tiny(tmp_path / "m.gguf", type=source)
    plan = packed.compiled(tmp_path / "m.gguf", tmp_path / "m.plan", "--quant", "f16")
    for t in plan.weights(packed.MATRIX):
        want = packed.expected(plan, model, t.name).astype(np.float16).astype(F)
        assert type_name(t) == "F16"
        packed.assert_same_bits(packed.unpack(plan, t)[0], want, t.name)


@pytest.mark.parametrize("options,layers,head", [
    (["--quant", "w4"], "IQ4_NL", "W6"),
    (["--quant", "w8"], "Q8_0", "Q8_0"),
    (["--quant", "w4", "--quant-embedding", "keep"], "IQ4_NL", "F32"),
    (["--quant-embedding", "f16"], "F32", "F16"),
])
def test_the_embedding_has_a_width_of_its_own(tmp_path, options, layers, head):
    tiny(tmp_path / "m.gguf")
    plan = packed.compiled(tmp_path / "m.gguf", tmp_path / "m.plan", *options)
    for t in plan.weights(packed.MATRIX):
        is_head = t.name.startswith(("token_embd", "output."))
        assert type_name(t) == (head if is_head else layers), t.name


def test_the_same_bytes_from_any_number_of_threads(tmp_path):
    tiny(tmp_path / "m.gguf", hidden=256, ffn=1024, layers=3)
    plans = [packed.compiled(tmp_path / "m.gguf", tmp_path / f"{n}.plan", "--quant", "w4", "--threads", n).bytes
             for n in (1, 2, 5)]
    assert plans[0] == plans[1] == plans[2]


def test_search_beats_rounding(tmp_path):
    """Less squared error than d = amax / 7, 31 or 127 and nearest codes."""
    model = tiny(tmp_path / "m.gguf", hidden=256, ffn=512)
    for width, most in (("w4", 7), ("w6", 31), ("w8", 127)):
        plan = packed.compiled(tmp_path / "m.gguf", tmp_path / "m.plan", "--quant", width)
        for t in plan.weights(packed.MATRIX):
            if t.name.startswith("token_embd"):
                continue
            w = packed.expected(plan, model, t.name).astype(np.float64)
            g = w.reshape(-1, GROUP)
            d = (np.abs(g).max(axis=1, keepdims=True) / most).astype(np.float16).astype(np.float64)
            plain = np.clip(np.rint(g / d), -most - 1, most) * d
            error = np.sum((packed.unpack(plan, t)[0] - w) ** 2)
            assert error < np.sum((plain - g) ** 2) * (0.9 if width == "w4" else 1), (width, t.name)


def test_inputs_that_are_no_multiple_of_a_group_are_refused(tmp_path):
    tiny(tmp_path / "m.gguf", hidden=80, heads=5, kv_heads=1, head_dim=16, ffn=160)
    r = packed.run(tmp_path / "m.gguf", tmp_path / "m.plan", "--quant", "w8")
    assert r.returncode != 0 and "no multiple of 32 as w8 needs; --quant f16 and keep take it" in r.stderr, r.stderr
    assert not (tmp_path / "m.plan").exists()


def test_padding_of_float_panels_is_zero(tmp_path):
    """An odd number of inputs leaves half a line at a panel's end, in a buffer that held another piece."""
    tiny(tmp_path / "m.gguf", hidden=256, ffn=2049, layers=3)
    plans = [packed.compiled(tmp_path / "m.gguf", tmp_path / f"{n}.plan", "--quant", "f16", "--threads", n) for n in (1, 4)]
    assert plans[0].bytes == plans[1].bytes
    odd = [t for t in plans[0].weights(packed.MATRIX) if t.cols == 2049]
    assert len(odd) == 3
    for t in odd:
        panels = plans[0].raw(t).reshape(-(-t.rows // 16), -1)
        assert panels.shape[1] == 2049 * 32 + 32 and np.all(panels[:, 2049 * 32 :] == 0)


def test_weights_over_f16_are_refused(tmp_path):
    model = tiny(tmp_path / "m.gguf")
    tensors = [(t.name, "F32", t.dims, lambda t=t: (t.f32() * (F(1e7) if t.name == "blk.0.ffn_up.weight" else F(1)))
                .reshape(-1).view(np.uint8)) for t in model.tensors.values()]
    gguf_io.write(tmp_path / "big.gguf", gguf_io.typed_meta(model), tensors)
    r = packed.run(tmp_path / "big.gguf", tmp_path / "m.plan", "--quant", "w6")
    assert "blk.0.ffn_up.weight" in r.stderr and "at most 65504" in r.stderr
    assert not (tmp_path / "m.plan").exists()


# ---- calibration


def cli(*args):
    r = subprocess.run([CLI, *map(str, args), "--json"], capture_output=True, text=True, timeout=600,
                       env={**os.environ, "XDG_CACHE_HOME": str(cli.cache)})
    return r, json.loads(r.stdout) if r.stdout else None


@pytest.fixture
def cache(tmp_path):
    cli.cache = tmp_path / "cache"
    return tmp_path


def write_text(path, n=3000, seed=5):
    rng = np.random.default_rng(seed)
    path.write_text(" ".join("".join(chr(97 + c) for c in rng.integers(0, 26, rng.integers(1, 8))) for _ in range(n)))


def test_calibration_brings_the_model_nearer(cache):
    tiny(cache / "m.gguf", hidden=256, ffn=512, layers=3)
    write_text(cache / "calibrate.txt")
    write_text(cache / "other.txt", 600, 6)
    divergence = []
    for options in ([], ["--calibrate", cache / "calibrate.txt", "--calibrate-tokens", 4096]):
        r, _ = cli("compile", cache / "m.gguf", "-o", cache / "m.plan", "--quant", "w4", "--slots", 16, *options)
        assert r.returncode == 0, r.stdout
        r, _ = cli("compile", cache / "m.gguf", "-o", cache / "f16.plan", "--quant", "f16", "--slots", 16)
        r, result = cli("eval", cache / "m.plan", "--text", cache / "other.txt", "--against", cache / "f16.plan")
        assert r.returncode == 0, r.stdout
        divergence.append(result["kl_mean"])
    assert divergence[1] < 0.8 * divergence[0], divergence


def test_calibrated_bytes_do_not_depend_on_threads(cache):
    tiny(cache / "m.gguf")
    write_text(cache / "calibrate.txt", 300)
    plans = []
    for cpus in ("0", "0,1"):
        cli.cache = cache / f"cache{cpus}"
        r = subprocess.run(["taskset", "-c", cpus, CLI, "compile", cache / "m.gguf", "-o", cache / "m.plan", "--quant",
                            "w4", "--calibrate", cache / "calibrate.txt"], capture_output=True, text=True, timeout=600,
                           env={**os.environ, "XDG_CACHE_HOME": str(cli.cache)})
        assert r.returncode == 0, r.stderr
        plans.append((cache / "m.plan").read_bytes())
    assert plans[0] == plans[1]


@pytest.mark.parametrize("options,says", [
    ([], "--calibrate is of use with --quant"),
    (["--quant", "f16"], "--calibrate is of use with --quant"),
    (["--quant", "w4", "--lora", "x"], "without the adapter"),
])
def test_what_calibration_does_not_go_with(cache, options, says):
    tiny(cache / "m.gguf")
    r, _ = cli("compile", cache / "m.gguf", "-o", cache / "m.plan", "--calibrate", cache / "m.gguf", *options)
    assert r.returncode == 2 and says in r.stderr


def test_calibration_of_odd_shapes_is_refused(cache):
    tiny(cache / "m.gguf", hidden=80, heads=5, kv_heads=1, head_dim=16, ffn=161)
    write_text(cache / "calibrate.txt", 300)
    r, answer = cli("compile", cache / "m.gguf", "-o", cache / "m.plan", "--quant", "w4", "--calibrate",
                    cache / "calibrate.txt")
    assert r.returncode == 5 and "no multiple of 32" in r.stdout and str(cache / "m.gguf") in r.stdout, r


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_off_grid_is_the_same_function(tmp_path, arch):
    """What bench/quality changes before it measures; every matrix that can leave its grid has left it."""
    changes = dict(arch=arch, type="Q4_0", hidden=96, heads=6, kv_heads=2, head_dim=32, ffn=160)
    make_tiny.make(tmp_path / "m.gguf", **changes)
    subprocess.run([sys.executable, ROOT / "tests/tools/off_grid.py", tmp_path / "m.gguf", tmp_path / "off.gguf"], check=True)
    ids = list(np.random.default_rng(2).integers(0, 320, 40))
    before, after = (reference.Model(tmp_path / f"{name}.gguf", keep_weights=True) for name in ("m", "off"))
    a, b = before.run(ids), after.run(ids)
    assert np.abs(a - b).max() < 1e-4 * np.abs(a).max()
    for name, t in before.tensors.items():
        if len(t.shape) == 2 and name != "token_embd.weight":
            same = np.mean(t.f32() == after.tensors[name].f32())
            assert same < 0.1, (name, same)


# ---- adapters


RANK = 4


def hf_folder(folder, type_name="F32", **changes):
    tiny(folder / "m.gguf", arch="qwen2", type=type_name, **changes)
    make_hf.make(folder / "m.gguf", folder / "model")
    return gguf_io.Reader(folder / "m.gguf")


def adapter_names(layers=2):
    """Names in the adapter, and the names of the GGUF file's tensors that they change."""
    parts = {"self_attn.q_proj": "attn_q", "self_attn.v_proj": "attn_v", "mlp.down_proj": "ffn_down"}
    return {f"model.layers.{i}.{theirs}": f"blk.{i}.{ours}.weight" for i in range(layers) for theirs, ours in parts.items()}


def write_adapter(folder, model, changes=None, tensors=None, **config):
    """A and B of every target, in [-0.2, 0.2]."""
    rng = np.random.default_rng(8)
    folder.mkdir(exist_ok=True)
    made, stored = {}, {}
    for theirs, ours in adapter_names().items():
        rows, cols = model.tensors[ours].shape
        a, b = (rng.uniform(-0.2, 0.2, shape).astype(F) for shape in ((RANK, cols), (rows, RANK)))
        made[ours] = a, b
        for letter, x in (("A", a), ("B", b)):
            stored[f"base_model.model.{theirs}.lora_{letter}.weight"] = ("F32", list(x.shape), x.tobytes())
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "bias": "none", "target_modules": ["q_proj"], "use_dora": False,
         "modules_to_save": None, "rank_pattern": {}, **config}))
    make_hf.write_safetensors(folder / "adapter_model.safetensors", (tensors or (lambda s: s))(stored))
    return made


def merged(w, a, b, scale):
    total = np.zeros_like(w)
    for j in range(RANK):
        total = total + b[:, j : j + 1] * a[j]
    return w + F(scale) * total


def check_merged(plan, model, made, scale, rounded):
    seen = set()
    for t in plan.weights(packed.MATRIX):
        parts = []
        for part in packed.part_names(gguf_name(t.name)):
            w = model.tensors[part].f32()
            changed = part in made
            parts.append(rounded(merged(w, *made[part], scale) if changed else w, changed))
            seen.add(part)
        packed.assert_same_bits(packed.unpack(plan, t)[0], np.concatenate(parts), t.name)
    assert seen >= set(made)


def gguf_name(name):
    """The GGUF name of a plan's tensor that was made from a folder."""
    first, *others = name.split("+")
    layer = first.split(".")[2] if first.startswith("model.layers.") else None
    table = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    if layer is None:
        return {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight"}[name]
    ours = next(o for t, o in table.items() if first == f"model.layers.{layer}.{t}.weight")
    count = {"attn_q": 3, "ffn_gate": 2}.get(ours, 1) if others else 1
    names = {"attn_q": ["attn_q", "attn_k", "attn_v"], "ffn_gate": ["ffn_gate", "ffn_up"]}.get(ours, [ours])[:count]
    return "+".join([f"blk.{layer}.{names[0]}.weight", *[f"{n}.weight" for n in names[1:]]])


@pytest.mark.parametrize("rslora,scale", [(False, 6 / RANK), (True, 6 / RANK**0.5)])
def test_an_adapter_is_merged(tmp_path, rslora, scale):
    model = hf_folder(tmp_path)
    made = write_adapter(tmp_path / "adapter", model, use_rslora=rslora)
    plan = packed.compiled(tmp_path / "model", tmp_path / "m.plan", "--lora", tmp_path / "adapter")
    check_merged(plan, model, made, scale, lambda w, changed: w)


def test_an_adapter_is_merged_before_quantization(tmp_path):
    model = hf_folder(tmp_path)
    made = write_adapter(tmp_path / "adapter", model)
    plan = packed.compiled(tmp_path / "model", tmp_path / "m.plan", "--lora", tmp_path / "adapter", "--quant", "w6")
    check_merged(plan, model, made, 6 / RANK, lambda w, changed: quantize(w, "w6"))


def test_kept_float_weights_are_rounded_to_their_type(tmp_path):
    model = hf_folder(tmp_path, "BF16")
    made = write_adapter(tmp_path / "adapter", model)
    plan = packed.compiled(tmp_path / "model", tmp_path / "m.plan", "--lora", tmp_path / "adapter")

    def rounded(w, changed):
        bits = np.ascontiguousarray(w, F).view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
        return bits.astype(np.uint32).view(F) if changed else w

    check_merged(plan, model, made, 6 / RANK, rounded)


def renamed(old, new):
    return lambda stored: {k.replace(old, new): v for k, v in stored.items()}


def dropped(part):
    return lambda stored: {k: v for k, v in stored.items() if part not in k}


def turned(stored):
    key = next(iter(stored))
    kind, shape, data = stored[key]
    return stored | {key: (kind, shape[::-1], data)}


def holding_nan(stored):
    key = next(iter(stored))
    kind, shape, data = stored[key]
    return stored | {key: (kind, shape, np.full(shape, np.nan, F).tobytes())}


def overflowing(stored):
    """Finite numbers whose products are infinite, of both signs."""
    def value(name):
        return np.where(np.arange(RANK) % 2, F(3e38), F(-3e38)) if "lora_B" in name else F(3e38)

    return {k: (kind, shape, np.broadcast_to(value(k), shape).astype(F).tobytes()) for k, (kind, shape, _) in stored.items()}


@pytest.mark.parametrize("config,tensors,says", [
    ({"peft_type": "IA3"}, None, 'peft_type is not "LORA"'),
    ({"use_dora": True}, None, "use_dora is set"),
    ({"bias": "all"}, None, 'bias is not "none"'),
    ({"modules_to_save": ["lm_head"]}, None, "modules_to_save is set"),
    ({"rank_pattern": {"q_proj": 8}}, None, "rank_pattern is set"),
    ({"init_lora_weights": "pissa_niter_4"}, None, "init_lora_weights is other than"),
    ({"layer_replication": [[0, 1], [0, 1]]}, None, "layer_replication is set"),
    ({"r": 0}, None, "r is no number from 1 to 1024"),
    ({"lora_alpha": -1}, None, "lora_alpha is no number"),
    ({"r": 8}, None, "has shape 4 x"),
    ({}, renamed("q_proj", "x_proj"), "changes no weight matrix"),
    ({}, renamed("lora_A", "lora_C"), "changes no weight matrix"),
    ({}, dropped("layers.0.self_attn.q_proj.lora_B"), "only one of lora_A and lora_B"),
    ({}, turned, "where model and rank ask for"),
    ({}, holding_nan, "holds a NaN"),
    ({}, overflowing, "as f32 a weight is at most"),
])
def test_adapters_that_are_refused(tmp_path, config, tensors, says):
    model = hf_folder(tmp_path)
    write_adapter(tmp_path / "adapter", model, tensors=tensors, **config)
    r = packed.run(tmp_path / "model", tmp_path / "m.plan", "--lora", tmp_path / "adapter")
    assert r.returncode != 0 and says in r.stderr, r.stderr
    assert not (tmp_path / "m.plan").exists()


def test_an_adapter_needs_a_folder(tmp_path):
    tiny(tmp_path / "m.gguf")
    r = packed.run(tmp_path / "m.gguf", tmp_path / "m.plan", "--lora", tmp_path)
    assert "into a Hugging Face folder" in r.stderr
