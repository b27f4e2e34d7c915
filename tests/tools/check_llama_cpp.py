#!/usr/bin/env python3
"""Checks the float64 reference against llama.cpp, and writes the vectors that are committed.

llama.cpp is an independent engine that reads the same files. It rounds activations to 8 bits before quantized
matrices, so logits agree to that precision there; on F32 models, where it does not, they agree closely.

It is used through its shared libraries, wherever they come from: $ISO_LLAMA_CPP (a folder with libllama*.so), the
PyPI package llama-cpp-python, or the npm package @node-llama-cpp/linux-x64, whose prebuilt libraries
`npm install --ignore-scripts @node-llama-cpp/linux-x64@3.21.1` brings without compiling (in the current folder or
at the root of this repository). Without any of them the script says so and exits 0.

    check_llama_cpp.py [--model MODEL] [--gemma MODEL] [--write]

MODEL defaults to $ISO_MODEL or the demo model, that of --gemma to $ISO_GEMMA or Gemma 3 where fetch-model keeps it. --write makes the committed files anew (vectors of logits in
tests/golden, ids of the texts in tests/data); without it nothing is written, and the ids are compared.
"""

import argparse
import ctypes
import glob
import importlib.util
import json
import os
import re
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import gguf_io  # noqa: E402
import make_tiny  # noqa: E402
import reference  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
GEMMA_MODEL = "~/.cache/isochron/models/gemma-3-270m-q4_k_m.gguf"
DEMO_MODEL = "~/.cache/isochron/models/SmolLM2-135M-Instruct.Q4_1.gguf"
NPM_FOLDER = "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"
CONTEXT = 1024        # tokens of context, and of one batch
DEFAULT_CONTEXT = 512  # llama.cpp's own n_ctx: seen, its parameters are laid out as we expect
VECTORS = os.path.join(ROOT, "tests", "golden", "llama_cpp_smollm2.json")
TEXTS = ("real_text", "odd_text")
IDS_PER_LINE = 20
F32_NAME = "f32.gguf"
TINY_TOKENS = 500
TEXT_TOKENS = 1000
GEMMA_TOKENS = 256
GEMMA_BOS = 2
TEXT_F32_TOKENS = 128
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nWhat is the largest planet?<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time, in a village by the sea, 3 fishermen",
]
PROMPT_GREEDY = 12     # tokens llama.cpp continues each prompt by
TOP = 5


class Opaque(ctypes.Structure):
    """llama.cpp's parameter structs, which it fills itself: larger than any, passed and returned in memory."""

    _fields_ = [("words", ctypes.c_uint32 * 256)]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p),
        ("seq_id", ctypes.c_void_p),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)


class LlamaCpp:
    """llama.cpp's shared libraries in `folder`."""

    def __init__(self, folder):
        libraries = {}
        for name in ("ggml-base", "ggml-cpu", "ggml", "llama"):
            found = glob.glob(f"{folder}/lib{name}.so*") + glob.glob(f"{folder}/lib{name}.v*.so")
            if found:
                libraries[name] = ctypes.CDLL(found[0], mode=ctypes.RTLD_GLOBAL)
        lib, ggml = libraries["llama"], libraries["ggml"]
        self.lib = lib
        base = libraries["ggml-base"]
        lib.llama_log_set(QUIET, None)
        base.ggml_log_set(QUIET, None)
        ggml.ggml_backend_load_all_from_path(folder.encode())
        lib.llama_backend_init()
        for name in ("llama_model_default_params", "llama_context_default_params"):
            getattr(lib, name).restype = Opaque
        for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_model_get_vocab"):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Opaque]
        lib.llama_init_from_model.argtypes = [ctypes.c_void_p, Opaque]
        lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        lib.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
        lib.llama_decode.argtypes = [ctypes.c_void_p, Batch]
        lib.llama_get_logits_ith.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
        lib.llama_set_n_threads.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
        lib.llama_free.argtypes = lib.llama_model_free.argtypes = [ctypes.c_void_p]
        lib.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32,
                                       ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]
        self.version = ", ".join(
            f"{name} {_text(library, name)}"
            for library, name in ((lib, "llama_version"), (base, "ggml_version"), (base, "ggml_commit"))
            if hasattr(library, name)
        )


def _text(library, name):
    getattr(library, name).restype = ctypes.c_char_p
    return getattr(library, name)().decode()


