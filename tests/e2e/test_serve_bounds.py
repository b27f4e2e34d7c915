"""isochron serve under clients that are slow, many, greedy or gone, and with processes that are killed: what it holds
stays bounded, slots come back, and all others are served."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import struct
import threading
import time

import pytest

import serving

CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
LONG = {"prompt": "x", "max_tokens": 32000, "ignore_eos": True}
SHORT = {"prompt": "x", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
SOON = 5  # seconds, on a machine with much else to do; at once where it is idle
ROOM = 8 if serving.SERVE else 1  # sanitizers take memory of their own
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(endless_plan):
    """One slot, a queue of one, and little patience."""
    with serving.serve(endless_plan, "--alias", "tiny", "--queue", 1, "--threads", 1, "--head-timeout", "1s",
                       "--body-timeout", "1s", "--idle-timeout", "1s", "--stall-timeout", "1s", "--body", "64KiB") as s:
        yield s
        assert s.units()[0]["restarts"] == 0


def raw(path, body, headers=""):
    data = json.dumps(body)
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(data)}\r\n\r\n{data}".encode()


def load(server):
    """(running, waiting)"""
    unit = server.units()[0]
    return unit["running"], unit["waiting"]


def wait_load(server, running, waiting, seconds=30):
    server.wait(lambda: load(server) == (running, waiting), seconds, f"{running} running and {waiting} waiting")


@contextlib.contextmanager
def asking(server, *bodies):
    """Sockets, one for each body of a completion, which were sent in this order; closed at the end, slots free."""
    sockets = []
    try:
        for body in bodies:
            sockets.append(server.connect())
            sockets[-1].sendall(raw(COMPLETIONS, body, "Connection: close\r\n"))
            server.wait(lambda: sum(load(server)) == len(sockets), what="admission")
        yield sockets
    finally:
        for s in sockets:
            s.close()
        wait_load(server, 0, 0)


def read_all(s):
    data = b""
    with contextlib.suppress(ConnectionError):
        while more := s.recv(65536):
            data += more
    return data


def answers_of(data):
    """(status, headers, JSON) of each answer in what came over a connection."""
    out = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        n = int(headers["Content-Length"])
        out.append((int(lines[0].split()[1]), headers, json.loads(rest[:n])))
        data = rest[n:]
    return out


def rss(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read())[1]) * 1024


def files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


# ---- Slow clients ----

DRIPS = {
    "a head": (b"", b"POST /v1/chat/completions HTTP/1.1\r\nX-Long: " + b"x" * 1000),
    "blank lines": (b"", b"\r\n" * 500),
    "a body": (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", b" " * 999),
    "a body in chunks": (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
                         b"1\r\n \r\n" * 300),
    "a head after an answer": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
                               b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 999),
    "nothing": (b"", b""),
    "nothing after an answer": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b""),
}


def test_what_drips_is_closed_in_time(server):
    """All at once, a byte at a time; another client is served meanwhile."""
    begun = time.monotonic()
    closed = {}

    def drip(name, first, rest):
        with server.connect() as s, contextlib.suppress(ConnectionError):
            s.sendall(first)
            s.settimeout(0.05)
            at = 0
            while time.monotonic() - begun < 20:
                with contextlib.suppress(socket.timeout):
                    if s.recv(65536) == b"":
                        break
                s.sendall(rest[at:at + 1])
                at += 1
        closed[name] = time.monotonic() - begun

    threads = [threading.Thread(target=drip, args=(name, *parts)) for name, parts in DRIPS.items()]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        assert server.ok(COMPLETIONS, SHORT)
    for t in threads:
        t.join()
    assert all(0.9 < seconds < 1 + SOON for seconds in closed.values()), closed
    assert server.metric("isochron_connections") == 1


def test_a_slow_reader_of_a_stream_is_dropped(server):
    """It takes nothing: its stream ends, its slot is free, and the server has not grown by what it left unread."""
    aborted = server.metrics()['vllm:request_success_total{model_name="tiny",engine="0",finished_reason="abort"}']
    before = server.rss()
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", server.port))
        s.sendall(raw(COMPLETIONS, dict(LONG, stream=True, logprobs=20)))
        wait_load(server, 1, 0)
        assert server.ok(COMPLETIONS, SHORT)["usage"]["completion_tokens"] == 3  # after it, in the only slot
        assert load(server) == (0, 0)
        assert server.rss() - before < 8 * MIB * ROOM
    server.wait_log(r"status=499 .*the client (reads too slowly|left)")
    after = server.metrics()['vllm:request_success_total{model_name="tiny",engine="0",finished_reason="abort"}']
    assert after == aborted + 1


def events_of(data):
    """The data of each event in a stream's bytes, taken from their chunks."""
    at, body = data.index(b"\r\n\r\n") + 4, []
    while at < len(data):
        end = data.index(b"\r\n", at)
        n = int(data[at:end], 16)
        body.append(data[end + 2:end + 2 + n])
        at = end + 2 + n + 2
    return [e.partition(b"data: ")[2] for e in b"".join(body).split(b"\n\n") if e]


