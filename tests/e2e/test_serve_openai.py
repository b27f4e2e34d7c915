"""isochron serve as the official `openai` client uses it: every answer, stream and error is one that the client understands.

SmolLM2 answers where sense matters; a tiny model with random weights where numbers do: its logits, computed by
tool_logits alone, say which token and which probability each rule of sampling has to give.
"""

import asyncio
import base64
import json
import subprocess
from types import SimpleNamespace

import jinja2
import numpy as np
import openai
import pytest
import tokenizers
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import cli
import gguf_io
import make_hf
import make_tiny
import serving

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                   "additionalProperties": False}}}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


def tokenizer_of(model):
    """Hugging Face's tokenizer of a GGUF model. Control tokens keep their ids only where the vocabulary has them too."""
    j = make_hf.tokenizer(gguf_io.Reader(model).meta)
    j["model"]["vocab"] |= {t["content"]: t["id"] for t in j["added_tokens"]}
    return tokenizers.Tokenizer.from_str(json.dumps(j))


def logits(folder, model, ids):
    """[len(ids)][vocab]: what the model says after each of the tokens, from the tool alone."""
    tool = cli.BUILD / "tests" / "tools" / "tool_logits"
    if not tool.exists():
        pytest.skip(f"{tool} has not been built")
    tokens, out = folder / "ids", folder / "logits"
    tokens.write_bytes(np.array(ids, "<u4").tobytes())
    subprocess.run([tool, model, "--tokens", tokens, "--out", out, "--max-seq-len", "256", "--slots", "1"], check=True)
    return np.fromfile(out, "<f4").reshape(-1, len(gguf_io.Reader(model).meta["tokenizer.ggml.tokens"])).astype(np.float64)


ALPHABET = {c: b for b, c in enumerate(make_tiny.vocabulary(259)[0][:256])}


def token_bytes(token):
    """Of a byte-level vocabulary's token."""
    return bytes(ALPHABET[c] for c in token)


def log_softmax(rows):
    top = rows.max(axis=-1, keepdims=True)
    return rows - top - np.log(np.exp(rows - top).sum(axis=-1, keepdims=True))


@pytest.fixture(scope="module")
def smol(tmp_path_factory):
    path = tmp_path_factory.mktemp("smol") / "smol.plan"
    cli.ok("compile", cli.demo_model(), "-o", path, "--slots", 4, "--max-seq-len", 1024)
    with serving.serve(path, "--alias", "smol") as s:
        s.tokenizer = tokenizer_of(cli.MODEL)
        yield s


@pytest.fixture(scope="module")
def client(smol):
    with smol.client() as c:
        yield c


@pytest.fixture(scope="module")
def tiny(served_plan, models, tmp_path_factory):
    """A server of the tiny model, with what the model says by itself."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = tokenizer_of(models.llama)
    audit = folder / "audit"

    def output(r):
        """The tokens of an answer, as the audit has them."""
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
        return next(line["output"] for line in lines if r.id.endswith(line["id"]))

    with serving.serve(served_plan, "--alias", "tiny", "--audit", audit) as s, s.client() as client:
        s.openai, s.output = client, output
        s.ids = lambda text: tokenizer.encode(text).ids
        s.names = {i: token_bytes(t).decode(errors="replace") for t, i in tokenizer.get_vocab().items()}
        s.logits = lambda ids: logits(folder, models.llama, ids)
        yield s


@pytest.fixture(scope="module")
def greedy(client):
    """An answer without chance, and its tokens."""
    r = client.chat.completions.create(model="smol", messages=STORY, temperature=0, max_tokens=24, logprobs=True)
    tokens = [bytes(t.bytes).decode() for t in r.choices[0].logprobs.content]
    assert "".join(tokens) == r.choices[0].message.content and len(tokens) == 24
    return SimpleNamespace(text=r.choices[0].message.content, tokens=tokens, whole=r)


def say(client, messages=STORY, **options):
    """The text of an answer of 24 tokens, greedy where no temperature is given."""
    options = {"temperature": 0, "max_tokens": 24} | options
    return client.chat.completions.create(model="smol", messages=messages, **options).choices[0].message.content


def tell(client, messages=STORY, **options):
    """The same, streamed: its choices' texts and finish reasons."""
    options = {"temperature": 0, "max_tokens": 24} | options
    texts, finish = {}, {}
    for chunk in client.chat.completions.create(model="smol", messages=messages, stream=True, **options):
        for c in chunk.choices:
            assert c.index not in finish
            texts[c.index] = texts.get(c.index, "") + (c.delta.content or "")
            if c.finish_reason:
                finish[c.index] = c.finish_reason
    return texts, finish


