"""An answer is the same whatever runs beside it: many mixed requests at random times, with cancellations, against the same
requests alone. Near-uniform logits of random weights show any drift."""

import json
import os
import random
import threading
import time

import pytest

import cli
import make_tiny
import serving

FULL = os.environ.get("ISO_FULL") == "1"
N = 200
SLOTS = 8
SEED = 20261203


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("load")
    tiny = folder / "tiny.gguf"
    make_tiny.make(tiny, type="Q4_0", layers=3, context=1024)
    paths = {"random": folder / "random.plan", "smollm2": folder / "smollm2.plan"}
    cli.ok("compile", tiny, "-o", paths["random"], "--slots", SLOTS, "-c", 512, "--batch-tokens", 32)
    cli.ok("compile", cli.demo_model(), "-o", paths["smollm2"], "--slots", SLOTS, "-c", 512)
    return paths


def make_requests(n, longest):
    """Bodies of all kinds, each with a seed of its own."""
    r = random.Random(SEED)
    print("seed", SEED)
    words = "the a red blue big small cat dog house tree runs sleeps over under and or not 1 2 3 . ,".split()
    shared = " ".join(r.choices(words, k=40))  # a prefix that several have
    requests = []
    for i in range(n):
        text = (shared + " " if r.random() < 0.3 else "") + " ".join(r.choices(words, k=r.randint(1, 60)))
        body = {"max_tokens": r.randint(1, longest), "seed": i, "temperature": r.choice([0, 0, 0.7, 1.3]),
                "top_p": r.choice([1, 0.9]), "top_k": r.choice([0, 20]), "n": r.choice([1, 1, 1, 2])}
        if r.random() < 0.2:
            body["presence_penalty"] = 0.7
        if r.random() < 0.2:
            body["stop"] = [r.choice([" the", "e", "."])]
        if r.random() < 0.2:
            body["logprobs"] = True if r.random() < 0.5 else 3
        if r.random() < 0.5:
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": text}]
            if "logprobs" in body:
                body["logprobs"] = True
        else:
            path = "/v1/completions"
            body["prompt"] = text
        requests.append((path, body, r.random() < 0.4, r.random() < 0.15))
    return requests


def essence(choices):
    """What must be the same: text, end, probabilities, digest."""
    return [(c["index"], c.get("text") or c.get("message"), c["finish_reason"], c["logprobs"], c["isochron"]["digest"])
            for c in choices]


def whole(server, path, body):
    return essence(server.ok(path, body)["choices"])


def streamed(server, path, body):
    """The same from a stream's chunks; without the probabilities' pieces, which the digest's tokens stand for."""
    texts, ends = {}, {}
    for _, data in server.stream(path, body):
        if data == "[DONE]":
            break
        for c in data["choices"]:
            piece = c.get("text") if "text" in c else c["delta"].get("content")
            texts[c["index"]] = texts.get(c["index"], "") + (piece or "")
            if c["finish_reason"]:
                ends[c["index"]] = (c["finish_reason"], c["isochron"]["digest"])
    return [(i, texts[i], *ends[i]) for i in sorted(ends)]


def as_streamed(choices):
    return [(i, t if isinstance(t, str) else t["content"] or "", finish, digest) for i, t, finish, _, digest in choices]


def leave_early(server, path, body, after):
    """A client that goes away in mid-answer."""
    with server.connect() as c:
        data = json.dumps(dict(body, stream=True, max_tokens=300)).encode()
        c.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        time.sleep(after)


@pytest.mark.parametrize("model", ["random", "smollm2"])
def test_under_load_as_alone(plans, model):
    n = N if model == "random" or FULL else 60
    requests = make_requests(n, 60 if model == "random" else 24)
    with serving.serve(plans[model], "--queue", 1000) as s:
        alone = [whole(s, path, body) for path, body, _, _ in requests]
        got, failures = [None] * n, []

        def ask(i, path, body, stream, leaves, start):
            time.sleep(start)
            try:
                if leaves:
                    leave_early(s, path, body, start % 0.3)
                got[i] = streamed(s, path, body) if stream else whole(s, path, body)
            except Exception as e:  # told by the thread that waits
                failures.append((i, repr(e)))

        r = random.Random(SEED + 1)
        threads = [threading.Thread(target=ask, args=(i, *q, r.random() * 3)) for i, q in enumerate(requests)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failures, failures[:3]
        most = s.metric("vllm:prefix_cache_hits_total")
        assert most > 0  # some prompts were cached: that changes nothing either
        for i, (path, body, stream, _) in enumerate(requests):
            want = as_streamed(alone[i]) if stream else alone[i]
            assert got[i] == want, (i, path, body)
        s.wait(lambda: s.units()[0]["running"] == 0 and s.units()[0]["waiting"] == 0, what="all slots free")


def test_batch_answers_are_those_of_single_ones(plans):
    with serving.serve(plans["random"]) as s:
        prompts = ["one", "two three", "a b c d e f", "x"]
        body = {"max_tokens": 30, "seed": 5, "temperature": 1}
        batch = s.ok("/v1/batch_completions", dict(body, prompts=prompts))
        assert batch["object"] == "batch_completion"
        for prompt, one in zip(prompts, batch["completions"], strict=True):
            alone = s.ok("/v1/completions", dict(body, prompt=prompt))
            assert essence(one["choices"]) == essence(alone["choices"]) and one["usage"]["prompt_tokens"] > 0
        listed = s.ok("/v1/completions", dict(body, prompt=prompts))
        assert [c["isochron"]["digest"] for c in listed["choices"]] == [
            o["choices"][0]["isochron"]["digest"] for o in batch["completions"]]