class LlamaModel:
    """A model in llama.cpp; run() evaluates a sequence from its beginning."""

    def __init__(self, engine, path):
        self.lib = engine.lib
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), self.lib.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self.vocab = self.lib.llama_model_get_vocab(self.model)

    def close(self):
        self.lib.llama_model_free(self.model)

    def tokenize(self, text):
        b = text.encode()
        out = (ctypes.c_int32 * (len(b) + 8))()
        n = self.lib.llama_tokenize(self.vocab, b, len(b), out, len(out), False, True)
        return list(out[:n])

    def run(self, ids):
        """Logits [t][vocab], float32, of at most CONTEXT ids."""
        params = self.lib.llama_context_default_params()
        if params.words[0] != DEFAULT_CONTEXT:
            raise RuntimeError("llama.cpp's context parameters are not laid out as expected")
        params.words[0] = CONTEXT  # n_ctx; n_batch beside it is larger already
        context = self.lib.llama_init_from_model(self.model, params)
        self.lib.llama_set_n_threads(context, 1, 1)  # its threads spin: several are slow on a busy machine
        n = len(ids)
        batch = Batch(n, (ctypes.c_int32 * n)(*ids), None, None, None, None, (ctypes.c_int8 * n)(*[1] * n))
        if self.lib.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        size = (self.lib.llama_vocab_n_tokens(self.vocab),)
        rows = [np.ctypeslib.as_array(self.lib.llama_get_logits_ith(context, i), size).copy() for i in range(n)]
        self.lib.llama_free(context)
        return np.array(rows)


def find_libraries():
    """The folder with llama.cpp's libraries, or None."""
    folders = [os.environ.get("ISO_LLAMA_CPP", ""), NPM_FOLDER, os.path.join(ROOT, NPM_FOLDER)]
    package = importlib.util.find_spec("llama_cpp")
    if package:
        folders.insert(1, os.path.join(os.path.dirname(package.origin), "lib"))
    return next((os.path.abspath(f) for f in folders if f and glob.glob(f + "/libllama*.so*")), None)


def compare(label, theirs, ours, rms_max, gap_max):
    """Prints how far two sets of logits are apart; True where within the limits.

    rms_max: root mean square difference over the reference's standard deviation. gap_max: where the best ids
    differ, how much below its best, in units of that deviation, the reference may rate llama.cpp's.
    """
    std = ours.std()
    rms = np.sqrt(np.mean((theirs - ours) ** 2)) / std
    a, b = theirs.argmax(1), ours.argmax(1)
    rows = np.arange(len(a))
    gap = ((ours[rows, b] - ours[rows, a]) / std).max()
    ok = rms <= rms_max and gap <= gap_max
    print(f"{label:28} {len(a):4} tokens  top-1 equal {np.mean(a == b):7.2%}  rms difference {rms:8.2e} of std "
          f"(limit {rms_max:.0e})  largest gap {gap:8.2e} (limit {gap_max:.0e})  {'ok' if ok else 'TOO FAR'}")
    return ok


def check_tiny(engine, folder):
    """Random models of every architecture, all types, tied and not, with and without biases, wide heads, scaled RoPE."""
    ok = True
    ids = [int(w % 331) for w in make_tiny.words("ids", TINY_TOKENS)]
    small = [t for t in gguf_io.TYPES if t not in make_tiny.SUPER_TYPES]
    variants = [(arch, t, {}) for arch in ("llama", "qwen2") for t in [*small, "mixed"]]
    variants += [("llama", t, dict(make_tiny.SUPER, layers=1)) for t in make_tiny.SUPER_TYPES]
    variants += [("qwen3", t, dict(head_dim=32)) for t in ("F32", "Q4_0", "Q8_0")]
    variants += [("gemma3", t, dict(layers=7, window=24)) for t in ("F32", "Q4_0", "Q8_0")]
    variants += [("llama", "F32", dict(scaling=s)) for s in (
        dict(type="linear", factor=4.0), dict(type="yarn", factor=4.0, original=64),
        dict(type="llama3", factor=8.0, low=1.0, high=4.0, original=128))]
    variants += [("llama", "F32", dict(tied=False, head_dim=32)), ("qwen2", "F32", dict(tied=True)),
                 ("llama", "F32", dict(heads=4, kv_heads=1, rope_base=1e6))]
    for arch, type_name, changes in variants:
        path = os.path.join(folder, "tiny.gguf")
        make_tiny.make(path, arch=arch, type=type_name, **changes)
        model = LlamaModel(engine, path)
        label = f"{arch} {type_name} " + " ".join(f"{k}={v}" for k, v in changes.items())
        deeper = 1.5 if changes.get("layers", 2) > 5 else 1  # every layer adds its rounding, as in test_reference.py
        limits = (2e-3, 1e-2) if type_name == "F32" else (5e-2 * deeper, 2e-1 * deeper)
        ok &= compare(label, model.run(ids), reference.Model(path).run(ids), *limits)
        model.close()
    return ok


