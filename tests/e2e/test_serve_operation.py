"""Running isochron serve: settings, keys, signals, drains, reloads, certificates; its log, its metrics, its audit."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import cli
import serving
from cli import CORRUPT, FORMAT, UNSUPPORTED, USAGE, iso, misused, ok, refused

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BATCH, EMBEDDINGS = "/v1/batch_completions", "/v1/embeddings"
HELLO = [{"role": "user", "content": "hello"}]
SHORT = {"prompt": "x", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
LONG = {"prompt": "x", "max_tokens": 12000, "seed": 11, "ignore_eos": True}


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


ADMIN, USER = bearer("admin-key-0"), bearer("user-key-00")


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# who may\nadmin-key-0 name=admin\nuser-key-00 name=user admin=no\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def long_text(pair_plan):
    """What LONG is answered with."""
    with serving.serve(pair_plan) as server:
        return server.ok(COMPLETIONS, LONG)["choices"][0]["text"]


class Stream:
    """A long answer, read by a thread of its own."""

    def __init__(self, server, body=LONG, headers=None):
        self.text, self.finish, self.fingerprint, self.error = "", None, None, None
        self.begun = threading.Event()
        self.thread = threading.Thread(target=self.read, args=(server, body, headers), daemon=True)
        self.thread.start()
        assert self.begun.wait(60), "no stream"

    def read(self, server, body, headers):
        for _, event in server.stream(COMPLETIONS, body, headers):
            self.begun.set()
            if event == "[DONE]":
                self.finish += " and done"
                return
            if "error" in event:
                self.error = event["error"]
                return
            choice = event["choices"][0]
            self.text += choice["text"]
            self.finish = choice["finish_reason"]
            self.fingerprint = event["system_fingerprint"]

    @property
    def runs(self):
        return self.thread.is_alive()

    def end(self):
        self.thread.join(120)
        assert not self.runs
        return self.text


def hangup(server, says="files_read_again"):
    """SIGHUP, and the log's line about it."""
    def count():
        return sum(says in line for line in list(server.log))

    before = count()
    server.process.send_signal(signal.SIGHUP)
    server.wait(lambda: count() > before, what=says)
    return [line for line in server.log if says in line][-1]


def error_of(answer, expected, code=...):
    status, body = answer
    assert status == expected, answer
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}, answer
    assert code is ... or body["error"]["code"] == code, answer
    return body["error"]["message"]


# ---- Settings ----

def printed(*args, **options):
    return ok("serve", *args, "--print-config", **options).out.decode()


def test_settings_of_a_file_and_flags_over_it(tmp_path):
    """What is printed is what would be used: the file, flags over it; and read again it prints the same."""
    file = tmp_path / "isochron.yaml"
    file.write_text("model: tiny.plan\nlisten: 127.0.0.1:9000\nlimits:\n  queue: 5\n  body: 1MiB\n"
                    "units:\n  - {name: left, threads: 1}\nlog: {level: debug}\n")
    text = printed("--config", file, "--queue", 7, "--head-timeout", "2s", "--log-format=json")
    settings = yaml.safe_load(text)
    assert settings["model"] == str(tmp_path / "tiny.plan")
    assert settings["listen"] == "127.0.0.1:9000"
    assert settings["limits"] == {"queue": 7, "body": "1MiB", "connections": 512, "max_tokens": 512}
    assert settings["units"] == [{"name": "left", "threads": 1, "sched": "other"}]
    assert settings["timeouts"]["head"] == "2s" and settings["log"] == {"level": "debug", "format": "json"}
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert printed("--config", again) == text
    # As many models as are named on the command line take the place of the file's.
    models = yaml.safe_load(printed("--config", file, "a=x.plan", "b=y.plan"))["model"]
    assert models == {"a": "x.plan", "b": "y.plan"}
    defaults = tmp_path / "defaults.yaml"
    defaults.write_text(printed("x.plan"))
    assert printed("--config", defaults, "x.plan") == defaults.read_text()


@pytest.mark.parametrize("text, line, says", [
    ("model: x.plan\nlimits:\n  quue: 5\n", 3, "unknown key in limits: it is \"quue\"; there are"),
    ("modell: x.plan\n", 1, "unknown key"),
    ("model: x.plan\n\nlimits: {queue: many}\n", 3, "limits.queue"),
    ("model: x.plan\nlimits:\n  queue: '5'\n", 3, "limits.queue is the text"),
    ("model: x.plan\nlimits:\n  queue: -1\n", 3, "limits.queue"),
    ("model: x.plan\nlimits:\n  queue: 5\n  queue: 6\n", 4, "twice"),
    ("model: x.plan\nlog:\n  level: loud\n", 3, "error, warn, info or debug"),
    ("model: x.plan\nlisten: somewhere:80\n", 2, "listen"),
    ("model: x.plan\ninsecure: maybe\n", 2, "insecure"),
    ("model: x.plan\nlimits: [\n", 2, "limits is a list"),
    ("model: x.plan\n\tqueue: 5\n", 2, "tab"),
    ("model: {a: x.plan, a: y.plan}\n", 1, "two models are called"),
    ("model: x.plan\nlisten: 0.0.0.0:80\n", 2, "--insecure"),
    ("model: x.plan\ntls:\n  certificate: c.pem\n", 3, "tls.key"),
])
def test_a_wrong_file_is_told_with_its_line(tmp_path, text, line, says):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    refused(iso("serve", "--config", file), USAGE, f"{file}:{line}: ", says)


