#!/usr/bin/env python3
"""Makes GGUF models with random weights: tiny ones for tests, real shapes for benchmarks.

The same arguments give the same bytes on any machine: the random numbers are SplitMix64 words turned into values
by exact or singly rounded IEEE operations; no library's generator and no libm function beyond sqrt takes part.

Weights are scaled so that activations stay near 1 and the residual stream grows little; scales of blocks have
random signs, so that nothing averages out. Logits have a standard deviation of about 1: near-uniform, which shows
any drift in the ids chosen. The tokenizer is byte-level BPE: the 256 byte tokens, merges up to the vocabulary's
size, and the three control tokens of ChatML at the end.

    make_tiny.py OUT.gguf [--arch llama|qwen2] [--type Q4_0|...|mixed|k-mixed] [--hidden N] ... [--shape NAME]
"""

import argparse
import hashlib
import itertools
import math
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_io  # noqa: E402

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
    " + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PRE = {"llama": "smollm", "qwen2": "qwen2", "qwen3": "qwen2", "gemma3": "smollm"}
FILE_TYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "BF16": 32, "mixed": 7,
             "Q2_K": 10, "Q3_K": 12, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "k-mixed": 15}
MIXED = {"mixed": ["Q4_0", "Q5_1", "F16", "Q8_0", "Q4_1", "BF16", "Q5_0", "F32"],
         # 8 for a layer's 7 matrices, so that types change place from layer to layer, and two beside each other.
         "k-mixed": ["Q4_K", "Q6_K", "Q2_K", "IQ4_XS", "Q3_K", "Q5_K", "Q5_K", "IQ4_NL"]}
SUPER_TYPES = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "k-mixed"]
SUPER = dict(hidden=256, ffn=512)  # changes to the tiny shape that types with blocks of 256 need

TINY = dict(hidden=64, layers=2, heads=4, kv_heads=2, head_dim=0, ffn=160, vocab=331, context=512, tied=None,
            bias=None, rope_base=10000.0, eps=1e-5, window=0, scaling=None)
SHAPES = {
    "tiny": dict(TINY, arch="llama"),
    "smollm2-135m": dict(arch="llama", hidden=576, layers=30, heads=9, kv_heads=3, head_dim=0, ffn=1536,
                         vocab=49152, context=8192, tied=True, bias=False, rope_base=1e5, eps=1e-5),
    "qwen2.5-0.5b": dict(arch="qwen2", hidden=896, layers=24, heads=14, kv_heads=2, head_dim=0, ffn=4864,
                         vocab=151936, context=32768, tied=True, bias=True, rope_base=1e6, eps=1e-6),
    "qwen2.5-1.5b": dict(arch="qwen2", hidden=1536, layers=28, heads=12, kv_heads=2, head_dim=0, ffn=8960,
                         vocab=151936, context=32768, tied=True, bias=True, rope_base=1e6, eps=1e-6),
    "qwen2.5-7b": dict(arch="qwen2", hidden=3584, layers=28, heads=28, kv_heads=4, head_dim=0, ffn=18944,
                       vocab=152064, context=32768, tied=False, bias=True, rope_base=1e6, eps=1e-6),
}


def words(key, n):
    """n 64-bit words of SplitMix64, seeded by the text `key`."""
    seed = np.frombuffer(hashlib.blake2b(key.encode(), digest_size=8).digest(), "<u8")[0]
    z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(key, n):
    """n float32 in [-1, 1): 24-bit fractions, exact."""
    return ((words(key, n) >> np.uint64(40)).astype(np.int32) - 2**23).astype(np.float32) * np.float32(2**-23)


