#!/usr/bin/env python3
"""The supported families in float64 numpy: what Isochron's logits are compared with.

    x = embedding[ids]
    per layer:  x += Wo · attention(rope(Wq·n + bq), rope(Wk·n + bk), Wv·n + bv),  n = rmsnorm(x)
                x += Wdown · (silu(Wgate·n) * (Wup·n)),                            n = rmsnorm(x)
    logits = Wout · rmsnorm(x)          (Wout is the embedding where the file has no output.weight)

qwen3 and gemma3 normalize each head of q and k before rope. gemma3 scales the embedding by sqrt(hidden), gates by GELU
(tanh), normalizes what attention and the gate give before it is added, and in five layers of six sees only the last
keys, with a rope base of their own.

It reads the same GGUF as the engine, through gguf_io.py, and shares no code with it. Weights are the exact
dequantized values; every operation after that is float64, so its own error (about 1e-12) is nothing beside that
of an engine that computes in float32 over 8-bit activations.

For finding out what agreement can be expected, --emulate rounds activations and KV cache as the engine's
definition does (8-bit codes in groups of 32 before every quantized matrix, f16 or q8 keys and values) and keeps
float64 otherwise.

    reference.py logits MODEL --tokens ids.txt -o out.npy     float32 [tokens][vocab]
    reference.py perplexity MODEL --tokens ids.txt
    reference.py generate MODEL --tokens ids.txt -n 20        greedy; prints ids

ids.txt holds decimal token ids separated by white space. --keep-weights holds float64 weights in memory.
"""

import argparse
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_io  # noqa: E402

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
GLOBAL_EVERY = 6       # gemma3: layers 5, 11, ... see all keys
ROWS_PER_PIECE = 8192  # of the output matrix at a time: bounds the float64 copy
GROUP = 32             # activations per 8-bit scale (emulation)
FLOAT_TYPES = ("F32", "F16", "BF16")


