"""For the end-to-end tests of the transport: the program as a server, and raw sockets to it."""
import errno
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

import common
from common import NANO, environment


class Server:
    """`deepinfer serve` on a free port; what it says on stderr is kept in a file."""

    def __init__(self, *options, model=NANO, env=None, threads=1, ready=True, pass_fds=()):
        """ready: wait until the model is loaded, else only until the address is bound."""
        self.errors = tempfile.NamedTemporaryFile("w+", suffix=".log")
        command = [common.BINARY, "serve", model, "--port", "0", "--threads", str(threads), *map(str, options)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors,
                                        env=env or environment(), pass_fds=pass_fds)
        end = time.monotonic() + 120
        found = None
        while not found:
            found = re.search(r"serving .* at (https?)://(\S+):(\d+)" if ready else r"loading the model; ()(\S+):(\d+) answers", self.log())
            if not found and (self.process.poll() is not None or time.monotonic() > end):
                raise AssertionError(f"the server did not start: {self.log()}")
            if not found:
                time.sleep(0.02)
        self.scheme, self.host, self.port = found[1], found[2].strip("[]"), int(found[3])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    def log(self):
        return pathlib.Path(self.errors.name).read_text(encoding="utf-8", errors="replace")

    def wait_for_log(self, text, seconds=10):
        end = time.monotonic() + seconds
        while text not in self.log():
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} is not in the log: {self.log()}")
            time.sleep(0.01)

    def access(self):
        """Lines of the access log on stderr."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def stop(self, seconds=30):
        """SIGTERM; the exit code."""
        self.signal()
        return self.process.wait(seconds)

    # ---- asking

    def connect(self, seconds=10):
        return socket.create_connection((self.host, self.port), timeout=seconds)

    def raw(self, data, half_close=False, seconds=10):
        """Sends bytes; everything that comes back until the connection ends."""
        with self.connect(seconds) as s:
            try:
                s.sendall(data)
                if half_close:
                    s.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the other side has closed
            return receive(s)

    def ask(self, method, path, body=None, headers=None, seconds=60, context=None):
        """Status, headers, body of one request on a connection of its own."""
        if self.scheme == "https":
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=seconds,
                                                     context=context or ssl._create_unverified_context())
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        try:
            given = dict(headers or {})
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
                given.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def json(self, *arguments, **more):
        status, _, body = self.ask(*arguments, **more)
        return status, json.loads(body)

    def metric(self, name, headers=None):
        text = self.ask("GET", "/metrics", headers=headers)[2].decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(re.escape(name) + r"(\{.*\})? ", line))

    # ---- looking

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident(self):
        """Bytes of memory."""
        return int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Hold:
    """Makes a program stand still at its first opening of a file whose path ends so (hold.c), from wait() to release()."""

    def __init__(self, end, folder):
        library = pathlib.Path(common.BINARY).parent / "hold.so"
        if not library.exists():
            raise unittest.SkipTest(f"{library} is not built")
        self.pipe, self.file = f"{folder}/hold", None
        os.mkfifo(self.pipe)
        # A sanitizer wants to be first; what comes before it here calls it.
        self.environment = {"LD_PRELOAD": str(library), "HOLD_END": end, "HOLD_PIPE": self.pipe,
                            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}

    def wait(self, process):
        """Until the program is there; fails, and does not wait for ever, when it ends before."""
        while self.file is None:
            if process.poll() is not None:
                raise AssertionError(f"the program ended with {process.returncode} before it was held")
            try:
                self.file = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as problem:
                if problem.errno != errno.ENXIO:
                    raise
                time.sleep(0.01)

    def release(self):
        os.close(self.file)


def receive(s):
    data = b""
    try:
        while piece := s.recv(65536):
            data += piece
    except (ConnectionResetError, TimeoutError):
        return data
    return data


def statuses(data):
    """Of all answers in a row of them."""
    return [int(found) for found in re.findall(rb"(?:^|\n|\}|\))HTTP/1\.1 (\d{3}) ", data)]


def certificate(folder, name="localhost"):
    """A certificate and key of its own: paths."""
    cert, key = f"{folder}/{name}.crt", f"{folder}/{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    return cert, key