def lagging(server, body):
    """A client that asked for a stream and took nothing of it, until its answer was paused."""
    s = server.connect()
    s.sendall(raw(COMPLETIONS, body, "Connection: close\r\n"))
    wait_load(server, 1, 0)
    wait_load(server, 0, 0)
    return s


def test_a_slow_reader_is_paused_and_gets_the_same_bytes(endless_plan):
    """Its slot serves others meanwhile; it goes on where it was, and nothing of the answer tells."""
    body = {"prompt": "x", "max_tokens": 25000, "ignore_eos": True, "seed": 3, "stream": True, "logprobs": 20}
    with serving.serve(endless_plan, "--threads", 1) as server:
        alone = [e for _, e in server.stream(COMPLETIONS, body)]
        with lagging(server, body) as s:
            steps = server.units()[0]["steps"]
            assert steps < len(alone) + 20000 and server.ok(COMPLETIONS, SHORT) and load(server) == (0, 0)
            assert server.units()[0]["steps"] < steps + 10
            data = bytearray()
            while len(data) < 6 * MIB:  # it goes on, and is paused again
                data += s.recv(65536)
                assert data
            wait_load(server, 1, 0)
            wait_load(server, 0, 0)
            assert server.ok(COMPLETIONS, SHORT)
            events = events_of(bytes(data) + read_all(s))
        got = [json.loads(e) for e in events[:-1]]
        assert events[-1] == b"[DONE]" and [e["choices"] for e in got] == [e["choices"] for e in alone[:-1]]


def test_the_unit_dies_while_an_answer_is_paused(endless_plan):
    with serving.serve(endless_plan, "--threads", 1) as server:
        with lagging(server, dict(LONG, stream=True, logprobs=20)) as s:
            os.kill(server.units()[0]["pid"], signal.SIGKILL)
            server.wait_log(r"status=503 .*compute unit ended")
            events = events_of(read_all(s))
            assert "compute unit ended" in json.loads(events[-1])["error"]["message"]
        server.wait(lambda: server.get("/readyz")[0] == 200, what="ready again")


# ---- Many connections, long bodies, several requests at once ----