class Angles:
    """Frequencies of the pairs of a rotary embedding, and what cosines and sines are multiplied by."""

    def __init__(self, frequencies, factor=1.0):
        self.frequencies, self.factor = frequencies, factor

    @classmethod
    def of_file(cls, get, tensors, dim):
        f = float(get("rope.freq_base", 10000.0)) ** (-np.arange(dim // 2) * 2 / dim)
        kind = get("rope.scaling.type", "none")
        if kind == "none":
            divisors = tensors["rope_freqs.weight"].f32().astype(np.float64) if "rope_freqs.weight" in tensors else 1
            return cls(f / divisors)
        scale = get("rope.scaling.factor")
        if kind == "linear":
            return cls(f / scale)
        if kind != "yarn":
            raise ValueError(f"RoPE scaling {kind} is not supported")
        base, original = get("rope.freq_base", 10000.0), get("rope.scaling.original_context_length")

        def pair(rotations):
            return dim * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(base))

        low = max(np.floor(pair(get("rope.scaling.yarn_beta_fast", 32.0))), 0)
        high = min(np.ceil(pair(get("rope.scaling.yarn_beta_slow", 1.0))), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
        return cls(f / scale * ramp + f * (1 - ramp), 0.1 * np.log(scale) + 1)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class Model:
    """Hyperparameters and tensors of one GGUF file; forward() appends to the KV cache held here."""

    def __init__(self, path, emulate=None, keep_weights=False):
        """emulate: None, "f16" or "q8": the KV cache of the emulated engine (8-bit activations with both)."""
        self.file = gguf_io.Reader(path)
        meta, self.tensors = self.file.meta, self.file.tensors
        self.arch = meta["general.architecture"]
        if self.arch not in ARCHITECTURES:
            raise ValueError(f"architecture {self.arch} is not one of {ARCHITECTURES}")

        def get(key, default=None):
            value = meta.get(f"{self.arch}.{key}", default)
            if value is None:
                raise ValueError(f"{self.arch}.{key} is missing")
            return value

        self.hidden = get("embedding_length")
        self.layers = get("block_count")
        self.heads = get("attention.head_count")
        self.kv_heads = get("attention.head_count_kv", self.heads)
        self.head_dim = get("attention.key_length", self.hidden // self.heads)
        self.rope_dim = get("rope.dimension_count", self.head_dim)
        self.rope_base = get("rope.freq_base", 10000.0)
        self.eps = get("attention.layer_norm_rms_epsilon")
        self.vocab = self.tensors["token_embd.weight"].shape[0]
        self.gemma = self.arch == "gemma3"
        self.window = get("attention.sliding_window", 0)
        if self.window and not self.gemma:
            raise ValueError("a sliding window is supported for gemma3")
        self.score_scale = 1 / np.sqrt(self.head_dim)
        self.angles = [Angles.of_file(get, self.tensors, self.rope_dim)] * self.layers
        if self.gemma:
            local = Angles(float(get("rope.freq_base_swa", 10000.0)) ** (-np.arange(self.rope_dim // 2) * 2 / self.rope_dim))
            self.angles = [a if self.is_global(i) else local for i, a in enumerate(self.angles)]
        if get("attention.value_length", self.head_dim) != self.head_dim:
            raise ValueError("keys and values of different length are not supported")
        self.emulate = emulate
        self._kept = {} if keep_weights else None
        self.reset()

    def is_global(self, layer):
        return not self.gemma or (layer + 1) % GLOBAL_EVERY == 0

    def reset(self):
        """Forgets the sequence."""
        empty = np.zeros((0, self.kv_heads, self.head_dim))
        self.keys = [empty] * self.layers
        self.values = [empty] * self.layers

    def weight(self, name):
        """A tensor in float64, shape (rows, K) or (K,)."""
        if self._kept is None:
            return self.tensors[name].f32().astype(np.float64)
        if name not in self._kept:
            self._kept[name] = self.tensors[name].f32().astype(np.float64)
        return self._kept[name]

    def linear(self, x, name):
        """x [t][K] times the matrix `name`.weight, plus its bias where there is one."""
        if self.emulate and self.tensors[name + ".weight"].type not in FLOAT_TYPES:
            x = round_to_codes(x)
        y = x @ self.weight(name + ".weight").T
        return y + self.weight(name + ".bias") if name + ".bias" in self.tensors else y

    def norm(self, x, name):
        """RMSNorm over the last axis."""
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return x * scale * self.weight(name + ".weight")

    def rope(self, x, first, angles):
        """Rotates x [t][heads][head_dim], whose first row is position `first`.

        Pair i turns by position * frequency i. llama's files pair neighbours (2i, 2i + 1), since their
        q and k rows were permuted so; qwen2's pair the halves (i, i + rope_dim / 2).
        """
        n = self.rope_dim // 2
        angle = np.arange(first, first + len(x))[:, None] * angles.frequencies
        cos, sin = np.cos(angle)[:, None, :] * angles.factor, np.sin(angle)[:, None, :] * angles.factor
        if self.arch == "llama":
            a, b = slice(0, 2 * n, 2), slice(1, 2 * n, 2)
        else:
            a, b = slice(0, n), slice(n, 2 * n)
        y = x.copy()
        y[..., a] = x[..., a] * cos - x[..., b] * sin
        y[..., b] = x[..., a] * sin + x[..., b] * cos
        return y

    def attention(self, n, layer):
        """Causal grouped-query attention of the rows n over all rows so far; returns [t][heads * head_dim]."""
        p = f"blk.{layer}.attn_"
        t, first = len(n), len(self.keys[layer])
        q = self.linear(n, p + "q").reshape(t, self.heads, self.head_dim)
        k = self.linear(n, p + "k").reshape(t, self.kv_heads, self.head_dim)
        if p + "q_norm.weight" in self.tensors:
            q, k = self.norm(q, p + "q_norm"), self.norm(k, p + "k_norm")
        q, k = (self.rope(x, first, self.angles[layer]) for x in (q, k))
        v = self.linear(n, p + "v").reshape(t, self.kv_heads, self.head_dim)
        k = self.keys[layer] = np.concatenate([self.keys[layer], self.store(k)])
        v = self.values[layer] = np.concatenate([self.values[layer], self.store(v)])
        keys, rows = np.arange(len(k))[None, :], np.arange(first, first + t)[:, None]
        hidden = keys > rows
        if self.window and not self.is_global(layer):
            hidden |= keys <= rows - self.window
        out = np.empty_like(q)
        for h in range(self.heads):
            g = h // (self.heads // self.kv_heads)
            s = q[:, h] @ k[:, g].T * self.score_scale
            s[hidden] = -np.inf
            s = np.exp(s - s.max(axis=1, keepdims=True))
            out[:, h] = (s @ v[:, g]) / s.sum(axis=1, keepdims=True)
        return out.reshape(t, -1)

    def store(self, rows):
        """What the KV cache gives back of rows [t][kv_heads][head_dim]."""
        if self.emulate == "f16":
            return rows.astype(np.float16).astype(np.float64)
        return round_to_codes(rows, self.head_dim) if self.emulate == "q8" else rows

    def forward(self, ids):
        """Appends ids to the sequence; returns the final, normalized hidden rows [t][hidden]."""
        embedding = self.tensors["token_embd.weight"]
        x = np.concatenate([embedding.f32(int(i), 1) for i in ids]).astype(np.float64)
        if self.gemma:
            x = x * np.sqrt(self.hidden)
        for layer in range(self.layers):
            p = f"blk.{layer}."
            y = self.linear(self.attention(self.norm(x, p + "attn_norm"), layer), p + "attn_output")
            x = x + (self.norm(y, p + "post_attention_norm") if self.gemma else y)
            n = self.norm(x, p + "ffn_norm")
            gate = self.linear(n, p + "ffn_gate")
            act = gelu(gate) if self.gemma else gate / (1 + np.exp(-gate))
            y = self.linear(act * self.linear(n, p + "ffn_up"), p + "ffn_down")
            x = x + (self.norm(y, p + "post_ffw_norm") if self.gemma else y)
        return self.norm(x, "output_norm")

    def logits(self, rows):
        """Logits [t][vocab] of the rows that forward() returned."""
        name = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        matrix = self.tensors[name]
        if self.emulate and matrix.type not in FLOAT_TYPES:
            rows = round_to_codes(rows)
        if self._kept is not None:
            return rows @ self.weight(name).T
        out = np.empty((len(rows), self.vocab))
        for at in range(0, self.vocab, ROWS_PER_PIECE):
            n = min(ROWS_PER_PIECE, self.vocab - at)
            out[:, at : at + n] = rows @ matrix.f32(at, n).astype(np.float64).T
        return out

    def run(self, ids):
        """Logits [t][vocab] of a whole sequence from its beginning."""
        self.reset()
        return self.logits(self.forward(ids))


def round_to_codes(x, group=GROUP):
    """x rounded to 8-bit codes with one float32 scale per group along the last axis, and back."""
    g = x.astype(np.float32).reshape(*x.shape[:-1], -1, group)
    amax = np.abs(g).max(axis=-1, keepdims=True)
    tiny = amax < np.float32(2.0**-100)
    safe = np.where(tiny, np.float32(1), amax)
    codes = np.rint(g * (np.float32(127) / safe))
    scale = np.where(tiny, np.float32(0), amax / np.float32(127))
    return (codes.astype(np.float64) * scale).reshape(x.shape)


def log_sum_exp(logits):
    """Per row, in float64."""
    m = logits.max(axis=1, keepdims=True).astype(np.float64)
    return (m + np.log(np.exp(logits - m).sum(axis=1, keepdims=True)))[:, 0]


def perplexity(logits, ids):
    """exp of the mean negative log probability of ids[1:], logits being those of ids[:-1] or of all ids."""
    n = len(ids) - 1
    return float(np.exp(np.mean(log_sum_exp(logits[:n]) - logits[np.arange(n), ids[1:]])))


def generate(model, ids, count):
    """Greedy continuation of ids by `count` tokens; the lowest id of equals."""
    model.reset()
    out, step = [], list(ids)
    for _ in range(count):
        step = [int(np.argmax(model.logits(model.forward(step)[-1:])[0]))]
        out += step
    return out


def read_ids(path):
    with open(path, encoding="ascii") as f:
        return [int(word) for word in f.read().split()]


def main():
    p = argparse.ArgumentParser(description="float64 reference of the supported families")
    p.add_argument("command", choices=("logits", "perplexity", "generate"))
    p.add_argument("model")
    p.add_argument("--tokens", required=True, help="file of decimal ids")
    p.add_argument("-o", "--out", help="where logits go (.npy, float32)")
    p.add_argument("-n", "--count", type=int, default=16, help="tokens to generate")
    p.add_argument("--emulate", choices=("f16", "q8"), help="8-bit activations and this KV cache")
    p.add_argument("--keep-weights", action="store_true", help="dequantize once, hold float64 in memory")
    a = p.parse_args()
    ids = read_ids(a.tokens)
    model = Model(a.model, a.emulate, a.keep_weights or a.command == "generate")
    if a.command == "generate":
        print(*generate(model, ids, a.count))
    elif a.command == "perplexity":
        print(f"{perplexity(model.run(ids), ids):.6f}")
    else:
        if not a.out:
            p.error("logits needs -o")
        np.save(a.out, model.run(ids).astype(np.float32))


if __name__ == "__main__":
    main()