# ---- Objects ----

TOP = ["id", "object", "created", "model", "choices", "usage", "system_fingerprint"]
# What OpenAI's specification requires, also where the client's models have a default.
REQUIRED = {
    "chat": (ChatCompletion, TOP, ["index", "message", "logprobs", "finish_reason"], ["role", "content", "refusal"]),
    "chunk": (ChatCompletionChunk, TOP[:5], ["index", "delta", "finish_reason"], []),
    "text": (Completion, TOP, ["index", "text", "logprobs", "finish_reason"], None),
    "text chunk": (Completion, TOP[:5], ["index", "text", "logprobs", "finish_reason"], None),
}
USAGE = ["prompt_tokens", "completion_tokens", "total_tokens"]


def validated(kind, text):
    """The object after the client's own model, strictly, so that nothing is of another type."""
    model, top, choice, message = REQUIRED[kind]
    data = json.loads(text)
    assert set(top) <= set(data), data
    for c in data["choices"]:
        assert set(choice) <= set(c), c
        assert message is None or set(message) <= set(c.get("message", c.get("delta"))), c
    if kind != "text chunk":
        return model.model_validate_json(text, strict=True)
    # OpenAI's own chunks have null until the end, as their examples show; the client's type alone does not.
    going_on = [c for c in data["choices"] if c["finish_reason"] is None]
    for c in going_on:
        c["finish_reason"] = "stop"
    chunk = model.model_validate_json(json.dumps(data), strict=True)
    for c in chunk.choices if going_on else []:
        c.finish_reason = None
    return chunk


def events(smol, path, body):
    return [data for _, data in smol.stream(path, body)][:-1]


@pytest.mark.parametrize("more", [{}, {"logprobs": True, "top_logprobs": 2}, {"n": 2}, {"tools": [WEATHER]},
                                  {"tools": [WEATHER, TIME], "tool_choice": {"type": "function", "function": {"name": "get_time"}}}])
def test_chat_objects(smol, client, more):
    body = {"model": "smol", "messages": FRANCE, "max_tokens": 12, "seed": 1, "temperature": 0} | more
    whole = validated("chat", client.chat.completions.with_raw_response.create(**body).text)
    assert whole.object == "chat.completion" and whole.model == "smol" and whole.id.startswith("chatcmpl-")
    assert [c.index for c in whole.choices] == list(range(body.get("n", 1)))
    assert set(USAGE) <= set(whole.usage.model_dump(exclude_unset=True))
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0
    assert whole.usage.completion_tokens_details.reasoning_tokens == 0
    chunks = [validated("chunk", json.dumps(e)) for e in events(smol, "/v1/chat/completions", body)]
    assert len({(c.id, c.created, c.model, c.system_fingerprint) for c in chunks}) == 1
    for i, choice in enumerate(whole.choices):
        mine = [c.choices[0] for c in chunks if c.choices[0].index == i]
        assert mine[0].delta.role == "assistant" and all(c.delta.role is None for c in mine[1:])
        assert [c.finish_reason for c in mine if c.finish_reason] == [choice.finish_reason] == [mine[-1].finish_reason]
        assert "".join(c.delta.content or "" for c in mine) == (choice.message.content or "")
        streamed = [t for c in mine if c.logprobs for t in c.logprobs.content]
        assert streamed == (choice.logprobs.content if choice.logprobs else [])
        if "tool_choice" in more:
            call = choice.message.tool_calls[0]
            assert (call.type, call.function.name) == ("function", "get_time") and call.id