def test_settings_that_the_plan_does_not_have(tmp_path, served_plan):
    file = tmp_path / "isochron.yaml"
    file.write_text(f"model: {served_plan}\nlimits:\n  slots: 9\n")
    refused(iso("serve", "--config", file), USAGE, f"{file}:3: limits.slots is 9", "compiled for 4")
    refused(iso("serve", served_plan, "--max-seq-len", 300), USAGE, "--max-seq-len", "300", "256")
    refused(iso("serve", served_plan, "--kv", "q8"), USAGE, "kv")
    misused(iso("serve", served_plan, "--no-such-flag"), "no-such-flag")
    refused(iso("serve"), USAGE, "model")
    refused(iso("serve", tmp_path / "none.plan"), cli.IO, "none.plan")
    refused(iso("serve", served_plan, "--config", tmp_path / "none.yaml"), cli.IO, "none.yaml")
    broken = tmp_path / "broken.plan"
    broken.write_bytes(b"hello" * 100)
    refused(iso("serve", broken), FORMAT, "broken.plan")


def test_others_are_let_in_by_keys_or_when_told(served_plan, keys):
    for address in ("0.0.0.0:0", "[::]:0", "10.0.0.1:0"):
        refused(iso("serve", served_plan, "--listen", address), USAGE, "--listen", "--keys", "--insecure")
    for more in (["--insecure"], ["--keys", keys]):
        with serving.serve(served_plan, "--listen", "0.0.0.0:0", *more) as server:
            assert server.get("/healthz")[0] == 200


def test_a_file_starts_a_server(tmp_path, served_plan):
    file = tmp_path / "isochron.yaml"
    file.write_text(f"model: {{one: {served_plan}, two: {served_plan}}}\nlimits: {{max_tokens: 5}}\n")
    with serving.serve("--config", file, "--log-level", "warn", "--log-level", "info") as server:
        listed = json.loads(server.get("/v1/models")[2])["data"]
        assert [m["id"] for m in listed] == ["one", "two"] == [u["model"] for u in server.units()]
        for name in ("one", "two"):
            answer = server.ok(CHAT, {"model": name, "messages": HELLO, "ignore_eos": True})
            assert answer["model"] == name and answer["usage"]["completion_tokens"] == 5
        error_of(server.post(CHAT, {"messages": HELLO}), 400, "invalid_value")
        assert server.metrics()["isochron_config_stale"] == 0
        file.write_text(file.read_text() + "# changed\n")
        assert server.metrics()["isochron_config_stale"] == 1


def test_several_models(demo_plan, served_plan):
    """Each answers for itself, with its own plan's name, counted apart."""
    hashes = [ok("inspect", plan, "--json").json["hash"] for plan in (served_plan, demo_plan)]
    with serving.serve(f"tiny={served_plan}", f"demo={demo_plan}") as server:
        prompt = {"prompt": "The capital of France is", "max_tokens": 2, "temperature": 0}
        tiny, demo = (server.ok(COMPLETIONS, dict(prompt, model=name)) for name in ("tiny", "demo"))
        assert [tiny["system_fingerprint"], demo["system_fingerprint"]] == hashes
        assert demo["choices"][0]["text"] == " Paris." != tiny["choices"][0]["text"]
        m = server.metrics()
        for name in ("tiny", "demo"):
            assert m[f'vllm:request_success_total{{model_name="{name}",engine="0",finished_reason="length"}}'] == 1


# ---- Keys ----

