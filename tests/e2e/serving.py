"""Starts `isochron serve` for a test, waits until it is ready, speaks plain HTTP with it, ends it."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import openai

import cli

READY_SECONDS = 120
# A server of another build, to find what only a sanitizer sees.
SERVE = os.environ.get("ISO_SERVE")


class Server:
    def __init__(self, process, port, log):
        self.process, self.port, self.log = process, port, log

    @property
    def base(self):
        return f"http://127.0.0.1:{self.port}"

    def connect(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def request(self, method, path, body=None, headers=None, timeout=120):
        """(status, headers, body as bytes)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        c.request(method, path, body, headers or {})
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, r.headers, data

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, **options):
        """(status, JSON)"""
        status, _, data = self.request("POST", path, body, **options)
        return status, json.loads(data)

    def ok(self, path, body, **options):
        status, answer = self.post(path, body, **options)
        assert status == 200, (status, answer)
        return answer

    def stream(self, path, body, headers=None, timeout=120):
        """The events of a stream as (id, data), data parsed where it is JSON; ends with (None, "[DONE]")."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        c.request("POST", path, json.dumps(dict(body, stream=True)), headers or {})
        r = c.getresponse()
        assert r.status == 200, (r.status, r.read())
        assert r.headers["Content-Type"] == "text/event-stream"
        event = {}
        for line in r:
            line = line.rstrip(b"\n").decode()
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif event:
                data = event["data"]
                yield event.get("id"), data if data == "[DONE]" else json.loads(data)
                event = {}
        c.close()

    def client(self, kind=openai.OpenAI, **options):
        """OpenAI's own client, which tries nothing twice."""
        return kind(**{"base_url": self.base + "/v1", "api_key": "none", "max_retries": 0, "timeout": 120} | options)

    def metrics(self):
        """Every sample by its name with labels."""
        text = self.get("/metrics")[2].decode()
        return {m[1]: float(m[2]) for m in re.finditer(r"^([^#\s]\S*(?:\{[^\n]*\})?) (\S+)$", text, re.M)}

    def metric(self, name):
        """The sum over labels."""
        return sum(v for k, v in self.metrics().items() if k == name or k.startswith(name + "{"))

    def wait(self, condition, seconds=30, what="a condition"):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{what} did not come true:\n" + "".join(self.log[-20:])
            time.sleep(0.02)

    def wait_log(self, pattern, seconds=30):
        self.wait(lambda: any(re.search(pattern, line) for line in list(self.log)), seconds, f"log line {pattern}")
        return next(line for line in self.log if re.search(pattern, line))

    def units(self):
        return json.loads(self.get("/v1/units")[2])["units"]

    def rss(self):
        """Of the front process, bytes."""
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+) kB", f.read())[1]) * 1024

    def end(self, seconds=60):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


@contextlib.contextmanager
def serve(*args, binary=None, ready=True, env=None, cwd=None):
    """A running server on a free port. Fails where it does not end cleanly, or where a sanitizer reports."""
    binary = binary or SERVE or cli.BINARY
    process = subprocess.Popen(cli.arguments(["serve", "--listen", "127.0.0.1:0", *args], binary), stderr=subprocess.PIPE,
                               stdout=subprocess.DEVNULL, env=cli.environment(env), cwd=cwd)
    log = []
    reader = threading.Thread(target=lambda: log.extend(iter(lambda: process.stderr.readline().decode(errors="replace"), "")),
                              daemon=True)
    reader.start()
    s = Server(process, None, log)
    try:
        def port():
            assert process.poll() is None, f"the server ended with {process.returncode}:\n" + "".join(log)
            found = re.search(r"listening.*port\W+(\d+)", "".join(list(log)))
            s.port = int(found[1]) if found else None
            return s.port
        s.wait(port, READY_SECONDS, "listening")
        if ready:
            s.wait(lambda: set(json.loads(s.get("/readyz")[2])["models"].values()) == {"ok"}, READY_SECONDS, "ready")
        yield s
        code = s.end()
        reader.join(10)
        text = "".join(log)
        assert "Sanitizer" not in text and "runtime error" not in text, text[-8000:]
        assert code == 0, f"exit code {code}\n" + text[-4000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