@pytest.mark.parametrize("more", [{}, {"logprobs": 2}, {"prompt": ["One", "Two"], "n": 2}, {"echo": True}])
def test_text_objects(smol, client, more):
    body = {"model": "smol", "prompt": "Once", "max_tokens": 8, "seed": 1, "temperature": 0} | more
    whole = validated("text", client.completions.with_raw_response.create(**body).text)
    assert whole.object == "text_completion" and whole.id.startswith("cmpl-")
    assert [c.index for c in whole.choices] == list(range(4 if "n" in more else 1))
    chunks = [validated("text chunk", json.dumps(e)) for e in events(smol, "/v1/completions", body)]
    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert "".join(c.text for c in mine) == choice.text
        assert [c.finish_reason for c in mine if c.finish_reason] == [choice.finish_reason]
        for part in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            got = [x for c in mine if c.logprobs for x in getattr(c.logprobs, part)]
            assert got == (getattr(choice.logprobs, part) if choice.logprobs else [])


def test_models(smol, client):
    for text in (client.models.with_raw_response.retrieve("smol").text,
                 json.dumps(json.loads(client.models.with_raw_response.list().text)["data"][0])):
        m = Model.model_validate_json(text, strict=True)
        assert (m.id, m.object, m.owned_by) == ("smol", "model", "isochron") and m.created > 1_600_000_000
    listed = client.models.list()
    assert listed.object == "list" and [m.id for m in listed] == ["smol"]
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("other")
    assert (e.value.param, e.value.code) == ("model", "model_not_found")


# ---- Chat ----


def test_sense(client):
    r = client.completions.create(model="smol", prompt="The capital of France is", temperature=0, max_tokens=2)
    assert r.choices[0].text == " Paris."


def test_streamed_or_not_alone_or_beside_others(smol, client, greedy):
    assert say(client) == greedy.text
    assert tell(client) == ({0: greedy.text}, {0: "length"})

    async def one(c, **options):
        r = await c.chat.completions.create(model="smol", messages=STORY, temperature=0, max_tokens=24, **options)
        if not options:
            return r.choices[0].message.content
        return "".join([chunk.choices[0].delta.content or "" async for chunk in r])

    async def all_of_them():
        async with smol.client(openai.AsyncOpenAI) as c:
            return await asyncio.gather(*[one(c, **options) for options in ({}, {"stream": True}) * 3])

    assert asyncio.run(all_of_them()) == [greedy.text] * 6  # more than there are slots


def test_n(client):
    options = dict(n=3, temperature=1, seed=5, max_tokens=10)
    r = client.chat.completions.create(model="smol", messages=STORY, **options)
    texts = [c.message.content for c in r.choices]
    assert [c.index for c in r.choices] == [0, 1, 2] and len(set(texts)) == 3
    assert tell(client, **options)[0] == dict(enumerate(texts))
    assert say(client, **options | {"n": 1}) == texts[0]
    assert r.usage.completion_tokens == 30


def test_seed(client):
    """The same seed, the same answer; the seed that the server chose gives the answer again, with its digest."""
    warm = dict(temperature=1, max_tokens=10)
    assert say(client, seed=7, **warm) == say(client, seed=7, **warm) != say(client, seed=8, **warm)
    assert say(client, seed=-1, **warm) == say(client, seed=-1, **warm)
    first, second = (client.chat.completions.create(model="smol", messages=STORY, **warm) for _ in range(2))
    proof = first.choices[0].isochron
    assert proof["seed"] != second.choices[0].isochron["seed"]
    assert first.choices[0].message.content != second.choices[0].message.content
    again = client.chat.completions.create(model="smol", messages=STORY, seed=proof["seed"], **warm)
    assert again.choices[0].message.content == first.choices[0].message.content
    assert again.choices[0].isochron == proof
    streamed = list(client.chat.completions.create(model="smol", messages=STORY, seed=proof["seed"], stream=True, **warm))
    assert streamed[-1].choices[0].isochron == proof