def test_requests_without_a_key(served_plan, keys):
    """Whatever is wrong with a key, the answer is the same; what needs none answers without."""
    with serving.serve(served_plan, "--alias", "tiny", "--keys", keys) as server:
        wrong = [bearer("admin-key-1"), bearer("admin-key-"), bearer("admin-key-00"), bearer(""), bearer("x" * 5000),
                 bearer("ADMIN-KEY-0"), {"X-Api-Key": "admin"}]
        told = set()
        for headers in wrong:
            for path, body in ((CHAT, {"messages": HELLO}), (CHAT, b"not JSON"), ("/admin/drain", {}),
                               ("/tokenize", {})):
                status, got, data = server.request("POST", path, body, headers)
                error_of((status, json.loads(data)), 401, "invalid_api_key")
                assert got["WWW-Authenticate"] == "Bearer"
                assert json.loads(data)["error"]["type"] == "authentication_error"
                assert b"admin-key" not in data
                told.add(data)
        assert len(told) == 1
        for headers in ({}, {"Authorization": "admin-key-0"}, {"Authorization": "Basic admin-key-0"}):
            assert "Bearer" in error_of(server.post(CHAT, {"messages": HELLO}, headers=headers), 401, "invalid_api_key")
        for path in ("/v1/models", "/v1/units"):
            assert server.get(path)[0] == 401 and server.get(path, headers=USER)[0] == 200
        for path in ("/healthz", "/readyz", "/health", "/metrics"):
            assert server.get(path)[0] == 200
        for headers in (ADMIN, USER, {"X-Api-Key": "user-key-00"}, {"Authorization": "bearer user-key-00"}):
            server.ok(COMPLETIONS, SHORT, headers=headers)
        assert server.metric('isochron_requests_refused_total{model_name="tiny",reason="auth"}') == 33
        assert "key=user" in server.wait_log(r"endpoint=/v1/completions client=127.0.0.1 key=user")
        assert not any("admin-key-0" in line for line in server.log)


