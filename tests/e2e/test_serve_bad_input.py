"""isochron serve and what it is sent: each wrong request is told its fault in OpenAI's shape and harms no other."""

import http.client
import json
import random
import re
from types import SimpleNamespace

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models as tokenizer_models, pre_tokenizers

import cli
import gguf_io
import make_tiny
import serving

SEED = 20250611
QUEUE = 12
SLOTS = 4
CONTEXT = 256
CHAT, COMPLETIONS, BATCH = "/v1/chat/completions", "/v1/completions", "/v1/batch_completions"
EMBEDDINGS, TOKENIZE, DETOKENIZE = "/v1/embeddings", "/tokenize", "/detokenize"
HELLO = [{"role": "user", "content": "hello"}]
BODIES = {  # that are right; what a test adds is what is wrong
    CHAT: {"messages": HELLO, "max_tokens": 1},
    COMPLETIONS: {"prompt": "hello", "max_tokens": 1},
    BATCH: {"prompts": ["hello"], "max_tokens": 1},
    EMBEDDINGS: {"input": "hello"},
    TOKENIZE: {"prompt": "hello"},
    DETOKENIZE: {"tokens": [1, 2]},
}
GENERATES = (CHAT, COMPLETIONS, BATCH)
STRICT = ("{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
          "{{ raise_exception('The system message must come first, not as ' + loop.index|string) }}{% endif %}"
          "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n")
TYPES = {400: "invalid_request_error", 404: "not_found_error", 405: "invalid_request_error",
         413: "invalid_request_error", 503: "server_error"}


@pytest.fixture(scope="module")
def server(served_plan):
    with serving.serve(served_plan, "--alias", "tiny", "--queue", QUEUE, "--threads", 1) as s:
        yield s
        assert re.search(r"restarts\D*0\D", json.dumps(s.units())), "a unit died"


@pytest.fixture(scope="module")
def others(demo_plan, tmp_path_factory):
    """A template that refuses system messages in mid-chat, and SmolLM2, whose answers are text."""
    path = tmp_path_factory.mktemp("strict") / "strict.gguf"
    c = dict(make_tiny.SHAPES["tiny"], type="Q8_0", tied=True, bias=False, head_dim=16)
    meta = [m if m[0] != "tokenizer.chat_template" else (m[0], m[1], STRICT) for m in make_tiny.metadata("strict", c)]
    gguf_io.write(path, meta, make_tiny.tensor_list(c, 1))
    plan = path.with_suffix(".plan")
    cli.ok("compile", path, "-o", plan, "-c", 128)
    with serving.serve(f"strict={plan}", f"demo={demo_plan}", "--any-model") as s:
        yield s


def error_of(status, answer, expected=400, param=..., code=...):
    """The error's message, of an answer that is one as OpenAI's API has it."""
    assert status == expected, (status, answer)
    assert set(answer) == {"error"} and set(answer["error"]) == {"message", "type", "param", "code"}, answer
    e = answer["error"]
    assert isinstance(e["message"], str) and e["message"] and e["type"] == TYPES[expected], e
    assert param is ... or e["param"] == param, e
    assert code is ... or e["code"] == code, e
    return e["message"]


def refused(server, path, body, **expected):
    return error_of(*server.post(path, body), **expected)