def octets(key, n):
    return words(key, -(-n // 8)).astype("<u8").view(np.uint8)[:n]


def floats(type_name, key, n, std):
    """Uniform values of the given standard deviation, in a float type."""
    x = uniform(key, n) * np.float32(std * math.sqrt(3))
    if type_name == "BF16":
        bits = x.view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype("<u2").view(np.uint8)
    return x.astype("<f4" if type_name == "F32" else "<f2").view(np.uint8)


# Block type: (values of a code, where the codes begin, whether it has a minimum)
CODES = {"Q4_0": (16, 2, False), "Q4_1": (16, 4, True), "Q5_0": (32, 2, False), "Q5_1": (32, 4, True),
         "Q8_0": (255, 2, False)}


def blocks(type_name, key, n, std):
    """n values in blocks: uniform codes, scales of random sign and of 0.75 to 1.25 times the mean."""
    levels, codes_at, has_min = CODES[type_name]
    size = gguf_io.TYPES[type_name][2]
    count = n // gguf_io.BLOCK
    out = octets(key + "/codes", count * size).reshape(count, size).copy()
    if type_name == "Q8_0":
        q = out[:, codes_at:]
        q[q == 128] = 127  # the format's own quantizer never gives -128
    u = uniform(key + "/scale", count)
    sign = np.where(octets(key + "/sign", count) & 1, np.float32(-1), np.float32(1))
    mean = np.float32(std / math.sqrt((levels * levels - 1) / 12))
    d = (sign * (mean + mean * np.float32(0.25) * u)).astype("<f2")
    out[:, 0:2] = d.view(np.uint8).reshape(count, 2)
    if has_min:
        shift = np.float32(0.25) * uniform(key + "/min", count) - np.float32((levels - 1) / 2)
        out[:, 2:4] = (d.astype(np.float32) * shift).astype("<f2").view(np.uint8).reshape(count, 2)
    return out.ravel()


# Values that sub-scales, codes and, where the type has a minimum, the minimum's sub-scales take.
SUPER_VALUES = {
    "Q2_K": (range(16), range(4), range(16)),
    "Q3_K": (range(-32, 32), range(-4, 4), None),
    "Q4_K": (range(64), range(16), range(64)),
    "Q5_K": (range(64), range(32), range(64)),
    "Q6_K": (range(-128, 128), range(-32, 32), None),
    "IQ4_NL": ([1], gguf_io.IQ4_VALUES.astype(int).tolist(), None),
    "IQ4_XS": (range(-32, 32), gguf_io.IQ4_VALUES.astype(int).tolist(), None),
}


def super_blocks(type_name, key, n, std):
    """n values in blocks of random bytes, but for d, as in blocks(), and m, which takes the mean off."""
    _, elements, size = gguf_io.TYPES[type_name]
    scales, codes, mins = SUPER_VALUES[type_name]

    def mean(values, power=1):
        return sum(v**power for v in values) / len(values)

    middle = mean(scales) * mean(codes)
    variance = mean(scales, 2) * mean(codes, 2) - middle * middle
    share = middle / mean(mins) if mins else 0
    if mins:
        variance += share * share * (mean(mins, 2) - mean(mins) ** 2)
    count = n // elements
    out = octets(key + "/codes", count * size).reshape(count, size).copy()
    sign = np.where(octets(key + "/sign", count) & 1, np.float32(-1), np.float32(1))
    mean_d = np.float32(std / math.sqrt(variance))
    d = (sign * (mean_d + mean_d * np.float32(0.25) * uniform(key + "/scale", count))).astype("<f2")
    for at, value in zip(gguf_io.HALVES[type_name], (d, (d.astype(np.float32) * np.float32(share)).astype("<f2"))):
        out[:, at : at + 2] = value.view(np.uint8).reshape(count, 2)
    return out.ravel()


def vocabulary(size):
    """(tokens, merges) of a byte-level BPE with `size` tokens, the control tokens last."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    alphabet = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokens = [alphabet[b] for b in range(256)]
    seen, merges = set(tokens), []
    wanted = size - len(CONTROL) - len(tokens)
    if wanted < 0:
        raise ValueError(f"vocab {size} is below {len(tokens) + len(CONTROL)}")
    for left, right in itertools.islice(_pairs(seen), wanted):
        merges.append(left + " " + right)
        tokens.append(left + right)
        seen.add(left + right)
    if len(merges) != wanted:
        raise ValueError(f"vocab {size} is too large for the merges this makes")
    return tokens + CONTROL, merges


def _pairs(seen):
    """Merges in order: some of English, then runs of spaces, then all letter groups. Sides exist before."""
    space, letters = "\u0120", "etaoinshrdlucmfwypvbgkjqxz"
    common = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("e", "r"), (space, "the"), (space, "a"),
              ("in", "g"), ("an", "d"), (space, "and"), (space, space), (space * 2, space * 2), ("o", "u")]
    twos = [a + b for a in letters for b in letters]
    rest = itertools.chain(
        zip(itertools.repeat(space), letters),
        ((p[0], p[1]) for p in twos),
        ((p, c) for p in twos for c in letters),
        ((space, p) for p in twos),
        ((p, q) for p in twos for q in twos),
    )
    for left, right in itertools.chain(common, rest):
        if left + right not in seen:
            yield left, right


def metadata(name, c):
    a = c["arch"]
    tokens, merges = vocabulary(c["vocab"])
    first_control = len(tokens) - len(CONTROL)
    meta = [
        ("general.architecture", "str", a),
        ("general.name", "str", name),
        ("general.file_type", "u32", FILE_TYPE[c["type"]]),
        ("general.quantization_version", "u32", 2),
        (f"{a}.context_length", "u32", c["context"]),
        (f"{a}.embedding_length", "u32", c["hidden"]),
        (f"{a}.block_count", "u32", c["layers"]),
        (f"{a}.feed_forward_length", "u32", c["ffn"]),
        (f"{a}.attention.head_count", "u32", c["heads"]),
        (f"{a}.attention.head_count_kv", "u32", c["kv_heads"]),
        (f"{a}.attention.layer_norm_rms_epsilon", "f32", c["eps"]),
        (f"{a}.rope.freq_base", "f32", c["rope_base"]),
    ]
    if c.get("window"):
        meta.append((f"{a}.attention.sliding_window", "u32", c["window"]))
    if c.get("scaling") and c["scaling"]["type"] != "llama3":
        meta += [(f"{a}.rope.scaling.type", "str", c["scaling"]["type"]),
                 (f"{a}.rope.scaling.factor", "f32", c["scaling"]["factor"])]
        if "original" in c["scaling"]:
            meta.append((f"{a}.rope.scaling.original_context_length", "u32", c["scaling"]["original"]))
    if c["head_dim"] * c["heads"] != c["hidden"]:
        meta += [(f"{a}.attention.key_length", "u32", c["head_dim"]),
                 (f"{a}.attention.value_length", "u32", c["head_dim"])]
    if a == "llama":
        meta += [("llama.vocab_size", "u32", c["vocab"]), ("llama.rope.dimension_count", "u32", c["head_dim"])]
    return meta + [
        ("tokenizer.ggml.model", "str", "gpt2"),
        ("tokenizer.ggml.pre", "str", PRE[a]),
        ("tokenizer.ggml.tokens", "[str]", tokens),
        ("tokenizer.ggml.token_type", "[i32]", [1] * first_control + [3] * len(CONTROL)),
        ("tokenizer.ggml.merges", "[str]", merges),
        ("tokenizer.ggml.bos_token_id", "u32", first_control),
        ("tokenizer.ggml.eos_token_id", "u32", first_control + 2),
        ("tokenizer.ggml.padding_token_id", "u32", first_control),
        ("tokenizer.ggml.add_bos_token", "bool", False),
        ("tokenizer.chat_template", "str", CHATML),
    ]


def llama3_factors(c):
    """What llama3's scaling divides each frequency by, as converters write it: float32."""
    s, half = c["scaling"], c["head_dim"] // 2
    turns = s["original"] * c["rope_base"] ** (-np.arange(half) / half) / (2 * np.pi)
    smooth = (turns - s["low"]) / (s["high"] - s["low"])
    middle = 1 / ((1 - smooth) / s["factor"] + smooth)
    return np.where(turns > s["high"], 1, np.where(turns < s["low"], s["factor"], middle)).astype("<f4")


def tensor_list(c, seed):
    """(name, type, dims, make) of every tensor. Standard deviations: see the head of the file."""
    h, f = c["hidden"], c["ffn"]
    q, kv = c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"]
    grow = math.sqrt(2 / c["layers"])
    mixed = itertools.cycle(MIXED.get(c["type"], [c["type"]]))
    out = []

    def matrix(name, rows, k, gain):
        t = next(mixed)
        make = floats if t in ("F32", "F16", "BF16") else blocks if t in CODES else super_blocks
        std = gain / math.sqrt(k)
        out.append((name, t, [k, rows], lambda: make(t, f"{seed}/{name}", rows * k, std)))

    def vector(name, n, middle, spread):
        def make():
            x = np.float32(middle) + np.float32(spread) * uniform(f"{seed}/{name}", n)
            return x.astype("<f4").view(np.uint8)

        out.append((name, "F32", [n], make))

    matrix("token_embd.weight", c["vocab"], h, 1)
    vector("output_norm.weight", h, 1, 0.25)
    if (c.get("scaling") or {}).get("type") == "llama3":
        factors = llama3_factors(c)
        out.append(("rope_freqs.weight", "F32", [len(factors)], lambda: factors.view(np.uint8)))
    if not c["tied"]:
        matrix("output.weight", c["vocab"], h, 1)
    for layer in range(c["layers"]):
        p = f"blk.{layer}."
        vector(p + "attn_norm.weight", h, 1, 0.25)
        vector(p + "ffn_norm.weight", h, 1, 0.25)
        if c["arch"] == "gemma3":
            vector(p + "post_attention_norm.weight", h, 1, 0.25)
            vector(p + "post_ffw_norm.weight", h, 1, 0.25)
        if c["arch"] in ("qwen3", "gemma3"):
            vector(p + "attn_q_norm.weight", c["head_dim"], 1.5, 0.25)
            vector(p + "attn_k_norm.weight", c["head_dim"], 1.5, 0.25)
        for part, rows, gain in (("q", q, 1.5), ("k", kv, 1.5), ("v", kv, 1)):
            matrix(p + f"attn_{part}.weight", rows, h, gain)
            if c["bias"]:
                vector(p + f"attn_{part}.bias", rows, 0, 0.5)
        matrix(p + "attn_output.weight", h, q, 2 * grow)
        matrix(p + "ffn_gate.weight", f, h, 1)
        matrix(p + "ffn_up.weight", f, h, 1)
        matrix(p + "ffn_down.weight", h, f, 1.5 * grow)
    return out


def make(path, shape="tiny", type="Q4_0", seed=1, version=3, alignment=gguf_io.DEFAULT_ALIGNMENT, **changes):
    """Writes the model; `changes` override the shape's fields. tied and bias default by architecture."""
    c = dict(SHAPES[shape], type=type) | {k: v for k, v in changes.items() if v is not None}
    c["tied"] = c["arch"] in ("llama", "gemma3") if c["tied"] is None else c["tied"]
    c["bias"] = c["arch"] == "qwen2" if c["bias"] is None else c["bias"]
    c["head_dim"] = c["head_dim"] or c["hidden"] // c["heads"]
    if c["arch"] == "gemma3":
        c["window"] = c.get("window") or 32
    meta = metadata(f"{shape} {c['arch']} {type} random", c)
    gguf_io.write(path, meta, tensor_list(c, seed), version, alignment)


def main():
    p = argparse.ArgumentParser(description="GGUF models with random weights, the same bytes everywhere")
    p.add_argument("out")
    p.add_argument("--shape", choices=SHAPES, default="tiny")
    p.add_argument("--type", choices=[*gguf_io.TYPES, *MIXED], default="Q4_0")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--version", type=int, choices=(2, 3), default=3)
    p.add_argument("--alignment", type=int, default=gguf_io.DEFAULT_ALIGNMENT)
    p.add_argument("--arch", choices=PRE)
    for name in ("hidden", "layers", "heads", "kv-heads", "head-dim", "ffn", "vocab", "context"):
        p.add_argument("--" + name, type=int)
    p.add_argument("--rope-base", type=float)
    p.add_argument("--eps", type=float)
    p.add_argument("--tied", action=argparse.BooleanOptionalAction, help="default: llama yes, qwen2 no")
    p.add_argument("--bias", action=argparse.BooleanOptionalAction, help="default: llama no, qwen2 yes")
    a = vars(p.parse_args())
    if a["shape"] == "tiny" and a["type"] in SUPER_TYPES:  # the tiny shape is too narrow for blocks of 256
        a |= {k: v for k, v in SUPER.items() if a[k] is None}
    make(a.pop("out"), **a)


if __name__ == "__main__":
    main()
