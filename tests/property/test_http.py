"""The HTTP server's bounds, over raw sockets: what is answered, what is refused, and what is dropped when."""
import http.client
import pathlib
import signal
import socket
import subprocess
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILDS = ["build", "build-asan"]


class Server:
    def __init__(self, *options, build="build"):
        self.process = subprocess.Popen([ROOT / build / "tests/tools/tool_http", *options], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())
        self.said = []
        self.reader = threading.Thread(target=lambda: self.said.extend(line.strip() for line in self.process.stdout))
        self.reader.start()

    def connect(self, **options):
        s = socket.socket()
        for name, value in options.items():
            s.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        s.settimeout(20)
        s.connect(("127.0.0.1", self.port))
        return s

    def ask(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        c.request(method, path, body, headers or {})
        r = c.getresponse()
        text = r.read()
        c.close()
        return r, text

    def wait_for(self, line, times=1):
        deadline = time.monotonic() + 20
        while self.said.count(line) < times:
            assert time.monotonic() < deadline, (line, self.said)
            time.sleep(0.005)

    def connections(self, want):
        """Waits until so many are there, this question's own among them."""
        deadline = time.monotonic() + 20
        while (n := int(self.ask("GET", "/count")[1])) != want:
            assert time.monotonic() < deadline, n
            time.sleep(0.02)

    def rss(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(20)
        self.reader.join()
        self.process.stdout.close()
        assert code == 0


@pytest.fixture(params=BUILDS)
def server(request):
    with Server(build=request.param) as s:
        yield s


def read_all(s):
    data = b""
    try:
        while more := s.recv(65536):
            data += more
    except ConnectionResetError:
        pass
    s.close()
    return data


def test_answers(server):
    for path in ("/echo", "/later"):
        for body in (b"", b"x", b"\x00\xff" * 1000, b"y" * 100000):
            r, text = server.ask("POST", path, body)
            assert (r.status, text) == (200, body)
    r, text = server.ask("POST", "/echo", iter([b"in ", b"chunks"]))
    assert (r.status, text) == (200, b"in chunks")
    r, text = server.ask("GET", "/stream?n=20&bytes=1000")
    assert r.status == 200 and r.headers["X-Kind"] == "stream" and text == (b"a" * 999 + b"\n") * 20


def test_a_connection_serves_many(server):
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for i in range(300):
        c.request("POST", ("/echo", "/later", "/stream?n=2")[i % 50 % 3 if i % 50 < 3 else 0], str(i))
        r = c.getresponse()
        assert r.status == 200 and r.read()
    c.close()
    s = server.connect()  # pipelined
    s.sendall(b"".join(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n%03d" % i for i in range(50)))
    got = b""
    while got.count(b"HTTP/1.1 200") < 50 or not got.endswith(b"049"):
        got += s.recv(65536)
    s.close()


def test_bodies_over_the_limit(server):
    for body in (b"x" * 100001, iter([b"x" * 60000] * 2)):
        r, text = server.ask("POST", "/echo", body)
        assert r.status == 413 and b'"type":"invalid_request_error"' in text
    s = server.connect()  # refused by its head: none of the body is waited for
    s.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n")
    assert read_all(s).startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))


@pytest.mark.parametrize("text", [
    b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", b"\x00" * 100, b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20000 + b"\r\n",
    b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n",
], ids=range(10))
def test_malformed(server, text):
    s = server.connect()
    try:
        s.sendall(text)
    except (ConnectionResetError, BrokenPipeError):
        pass
    answer = read_all(s)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4") or answer.startswith(b"HTTP/1.1 505"), answer
    assert server.ask("POST", "/echo", "fine")[1] == b"fine"


@pytest.mark.parametrize("head", [b"", b"GET /echo HTTP/1.1\r\nX: ", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
                                  b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"], ids=["nothing", "head", "body", "idle"])
def test_what_drips_is_dropped(server, head):
    """In a second or so, though something comes all the time."""
    s = server.connect()
    began = time.monotonic()
    s.sendall(head)
    s.settimeout(0.05)
    closed = False
    while not closed:
        assert time.monotonic() < began + 10
        try:
            if head and not head.endswith(b"\n\r\nx"):
                s.sendall(b"a")
            closed = s.recv(1000) == b""
        except TimeoutError:
            pass
        except (ConnectionResetError, BrokenPipeError):
            closed = True
    assert 0.9 < time.monotonic() - began < 5
    s.close()
    server.connections(1)


@pytest.mark.parametrize("path", ["/hold", "/stream?n=100000", "/quiet"])
@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
def test_a_client_that_left_is_noticed(server, path, how):
    s = server.connect()
    s.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    server.wait_for("GET " + path.split("?")[0])
    began = time.monotonic()
    if how == "half-close":
        s.shutdown(socket.SHUT_WR)
    elif how == "reset":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    if how != "half-close":
        s.close()
    server.wait_for("gone " + path.split("?")[0])
    assert time.monotonic() - began < 2
    s.close()


def test_a_slow_reader_is_dropped():
    with Server("ms=1000") as server:
        s = server.connect(SO_RCVBUF=4096)
        s.sendall(b"GET /stream?n=100000&bytes=20000 HTTP/1.1\r\nHost: x\r\n\r\n")
        server.wait_for("slow")
        server.connections(1)
        s.close()
        s = server.connect(SO_RCVBUF=4096)  # few bytes, but never taken
        s.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100000)
        assert server.ask("POST", "/echo", "fine")[1] == b"fine"
        s.close()
        assert server.rss() < 40000


def test_a_reader_that_lags_makes_nothing_grow():
    """Always several megabytes behind, through 150 of them."""
    lag, end = 10_000_000, 150_000_000
    with Server("ms=20000", "unread=30000000") as server:
        s = server.connect(SO_RCVBUF=65536)
        s.sendall(b"GET /stream?n=100000&bytes=50000 HTTP/1.1\r\nHost: x\r\n\r\n")
        got = most = 0
        while got < end:
            until = int(server.ask("GET", "/written")[1]) - lag
            while got < until:
                got += len(s.recv(min(until - got, 1_000_000)))
            most = max(most, server.rss())
        s.close()
        assert most < 100_000, most


def test_a_stream_that_lags():
    """Its writer is told, and told again once the client has caught up."""
    with Server("ms=20000", "unread=80000000") as server:
        s = server.connect(SO_RCVBUF=65536)
        s.sendall(b"GET /stream?n=3000&bytes=50000 HTTP/1.1\r\nHost: x\r\n\r\n")
        for times in 1, 2:
            server.wait_for("lags /stream", times)
            written = int(server.ask("GET", "/written")[1])
            got = 0
            while got < 20_000_000:
                assert server.said.count("caught-up /stream") == times - 1 or got > 1_000_000
                got += len(s.recv(1_000_000))
            server.wait_for("caught-up /stream", times)
            assert 10_000_000 < written
        s.close()


def test_whole_answers_together():
    """What clients leave unread of them is bounded; short ones are always given."""
    n = 20_000_000
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % n
    with Server("ms=20000", f"body={n}", "bodies=100000000", "answers=30000000") as server:
        slow = server.connect(SO_RCVBUF=65536)
        slow.sendall(head + b"x" * n)
        server.wait_for("POST /echo")
        r, text = server.ask("POST", "/echo", b"y" * n)
        assert r.status == 503 and r.headers["Retry-After"] and b"unread" in text
        assert server.ask("POST", "/echo", b"fine")[1] == b"fine"
        got = 0
        while more := len(slow.recv(1_000_000)):
            got += more
        assert got > n
        slow.close()
        server.connections(1)
        r, text = server.ask("POST", "/echo", b"y" * n)
        assert r.status == 200 and len(text) == n


def test_bodies_together():
    with Server("bodies=150000") as server:
        half = server.connect()
        half.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"x" * 90000)
        time.sleep(0.2)
        r, text = server.ask("POST", "/echo", b"x" * 90000)
        assert r.status == 503 and b"try again" in text
        half.close()
        time.sleep(0.2)
        assert server.ask("POST", "/echo", b"x" * 90000)[1] == b"x" * 90000


def test_a_later_head_has_its_own_time():
    with Server("idle=100000") as server:
        s = server.connect()
        s.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
        answer = b""
        while not answer.endswith(b"\r\n\r\nx"):  # it may come in pieces
            answer += s.recv(1000)
        time.sleep(1.5)  # idle: allowed
        began = time.monotonic()
        s.sendall(b"GET /echo HTTP/1.1\r\n")
        assert s.recv(1000) == b"" and 0.9 < time.monotonic() - began < 5
        s.close()


def test_a_thousand_connections():
    """Eight are served at once, so many are told that it is full; all others wait."""
    with Server("connections_max=8") as server:
        held = [server.connect() for _ in range(8)]
        for s in held:
            s.sendall(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
        server.wait_for("GET /hold", 8)
        r, text = server.ask("POST", "/echo", "x")
        assert r.status == 503 and r.headers["Retry-After"] == "1" and b'"type":"server_error"' in text
        many = [server.connect() for _ in range(992)]
        for s in many:
            s.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
        answers = [read_all(s) for s in many]
        assert all(a.startswith(b"HTTP/1.1 503") for a in answers), set(a[:20] for a in answers)
        held.pop().close()
        server.wait_for("gone /hold")
        assert server.ask("POST", "/echo", "x")[1] == b"x"
        for s in held:
            s.close()


def test_memory_stays():
    with Server("connections_max=64") as server:
        def many(n):
            for i in range(n):
                assert server.ask("POST", "/later" if i % 100 == 0 else "/echo", b"x" * 50000)[0].status == 200
        many(300)
        before = server.rss()
        many(1000)
        assert server.rss() - before < 300


@pytest.mark.parametrize("options,says", [(["nowhere"], "no numeric"), (["999.1.1.1"], "no numeric"),
                                          (["port=1", "203.0.113.1"], "listening on 203.0.113.1 port 1 failed")])
def test_addresses_that_are_none(options, says):
    r = subprocess.run([ROOT / "build/tests/tools/tool_http", *options], capture_output=True, text=True, check=False)
    assert r.returncode == 1 and says in r.stderr


def test_ipv6():
    process = subprocess.Popen([ROOT / "build/tests/tools/tool_http", "::1"], stdout=subprocess.PIPE, text=True)
    c = http.client.HTTPConnection("::1", int(process.stdout.readline()), timeout=20)
    c.request("POST", "/echo", "six")
    assert c.getresponse().read() == b"six"
    c.close()
    process.terminate()
    assert process.wait(20) == 0
    process.stdout.close()