def check_ids(model, write, vocabulary="smollm2"):
    """The committed ids of the texts are llama.cpp's. Returns (all equal, ids of the first text)."""
    ok, texts = True, []
    for name in TEXTS:
        path = os.path.join(ROOT, "tests", "data", name)
        with open(path + ".txt", encoding="utf-8") as f:
            ids = model.tokenize(f.read())
        if write:
            lines = [" ".join(map(str, ids[at : at + IDS_PER_LINE])) for at in range(0, len(ids), IDS_PER_LINE)]
            with open(f"{path}.{vocabulary}.ids", "w", encoding="ascii") as f:
                f.write("\n".join(lines) + "\n")
        same = reference.read_ids(f"{path}.{vocabulary}.ids") == ids
        print(f"{name}: {len(ids)} ids, {'as committed' if same else 'NOT AS COMMITTED'}")
        ok &= same
        texts.append(ids)
    return ok, texts[0]


def check_model(engine, path, folder, write):
    """The demo model on real text: as it is, and dequantized to F32."""
    model = LlamaModel(engine, path)
    ok, ids = check_ids(model, write)
    text = ids[:TEXT_TOKENS]
    ok &= compare("demo model", model.run(text), reference.Model(path).run(text), 5e-2, 2e-1)
    model.close()
    f32 = os.path.join(folder, F32_NAME)
    gguf_io.dequantize_file(path, f32)
    model = LlamaModel(engine, f32)
    text = ids[:TEXT_F32_TOKENS]
    ok &= compare("demo model as F32", model.run(text), reference.Model(f32).run(text), 2e-3, 1e-2)
    model.close()
    return ok


def check_gemma(engine, path, write):
    """Gemma 3 on real text."""
    model = LlamaModel(engine, path)
    ok, ids = check_ids(model, write, "gemma3")
    text = [GEMMA_BOS, *ids][:GEMMA_TOKENS]
    ok &= compare("Gemma 3", model.run(text), reference.Model(path).run(text), 5e-2, 2e-1)
    model.close()
    return ok


def write_vectors(engine, path, folder):
    """Greedy continuations and best ids by llama.cpp on the F32 form of the model, and the text's ids."""
    model = LlamaModel(engine, os.path.join(folder, F32_NAME))
    prompts = []
    for text in PROMPTS:
        ids = prompt = model.tokenize(text)
        for _ in range(PROMPT_GREEDY):
            ids = ids + [int(model.run(ids)[-1].argmax())]
        logits = model.run(ids)
        top = np.argsort(-logits, axis=1, kind="stable")[:, :TOP]
        values = np.take_along_axis(logits, top, axis=1)
        prompts.append({"text": text, "prompt_ids": prompt, "greedy_ids": ids[len(prompt):], "top_ids": top.tolist(),
                        "top_logits": [[round(float(v), 3) for v in row] for row in values]})
    result = {"made_by": "tests/tools/check_llama_cpp.py --write", "llama_cpp": engine.version,
              "model": os.path.basename(path), "weights": "dequantized to F32", "prompts": prompts}
    model.close()
    with open(VECTORS, "w", encoding="ascii") as f:
        rows = re.sub(r"\s*\n\s{4,}(\]|[-\d])", r" \1", json.dumps(result, indent=1))  # numbers side by side
        f.write(rows + "\n")
    print("wrote", VECTORS)


def main():
    p = argparse.ArgumentParser(description="reference against llama.cpp")
    p.add_argument("--model", default=os.path.expanduser(os.environ.get("ISO_MODEL", DEMO_MODEL)))
    p.add_argument("--gemma", default=os.path.expanduser(os.environ.get("ISO_GEMMA", GEMMA_MODEL)))
    p.add_argument("--write", action="store_true", help="make the committed files anew")
    a = p.parse_args()
    folder = find_libraries()
    if folder is None:
        print("llama.cpp is not installed; nothing checked")
        return 0
    engine = LlamaCpp(folder)
    print("llama.cpp:", engine.version)
    with tempfile.TemporaryDirectory() as scratch:
        ok = check_tiny(engine, scratch)
        ok &= check_model(engine, a.model, scratch, a.write)
        ok &= check_gemma(engine, a.gemma, a.write)
        if a.write:
            write_vectors(engine, a.model, scratch)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