def test_a_thousand_connections(endless_plan):
    with serving.serve(endless_plan, "--connections", 512, "--head-timeout", "100s", "--threads", 1) as server:
        before, open_files = server.rss(), files(server.process.pid)
        held = [server.connect() for _ in range(512)]
        held[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        text = b""
        while b"\nisochron_connections " not in text:
            text += held[-1].recv(65536)
        assert int(re.search(rb"\nisochron_connections (\d+)", text)[1]) == 512
        more = [server.connect() for _ in range(488)]
        for s in more:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        for s in more:
            [(status, headers, answer)] = answers_of(read_all(s))
            assert status == 503 and headers["Retry-After"] == "1" and answer["error"]["type"] == "server_error"
            s.close()
        assert server.rss() - before < 64 * MIB * ROOM
        for s in held[:100]:  # those that are there are served
            s.sendall(raw(COMPLETIONS, SHORT, "Connection: close\r\n"))
            assert answers_of(read_all(s))[0][0] == 200
        for s in held:
            s.close()
        server.wait(lambda: files(server.process.pid) <= open_files + 1, what="all connections closed")
        assert server.ok(COMPLETIONS, SHORT)


def test_bodies_over_the_limit(server):
    def ask(body, headers=None):
        status, _, data = server.request("POST", COMPLETIONS, body, headers)
        return status, json.loads(data)

    def pieces(n):
        text = json.dumps(dict(SHORT, user="x" * n)).encode()
        return iter([text[i:i + 1000] for i in range(0, len(text), 1000)])  # no length: sent in chunks

    for n, status in ((1000, 200), (64 * 1024 - 200, 200), (64 * 1024, 413), (200_000, 413)):
        assert ask(dict(SHORT, user="x" * n))[0] == status, n
        assert ask(pieces(n))[0] == status, n
    _, answer = ask(pieces(200_000))
    assert answer["error"]["type"] == "invalid_request_error" and "longer" in answer["error"]["message"]
    for length in ("9" * 19, "9" * 40, "-1", "1e3", "x"):
        with server.connect() as s:
            s.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{{}}".encode())
            assert re.match(rb"HTTP/1\.1 4\d\d |$", read_all(s)), length
    assert server.ok(COMPLETIONS, SHORT)


def test_pipelined_requests(server):
    """Each is answered, in order."""
    texts = [f"number {i}" for i in range(20)]
    with server.connect() as s:
        requests = [raw(TOKENIZE, {"prompt": text}) for text in texts] + [raw(COMPLETIONS, SHORT)] * 3
        s.sendall(b"".join(requests) + raw(CHAT, {}, "Connection: close\r\n"))
        answers = answers_of(read_all(s))
    assert [status for status, _, _ in answers] == [200] * 23 + [400]
    for text, (_, _, answer) in zip(texts, answers):
        assert answer == server.ok(TOKENIZE, {"prompt": text})
    assert len({answer["choices"][0]["text"] for _, _, answer in answers[20:23]}) == 1


# ---- Clients that leave ----

@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
@pytest.mark.parametrize("state", ["waiting", "streaming", "queued", "queued stream"])
def test_a_client_that_leaves_frees_its_slot(server, state, how):
    def leave(s):
        if how == "half-close":
            s.shutdown(socket.SHUT_WR)
            return
        if how == "reset":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()

    body = dict(LONG, stream="stream" in state)
    if state.startswith("queued"):
        with asking(server, LONG, body) as (_, queued):
            wait_load(server, 1, 1)
            leave(queued)
            wait_load(server, 1, 0, SOON)
        return
    with asking(server, body) as (running,):
        wait_load(server, 1, 0)
        if state == "streaming":
            assert running.recv(1000).startswith(b"HTTP/1.1 200")
        steps = server.units()[0]["steps"]
        leave(running)
        wait_load(server, 0, 0, SOON)
        assert server.units()[0]["steps"] - steps < 20000  # of the 32,000 that the answer would have taken


def test_a_full_queue_is_told(server):
    """One runs, one waits; the four others are told to try again, and these two go on."""
    sockets = [server.connect() for _ in range(6)]
    for s in sockets:
        s.sendall(raw(COMPLETIONS, dict(LONG, stream=True), "Connection: close\r\n"))
    wait_load(server, 1, 1)
    refused, running = [], 0
    for s in sockets:
        s.settimeout(1)
        try:
            first = s.recv(12)
        except socket.timeout:
            continue  # it waits
        if first == b"HTTP/1.1 200":
            running += 1
        else:
            refused += answers_of(first + read_all(s))
    assert running == 1 and [status for status, _, _ in refused] == [503] * 4
    for _, headers, answer in refused:
        assert int(headers["Retry-After"]) >= 1 and answer["error"]["code"] == "queue_full"
    assert load(server) == (1, 1)
    for s in sockets:
        s.close()
    wait_load(server, 0, 0)
    assert server.metric('isochron_requests_refused_total{model_name="tiny",reason="queue"}') >= 4


# ---- Memory over time ----

def test_equal_requests_take_no_more_memory(served_plan):
    """1,000 of them over one connection: after the first 100 nothing grows, in either process."""
    with serving.serve(served_plan, "--threads", 1) as server:
        pids = server.process.pid, server.units()[0]["pid"]
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 5, "ignore_eos": True}
        seen = set()

        def ask(n):
            for i in range(n):
                body = dict(chat, stream=i % 4 == 0, logprobs=i % 8 == 1)
                connection.request("POST", CHAT, json.dumps(body))
                r = connection.getresponse()
                data = r.read()
                assert r.status == 200, data
                if not body["stream"]:
                    seen.add(json.loads(data)["choices"][0]["isochron"]["digest"])

        ask(104)
        before = [(rss(pid), files(pid)) for pid in pids]
        ask(896)
        after = [(rss(pid), files(pid)) for pid in pids]
        connection.close()
        assert len(seen) == 1
        for (memory, n), (memory_then, n_then) in zip(before, after):
            assert memory_then - memory <= MIB // 4 and n_then == n, (before, after)


