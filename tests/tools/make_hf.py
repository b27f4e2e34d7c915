#!/usr/bin/env python3
"""Turns a tiny GGUF model of float weights (make_tiny.py) into a Hugging Face folder of the same model: config.json,
generation_config.json, tokenizer.json, tokenizer_config.json, safetensors in one file or in shards.

Weights keep their values: llama's Q and K rows go back to Hugging Face's order, Gemma's gains lose the 1 that GGUF
has added (exact, as they lie between 1/2 and 2). So the folder must compile to the plan that the file compiles to.

    make_hf.py MODEL.gguf FOLDER [--shards N]
"""

import argparse
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_io  # noqa: E402

CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM", "gemma3": "Gemma3ForCausalLM"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
       "output.weight": "lm_head.weight"}
LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
         "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GEMMA_LAYER = LAYER | {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
                       "post_ffw_norm": "post_feedforward_layernorm"}
QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")


def hf_name(arch, name):
    if name in TOP:
        return TOP[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{(GEMMA_LAYER if arch == 'gemma3' else LAYER)[part]}.{kind}"


def split_halves(raw, heads, rows):
    """Rows of interleaved rotary pairs back to halves; raw [rows][bytes]."""
    head_dim = rows // heads
    return raw.reshape(heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(rows, -1)


def hf_tensors(reader, arch):
    """name: (dtype, shape, bytes)"""
    meta, out = reader.meta, {}
    heads = {"attn_q": meta[f"{arch}.attention.head_count"], "attn_k": meta[f"{arch}.attention.head_count_kv"]}
    for name, t in reader.tensors.items():
        if name == "rope_freqs.weight":
            continue  # config.json says it
        raw = np.frombuffer(bytes(t.raw), np.uint8)
        part = name.split(".")[2] if name.startswith("blk.") else ""
        if arch == "llama" and part in heads:
            raw = split_halves(raw.reshape(t.shape[0], -1), heads[part], t.shape[0]).ravel()
        if arch == "gemma3" and "norm" in name:
            raw = (raw.view("<f4") - np.float32(1)).view(np.uint8)
        out[hf_name(arch, name)] = (t.type, list(t.shape), raw.tobytes())
    return out


def write_safetensors(path, tensors, metadata=True):
    header, at = ({"__metadata__": {"format": "pt"}} if metadata else {}), 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def config(meta, arch, tensors, scaling):
    def get(key, default=None):
        return meta.get(f"{arch}.{key}", default)

    out = {
        "architectures": [CLASSES[arch]],
        "model_type": arch,
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length", get("embedding_length") // get("attention.head_count")),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": float(np.float32(get("attention.layer_norm_rms_epsilon"))),
        "rope_theta": get("rope.freq_base"),
        "vocab_size": tensors["model.embed_tokens.weight"][1][0],
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "hidden_act": "silu",
        "rope_scaling": None,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "bfloat16",
    }
    if arch == "gemma3":
        del out["hidden_act"]
        out |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": out["head_dim"],
                "sliding_window": get("attention.sliding_window"), "rope_local_base_freq": 10000,
                "sliding_window_pattern": 6}
    if arch in ("qwen2", "qwen3"):
        out |= {"sliding_window": 131072, "use_sliding_window": False}
    if scaling:
        names = {"factor": "factor", "low": "low_freq_factor", "high": "high_freq_factor",
                 "original": "original_max_position_embeddings"}
        out["rope_scaling"] = {"rope_type": scaling["type"]} | {names[k]: v for k, v in scaling.items() if k in names}
    return out


def tokenizer(meta):
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    pre = {
        "smollm": [{"type": "Digits", "individual_digits": True}, byte_level],
        "qwen2": [{"type": "Split", "pattern": {"Regex": QWEN2_WORDS}, "behavior": "Isolated", "invert": False},
                  byte_level | {"use_regex": False}],
    }[meta["tokenizer.ggml.pre"]]
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, t in enumerate(tokens) if types[i] == 3],
        "normalizer": {"type": "NFC"} if meta["tokenizer.ggml.pre"] == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens) if types[i] == 1},
                  "merges": [m.split(" ") for m in meta["tokenizer.ggml.merges"]]},
    }


def make(model, folder, shards=1, scaling=None):
    reader = gguf_io.Reader(model)
    meta = reader.meta
    arch = meta["general.architecture"]
    tensors = hf_tensors(reader, arch)
    os.makedirs(folder, exist_ok=True)

    def write(name, value):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=1, ensure_ascii=False)

    tokens = meta["tokenizer.ggml.tokens"]
    write("config.json", config(meta, arch, tensors, scaling))
    write("generation_config.json", {"eos_token_id": [meta["tokenizer.ggml.eos_token_id"]]})
    write("tokenizer.json", tokenizer(meta))
    write("tokenizer_config.json", {
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": {"content": tokens[meta["tokenizer.ggml.eos_token_id"]]},
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "chat_template": meta["tokenizer.chat_template"],
    })
    if shards == 1:
        write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
        return
    names = list(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {n: tensors[n] for n in names[i::shards]}
        write_safetensors(os.path.join(folder, file), part)
        weight_map |= {n: file for n in part}
    write("model.safetensors.index.json", {"metadata": {"total_size": 0}, "weight_map": weight_map})


def main():
    p = argparse.ArgumentParser(description="a Hugging Face folder of a tiny GGUF model")
    p.add_argument("model")
    p.add_argument("folder")
    p.add_argument("--shards", type=int, default=1)
    a = p.parse_args()
    make(a.model, a.folder, a.shards)


if __name__ == "__main__":
    main()
