"""What the server says of its answers can be recomputed by others: digests from the audit's lines by hashlib, the plan's hash, an
embedding by the numpy reference, token ids through the tokenizer's own endpoints."""

import base64
import hashlib
import json
import struct

import numpy as np
import pytest

import cli
import make_tiny
import reference
import serving


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digest")
    model, plan = folder / "tiny.gguf", folder / "tiny.plan"
    make_tiny.make(model, type="F32")
    cli.ok("compile", model, "-o", plan, "--slots", 2, "-c", 256)
    return model, plan


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    with serving.serve(tiny[1], "--audit", audit, "--alias", "tiny") as s:
        s.audit = audit
        yield s


def lines(server, request_id):
    found = [json.loads(line) for line in server.audit.read_text().splitlines()]
    return [line for line in found if line["request_id"] == request_id]


def canonical(value):
    """Compact JSON with sorted keys, numbers with a fraction by %.17g, as docs/internals/audit.md says."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{canonical(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, float):
        text = format(value, ".17g")
        return text if set(text) & set(".e") else text + ".0"
    return json.dumps(value, ensure_ascii=False)


def digest(plan, params, prompt, output_words):
    text = f"isochron-answer-1\n{plan}\n{canonical(params)}\n".encode()
    words = struct.pack(f"<I{len(prompt)}I", len(prompt), *prompt) + output_words
    return hashlib.blake2b(text + words, digest_size=32).hexdigest()


BODIES = [
    ("/v1/completions", {"prompt": "a b c", "max_tokens": 12, "temperature": 0.7, "top_p": 0.9, "n": 2, "seed": -3}),
    ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 9, "temperature": 0, "stop": ["é\"", "\n"],
                         "logit_bias": {"5": -1.5, "9": 3}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20,
                              "presence_penalty": 0.3, "frequency_penalty": -0.1, "repetition_penalty": 1.1,
                              "min_p": 0.01, "top_k": 40, "thinking_budget": 5}),
]


@pytest.mark.parametrize("path, body", BODIES)
def test_digests_can_be_recomputed(server, tiny, path, body):
    answer = server.ok(path, body, headers={"X-Request-Id": "me-" + str(BODIES.index((path, body)))})
    plan = cli.ok("inspect", tiny[1], "--json").json["hash"]
    assert answer["system_fingerprint"] == plan
    audit = lines(server, "me-" + str(BODIES.index((path, body))))
    assert len(audit) == len(answer["choices"]) == body.get("n", 1)
    for line in audit:
        choice = answer["choices"][line["params"]["choice"]]
        words = struct.pack(f"<I{len(line['output'])}I", len(line["output"]), *line["output"])
        assert line["digest"] == choice["isochron"]["digest"] == digest(plan, line["params"], line["prompt"], words)
        assert int(line["params"]["seed"]) == choice["isochron"]["seed"] % 2**64
        if "seed" in body:
            assert choice["isochron"]["seed"] == body["seed"]
        assert line["finish_reason"] == choice["finish_reason"] and line["plan"] == plan
        assert line["endpoint"] == path and line["model"] == answer["model"] == "tiny"
        if "messages" not in body:
            text = server.ok("/detokenize", {"tokens": line["output"]})["content"]
            assert text.startswith(choice["text"])  # a stop string's tokens belong to the output, not to the text
    assert answer["usage"]["completion_tokens"] == sum(len(line["output"]) for line in audit)


def test_every_part_changes_the_digest(server):
    def ask(**change):
        body = dict({"prompt": "a b c", "max_tokens": 8, "temperature": 0, "seed": 1}, **change)
        return server.ok("/v1/completions", body)["choices"][0]["isochron"]["digest"]
    first = ask()
    assert ask() == first
    # Greedy, so the tokens stay: what differs is asked otherwise all the same.
    changes = [{"seed": 2}, {"top_k": 7}, {"top_p": 0.5}, {"stop": ["never in it"]}, {"prompt": "a b d"},
               {"max_tokens": 7}, {"ignore_eos": True}, {"logit_bias": {"3": 0.5}}]
    assert len({first, *(ask(**change) for change in changes)}) == 1 + len(changes)


def test_an_embedding_is_the_reference_s_row(server, tiny):
    model = reference.Model(str(tiny[0]), emulate="f16")  # as the KV cache keeps it
    tokens = server.ok("/tokenize", {"content": "a b c d"})["tokens"]
    want = model.forward(tokens)[-1]
    answer = server.ok("/v1/embeddings", {"input": ["x", "a b c d"]}, headers={"X-Request-Id": "row"})
    got = np.array(answer["data"][1]["embedding"])
    assert abs(np.linalg.norm(got) - 1) < 1e-6
    assert np.max(np.abs(got - want / np.linalg.norm(want))) < 1e-5
    packed = server.ok("/v1/embeddings", {"input": "a b c d", "encoding_format": "base64"})["data"][0]["embedding"]
    raw = base64.b64decode(packed)
    assert np.array_equal(np.frombuffer(raw, "<f4"), got.astype(np.float32))
    audit = lines(server, "row")
    assert [line["prompt"] for line in audit][1] == tokens
    words = struct.pack("<I", len(got)) + raw
    assert answer["isochron"]["digests"][1] == audit[1]["digest"] == digest(answer["system_fingerprint"], {}, tokens, words)

