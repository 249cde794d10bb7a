#!/usr/bin/env python3
# labels: serial long
"""Many clients: each gets the bytes it would get alone; clients that leave free what they held; a full queue says so."""

import concurrent.futures
import json
import socket
import time

import api_case
import common

CHAT = "/v1/chat/completions"
WORDS = "table order coffee weather flight hotel music movie doctor taxi".split()


def body(i, **more):
    return {"messages": [{"role": "user", "content": "I need help with my %s number %d." % (WORDS[i % len(WORDS)], i)}], "seed": i, "max_tokens": 20, **more}


def text_of(answer):
    if answer.headers["Content-Type"].startswith("text/event-stream"):
        choices, _, _ = api_case.join_chat(answer.events)
    else:
        choices, _, _ = api_case.whole_chat(answer.json)
    return json.dumps(choices, sort_keys=True)


class Crowd(api_case.Case):
    arguments = ("--max-queue", "2000")

    def settled(self):
        names = ("deepinfer_queue_requests", "deepinfer_running_sequences")
        free = self.metric("deepinfer_pages_used") == self.metric("deepinfer_pages_cache")
        return free and all(self.metric(name) == 0 for name in names) and not self.client.get("/v1/requests").json["data"]

    def test_fifty_clients_get_what_they_get_alone(self):
        def ask(i):
            client = api_case.Client(self.server.port)
            try:
                answer = client.post(CHAT, body(i, stream=i % 2 == 0))
                assert answer.status == 200, answer.body
                return text_of(answer)
            finally:
                client.close()

        alone = [ask(i) for i in range(50)]
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            together = list(pool.map(ask, range(50)))
        self.assertEqual(together, alone)

    def test_a_thousand_that_leave(self):
        """Half of them stream. Some leave at once, some while they are computed."""
        waiting, refused, before = [], 0, self.metric("deepinfer_requests_submitted_total")
        for i in range(1000):
            text = json.dumps(body(i, stream=i % 2 == 0, ignore_eos=True, max_tokens=400)).encode()
            sock = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
            head = "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (CHAT, len(text))
            sock.sendall(head.encode() + text)
            waiting.append(sock)
            if len(waiting) == 100:
                self.eventually(lambda: self.metric("deepinfer_running_sequences") > 0, 10)
                for left in waiting:
                    left.close()
                waiting = []
                refused += self.client.get("/v1/models").status != 200
        self.assertEqual(refused, 0)
        self.assertGreater(self.metric("deepinfer_requests_submitted_total") - before, api_case.every(300, 10))
        start = time.monotonic()
        self.eventually(self.settled, 5)
        elapsed = time.monotonic() - start
        self.assertLess(elapsed, 1, "pools are back to zero within a second")
        self.assertEqual(self.client.post(CHAT, body(1)).status, 200)

    def test_leaving_ends_the_work(self):
        """Also of a client that only ends its side, streaming or not."""
        for stream in (False, True):
            for half in (False, True):
                text = json.dumps(body(1, stream=stream, ignore_eos=True, max_tokens=8000)).encode()
                sock = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
                sock.sendall(("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (CHAT, len(text))).encode() + text)
                self.eventually(lambda: self.client.get("/v1/requests").json["data"], 10)
                if half:
                    sock.shutdown(socket.SHUT_WR)
                else:
                    sock.close()
                self.eventually(self.settled, 2)
                sock.close()

    def test_slow_readers_hold_nobody_up(self):
        """A client that reads nothing stops its own request only."""
        text = json.dumps(body(1, stream=True, ignore_eos=True, max_tokens=6000, logprobs=True, top_logprobs=20)).encode()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", self.server.port))
        sock.sendall(("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (CHAT, len(text))).encode() + text)
        self.eventually(lambda: self.client.get("/v1/requests").json["data"], 10)
        start = time.monotonic()
        self.assertEqual(self.client.post(CHAT, body(2)).status, 200)
        self.assertLess(time.monotonic() - start, 20)
        sock.close()
        self.eventually(self.settled, 2)


class FullQueue(api_case.Case):
    arguments = ("--max-queue", "2", "--max-seqs", "1")

    def test_429_in_each_shape(self):
        sockets = []
        for i in range(3):  # one runs, two wait
            text = json.dumps(body(i, ignore_eos=True, max_tokens=4000)).encode()
            sock = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
            sock.sendall(("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (CHAT, len(text))).encode() + text)
            sockets.append(sock)
            self.eventually(lambda: len(self.client.get("/v1/requests").json["data"]) == i + 1 and self.metric("deepinfer_running_sequences") == 1, 10)
        answer = self.client.post(CHAT, body(1))
        self.assertEqual((answer.status, answer.json["error"]["code"]), (429, "queue_full"))
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        answer = self.client.post("/v1/messages", {"messages": body(1)["messages"], "max_tokens": 2})
        self.assertEqual((answer.status, answer.json["error"]["type"]), (429, "rate_limit_error"))
        for sock in sockets:
            sock.close()
        self.eventually(lambda: not self.client.get("/v1/requests").json["data"], 5)
        self.assertEqual(self.client.post(CHAT, body(1)).status, 200)


if __name__ == "__main__":
    common.main()
