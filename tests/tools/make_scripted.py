"""Makes a GGUF model that says what a script says: each token decides the next one.

So a test knows an answer before the server gives it. The embedding is the identity, the layer adds nothing, and the output
matrix has a weight for each step of the script. A token may have several next ones, the likeliest first: a logit_bias of
-100 on that one gives the second, and so on; at any temperature a test uses, the others have no chance.

The vocabulary is byte-level: the 256 bytes, "\n\n" by a merge, then the script's own tokens, which no text is ever encoded
to unless they are `marks` (as <think> is in Qwen 3) or `control` tokens.
"""

import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_io  # noqa: E402
import make_tiny  # noqa: E402

HIDDEN, HEADS, HEAD_DIM, FFN = 512, 2, 32, 64
WEIGHTS = (4, 3, 2)  # of the first, second, third next token: logits of 90, 68 and 45
NORMAL, CONTROL, MARK = 1, 3, 4


def byte_text(text):
    """A token's text as GGUF has it."""
    return "".join(make_tiny.vocabulary(259)[0][b] for b in text.encode())


def make(path, name, script, template, control, marks=(), end=None, context=1024):
    """`script`: {token: next one, or a list of them}, all as plain text. `end`: the control token that ends an answer.

    Returns {token: id}.
    """
    script = {a: [b] if isinstance(b, str) else b for a, b in script.items()}
    special = [*control, *marks]
    words = dict.fromkeys(w for a, b in script.items() for w in [a, *b] if len(w.encode()) > 1 and w not in special)
    words.pop("\n\n", None)
    texts = [*(chr(b) if b < 128 else None for b in range(256)), "\n\n", *words, *marks, *control]
    ids = {text: i for i, text in enumerate(texts) if text is not None}
    plain = make_tiny.vocabulary(259)[0][:256]
    tokens = plain + [t if t in special else byte_text(t) for t in texts[256:]]
    types = [CONTROL if t in control else MARK if t in marks else NORMAL for t in texts]
    vocab = len(tokens)
    assert vocab <= HIDDEN
    meta = [
        ("general.architecture", "str", "llama"), ("general.name", "str", name), ("general.file_type", "u32", 0),
        ("llama.context_length", "u32", context), ("llama.embedding_length", "u32", HIDDEN),
        ("llama.block_count", "u32", 1), ("llama.feed_forward_length", "u32", FFN),
        ("llama.attention.head_count", "u32", HEADS), ("llama.attention.head_count_kv", "u32", HEADS),
        ("llama.attention.key_length", "u32", HEAD_DIM), ("llama.attention.value_length", "u32", HEAD_DIM),
        ("llama.attention.layer_norm_rms_epsilon", "f32", 1e-6), ("llama.rope.freq_base", "f32", 10000.0),
        ("llama.rope.dimension_count", "u32", HEAD_DIM), ("llama.vocab_size", "u32", vocab),
        ("tokenizer.ggml.model", "str", "gpt2"), ("tokenizer.ggml.pre", "str", "qwen2"),
        ("tokenizer.ggml.tokens", "[str]", tokens), ("tokenizer.ggml.token_type", "[i32]", types),
        ("tokenizer.ggml.merges", "[str]", [f"{plain[10]} {plain[10]}"]),
        ("tokenizer.ggml.bos_token_id", "u32", ids[control[0]]),
        ("tokenizer.ggml.eos_token_id", "u32", ids[end or control[-1]]),
        ("tokenizer.ggml.add_bos_token", "bool", False), ("tokenizer.chat_template", "str", template),
    ]
    output = np.zeros((vocab, HIDDEN), "<f4")
    for a, following in script.items():
        assert len(following) <= len(WEIGHTS)
        for b, weight in zip(following, WEIGHTS, strict=False):
            output[ids[b], ids[a]] = weight
    q = HEADS * HEAD_DIM
    zeros = {"attn_q": (q, HIDDEN), "attn_k": (q, HIDDEN), "attn_v": (q, HIDDEN), "attn_output": (HIDDEN, q),
             "ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN)}
    arrays = {"token_embd": np.eye(vocab, HIDDEN, dtype="<f4"), "output": output,
              "output_norm": np.ones(HIDDEN, "<f4"), "blk.0.attn_norm": np.ones(HIDDEN, "<f4"),
              "blk.0.ffn_norm": np.ones(HIDDEN, "<f4")}
    arrays |= {f"blk.0.{part}": np.zeros(shape, "<f4") for part, shape in zeros.items()}
    tensors = [(f"{n}.weight", "F32", [*reversed(a.shape)], lambda a=a: a.view(np.uint8).ravel()) for n, a in arrays.items()]
    gguf_io.write(path, meta, tensors)
    return ids
