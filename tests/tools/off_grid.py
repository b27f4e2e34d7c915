#!/usr/bin/env python3
"""A model whose weights are off the grid they were quantized to, and which computes the same function.

The real weights at hand are quantized already: quantizing them again to the same grid proves nothing. So before quality
is measured they are changed in ways that leave the logits as they are, but for rounding:

- llama: each norm's gains are folded into the matrices that read it, and the residual stream is turned by a random
  orthogonal matrix: RMSNorm without gains commutes with it. The output matrix becomes one of its own.
- gemma3: norms stand on both sides of each half of a layer, so the stream can't be turned. Instead each norm's gains
  are multiplied by random factors that the matrices which read it take back; the values of each head are turned by a
  random orthogonal matrix that the output projection takes back; and the inner columns of the gated unit likewise are
  scaled. The embedding matrix stays.

    off_grid.py MODEL.gguf OUT.gguf [--seed N]     writes F32
"""

import argparse
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_io  # noqa: E402

FACTORS = (0.8, 1.25)


class Weights:
    """Tensors by name in float64."""

    def __init__(self, reader):
        self.w = {name: t.f32().astype(np.float64) for name, t in reader.tensors.items()}

    def __getitem__(self, name):
        return self.w[name + ".weight"]

    def __setitem__(self, name, value):
        self.w[name + ".weight"] = value

    def fold_gains(self, norm, matrices):
        """The norm's gains become 1, and the matrices that read it take them."""
        for m in matrices:
            self[m] = self[m] * self[norm]
        self[norm] = np.ones_like(self[norm])

    def scale_gains(self, norm, matrices, factors):
        """The norm's gains are multiplied, and the matrices that read it divided."""
        self[norm] = self[norm] * factors
        for m in matrices:
            self[m] = self[m] / factors


def orthogonal(rng, n):
    q, r = np.linalg.qr(rng.standard_normal((n, n)))
    return q * np.sign(np.diag(r))


def layers(meta):
    return [f"blk.{i}." for i in range(meta[meta["general.architecture"] + ".block_count"])]


def turn_llama(w, meta, rng):
    turn = orthogonal(rng, w["output_norm"].size)
    if "output.weight" not in w.w:
        w["output"] = w["token_embd"].copy()
    w.fold_gains("output_norm", ["output"])
    w["token_embd"] = w["token_embd"] @ turn
    w["output"] = w["output"] @ turn
    for p in layers(meta):
        readers = [p + "attn_" + c for c in "qkv"], [p + "ffn_gate", p + "ffn_up"]
        w.fold_gains(p + "attn_norm", readers[0])
        w.fold_gains(p + "ffn_norm", readers[1])
        for name in readers[0] + readers[1]:
            w[name] = w[name] @ turn
        for name in (p + "attn_output", p + "ffn_down"):
            w[name] = turn.T @ w[name]


def scale_gemma(w, meta, rng):
    arch = meta["general.architecture"]
    heads, kv_heads = meta[arch + ".attention.head_count"], meta[arch + ".attention.head_count_kv"]
    for p in layers(meta):
        hidden = w[p + "attn_norm"].size
        for norm, readers in (("attn_norm", ["attn_q", "attn_k", "attn_v"]), ("ffn_norm", ["ffn_gate", "ffn_up"])):
            w.scale_gains(p + norm, [p + r for r in readers], rng.uniform(*FACTORS, hidden))
        inner = rng.uniform(*FACTORS, len(w[p + "ffn_up"]))
        w[p + "ffn_up"] = w[p + "ffn_up"] * inner[:, None]
        w[p + "ffn_down"] = w[p + "ffn_down"] / inner
        dim = len(w[p + "attn_v"]) // kv_heads
        v, out = w[p + "attn_v"].reshape(kv_heads, dim, -1), w[p + "attn_output"].reshape(hidden, heads, dim)
        turns = [orthogonal(rng, dim) for _ in range(kv_heads)]
        w[p + "attn_v"] = np.concatenate([turns[g] @ v[g] for g in range(kv_heads)])
        out = np.stack([out[:, h] @ turns[h // (heads // kv_heads)].T for h in range(heads)], axis=1)
        w[p + "attn_output"] = out.reshape(hidden, -1)


def main():
    p = argparse.ArgumentParser(description="the same function with weights off their grid")
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    reader = gguf_io.Reader(a.model)
    rng = np.random.default_rng(a.seed)
    w, arch = Weights(reader), reader.meta["general.architecture"]
    if arch not in ("llama", "gemma3"):
        p.error(f"architecture {arch} is not supported")
    (turn_llama if arch == "llama" else scale_gemma)(w, reader.meta, rng)
    tensors = [(name, "F32", list(v.shape[::-1]), lambda v=v: np.ascontiguousarray(v, "<f4").reshape(-1).view(np.uint8))
               for name, v in w.w.items()]
    gguf_io.write(a.out, gguf_io.typed_meta(reader), tensors)


if __name__ == "__main__":
    main()
