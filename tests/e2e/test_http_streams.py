#!/usr/bin/env python3
# labels: serial timing
"""Streams over the transport: draining under load, keepalive, slow readers, keys as tenants, requests in progress."""
import http.client
import json
import re
import socket
import tempfile
import threading
import time

import common
from common import Case, TINY
from http_server import Server, receive

LONG = 16000


def request(max_tokens, stream=True, text="Hello", **more):
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "stream": stream,
            "temperature": 0, "ignore_eos": True}
    return json.dumps(body | more).encode()


def post(body, path="/v1/chat/completions", more=""):
    return (f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}"
            "Connection: close\r\n\r\n").encode() + body


class Stream:
    """A request whose answer is read when asked for."""

    def __init__(self, server, data, buffer=None):
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(60)
        self.socket.connect((server.host, server.port))
        self.socket.sendall(data)
        self.data = b""

    def until(self, text):
        while text not in self.data:
            piece = self.socket.recv(65536)
            if not piece:
                raise AssertionError(f"{text!r} did not come: {self.data[-500:]!r}")
            self.data += piece
        return self

    def rest(self):
        self.data += receive(self.socket)
        self.socket.close()
        return self.data


def chunks(data):
    """The chunks of a chunked answer; True behind them if it is complete."""
    body, found = data.partition(b"\r\n\r\n")[2], []
    while body:
        size, _, body = body.partition(b"\r\n")
        if int(size, 16) == 0:
            return found, True
        if len(body) < int(size, 16) + 2:
            break
        found.append(body[:int(size, 16)])
        body = body[int(size, 16) + 2:]
    return found, False