def test_stop_across_tokens(client, greedy):
    """Wherever the stop string begins and ends in the tokens, the answer is what stands before it."""
    borders = np.cumsum([len(t) for t in greedy.tokens])
    tried = 0
    for at in borders[3:-6:6]:
        for before, after in ((1, 1), (3, 5), (8, 1)):
            stop = greedy.text[at - before:at + after]
            expected = greedy.text[:greedy.text.index(stop)]
            r = client.chat.completions.create(model="smol", messages=STORY, temperature=0, max_tokens=24, stop=stop)
            assert (r.choices[0].message.content, r.choices[0].finish_reason) == (expected, "stop"), stop
            tried += 1
    assert tried == 9
    several = ["never there", greedy.text[60:66], greedy.text[30:34], "\u2603"]
    expected = greedy.text[:min(greedy.text.find(s) for s in several if s in greedy.text)]
    assert say(client, stop=several) == expected
    assert tell(client, stop=several) == ({0: expected}, {0: "stop"})
    nearly = greedy.text[20:28] + "\u2603"
    assert tell(client, stop=[nearly]) == ({0: greedy.text}, {0: "length"})
    assert say(client, stop=None) == greedy.text


def test_lengths(client, greedy):
    for name in ("max_tokens", "max_completion_tokens"):
        r = client.chat.completions.create(model="smol", messages=STORY, temperature=0, **{name: 7})
        assert (r.usage.completion_tokens, r.choices[0].finish_reason) == (7, "length")
        assert r.choices[0].message.content == "".join(greedy.tokens[:7])
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="smol", messages=STORY, max_tokens=7, max_completion_tokens=8)


def rendered(messages):
    template = gguf_io.Reader(cli.MODEL).meta["tokenizer.chat_template"]
    return jinja2.Template(template).render(messages=messages, add_generation_prompt=True)


@pytest.mark.parametrize("messages", [
    FRANCE, STORY,
    [{"role": "system", "content": "You are brief."}, *FRANCE, {"role": "assistant", "content": "Paris."},
     {"role": "user", "content": [{"type": "text", "text": "And of "}, {"type": "text", "text": "España? 😀"}]}]])