# ---- Processes that are killed ----

def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_killed_unit_is_started_again(pair_plan):
    """What ran or waited is told, nothing else is harmed, and the next unit says the same."""
    question = dict(SHORT, max_tokens=20, temperature=1, seed=3)
    with serving.serve(pair_plan, "--alias", "tiny", "--threads", 1) as server:
        first = server.ok(COMPLETIONS, question)["choices"]
        unit = server.units()[0]["pid"]
        with asking(server, dict(LONG, stream=True), LONG, dict(LONG, stream=True)) as (stream, running, queued):
            wait_load(server, 2, 1)
            stream.recv(1, socket.MSG_PEEK)
            os.kill(unit, signal.SIGKILL)
            seen = set()
            server.wait(lambda: seen.add(server.get("/readyz")[0]) or 503 in seen, SOON, "not ready")
            status, headers, data = server.request("POST", COMPLETIONS, SHORT)
            assert status == 503 and headers["Retry-After"]
            assert server.get("/healthz")[0] == 200
            told = http.client.HTTPResponse(stream)
            told.begin()
            events = [line[6:] for line in told.read().decode().splitlines() if line.startswith("data: ")]
            assert told.status == 200 and json.loads(events[0])["choices"]
            error = json.loads(events[-1])["error"]
            assert error["type"] == "server_error" and error["code"] == "unit_failed", error
            for s in (running, queued):
                [(status, headers, answer)] = answers_of(read_all(s))
                assert status == 503 and headers["Retry-After"] and answer["error"]["code"] == "unit_failed"
        server.wait(lambda: server.get("/readyz")[0] == 200, serving.READY_SECONDS, "ready again")
        assert server.ok(COMPLETIONS, question)["choices"] == first
        [after] = server.units()
        assert after["pid"] != unit and after["restarts"] == 1 and is_gone(unit)
        assert server.metric("isochron_unit_restarts_total") == 1
        finished = 'vllm:request_success_total{model_name="tiny",engine="0",finished_reason="error"}'
        assert server.metrics()[finished] == 3
        assert "signal 9" in server.wait_log("unit_died")
        assert server.wait_log(r"ERROR request .*status=503 .*unit")


def test_a_unit_ends_with_a_killed_front(served_plan):
    with pytest.raises(AssertionError, match="exit code -9"), serving.serve(served_plan, "--threads", 1) as server:
        unit = server.units()[0]["pid"]
        assert not is_gone(unit)
        server.process.kill()
        server.process.wait()
        server.wait(lambda: is_gone(unit), SOON, "the unit's end")