class Streams(Case):
    def serve(self, *options):
        server = Server("--access-log", "off", *options, model=TINY, threads=2)
        self.addCleanup(server.__exit__)
        return server

    def test_drain_under_load(self):
        server = self.serve("--drain-ms", "120000")
        # Nobody reads this one until all is looked at, so the drain lasts that long: it is more than the kernel buffers.
        last = Stream(server, post(request(4000, text="Last", logprobs=True, top_logprobs=20)), buffer=4096)
        streams = [Stream(server, post(request(150, text=f"Hello {i}"))) for i in range(8)]
        whole = [Stream(server, post(request(150, stream=False, text=f"Bye {i}"))) for i in range(2)]
        for stream in streams:
            stream.until(b'"content":"')
        server.signal()
        status, ready = 200, {}
        while status == 200:
            status, ready = server.json("GET", "/health/ready")
        self.assertEqual((status, ready["reason"]), (503, "the server is shutting down"))
        self.assertEqual(server.ask("GET", "/health/live")[0], 200)
        status, headers, body = server.ask("POST", "/v1/chat/completions", json.loads(request(5)))
        self.assertEqual((status, headers["Connection"]), (503, "close"))
        self.assertIn(b"shutting down", body)
        self.assertIsNotNone(headers["Retry-After"])
        for stream in streams:
            found, complete = chunks(stream.rest())
            self.assertTrue(complete)
            self.assertTrue(found[-1].endswith(b"data: [DONE]\n\n"), found[-1])
        for stream in whole:
            self.assertEqual(json.loads(stream.rest().partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"], 150)
        self.assertIsNone(server.process.poll())
        found, complete = chunks(last.rest())
        self.assertTrue(complete and found[-1].endswith(b"data: [DONE]\n\n"))
        self.assertEqual(server.process.wait(20), 0)

    def test_a_request_on_its_way_at_the_signal_is_answered(self):
        ask = b"GET /health/live HTTP/1.1\r\nHost: a\r\n\r\n"
        for _ in range(4):
            server = self.serve("--drain-ms", "120000")
            # Nobody reads this one, so the drain lasts until it is closed.
            last = Stream(server, post(request(LONG, logprobs=True, top_logprobs=20)), buffer=4096).until(b'"content":"')
            kept, late = http.client.HTTPConnection(server.host, server.port, timeout=10), [server.connect() for _ in range(4)]
            kept.request("GET", "/health/live")
            kept.getresponse().read()
            server.signal()
            now = [server.connect() for _ in range(12)]
            for s in now:
                s.sendall(ask)
            self.assertEqual(kept.sock.recv(1), b"")
            for s in now + late:
                if s in late:
                    s.sendall(ask)
                self.assertTrue(s.recv(65536).startswith(b"HTTP/1.1 200 "))
                s.close()
            kept.close()
            last.socket.close()
            self.assertEqual(server.process.wait(20), 0)

    def test_a_second_signal_stops_at_once(self):
        server = self.serve()
        stream = Stream(server, post(request(LONG))).until(b'"content":"')
        server.signal()
        time.sleep(0.3)
        self.assertIsNone(server.process.poll())
        server.signal()
        start = time.monotonic()
        self.assertFalse(chunks(stream.rest())[1])
        self.assertEqual(server.process.wait(20), 130)
        self.assertLess(time.monotonic() - start, 5)

    def test_the_deadline_ends_a_drain(self):
        server = self.serve("--drain-ms", "300")
        stream = Stream(server, post(request(LONG))).until(b'"content":"')
        start = time.monotonic()
        server.signal()
        self.assertFalse(chunks(stream.rest())[1])
        self.assertEqual(server.process.wait(20), 0)
        self.assertGreater(time.monotonic() - start, 0.25)

    def test_silence_is_broken_while_a_request_waits(self):
        server = self.serve("--keepalive-ms", "60", "--max-seqs", "1")
        first = Stream(server, post(request(LONG))).until(b'"content":"')
        start = time.monotonic()
        waiting = Stream(server, post(request(3)))
        anthropic = json.dumps({"model": "tiny", "max_tokens": 3, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}).encode()
        messages = Stream(server, post(anthropic, "/v1/messages"))
        while waiting.data.count(b": keep-alive") < 4:
            waiting.data += waiting.socket.recv(65536)
        self.assertGreater(time.monotonic() - start, 0.2)
        messages.until(b"event: ping")
        requests = server.json("GET", "/v1/requests")[1]
        self.assertEqual([r["state"] for r in requests["data"]][1:], ["queued", "queued"])
        self.assertIn(requests["data"][0]["state"], ("prefill", "decode"))
        self.assertNotIn("Hello", json.dumps(requests))
        first.socket.close()  # who leaves makes room
        for stream in (waiting, messages):
            found, complete = chunks(stream.rest())
            self.assertTrue(complete)
            for event in found:
                self.assertTrue(event.endswith(b"\n\n"), event)
                self.assertTrue(event.startswith((b"data: ", b"event: ", b": keep-alive")), event)
        self.assertEqual(server.json("GET", "/v1/requests")[1]["data"], [])

    def test_slow_readers_cost_little_and_hold_nobody_up(self):
        server = self.serve("--write-buffer", "16k", "--limit-event-bytes", "64k")
        server.ask("POST", "/v1/chat/completions", json.loads(request(5, stream=False)))
        slow = [Stream(server, post(request(8000, logprobs=True, top_logprobs=20)), buffer=4096) for _ in range(6)]
        for stream in slow:
            stream.until(b'"content":"')
        before = server.resident()
        times, queued = [], 0
        end = time.monotonic() + 4
        while time.monotonic() < end:
            start = time.monotonic()
            self.assertEqual(server.ask("POST", "/v1/chat/completions", json.loads(request(5, stream=False)))[0], 200)
            times.append(time.monotonic() - start)
            # The buffer and one event each.
            queued = max(queued, server.metric("deepinfer_http_queued_bytes"))
        self.assertLess(queued, 6 * ((16 << 10) + (16 << 10)))
        self.assertLess(server.resident() - before, 24 << 20)
        self.assertLess(sorted(times)[len(times) // 2], 1.0)
        self.assertEqual(server.json("GET", "/health/ready")[0], 200)  # they wait for their readers, nothing is stuck
        for stream in slow:
            stream.socket.close()
        for _ in range(100):
            if not server.json("GET", "/v1/requests")[1]["data"]:
                break
            time.sleep(0.01)
        self.assertEqual(server.json("GET", "/v1/requests")[1]["data"], [])

    def test_a_key_is_a_tenant_with_a_cache_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/keys", "w") as file:
                file.write("alice sk-alice-1234\nbob sk-bob-56789\nalice/bob sk-alicebob-1\n")
            server = self.serve("--api-key-file", f"{folder}/keys")
            body = json.loads(request(2, stream=False, text="the same long question " * 60))

            def cached(key, **more):
                status, answer = server.json("POST", "/v1/chat/completions", dict(body, **more), {"Authorization": f"Bearer {key}"})
                self.assertEqual(status, 200)
                return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

            self.assertEqual(cached("sk-alice-1234"), 0)
            self.assertGreater(cached("sk-alice-1234"), 0)
            self.assertEqual(cached("sk-bob-56789"), 0)
            self.assertEqual(cached("sk-alicebob-1"), 0)
            self.assertEqual(cached("sk-alice-1234", user="bob"), 0)
            self.assertGreater(cached("sk-alice-1234", user="bob"), 0)

    def test_a_key_sees_only_its_own_requests(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/keys", "w") as file:
                file.write("alice sk-alice-1234\nalice sk-alice-other\nbob sk-bob-56789\noperator sk-operator-1\n")
            server = self.serve("--api-key-file", f"{folder}/keys", "--open-probes")
            bodies = (("alice-1234", request(LONG, user="bob")), ("bob-56789", request(LONG)))  # a user of a key is the key's
            streams = [Stream(server, post(body, more=f"Authorization: Bearer sk-{who}\r\nx-request-id: of-{who}\r\n")) for who, body in bodies]
            for stream in streams:
                stream.until(b'"content":"')

            def seen(who):
                status, headers, body = server.ask("GET", "/v1/requests", headers={"x-api-key": f"sk-{who}"})
                self.assertEqual(status, 200)
                return sorted({re.sub(r"^.*of-", "", r["id"]) for r in json.loads(body)["data"]})

            self.assertEqual(seen("alice-1234"), ["alice-1234"])
            self.assertEqual(seen("alice-other"), ["alice-1234"])
            self.assertEqual(seen("bob-56789"), ["bob-56789"])
            self.assertEqual(seen("operator-1"), ["alice-1234", "bob-56789"])
            # What anybody with a key can read names neither another tenant nor another request.
            for path in ("/metrics", "/health/ready", "/load", "/version", "/v1/models"):
                body = server.ask("GET", path, headers={"x-api-key": "sk-bob-56789"})[2]
                self.assertNotIn(b"alice", body, path)
            for stream in streams:
                stream.socket.close()

    def test_clients_that_drop_leave_nothing(self):
        server = self.serve()
        server.ask("POST", "/v1/chat/completions", json.loads(request(2, stream=False)))
        descriptors = server.descriptors()

        def drop(count):
            for i in range(count):
                stream = Stream(server, post(request(LONG, stream=bool(i % 2), text=f"Hello {i % 7}")))
                if i % 3 == 0:
                    time.sleep(0.005)
                stream.socket.close()

        threads = [threading.Thread(target=drop, args=(50,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        start = time.monotonic()

        def left():  # a request is gone at once, its place in the running step when that is over
            return server.json("GET", "/v1/requests")[1]["data"], server.metric("deepinfer_running_sequences")

        while left() != ([], 0) and time.monotonic() - start < 5:
            time.sleep(0.01)
        self.assertEqual(left(), ([], 0))
        self.assertEqual(server.json("GET", "/load")[1], {"server_load": 0})
        self.assertLessEqual(server.descriptors(), descriptors + 1)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(server.process.returncode, 0)


if __name__ == "__main__":
    common.main()