def alive(server):
    """It answers a right request as always."""
    answer = server.ok(CHAT, {"messages": HELLO, "temperature": 0, "max_tokens": 4, "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 4
    return answer["choices"][0]["message"]["content"]


# ---- Bodies ----

BROKEN = {
    "not JSON": b"messages=hello",
    "half of it": b'{"messages": [{"role": "us',
    "more behind it": b'{"messages": []} {}',
    "a list": b"[]",
    "a string": b'"hello"',
    "a number": b"1",
    "deep lists": b'{"messages": ' + b"[" * 10000 + b"]" * 10000 + b"}",
    "deep objects": b'{"a":' * 10000 + b"1" + b"}" * 10000,
    "deep and open": b"[" * 100000,
    "many values": b'{"messages": [{"role": "user", "content": "x"}], "x": [' + b"0," * 300000 + b"0]}",
    "a key twice": b'{"prompt": "a", "prompt": "b", "messages": [{"role": "user", "content": "x"}]}',
    "Latin-1": '{"messages": [{"role": "user", "content": "é"}]}'.encode("latin-1"),
    "a surrogate in UTF-8": b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
    "overlong UTF-8": b'{"messages": [{"role": "user", "content": "\xc0\xaf"}]}',
    "UTF-16": '{"messages": [{"role": "user", "content": "x"}]}'.encode("utf-16"),
    "a lone high surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "a lone low surrogate": b'{"messages": [{"role": "user", "content": "\\udc00x"}]}',
    "two high surrogates": b'{"messages": [{"role": "user", "content": "\\ud83d\\ud83d"}]}',
    "a zero byte": b'{"messages": [{"role": "user", "content": "a\0b"}]}',
    "a zero in a key": b'{"messages": [{"role": "user", "content": "x"}], "a\\u0000b": 1}',
    "NaN": b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    "Infinity": b'{"messages": [{"role": "user", "content": "x"}], "temperature": -Infinity}',
    "1e400": b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e400}',
}


@pytest.mark.parametrize("name", BROKEN)
def test_bodies_that_are_no_json_object(server, name):
    for path in BODIES:
        refused(server, path, BROKEN[name], code="invalid_json", param=None)
    assert alive(server)


def test_bodies_without_what_is_needed(server):
    for body in (b"", b"{}", b" {}\n"):
        for path, param in ((CHAT, "messages"), (COMPLETIONS, "prompt"), (BATCH, "prompts"), (EMBEDDINGS, "input"),
                            (TOKENIZE, "prompt"), (DETOKENIZE, "tokens")):
            assert "required" in refused(server, path, body, param=param)


def test_surrogate_pairs_and_zeros_are_text(server):
    for text in ('"a\\u0000b"', '"\\ud83d\\ude00"', '"\U0001f600"', '"\\u0000"', '"\ufeff\u200d"'):
        ids = server.ok(TOKENIZE, f'{{"prompt": {text}}}'.encode())["tokens"]
        assert server.ok(DETOKENIZE, {"tokens": ids})["prompt"] == json.loads(text)
        server.ok(CHAT, f'{{"messages": [{{"role": "user", "content": {text}}}], "max_tokens": 1}}'.encode())


# ---- Messages ----

def part(**fields):
    return [{"role": "user", "content": [fields]}]


@pytest.mark.parametrize("messages, param, says", [
    ("hello", "messages", "list of 1 to 4096"),
    ({}, "messages", "list"),
    ([], "messages", "1 to 4096"),
    (HELLO * 5000, "messages", "4096"),
    (["hello"], "messages[0].role", "user"),
    ([None], "messages[0].role", "user"),
    ([*HELLO, {"role": "wizard", "content": "x"}], "messages[1].role", "assistant or tool"),
    ([{"role": "user\0", "content": "x"}], "messages[0].role", "user"),
    ([{"content": "x"}], "messages[0].role", "user"),
    ([{"role": 1, "content": "x"}], "messages[0].role", "user"),
    ([{"role": "user"}], "messages[0].content", "string or a list"),
    ([{"role": "user", "content": None}], "messages[0].content", "string or a list"),
    ([{"role": "assistant", "content": None}], "messages[0].content", "string or a list"),
    ([{"role": "user", "content": 5}], "messages[0].content", "string or a list"),
    (part(type="image_url", image_url={"url": "data:image/png;base64,AA=="}), "messages[0].content", "image_url"),
    (part(type="input_audio", input_audio={}), "messages[0].content", "input_audio"),
    (part(type="text"), "messages[0].content", "text must be a string"),
    (part(type="text", text=7), "messages[0].content", "text must be a string"),
    (part(text="x"), "messages[0].content", "type"),
    ([{"role": "user", "content": ["x"]}], "messages[0].content", "type"),
    ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id", "string"),
    ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls", "list"),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}], "messages[0].tool_calls", "arguments"),
])
def test_messages_that_are_none(server, messages, param, says):
    for path in (CHAT, TOKENIZE):
        assert says in refused(server, path, {"messages": messages, "max_tokens": 1}, param=param)


def test_many_messages_are_too_long_not_too_many(server):
    refused(server, CHAT, {"messages": HELLO * 4096}, param="messages", code="context_length_exceeded")


def test_system_message_in_mid_chat(server, others):
    """Where the template refuses it, its own text is told; where it takes it, so does the server."""
    messages = [*HELLO, {"role": "system", "content": "Be brief."}]
    says = refused(others, CHAT, {"model": "strict", "messages": messages, "max_tokens": 2}, param="messages")
    assert "The system message must come first, not as 2" in says
    others.ok(CHAT, {"model": "strict", "messages": messages[::-1], "max_tokens": 2})
    server.ok(CHAT, {"messages": messages, "max_tokens": 2})


# ---- Parameters ----

WRONG_NUMBERS = [-1e9, 10**30, -10**30, 1e308, "1", "", True, [], [1], {}, {"value": 1}]
WRONG = {  # of the wrong type and out of range; all of them are refused
    "model": [1, [], {}, True],
    "messages": ["x", 1, {}, True],
    "prompt": [1, 0.5, {}, True, ["x", 1], [-1], [331], [0.5], [[1], [331]], [[[1]]], [None], [{}]],
    "prompts": [1, {}, True, ["x", 1], [-1], [331], [[1], [331]], [[[1]]], [None]],
    "content": [1, {}, True, ["x"], [1]],
    "input": [1, 0.5, {}, True, ["x", 1], [-1], [331], [10**30], [[331]], [[[1]]], [None], [], [[]], "", ["x", ""]],
    "tokens": [1, "x", {}, True, ["1"], [-1], [331], [0.5], [2**32], [10**30], [None], [[1]], [True]],
    "max_tokens": [*WRONG_NUMBERS, 0, -1, 0.5, 1.5, 2**31, 2**32 + 1, 2**63],
    "max_completion_tokens": [*WRONG_NUMBERS, 0, -1, 1.5, 2],  # 2 is not what max_tokens says
    "temperature": [*WRONG_NUMBERS, -0.1, 1e-30, 100.5],
    "top_p": [*WRONG_NUMBERS, -0.1, 1.01],
    "top_k": [*WRONG_NUMBERS, 0.01, -2, 2**31, 1.5],
    "min_p": [*WRONG_NUMBERS, -0.1, 1.01],
    "presence_penalty": [*WRONG_NUMBERS, -2.01, 2.01],
    "frequency_penalty": [*WRONG_NUMBERS, -2.01, 2.01],
    "repetition_penalty": [*WRONG_NUMBERS, 0, -1, 101],
    "seed": [v for v in WRONG_NUMBERS if v != -1e9] + [0.5, 1e300, 2**64],
    "n": [*WRONG_NUMBERS, 0, -1, 1.5, 65, SLOTS + QUEUE + 1],
    "stop": [1, True, {}, "", [""], ["a", ""], [1], [["a"]], [None], "x" * 257, ["a"] * 17],
    "logit_bias": [1, "x", [], True, {"a": 1}, {"": 1}, {"-1": 1}, {"1": 101}, {"1": -100.1}, {"1": "1"}, {"1": None},
                   {"331": 1}, {"1.5": 1}, {"9" * 30: 1}, {str(i): 1 for i in range(513)}],
    "logprobs": ["x", [], {}, -1, 21, 0.5, 10**30, "true"],
    "top_logprobs": ["x", [], {}, -1, 21, 0.5, 10**30, True, 5],  # 5 needs logprobs
    "ignore_eos": [1, 0, "true", [], {}],
    "stream": [1, 0, "true", [], {}],
    "stream_options": [1, "x", [], True, {}, {"include_usage": True}, {"include_usage": 1}],  # none without stream
    "echo": [1, "true", [], {}],
    "suffix": ["x", 1, [], {}, True],
    "best_of": [0, 2, "1", [], {}, True, -1, 1.5],
    "response_format": ["text", 1, [], {}, True, {"type": 1}, {"type": "json_object"}, {"type": "json_schema"}],
    "tools": [1, "x", {}, True, [1], [{}], [{"type": "function"}], [{"type": "function", "function": {"name": "a b"}}],
              [{"type": "function", "function": {"name": "f" * 65}}],
              [{"type": "function", "function": {"name": "f", "parameters": 1}}],
              [{"type": "function", "function": {"name": "f"}}] * 2],
    "tool_choice": [1, "x", [], {}, True, "required", {"type": "function", "function": {"name": "f"}}],  # no tools
    "chat_template_kwargs": [1, "x", [], True],
    "thinking_budget": [*WRONG_NUMBERS, -1, 0.5],
    "encoding_format": [1, "x", [], {}, True],
    "dimensions": [1, 64, "x", -1],
    "user": [1, [], {}, True],
    "add_special_tokens": [1, "true", [], {}],
    "add_special": [1, "true", [], {}],
    "with_pieces": [1, "true", [], {}],
}
MACROS = {"PARAMS_CHAT": CHAT, "PARAMS_COMPLETIONS": COMPLETIONS, "PARAMS_BATCH": BATCH,
          "PARAMS_EMBEDDINGS": EMBEDDINGS, "PARAMS_TOKENIZE": TOKENIZE, "PARAMS_DETOKENIZE": DETOKENIZE}
SETS = {"~0u": tuple(BODIES), "GENERATES": GENERATES, "TEXTS": (COMPLETIONS, BATCH)}


def fields():
    """{name: the endpoints that know it}, as the source's own table says."""
    source = (cli.ROOT / "src/serve/params.c").read_text()
    rows = re.findall(r'^    \{"(\w+)", ([\w| ~]+), (?:SPECIAL|REAL|WHOLE|FLAG),', source, re.M)
    out = {}
    for name, sets in rows:
        for word in sets.split(" | "):
            out.setdefault(name, []).extend(SETS.get(word) or [MACROS[word]])
    return out


def is_one_of_two_texts(path, name):
    """Where both are the text, the one under test stands alone."""
    return path == TOKENIZE and name in ("messages", "content") or path == BATCH and name == "prompt"


def body_with(path, name, value):
    body = dict(BODIES[path])
    if is_one_of_two_texts(path, name):
        body.pop("prompt", None), body.pop("prompts", None)
    body[name] = value
    return body


def test_the_table_is_whole():
    assert set(fields()) == set(WRONG)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters(server, name):
    """Each is refused with its name, at each endpoint that knows it."""
    for path in fields()[name]:
        for value in WRONG[name]:
            if path != CHAT and name == "logprobs" and isinstance(value, bool):
                continue
            answer = server.post(path, body_with(path, name, value))
            says = error_of(*answer)
            param = answer[1]["error"]["param"] or ""
            # Texts have one place, whatever they are called; with indices where there are several.
            expected = {name} | ({"prompt", "prompts"} if name in ("content", "prompt") else set())
            expected |= {"max_tokens", "max_completion_tokens"} if name.startswith("max_") else set()
            assert re.sub(r"[\[.].*", "", param) in expected, (path, value, answer)
            assert param in says or "n" == param, (path, value, answer)
    assert alive(server)


@pytest.mark.parametrize("name", WRONG)
def test_null_is_not_given(server, name):
    for path in fields()[name]:
        body = body_with(path, name, None)
        if name in BODIES[path] and name != "max_tokens" or is_one_of_two_texts(path, name):
            assert "required" in refused(server, path, body)
        else:
            assert server.ok(path, body)


def test_numbers_as_other_languages_write_them(server):
    """Whole numbers with a point, floats without, and the ends of each range."""
    right = {"max_tokens": [1.0, 1e0], "temperature": [0, 0.0, 2, 100, 0.01],
             "top_p": [0, 0.5, 1, 1.0], "min_p": [0, 1],
             "top_k": [-1, 0, 1, 40.0, 331, 100000], "presence_penalty": [-2, 2], "frequency_penalty": [-2, 2.0],
             "repetition_penalty": [0.5, 1, 1.1], "seed": [0, -1, 2**63 - 1, -2**63], "n": [1.0, 2],
             "logprobs": [False, True], "stop": ["x", [], ["a"] * 16, "x" * 256, "\0", "é" * 128],
             "logit_bias": [{}, {"0": -100, "330": 100.0}], "response_format": [{"type": "text"}], "tools": [[]],
             "tool_choice": ["none", "auto"], "thinking_budget": [0, 10.0], "user": ["x", ""]}
    for name, values in right.items():
        for value in values:
            assert server.ok(CHAT, body_with(CHAT, name, value)), (name, value)


def test_non_finite_numbers_of_every_parameter(server):
    for name in ("max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
                 "repetition_penalty", "seed", "n", "top_logprobs", "thinking_budget"):
        for literal in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" + "0" * 400):
            body = json.dumps(body_with(CHAT, name, "@")).replace('"@"', literal)
            error_of(*server.post(CHAT, body.encode()))
    assert alive(server)


def test_a_number_too_large_for_64_bits_harms_no_other(server):
    """It is refused or ignored itself; whole numbers beside it stay whole."""
    body = {"messages": HELLO, "max_tokens": 2, "seed": 7, "top_k": -1, "metadata": 10**30}
    assert server.ok(CHAT, body)["choices"][0]["isochron"]["seed"] == 7
    server.ok(COMPLETIONS, {"prompt": [1, 2], "max_tokens": 1, "metadata": 10**30})


def test_unknown_parameters_are_listed(server):
    def ignored(more):
        status, headers, data = server.request("POST", CHAT, dict(BODIES[CHAT], **more))
        assert status == 200, data
        return headers["X-Isochron-Ignored"]

    assert ignored({}) is None
    assert ignored({"store": True, "metadata": {}}) == "store, metadata"
    assert ignored({"a b": 1, "é": 1, "x,y": 1, "\r\nSet-Cookie: a=b": 1, "": 1}) is not None
    assert re.fullmatch(r"a\?b, \?+, x\?y, \?\?Set-Cookie:\?a=b", ignored({"a b": 1, "é": 1, "x,y": 1,
                                                                          "\r\nSet-Cookie: a=b": 1}))
    assert len(ignored({"k" * 10000: 1})) <= 64
    many = ignored({f"unknown_{i}": i for i in range(5000)})
    assert many.startswith("unknown_0, unknown_1, ") and many.endswith(", ...") and len(many) < 512
    status, headers, _ = server.request("POST", CHAT, {"store": 1, "messages": "x"})
    assert (status, headers["X-Isochron-Ignored"]) == (400, "store")


# ---- Lengths ----

def test_prompts_that_do_not_fit(server):
    text = "q" * (CONTEXT + 44)  # a token each
    for path, field in ((CHAT, "messages"), (COMPLETIONS, "prompt"), (BATCH, "prompts"), (EMBEDDINGS, "input")):
        body = dict(BODIES[path])
        body[field] = {"messages": [{"role": "user", "content": text}], "prompts": [text]}.get(field, text)
        says = refused(server, path, body, param=field, code="context_length_exceeded")
        assert str(CONTEXT) in says and re.search(r"\b3\d\d tokens", says), says
    says = refused(server, COMPLETIONS, {"prompt": "q" * 200, "max_tokens": 57}, param="prompt",
                   code="context_length_exceeded")
    assert "200" in says and "57" in says and "256" in says
    server.ok(COMPLETIONS, {"prompt": "q" * 200, "max_tokens": 56})
    server.ok(COMPLETIONS, {"prompt": "q" * 255})
    server.ok(EMBEDDINGS, {"input": "q" * 255})
    for long in ("q" * 3_000_000, [1] * 200_000):
        refused(server, COMPLETIONS, {"prompt": long}, param="prompt", code="context_length_exceeded")
    alive(server)


def test_more_answers_than_slots_and_queue(server):
    for n in (SLOTS + QUEUE + 1, 64):
        says = refused(server, CHAT, dict(BODIES[CHAT], n=n), param="n")
        assert str(n) in says and str(SLOTS + QUEUE) in says
        says = refused(server, BATCH, dict(BODIES[BATCH], prompts=["x"] * n))
        assert str(n) in says and str(SLOTS + QUEUE) in says
    assert len(server.ok(CHAT, dict(BODIES[CHAT], n=SLOTS + QUEUE))["choices"]) == SLOTS + QUEUE
    refused(server, COMPLETIONS, dict(BODIES[COMPLETIONS], prompt=["x"] * 65), param="prompt")
    refused(server, COMPLETIONS, dict(BODIES[COMPLETIONS], prompt=["x"] * 2, n=33), param="n")


def test_blank_and_empty_texts(server):
    for path, field in ((COMPLETIONS, "prompt"), (BATCH, "prompts"), (EMBEDDINGS, "input")):
        for empty in ("", [], [""], ["x", ""], [[]], [[1], []]):
            assert "empty" in refused(server, path, dict(BODIES[path], **{field: empty})), (path, empty)
        for blank in (" ", "\n\t ", ["\u3000"], "\0", [" ", "  "]):
            server.ok(path, dict(BODIES[path], **{field: blank}))


# ---- Models, paths, methods, request ids ----

def test_models_that_are_not_there(server, others):
    for path, body in BODIES.items():
        for name in ("gpt-4o", "", "tin", "tiny\0", "TINY", "x" * 5000, "é" * 500, "x" + "é" * 500):
            refused(server, path, dict(body, model=name), expected=404, param="model", code="model_not_found")
        server.ok(path, dict(body, model="tiny"))
    for name in ("gpt-4o", "", None):
        assert others.ok(CHAT, dict(BODIES[CHAT], model=name))["model"] == "strict"
    assert others.ok(CHAT, dict(BODIES[CHAT], model="demo"))["model"] == "demo"
    assert server.get("/v1/models/tiny")[0] == 200
    error_of(404, json.loads(server.get("/v1/models/other")[2]), 404, code="model_not_found")
    assert others.get("/v1/models/other")[0] == 404


def test_paths_and_methods(server):
    def status(method, path, body=None):
        answer = server.request(method, path, body)
        return answer[0], answer[1]["Allow"]

    for path in ("/", "/v1", "/v1/chat/completions/", "//v1/models", "/v1/chat", "/V1/models", "/%00", "/%ff%fe",
                 "/..%2f..%2fetc/passwd", "/v1/models%0d%0aX:%20y", "/" + "a" * 8000, "/%c3%a9" * 80,
                 "/x" + "%c3%a9" * 200):
        for method in ("GET", "POST", "DELETE"):
            got, headers, data = server.request(method, path)
            error_of(got, json.loads(data), 404, code="not_found")
            assert headers["X"] is None
    for path in BODIES:
        for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert status(method, path) == (405, "POST"), (method, path)
    for path in ("/v1/models", "/v1/models/tiny", "/v1/units", "/metrics", "/health", "/readyz", "/healthz"):
        for method in ("POST", "PUT", "DELETE"):
            assert status(method, path, "{}") == (405, "GET, HEAD"), (method, path)
        got, headers, data = server.request("HEAD", path)
        assert (got, data) == (200, b"") and int(headers["Content-Length"]) > 0
    error_of(405, json.loads(server.request("PUT", CHAT)[2]), 405)
    assert server.get("/v1/models?x=1")[0] == 200


def test_request_ids(server):
    def id_of(path, body, given):
        headers = {"X-Request-Id": given} if given is not None else {}
        return server.request("POST", path, body, headers)[1]["X-Request-Id"]

    made = set()
    for path, body in ((CHAT, BODIES[CHAT]), (CHAT, b"not JSON"), (CHAT, {"messages": "x"}), ("/none", {}),
                       ("/metrics", {}), (TOKENIZE, {"model": "none"})):
        for given in ("a", "0b6f1c9e-7a", "~!@#$%^&*()", "x" * 128):
            assert id_of(path, body, given) == given
        for given in ("x" * 129, "a b", "", "é", "\x7f", None):
            own = id_of(path, body, given)
            assert re.fullmatch(r"req-[0-9a-f]{24}", own), own
            made.add(own)
    assert len(made) == 36
    assert id_of(CHAT, dict(BODIES[CHAT], stream=True), "stream-1") == "stream-1"


def test_heads_that_are_too_long(server):
    """A plain error, or the connection is closed; never an answer."""
    for headers in ({"X-Long": "x" * 100_000}, {f"X-{i}": "x" * 100 for i in range(99)} | {"X-More": "y" * 60_000}):
        try:
            assert server.request("POST", CHAT, BODIES[CHAT], headers)[0] in (400, 413, 431)
        except (OSError, http.client.HTTPException):
            pass
    alive(server)


# ---- Text ----

@pytest.fixture(scope="module")
def reference():
    """The tiny model's tokenizer by Hugging Face."""
    tokens, merges = make_tiny.vocabulary(make_tiny.TINY["vocab"])
    t = Tokenizer(tokenizer_models.BPE(vocab={token: i for i, token in enumerate(tokens)},
                                       merges=[tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in make_tiny.CONTROL])
    return t


def odd_texts():
    rng = random.Random(SEED)
    print("seed", SEED)
    texts = (cli.ROOT / "tests/data/odd_text.txt").read_text().split("\n") + [
        "", " ", "\n\n\n", "\t \t", "a\u0301é", "👩‍👩‍👧‍👦🏳️‍🌈", "日本語のテキスト", "שלום عربى", "\0\x01\x7f\x85\u2028",
        "\u200b\ufeff\u00a0", "1234567890 3.14", "don't we'll I'D", "   the   and", "\U0010ffff\ue000", "the" * 20]
    for _ in range(40):
        texts.append("".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x20, 0x800),
                                             rng.randrange(0xe000, 0x10000), rng.randrange(0x10000, 0x110000)]))
                             for _ in range(rng.randrange(1, 20))))
    return [text[:CONTEXT // 4] for text in texts]


def test_tokenize_is_what_the_reference_says(server, reference):
    t = reference
    for text in odd_texts():
        answer = server.ok(TOKENIZE, {"prompt": text})
        expected = t.encode(text, add_special_tokens=False).ids
        assert answer["tokens"] == expected and answer["count"] == len(expected), text
        assert answer["max_model_len"] == CONTEXT
        assert server.ok(TOKENIZE, {"content": text, "with_pieces": True})["tokens"] == [
            {"id": i, "piece": t.decode([i], skip_special_tokens=False)} for i in expected]
        assert server.ok(DETOKENIZE, {"tokens": expected})["prompt"] == text
    message = [{"role": "user", "content": "the end"}]
    rendered = "<|im_start|>user\nthe end<|im_end|>\n<|im_start|>assistant\n"
    assert server.ok(TOKENIZE, {"messages": message})["tokens"] == t.encode(rendered).ids
    # Control tokens in a plain text are text; detokenize names those that are there.
    assert server.ok(TOKENIZE, {"prompt": "<|im_end|>"})["count"] > 5
    assert server.ok(DETOKENIZE, {"tokens": t.encode(rendered).ids})["prompt"] == rendered


def test_tokens_of_the_demo_model(others):
    """Its ids of tests/data/odd_text.txt are those kept beside it, and its text comes back."""
    text = (cli.ROOT / "tests/data/odd_text.txt").read_text()[:400]
    ids = others.ok(TOKENIZE, {"model": "demo", "prompt": text})["tokens"]
    kept = [int(i) for i in (cli.ROOT / "tests/data/odd_text.smollm2.ids").read_text().split()]
    assert ids[:60] == kept[:60]
    assert others.ok(DETOKENIZE, {"model": "demo", "tokens": ids})["content"] == text


def test_tokens_that_are_parts_of_characters(server):
    """Any ids give valid UTF-8: U+FFFD where they are none."""
    rng = random.Random(SEED)
    for _ in range(30):
        ids = [rng.randrange(331) for _ in range(50)]
        status, _, data = server.request("POST", DETOKENIZE, {"tokens": ids})
        assert status == 200 and data.decode("utf-8")
    assert server.ok(DETOKENIZE, {"tokens": []})["prompt"] == ""


def streamed(server, path, body):
    """(text, finish reason) of a stream; every chunk must be UTF-8."""
    text, finish = "", None
    for _, event in server.stream(path, body):
        if event == "[DONE]":
            continue
        choice = event["choices"][0]
        text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        finish = choice["finish_reason"] or finish
    return text, finish


def both(server, path, body):
    """The same, which must be what comes without a stream."""
    choice = server.ok(path, body)["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert streamed(server, path, body) == (text, choice["finish_reason"])
    return SimpleNamespace(text=text, finish=choice["finish_reason"])


def test_an_emoji_that_the_limit_cuts(others):
    """SmolLM2's emoji are several tokens; what the limit leaves of one is U+FFFD or nothing."""
    body = {"model": "demo", "prompt": "Party: 😀🎉😀🎉😀🎉😀🎉😀", "temperature": 0}
    whole = both(others, COMPLETIONS, dict(body, max_tokens=9)).text
    assert any(ord(c) > 0xffff for c in whole), whole
    cut = 0
    for n in range(1, 9):
        text = both(others, COMPLETIONS, dict(body, max_tokens=n)).text
        assert whole.startswith(text.rstrip("\ufffd")), (n, text)
        cut += text.endswith("\ufffd") or text == ""
    assert cut > 2


def test_tokens_that_are_no_characters(server):
    """The tiny model's answers are mostly bytes that are none."""
    for seed in range(6):
        for path in (CHAT, COMPLETIONS):
            both(server, path, dict(BODIES[path], max_tokens=40, seed=seed, ignore_eos=True))
    lead = server.ok(TOKENIZE, {"prompt": "\U0001f600"})["tokens"][0]
    body = dict(BODIES[COMPLETIONS], temperature=0, logit_bias={str(lead): 100}, max_tokens=1)
    assert both(server, COMPLETIONS, body).text == "\ufffd"
    assert both(server, COMPLETIONS, dict(body, max_tokens=5)).text == "\ufffd" * 5


def test_a_stop_string_over_three_tokens(others):
    body = {"model": "demo", "prompt": "The quick brown fox jumps over the lazy dog. ", "temperature": 0,
            "max_tokens": 24}
    choice = others.ok(COMPLETIONS, dict(body, logprobs=0))["choices"][0]
    pieces, whole = choice["logprobs"]["tokens"], choice["text"]
    assert "".join(pieces) == whole
    tried = 0
    for i in range(1, len(pieces) - 2):
        if min(map(len, pieces[i:i + 3])) < 2:
            continue
        stop = pieces[i][1:] + pieces[i + 1] + pieces[i + 2][:1]
        got = both(others, COMPLETIONS, dict(body, stop=stop))
        assert got.text == whole[:whole.index(stop)] and got.finish == "stop", (stop, got)
        tried += 1
        if tried == 5:
            break
    assert tried > 2
    assert both(others, COMPLETIONS, dict(body, stop=[whole[4:9] + "\u2603", "never"])).text == whole


# ---- Limits of what a body makes the server hold ----

def test_developer_is_the_system_of_older_templates(server):
    def tokens(role):
        return server.ok("/tokenize", {"messages": [{"role": role, "content": "be brief"}, *HELLO]})["tokens"]

    assert tokens("developer") == tokens("system") != tokens("user")


@pytest.mark.parametrize("arguments", ['{"a":' + "[" * 100 + "]" * 100 + "}", "[" + "{}," * 70000 + "{}]", "x" * (1 << 20)])
def test_arguments_of_earlier_calls_have_limits(server, arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call, call]}, *HELLO]
    assert "arguments" in refused(server, CHAT, {"messages": messages}, param="messages[0].tool_calls")


def test_probabilities_of_one_answer_have_a_limit(server, others):
    assert server.ok(COMPLETIONS, dict(BODIES[COMPLETIONS], prompt=["x"] * 2, n=2, max_tokens=200, logprobs=20))
    many = {"model": "demo", "prompt": "x", "max_tokens": 480, "n": 16, "logprobs": 20}
    says = refused(others, COMPLETIONS, many, param="logprobs", code="too_many_logprobs")
    assert "7680 tokens with 21" in says and "131072" in says, says


def test_a_text_over_any_that_fits_is_told_with_both_numbers(server):
    says = refused(server, COMPLETIONS, dict(BODIES[COMPLETIONS], prompt="x" * 70000), code="context_length_exceeded")
    assert "70000 bytes" in says and "65536" in says and "256 tokens" in says, says


def test_zero_beside_another_maximum(server):
    for first, second in ((0, 5), (5, 0)):
        refused(server, CHAT, dict(BODIES[CHAT], max_tokens=first, max_completion_tokens=second))