def test_usage(smol, client, messages):
    """Counted by Hugging Face's tokenizer over the text that jinja2 renders."""
    plain = [m | {"content": m["content"] if isinstance(m["content"], str) else "".join(p["text"] for p in m["content"])}
             for m in messages]
    expected = len(smol.tokenizer.encode(rendered(plain)).ids)
    body = dict(model="smol", messages=messages, temperature=0, max_tokens=9)
    client.chat.completions.create(**body)
    r = client.chat.completions.create(**body)
    assert r.usage.prompt_tokens == expected
    assert r.usage.total_tokens == expected + r.usage.completion_tokens
    assert 0 < r.usage.prompt_tokens_details.cached_tokens < expected
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert all(c.usage is None and "usage" in c.model_fields_set for c in chunks[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage == r.usage
    assert all(c.usage is None for c in client.chat.completions.create(**body, stream=True))


# ---- Probabilities and sampling ----


def test_chat_logprobs(smol, client, tmp_path):
    """Each token's probability and those of the most probable ones, as numpy gets them from the model's logits."""
    r = client.chat.completions.create(model="smol", messages=FRANCE, temperature=1, seed=3, max_tokens=8, logprobs=True,
                                       top_logprobs=5)
    plain = {token_bytes(t): i for t, i in smol.tokenizer.get_vocab().items()}
    prompt = smol.tokenizer.encode(rendered(FRANCE)).ids
    content = r.choices[0].logprobs.content
    ids = [plain[bytes(t.bytes)] for t in content]
    rows = log_softmax(logits(tmp_path, cli.MODEL, prompt + ids))[len(prompt) - 1:]
    assert len(ids) == r.usage.completion_tokens
    for token, id, row in zip(content, ids, rows, strict=False):
        assert abs(token.logprob - row[id]) < 1e-4
        best = np.argsort(-row, kind="stable")[:5]
        assert [plain[bytes(t.bytes)] for t in token.top_logprobs] == list(best)
        assert np.allclose([t.logprob for t in token.top_logprobs], row[best], atol=1e-4)
    assert "".join(t.token for t in content) == r.choices[0].message.content
    none = client.chat.completions.create(model="smol", messages=FRANCE, max_tokens=3, logprobs=True).choices[0].logprobs
    assert [t.top_logprobs for t in none.content] == [[], [], []]
    assert client.chat.completions.create(model="smol", messages=FRANCE, max_tokens=3).choices[0].logprobs is None


PROMPT = "the cat and the hat in a ring"


def test_echo_scores_the_prompt(tiny):
    ids = tiny.ids(PROMPT)
    rows = log_softmax(tiny.logits(ids))
    expected = [rows[i - 1][ids[i]] for i in range(1, len(ids))]
    r = tiny.openai.completions.create(model="tiny", prompt=PROMPT, max_tokens=0, echo=True, logprobs=3)
    l = r.choices[0].logprobs
    assert r.choices[0].text == PROMPT and "".join(l.tokens) == PROMPT and r.usage.completion_tokens == 0
    assert l.token_logprobs[0] is None and l.top_logprobs[0] is None
    assert np.allclose(l.token_logprobs[1:], expected, atol=1e-4)
    for i in range(1, len(ids)):
        likely = [*np.argsort(-rows[i - 1], kind="stable")[:3], ids[i]]  # the token itself is always there
        names = {}
        for id in likely:  # parts of characters have one name
            names.setdefault(tiny.names[id], rows[i - 1][id])
        assert l.top_logprobs[i].keys() == names.keys()
        assert np.allclose([l.top_logprobs[i][n] for n in names], list(names.values()), atol=1e-4)
        assert PROMPT[l.text_offset[i]:].startswith(l.tokens[i])
    more = tiny.openai.completions.create(model="tiny", prompt=PROMPT, max_tokens=5, temperature=0, echo=True, logprobs=3)
    assert more.choices[0].text.startswith(PROMPT)
    m = more.choices[0].logprobs
    assert m.token_logprobs[:len(ids)] == l.token_logprobs and len(m.tokens) == len(ids) + 5
    plain = tiny.openai.completions.create(model="tiny", prompt=PROMPT, max_tokens=5, temperature=0, logprobs=3)
    p = plain.choices[0].logprobs
    assert PROMPT + plain.choices[0].text == more.choices[0].text
    assert (p.tokens, p.token_logprobs, p.top_logprobs) == \
        (m.tokens[len(ids):], m.token_logprobs[len(ids):], m.top_logprobs[len(ids):])
    assert np.allclose(p.token_logprobs[0], rows[-1].max(), atol=1e-4)


def test_prompts_of_all_kinds(tiny):
    """Text, tokens, lists of texts and lists of tokens are the same prompts, answered in their order."""
    def texts(prompt, **options):
        r = tiny.openai.completions.create(model="tiny", prompt=prompt, max_tokens=6, temperature=0, **options)
        assert [c.index for c in r.choices] == list(range(len(r.choices)))
        return [c.text for c in r.choices], r.usage.prompt_tokens

    one, two = PROMPT, "over and out"
    a, b = tiny.ids(one), tiny.ids(two)
    (first,), (second,) = texts(one)[0], texts(two)[0]
    assert texts(a) == ([first], len(a)) and first != second
    assert texts([one, two]) == texts([a, b]) == ([first, second], len(a) + len(b))
    assert texts([two, one])[0] == [second, first]
    assert texts([one, two], n=2)[0] == [first, first, second, second]
    assert texts(a, echo=True)[0] == [one + first]
    several = tiny.openai.completions.create(model="tiny", prompt=[one, two], max_tokens=6, temperature=0, stream=True)
    got = {}
    for chunk in several:
        got[chunk.choices[0].index] = got.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert got == {0: first, 1: second}


def penalized(row, answer, options):
    """Logits after the penalties, as OpenAI and vLLM define them."""
    row = row.copy()
    for id, bias in options.get("logit_bias", {}).items():
        row[int(id)] += bias
    for id in set(answer):
        row[id] -= options.get("frequency_penalty", 0) * answer.count(id) + options.get("presence_penalty", 0)
    return row


@pytest.mark.parametrize("options", [
    {}, {"frequency_penalty": 1.5}, {"presence_penalty": 2}, {"presence_penalty": -1, "frequency_penalty": 0.5},
    {"frequency_penalty": -2}, {"logit_bias": {"100": 3.5, "101": -100, "7": 4}}, {"logit_bias": {"65": 100}}])
def test_greedy_rules(tiny, options):
    """Each token is the largest logit after bias and penalties, computed here from the whole sequence's logits."""
    ids = tiny.ids(PROMPT)
    r = tiny.openai.completions.create(model="tiny", prompt=ids, max_tokens=24, temperature=0, extra_body={"ignore_eos": True},
                                       **options)
    answer = tiny.output(r)
    rows = tiny.logits(ids + answer)[len(ids) - 1:]
    assert len(answer) == 24
    for i, id in enumerate(answer):
        assert id == int(np.argmax(penalized(rows[i], answer[:i], options))), (i, answer)


@pytest.mark.parametrize("options, kept", [
    ({"extra_body": {"top_k": 3}}, lambda p: 3),
    ({"extra_body": {"top_k": 1}}, lambda p: 1),
    ({"extra_body": {"min_p": 0.5}}, lambda p: int((p >= 0.5 * p[0]).sum())),
    ({"top_p": 0.1}, lambda p: int(np.searchsorted(np.cumsum(p), 0.1)) + 1),
    ({"top_p": 0.2, "extra_body": {"top_k": 4}}, lambda p: min(4, int(np.searchsorted(np.cumsum(p[:4] / p[:4].sum()), 0.2)) + 1))])
def test_only_what_is_kept_is_drawn(tiny, options, kept):
    ids = tiny.ids(PROMPT)
    ranks, counts = [], []
    for seed in range(3):
        r = tiny.openai.completions.create(model="tiny", prompt=ids, max_tokens=30, temperature=1.5, seed=seed, **options)
        answer = tiny.output(r)
        rows = tiny.logits(ids + answer)[len(ids) - 1:] / 1.5
        for id, row in zip(answer, rows, strict=False):
            order = np.argsort(-row, kind="stable")
            ranks.append(int(np.flatnonzero(order == id)[0]))
            counts.append(kept(np.exp(log_softmax(row))[order]))
    assert len(ranks) > 60 and all(rank < count for rank, count in zip(ranks, counts, strict=True))
    assert max(counts) == 1 or max(ranks) > 0


# ---- Embeddings ----


def test_embeddings(smol, client, tmp_path):
    """base64 (the client's own choice) and floats are the same numbers; the row points where the model's logits say."""
    texts = ["The capital of France is", "A fox", "😀"]
    as_bytes = client.embeddings.create(model="smol", input=texts)
    as_floats = client.embeddings.create(model="smol", input=texts, encoding_format="float")
    raw = client.embeddings.with_raw_response.create(model="smol", input=texts, encoding_format="float").text
    checked = CreateEmbeddingResponse.model_validate_json(raw, strict=True)
    assert checked.object == "list" and checked.model == "smol"
    assert checked.usage.prompt_tokens == checked.usage.total_tokens == \
        sum(len(smol.tokenizer.encode(t).ids) for t in texts)
    for i, (a, b, c) in enumerate(zip(as_bytes.data, as_floats.data, checked.data, strict=True)):
        assert (c.object, c.index, len(c.embedding)) == ("embedding", i, 576) == (a.object, a.index, len(a.embedding))
        assert np.array_equal(np.float32(a.embedding), np.float32(b.embedding))
        assert abs(np.linalg.norm(a.embedding) - 1) < 1e-6
    coded = client.embeddings.with_raw_response.create(model="smol", input=texts[0], encoding_format="base64").text
    data = json.loads(coded)["data"][0]["embedding"]
    assert np.array_equal(np.frombuffer(base64.b64decode(data, validate=True), "<f4"), np.float32(as_floats.data[0].embedding))
    ids = smol.tokenizer.encode(texts[0]).ids
    assert client.embeddings.create(model="smol", input=ids).data[0] == as_bytes.data[0]
    matrix = gguf_io.Reader(cli.MODEL).tensors["token_embd.weight"].f32()
    expected = logits(tmp_path, cli.MODEL, ids)[-1]
    assert np.corrcoef(matrix @ np.array(as_floats.data[0].embedding), expected)[0, 1] > 0.999
    with pytest.raises(openai.BadRequestError) as e:
        client.embeddings.create(model="smol", input="x", dimensions=10)
    assert e.value.param == "dimensions"


# ---- Tools ----


def test_tools_of_a_template_without_them(smol, client):
    """SmolLM2's template knows no tools: they are told in the system message, and calls are read as Qwen writes them."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    body = dict(model="smol", messages=[{"role": "user", "content": "Weather in Paris?"}], temperature=0, max_tokens=12)
    without = client.chat.completions.create(**body)
    for options in (dict(tools=[WEATHER], tool_choice="none"), dict(tools=[])):
        r = client.chat.completions.create(**body, **options)
        assert r.choices[0].message == without.choices[0].message and r.usage.prompt_tokens == without.usage.prompt_tokens
    auto = client.chat.completions.create(**body, tools=[WEATHER])
    assert auto.usage.prompt_tokens > without.usage.prompt_tokens + 40
    assert auto.choices[0].message == client.chat.completions.create(**body, tools=[WEATHER], tool_choice="auto").choices[0].message
    for options in (dict(tools=[WEATHER, TIME], tool_choice=named), dict(tools=[WEATHER], tool_choice="required")):
        r = client.chat.completions.create(**body, **options)
        call = r.choices[0].message.tool_calls[0]
        assert call.function.name == "get_weather" and call.type == "function"
        assert call.function.arguments.startswith("{")
        parts, id, name = "", None, ""
        for chunk in client.chat.completions.create(**body, stream=True, **options):
            for c in chunk.choices[0].delta.tool_calls or []:
                if c.index == 0:
                    id, name = id or c.id, name + (c.function.name or "")
                    parts += c.function.arguments or ""
        assert (name, parts) == (call.function.name, call.function.arguments)


# ---- Headers, errors ----


def test_headers(client):
    body = dict(model="smol", messages=FRANCE, max_tokens=2)
    r = client.chat.completions.with_raw_response.create(**body, extra_headers={"X-Request-Id": "my-own.id/7"},
                                                         extra_body={"guided_json": {}}, parallel_tool_calls=False)
    assert r.headers["X-Request-Id"] == r.request_id == "my-own.id/7"
    assert r.headers["X-Isochron-Ignored"] == "parallel_tool_calls, guided_json" or \
        set(r.headers["X-Isochron-Ignored"].split(", ")) == {"parallel_tool_calls", "guided_json"}
    assert r.parse().choices[0].message.role == "assistant"
    plain = client.chat.completions.create(**body)
    assert plain._request_id.startswith("req-")
    assert "X-Isochron-Ignored" not in client.chat.completions.with_raw_response.create(**body).headers
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(**body | {"temperature": -1}, extra_headers={"X-Request-Id": "bad-1"})
    assert e.value.request_id == "bad-1"


TOOL_NAMED_OTHER = {"type": "function", "function": {"name": "other"}}


@pytest.mark.parametrize("change, param, code", [
    ({"temperature": -1}, "temperature", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_value"),
    ({"top_p": 1.5}, "top_p", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 65}, "n", "invalid_value"),
    ({"seed": 1.5}, "seed", "invalid_value"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": ["a"] * 65}, "stop", "invalid_value"),
    ({"presence_penalty": 2.5}, "presence_penalty", "invalid_value"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"49152": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
    ({"logprobs": 3}, "logprobs", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": 1024}, "messages", "context_length_exceeded"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content", "unsupported"),
    ({"messages": [{"role": "user", "content": "word " * 2000}]}, "messages", "context_length_exceeded"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0]", "invalid_value"),
    ({"tools": [WEATHER], "tool_choice": TOOL_NAMED_OTHER}, "tool_choice", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported")])
def test_bad_requests(smol, client, change, param, code):
    for stream in (False, True):
        if "stream_options" in change and stream:
            continue
        with pytest.raises(openai.BadRequestError) as e:
            client.chat.completions.create(**{"model": "smol", "messages": FRANCE, "stream": stream} | change)
        assert (e.value.status_code, e.value.param, e.value.code, e.value.type) == (400, param, code, "invalid_request_error")
        assert param.split("[")[0] in e.value.body["message"]


def test_what_is_not_there(smol, client):
    for ask in (lambda: client.chat.completions.create(model="gpt-4", messages=FRANCE),
                lambda: client.completions.create(model="gpt-4", prompt="x"),
                lambda: client.embeddings.create(model="gpt-4", input="x")):
        with pytest.raises(openai.NotFoundError) as e:
            ask()
        assert (e.value.param, e.value.code, e.value.status_code) == ("model", "model_not_found", 404)
        assert "gpt-4" in e.value.body["message"]
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="x", model="smol")
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="smol", input="x")


def test_keys_rates_and_a_full_queue(endless_plan, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("good-key-1\nslow-key-2 rate=1/s\none-key-33 concurrency=1\n")
    keys.chmod(0o600)
    with serving.serve(endless_plan, "--alias", "m", "--keys", keys, "--queue", 0) as s:
        for header in ("Bearer wrong-key", openai.Omit()):
            with pytest.raises(openai.AuthenticationError) as e:
                s.client().models.list(extra_headers={"Authorization": header})
            assert (e.value.status_code, e.value.code, e.value.type) == (401, "invalid_api_key", "authentication_error")
        s.client(api_key="good-key-1").models.list()
        slow = s.client(api_key="slow-key-2")
        slow.models.list()
        with pytest.raises(openai.RateLimitError) as e:
            slow.models.list()
        assert (e.value.status_code, e.value.code, e.value.type) == (429, "rate_limit_exceeded", "rate_limit_error")
        assert e.value.response.headers["Retry-After"] == "1"
        slow.with_options(max_retries=2).models.list()  # the client waits as it is told
        one = s.client(api_key="one-key-33")
        stream = one.completions.create(model="m", prompt="x", max_tokens=30000, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError):
            one.models.list()
        with pytest.raises(openai.InternalServerError) as e:  # the only slot is taken, and nothing may wait
            s.client(api_key="good-key-1").completions.create(model="m", prompt="x")
        assert (e.value.status_code, e.value.code, e.value.type) == (503, "queue_full", "server_error")
        assert e.value.response.headers["Retry-After"] == "1"
        stream.close()
        s.wait(lambda: s.metric("vllm:num_requests_running") == 0, what="an idle unit")
        one.models.list()


def test_a_client_that_leaves_frees_its_slot(endless_plan):
    """Closing a stream, breaking off an iteration, or cancelling a task ends the computing at once."""
    with serving.serve(endless_plan, "--alias", "m") as s:
        def idle():
            return s.metric("vllm:num_requests_running") == 0 and s.metric("isochron_ready") == 1

        body = dict(model="m", prompt="x", max_tokens=30000, temperature=1)
        with s.client().completions.create(**body, stream=True) as stream:
            for _, chunk in zip(range(3), stream, strict=False):
                assert chunk.choices[0].finish_reason is None
            assert s.metric("vllm:num_requests_running") == 1
        s.wait(idle, what="an idle unit after a closed stream")

        async def leave(stream):
            async with s.client(openai.AsyncOpenAI) as c:
                task = asyncio.create_task(c.completions.create(**body, stream=stream))
                await asyncio.sleep(0.3)
                if stream:
                    async with await task as answer:
                        assert (await anext(aiter(answer))).object == "text_completion"
                else:
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task

        for stream in (True, False):
            asyncio.run(leave(stream))
            s.wait(idle, what="an idle unit after a task that was given up")
        ended = {k: n for k, n in s.metrics().items() if k.startswith("vllm:request_success_total") and n}
        assert len(ended) == 1 and 'finished_reason="abort"' in [*ended][0] and [*ended.values()] == [3], ended
        assert s.client().completions.create(model="m", prompt="x", max_tokens=3).usage.completion_tokens == 3