def test_rate_and_concurrency_of_a_key(pair_plan, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("free-key-0\nrate-key-0 rate=3/min\nonce-key-0 concurrency=1\n")
    with serving.serve(pair_plan, "--keys", keys, "--threads", 1) as server:
        for _ in range(3):
            server.ok(COMPLETIONS, SHORT, headers=bearer("rate-key-0"))
        status, headers, data = server.request("POST", COMPLETIONS, SHORT, bearer("rate-key-0"))
        error_of((status, json.loads(data)), 429, "rate_limit_exceeded")
        assert 1 <= int(headers["Retry-After"]) <= 20 and json.loads(data)["error"]["type"] == "rate_limit_error"
        server.ok(COMPLETIONS, SHORT, headers=bearer("free-key-0"))
        with contextlib.closing(server.stream(COMPLETIONS, LONG, bearer("once-key-0"))) as stream:
            next(stream)
            status, headers, data = server.request("POST", COMPLETIONS, SHORT, bearer("once-key-0"))
            error_of((status, json.loads(data)), 429, "rate_limit_exceeded")
            assert int(headers["Retry-After"]) >= 1
            server.ok(COMPLETIONS, SHORT, headers=bearer("free-key-0"))
        server.wait(lambda: server.post(COMPLETIONS, SHORT, headers=bearer("once-key-0"))[0] == 200, what="its turn")
        assert server.metric("isochron_requests_refused_total") >= 2


# ---- SIGHUP ----

def test_keys_are_read_again(pair_plan, long_text, keys):
    """A key that went is refused, what it has running goes on; one that came is taken; a broken file changes nothing."""
    with serving.serve(pair_plan, "--keys", keys, "--threads", 1) as server:
        stream = Stream(server, headers=USER)
        keys.write_text("admin-key-0\nnewer-key-0\n")
        hangup(server)
        error_of(server.post(COMPLETIONS, SHORT, headers=USER), 401)
        for key in ("admin-key-0", "newer-key-0"):
            server.ok(COMPLETIONS, SHORT, headers=bearer(key))
        keys.write_text("short\n")
        line = hangup(server, "not_read_again")
        assert "line 1" in line and str(keys) in line and "short\n" not in line
        server.ok(COMPLETIONS, SHORT, headers=bearer("newer-key-0"))
        assert stream.runs, "too short a stream to show anything"
        assert stream.end() == long_text and stream.finish == "length and done"


def test_log_level_is_read_again(tmp_path, served_plan):
    file = tmp_path / "isochron.yaml"
    file.write_text(f"model: {served_plan}\nlog: {{level: info}}\n")
    with serving.serve("--config", file) as server:
        server.ok(COMPLETIONS, SHORT)
        server.wait_log("INFO request ")
        assert not any(" DEBUG " in line for line in server.log)
        file.write_text(f"model: {served_plan}\nlog: {{level: debug}}\n")
        hangup(server)
        server.ok(COMPLETIONS, SHORT)
        server.wait_log("DEBUG token ")
        file.write_text(f"model: {served_plan}\nlog: {{level: loud}}\n")
        assert f"{file}:2" in hangup(server, "not_read_again")
        server.ok(COMPLETIONS, SHORT)


def test_audit_file_is_opened_again(tmp_path, served_plan, keys):
    """Also where another of the files is broken: a log that is rotated must not fill the disk."""
    audit, moved = tmp_path / "audit", tmp_path / "audit.1"
    with serving.serve(served_plan, "--audit", audit, "--keys", keys) as server:
        def ask(n):
            server.ok(COMPLETIONS, SHORT, headers={**ADMIN, "X-Request-Id": f"ask-{n}"})

        def ids(path):
            return [json.loads(line)["request_id"] for line in path.read_text().splitlines()]

        ask(1)
        audit.rename(moved)
        ask(2)
        assert ids(moved) == ["ask-1", "ask-2"] and not audit.exists()
        hangup(server)
        ask(3)
        assert ids(moved) == ["ask-1", "ask-2"] and ids(audit) == ["ask-3"]
        assert audit.stat().st_mode & 0o777 == 0o600
        audit.unlink()
        keys.write_text("short\n")
        hangup(server, "not_read_again")
        ask(4)
        assert ids(audit) == ["ask-4"]


def certificate(folder, serial):
    """Over the files there, each at once."""
    made = [folder / name for name in ("new-cert.pem", "new-key.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "2", "-set_serial", str(serial), "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=IP:127.0.0.1", "-out", made[0], "-keyout", made[1]],
                   check=True, capture_output=True)
    for path in made:
        path.replace(folder / path.name.removeprefix("new-"))
    return folder / "cert.pem", folder / "key.pem"


def test_certificate_is_read_again(tmp_path, pair_plan):
    """New connections see the new one while an older one's stream goes on; a broken one changes nothing."""
    def connect(server, trusted):
        return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60,
                                           context=ssl.create_default_context(cadata=trusted))

    def ask(server, trusted):
        """(serial number, text)"""
        c = connect(server, trusted)
        c.request("POST", COMPLETIONS, json.dumps(SHORT))
        serial = int(c.sock.getpeercert()["serialNumber"], 16)
        answer = json.loads(c.getresponse().read())
        c.close()
        return serial, answer["choices"][0]["text"]

    cert, key = certificate(tmp_path, 1001)
    first = cert.read_text()
    with serving.serve(pair_plan, "--tls-certificate", cert, "--tls-key", key, "--threads", 1, ready=False) as server:
        server.wait_log(" ready ")
        serial, text = ask(server, first)
        assert serial == 1001
        c = connect(server, first)
        c.request("POST", COMPLETIONS, json.dumps(dict(LONG, stream=True)))
        stream = c.getresponse()
        assert stream.readline().startswith(b"id: 1")
        certificate(tmp_path, 1002)
        hangup(server)
        second = cert.read_text()
        assert ask(server, second) == (1002, text)
        with pytest.raises(ssl.SSLError):
            ask(server, first)
        cert.write_text("no certificate")
        hangup(server, "not_read_again")
        assert ask(server, second) == (1002, text)
        assert stream.read().endswith(b"data: [DONE]\n\n")
        c.close()
    refused(iso("serve", pair_plan, "--tls-certificate", cert, "--tls-key", key), USAGE, "certificate")


# ---- Drains ----

def test_sigterm_lets_what_runs_end(pair_plan, long_text):
    """The stream that runs ends whole; new requests are refused, on old connections and on new ones; exit code 0."""
    with serving.serve(pair_plan, "--threads", 1) as server:
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        kept.request("GET", "/readyz")
        assert kept.getresponse().read()
        stream = Stream(server)
        server.process.send_signal(signal.SIGTERM)
        server.wait_log("draining")
        kept.request("POST", COMPLETIONS, json.dumps(SHORT))
        r = kept.getresponse()
        assert "draining" in error_of((r.status, json.loads(r.read())), 503) and r.headers["Retry-After"]
        kept.close()
        with pytest.raises(OSError):
            server.connect()
        assert stream.runs and server.process.poll() is None
        assert stream.end() == long_text and stream.finish == "length and done"
        assert server.process.wait(60) == 0
        server.wait_log(" ended")


def test_sigterm_waits_for_bytes_that_a_client_has_not_taken(served_plan):
    """An answer of megabytes whose reader lags: whole, though the unit has long been done."""
    with serving.serve(served_plan) as server:
        body = json.dumps({"input": ["x"] * 60}).encode()
        c = server.connect()
        many = 200  # answers behind each other, more than the system's buffers hold
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        c.sendall((head + body) * many)
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None  # waits
        got = b""
        while more := c.recv(65536):
            got += more
        assert got.count(b"200 OK") >= 1 and got.rstrip().endswith(b"}"), got[-200:]
        assert server.process.wait(60) == 0


def test_sigterm_while_a_plan_is_loaded():
    """The load is not waited for."""
    with serving.serve(cli.demo_model(), "--max-seq-len", 256, ready=False) as server:
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert time.monotonic() - began < 10


def test_a_key_is_looked_at_before_a_body(served_plan, keys):
    """Who may not ask holds no memory: the answer comes before the body, and the connection ends."""
    with serving.serve(served_plan, "--keys", keys, "--body-timeout", "60s") as server:
        for header in (b"", b"Authorization: Bearer wrong-key-00\r\n"):
            with server.connect(timeout=10) as c:
                c.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: 1000000\r\n\r\n{" % (CHAT.encode(), header))
                got = b""
                while more := c.recv(65536):
                    got += more
                assert got.startswith(b"HTTP/1.1 401 ") and b"X-Request-Id: req-" in got, got


def test_a_mistyped_model_reloads_none(pair_plan, keys):
    with serving.serve(pair_plan, "--alias", "tiny", "--any-model", "--keys", keys) as server:
        assert server.post("/admin/reload", {"model": "tinny"}, headers=ADMIN)[0] == 404
        assert server.metric("isochron_reloads_total") == 0


def test_pauses_between_restarts_grow(served_plan, plan, tmp_path):
    path = tmp_path / "model.plan"
    path.write_bytes(served_plan.read_bytes())
    with serving.serve(path) as server:
        path.write_bytes(plan.read_bytes())
        os.kill(server.units()[0]["pid"], signal.SIGKILL)
        time.sleep(5)  # tries after 0.5, 1.5, 3.5 and 7.5 s
        assert 3 <= sum("unit_died" in line for line in server.log) <= 4


def test_drain_by_a_request(served_plan, keys):
    with serving.serve(served_plan, "--keys", keys) as server:
        for drain in (True, False, None, False):
            answer = server.ok("/admin/drain", {} if drain is None else {"drain": drain}, headers=ADMIN)
            draining = drain is not False
            assert answer == {"draining": draining, "unanswered": 0}
            assert server.get("/readyz")[0] == server.get("/health")[0] == (503 if draining else 200)
            assert server.get("/healthz")[0] == 200 and server.metrics()["isochron_draining"] == draining
            status, answer = server.post(COMPLETIONS, SHORT, headers=USER)
            assert status == (503 if draining else 200), answer
        error_of(server.post("/admin/drain", {"drain": 1}, headers=ADMIN), 400)
        error_of(server.post("/admin/drain", {}, headers=USER), 403)
        error_of(server.post("/admin/drain", {}), 401)
        assert server.get("/readyz")[0] == 200


# ---- Reloads ----

def test_reload_of_a_changed_plan(models, pair_plan, long_text, tmp_path, keys):
    """A stream on the old plan ends with the old plan's text; all that comes after is answered by the new one."""
    plan = tmp_path / "model.plan"
    plan.write_bytes(pair_plan.read_bytes())
    old = ok("inspect", plan, "--json").json["hash"]
    with serving.serve(plan, "--alias", "tiny", "--keys", keys, "--threads", 1) as server:
        def ask():
            answer = server.ok(COMPLETIONS, SHORT, headers=USER)
            return answer["system_fingerprint"], answer["choices"][0]["text"]

        before = ask()
        assert before[0] == old
        stream = Stream(server, headers=USER)
        ok("compile", models.qwen2, "-o", plan, "-c", 128, "--slots", 2)
        new = ok("inspect", plan, "--json").json["hash"]
        assert new != old and ask() == before
        assert server.ok("/admin/reload", {}, headers=ADMIN) == {"model": "tiny", "plan": new}
        after = ask()
        assert after[0] == new and after[1] != before[1]
        units = json.loads(server.get("/v1/units", headers=USER)[2])
        assert stream.runs and units["ending_units"] == 1 and [u["plan"] for u in units["units"]] == [new]
        assert stream.end() == long_text and stream.fingerprint == old
        server.wait(lambda: json.loads(server.get("/v1/units", headers=USER)[2])["ending_units"] == 0, what="its end")
        # A file that is none, and one whose weights are damaged: told, and the plan that is there goes on.
        damaged = bytearray(plan.read_bytes())
        damaged[-5000] ^= 1
        for bad in (b"", b"hello" * 1000, bytes(damaged[:len(damaged) // 2]), bytes(damaged)):
            (tmp_path / "bad.plan").write_bytes(bad)
            os.replace(tmp_path / "bad.plan", plan)
            assert error_of(server.post("/admin/reload", {"model": "tiny"}, headers=ADMIN), 500, "reload_failed")
            assert ask() == after and server.get("/readyz")[0] == 200
        plan.unlink()
        assert "model.plan" in error_of(server.post("/admin/reload", {}, headers=ADMIN), 500, "reload_failed")
        plan.write_bytes(pair_plan.read_bytes())
        assert server.ok("/admin/reload", {"model": "tiny"}, headers=ADMIN)["plan"] == old
        assert ask() == before
        assert server.metric("isochron_reloads_total") == 2 and server.metric("isochron_unit_restarts_total") == 0
        error_of(server.post("/admin/reload", {"model": "other"}, headers=ADMIN), 404)
        error_of(server.post("/admin/reload", {"model": 1}, headers=ADMIN), 400)
        error_of(server.post("/admin/reload", {}, headers=USER), 403)
        error_of(server.post("/admin/reload", {}), 401)


def test_administering_needs_keys(served_plan, models):
    with serving.serve(served_plan) as server:
        for path in ("/admin/reload", "/admin/drain"):
            assert "auth.keys" in error_of(server.post(path, {}), 403, "forbidden")
        assert server.get("/readyz")[0] == 200


# ---- The audit ----

def ask_all(server):
    """Mixed requests; the number of answers."""
    chat = {"messages": HELLO, "max_tokens": 12, "seed": 5}
    short = dict(SHORT, seed=6)
    server.ok(CHAT, dict(chat, temperature=0))
    server.ok(CHAT, dict(chat, seed=7, n=3, temperature=0.8, top_p=0.9, top_k=40, min_p=0.01))
    server.ok(CHAT, dict(chat, seed=2**63 - 1, presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.1))
    server.ok(CHAT, dict(chat, logit_bias={"5": 3.5, "7": -100}, ignore_eos=True, logprobs=True, top_logprobs=3))
    list(server.stream(CHAT, dict(chat, seed=-4)))
    whole = server.ok(COMPLETIONS, dict(short, max_tokens=20))["choices"][0]["text"]
    server.ok(COMPLETIONS, dict(short, max_tokens=20, stop=[whole[len(whole) // 2:][:2], "\u2603"]))
    server.ok(COMPLETIONS, {"prompt": ["one", [1, 2, 3]], "n": 2, "seed": 1, "max_tokens": 6})
    server.ok(COMPLETIONS, dict(short, echo=True, logprobs=1))
    server.ok(BATCH, {"prompts": ["a", "bb", "ccc"], "max_tokens": 5, "seed": 3})
    server.ok(EMBEDDINGS, {"input": ["one", "two"]})
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    server.ok(CHAT, {"messages": HELLO, "max_tokens": 6, "tools": tools, "tool_choice": "required", "seed": 2})
    return 1 + 3 + 1 + 1 + 1 + 1 + 1 + 4 + 1 + 3 + 2 + 1


@pytest.fixture(scope="module")
def audited(models, tmp_path_factory):
    """Two audits of the same requests, with tokens and with digests alone, and the plan."""
    folder = tmp_path_factory.mktemp("audit")
    plan, tokens, digests = folder / "tiny.plan", folder / "tokens", folder / "digests"
    ok("compile", models.llama, "-o", plan, "--slots", 4, "-c", 512)
    with serving.serve(plan, "--audit", tokens) as server:
        n = ask_all(server)
    with serving.serve(plan, "--audit", digests, "--audit-detail", "digests") as server:
        ask_all(server)
    return SimpleNamespace(plan=plan, tokens=tokens, digests=digests, n=n)


def test_replay_says_the_same(audited):
    r = ok("replay", audited.tokens)
    assert f"{audited.n} answers are the same, 0 differ" in r.out.decode(), r
    for options in (["--threads", 1, "--isa", "c"], ["--model", audited.plan, "--threads", 2]):
        r = ok("replay", audited.tokens, "--json", *options)
        assert r.json == {"same": audited.n, "different": 0, "impossible": 0, "unreadable": 0,
                          "differences": []}
    lines = [json.loads(line) for line in audited.tokens.read_text().splitlines()]
    name = ok("inspect", audited.plan, "--json").json["hash"]
    assert len(lines) == audited.n and {line["plan"] for line in lines} == {name}
    assert {line["finish_reason"] for line in lines} >= {"stop", "length", "embedded"}


def test_replay_finds_what_was_changed(audited, tmp_path):
    lines = audited.tokens.read_text().splitlines()
    changed = tmp_path / "changed"

    def change(number, edit):
        line = json.loads(lines[number])
        edit(line)
        changed.write_text("\n".join(lines[:number] + [json.dumps(line)] + lines[number + 1:]) + "\n")
        r = iso("replay", changed)
        assert r.code == CORRUPT, r
        named = re.findall(r"^line (\d+): ", r.out.decode(), re.M)
        assert named == [str(number + 1)] and f"{audited.n - 1} answers are the same, 1 differ" in r.out.decode(), r
        assert iso("replay", changed, "--json").json["differences"][0]["line"] == number + 1

    def other(token):
        return (token + 1) % 300

    change(0, lambda line: line["output"].__setitem__(2, other(line["output"][2])))
    change(2, lambda line: line["prompt"].__setitem__(0, other(line["prompt"][0])))
    change(5, lambda line: line.update(digest=line["digest"][:-1] + ("0" if line["digest"][-1] != "0" else "1")))
    change(1, lambda line: line["params"].update(seed="8"))
    change(3, lambda line: line["params"].update(temperature=0.7))
    change(0, lambda line: line.update(finish_reason="stop" if line["finish_reason"] != "stop" else "length"))
    change(1, lambda line: line.update(output_tokens=77))
    change(2, lambda line: line.update(prompt_tokens=1))
    embedding = next(i for i, line in enumerate(lines) if '"embedded"' in line)
    change(embedding, lambda line: line["prompt"].__setitem__(0, other(line["prompt"][0])))


def test_replay_of_what_it_cannot(audited, plan, served_plan, tmp_path):
    r = iso("replay", audited.digests)
    assert r.code == UNSUPPORTED and f"{audited.n} can't be answered again" in r.out.decode(), r
    of_tokens, of_digests = (sorted(json.loads(line)["digest"] for line in path.read_text().splitlines())
                             for path in (audited.tokens, audited.digests))
    assert of_tokens == of_digests  # of two servers
    r = iso("replay", audited.tokens, "--model", served_plan)
    assert r.code == UNSUPPORTED and f"{audited.n} can't be answered again" in r.out.decode(), r
    assert r.out.count(b"is not at hand: ") == 1 and str(served_plan) in r.out.decode(), r
    refused(iso("replay", tmp_path / "none"), cli.IO, "none")
    bad = tmp_path / "bad"
    for text in ("{}\n", "hello\n", audited.tokens.read_text()[:300]):
        bad.write_text(text)
        r = iso("replay", bad)
        assert r.code == FORMAT and b"line 1 can't be read: " in r.out, r
    lines = audited.tokens.read_text().splitlines()
    bad.write_text("\n".join([lines[0], lines[1][:200], *lines[2:], lines[1][:50]]))  # a full disk; a power cut
    r = iso("replay", bad)
    named = re.findall(r"^line (\d+) can't be read", r.out.decode(), re.M)
    assert r.code == FORMAT and named == ["2", str(len(lines) + 1)], r
    assert f"{audited.n - 1} answers are the same, 0 differ" in r.out.decode(), r


def test_audit_of_what_was_cut_off(pair_plan, tmp_path):
    """A client that leaves, a unit that dies, and a prompt without an answer: what there was is there, and replay agrees."""
    audit = tmp_path / "audit.jsonl"
    with serving.serve(pair_plan, "--audit", audit) as server:
        server.ok(COMPLETIONS, {"prompt": "x", "max_tokens": 0, "echo": True})
        server.ok(COMPLETIONS, {"prompt": "xy", "max_tokens": 0, "echo": True, "logprobs": 1})
        for name in ("left", "died"):
            stream = server.stream(COMPLETIONS, {"prompt": "a", "max_tokens": 200, "ignore_eos": True},
                                   headers={"X-Request-Id": name})
            for _ in range(5):
                next(stream)
            if name == "died":
                os.kill(server.units()[0]["pid"], signal.SIGKILL)
                list(stream)
            stream.close()
            server.wait(lambda: name in audit.read_text(), what="an audit line")
        server.wait(lambda: server.get("/readyz")[0] == 200, serving.READY_SECONDS, "ready again")
    found = {line["request_id"]: line for line in map(json.loads, audit.read_text().splitlines())}
    assert found["left"]["finish_reason"] == "abort" and found["died"]["finish_reason"] == "error"
    assert found["left"]["output_tokens"] >= 4 and found["died"]["output_tokens"] >= 4
    assert ok("replay", audit, "--json").json["same"] == 4
    changed = json.loads(audit.read_text().splitlines()[2])
    changed["output"][1] += 1
    audit.write_text(json.dumps(changed) + "\n")
    assert iso("replay", audit).code == CORRUPT


def test_health_of_one_of_two(pair_plan, served_plan):
    with serving.serve(f"a={pair_plan}", f"b={served_plan}") as server:
        server.wait(lambda: server.get("/readyz?model=b")[0] == 200, what="b ready")
        pid = next(u["pid"] for u in server.units() if u["model"] == "a")
        os.kill(pid, signal.SIGKILL)
        server.wait(lambda: server.get("/readyz?model=a")[0] == 503, what="a down")
        status, _, body = server.get("/readyz")
        assert status == 200 and json.loads(body)["models"]["b"] == "ok"
        assert server.get("/readyz?model=none")[0] == 503
        assert server.post(COMPLETIONS, {"prompt": "x"})[0] == 400  # which of the two?
        server.wait(lambda: server.get("/readyz?model=a")[0] == 200, what="a again")


def test_a_plan_that_changed_is_told_when_its_unit_restarts(served_plan, plan, tmp_path):
    path = tmp_path / "model.plan"
    path.write_bytes(served_plan.read_bytes())
    with serving.serve(path) as server:
        path.write_bytes(plan.read_bytes())  # in place: the file that is open is another now
        os.kill(server.units()[0]["pid"], signal.SIGKILL)
        server.wait_log(r"unit_died.*plan changed")
        assert "changed" in server.units()[0]["last_failure"]


@pytest.mark.parametrize("flag, says", [("--port", "--listen"), ("--host", "--listen"), ("--api-key", "--keys"),
                                        ("--served-model-name", "--alias"), ("--parallel", "--slots")])
def test_flags_of_other_servers(flag, says, served_plan):
    cli.misused(iso("serve", served_plan, flag, "1"), flag, says)


def test_short_flags(served_plan):
    shown = ok("serve", "-m", served_plan, "-c", 100, "-np", 3, "--listen", "localhost:81", "--print-config").out.decode()
    assert "max_seq_len: 100" in shown and "slots: 3" in shown and "127.0.0.1:81" in shown and str(served_plan) in shown


# ---- Log and metrics ----

def test_log_as_json(pair_plan):
    """Each line is JSON; a request has one, with what it took; of an error of the server it names id and cause."""
    with serving.serve(pair_plan, "--alias", "tiny", "--queue", 0, "--log-format", "json", "--threads", 1) as server:
        for i in range(3):
            server.ok(CHAT, {"messages": HELLO, "max_tokens": 8, "ignore_eos": True},
                      headers={"X-Request-Id": f"good-{i}"})
        server.post(CHAT, {"messages": "x"}, headers={"X-Request-Id": 'bad-"\\'})
        server.post("/n%C3%B6ne%FF", {})
        streams = [Stream(server, headers={"X-Request-Id": f"cut-{i}"}) for i in range(2)]
        assert server.post(CHAT, {"messages": HELLO}, headers={"X-Request-Id": "full-1"})[0] == 503
        pid = server.units()[0]["pid"]
        os.kill(pid, signal.SIGKILL)
        server.wait(lambda: server.get("/readyz")[0] == 503, what="not ready")
        assert server.post(CHAT, {"messages": HELLO}, headers={"X-Request-Id": "lost-1"})[0] == 503
        server.wait(lambda: server.get("/readyz")[0] == 200, serving.READY_SECONDS, "ready again")
        for stream in streams:
            stream.end()
            assert stream.error["code"] == "unit_failed"
    lines = [json.loads(line) for line in server.log]
    assert all({"time", "level", "event"} <= set(line) for line in lines)
    requests = {}
    for line in lines:
        if line["event"] == "request":
            requests.setdefault(line["request_id"], []).append(line)
    for i in range(3):
        [line] = requests[f"good-{i}"]
        assert (line["level"], line["status"], line["endpoint"], line["model"]) == ("info", 200, CHAT, "tiny")
        assert line["output_tokens"] == 8 and line["prompt_tokens"] > 8 and line["finish_reason"] == "length"
        assert 0 < line["ttft_ms"] <= line["total_ms"] and 0 <= line["token_p50_ms"] <= line["token_p99_ms"]
        assert line["token_max_ms"] <= line["total_ms"]
    [line] = requests['bad-"\\']
    assert (line["level"], line["status"]) == ("info", 400) and "messages" in line["error"]
    for name, cause in (("lost-1", "not ready"), ("full-1", "queue is full"), ("cut-0", "unit"), ("cut-1", "unit")):
        [line] = requests[name]
        assert (line["level"], line["status"]) == ("error", 503) and cause in line["error"], line
    [died] = [line for line in lines if line["event"] == "unit_died"]
    assert died["level"] == "error" and died["pid"] == pid and "signal 9" in died["error"]


def test_metrics_count_what_was_done(served_plan):
    with serving.serve(served_plan, "--alias", "tiny") as server:
        for n in (3, 5):
            server.ok(CHAT, {"messages": HELLO, "max_tokens": n, "ignore_eos": True})
        answer = server.ok(COMPLETIONS, dict(SHORT, n=4))
        list(server.stream(COMPLETIONS, dict(SHORT, max_tokens=10)))
        server.post(CHAT, {"messages": "x"})
        server.post(CHAT, b"not JSON")
        server.post(COMPLETIONS, {"prompt": "x" * 300})
        chat_prompt = server.ok("/tokenize", {"messages": HELLO})["count"]
        text = server.get("/metrics")[2].decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.get("model_name", "tiny") == "tiny"
            rest = tuple(v for k, v in sorted(sample.labels.items()) if k not in ("model_name", "engine"))
            assert (sample.name, rest) not in samples, sample
            samples[sample.name, rest] = sample.value
    assert answer["usage"]["completion_tokens"] == 12
    assert samples["vllm:request_success_total", ("length",)] == 7
    assert samples["vllm:request_success_total", ("abort",)] == 0
    assert samples["vllm:generation_tokens_total", ()] == 3 + 5 + 12 + 10
    assert samples["vllm:prompt_tokens_total", ()] == 2 * chat_prompt + 5
    assert samples["isochron_requests_refused_total", ("invalid",)] == 2
    assert samples["isochron_requests_refused_total", ("too_long",)] == 1
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
                 "request_generation_tokens"):
        assert samples[f"vllm:{name}_count", ()] == samples[f"vllm:{name}_bucket", ("+Inf",)] == 7, name
    assert samples["vllm:inter_token_latency_seconds_count", ()] == 30 - 7
    assert samples["vllm:num_requests_running", ()] == samples["vllm:num_requests_waiting", ()] == 0
    assert samples["vllm:kv_cache_usage_perc", ()] == 0
    assert samples["isochron_ready", ()] == 1 and samples["isochron_slots", ()] == 4
    hash_ = ok("inspect", served_plan, "--json").json["hash"]
    assert samples["isochron_plan_info", (hash_,)] == 1
