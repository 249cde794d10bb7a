#!/usr/bin/env python3
# labels: serial timing
"""What a server meets: malformed requests, smuggling, endless heads, slow clients, half requests. A 4xx or a closed
connection, never a 500, and everybody else is served meanwhile."""
import socket
import threading
import time

import common
from common import Case
from http_server import Server, receive, statuses

HOST = b"Host: a\r\n"
POST = b"POST /ping HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
NEXT = b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n"  # what smuggling would get through

MALFORMED = [
    b"\r\n\r\n\r\n\x00",
    b"\x00" * 100 + b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /version\r\n\r\n",
    b"GET /version HTTP/9.9\r\n" + HOST + b"\r\n",
    b"GET /version HTTP/1.1\n" + HOST + b"\n",
    b"GET  /version HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /version HTTP/1.1\r\n\r\n",
    b"GET /version HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /version HTTP/1.1\r\nHost : a\r\n\r\n",
    b"GET /version HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n",
    b"GET /version HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    b"GET /version HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
    b"GET /../../etc/passwd\x7f HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /%00 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET version HTTP/1.1\r\n" + HOST + b"\r\n",
    b"CONNECT example.com:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    POST + b"Content-Length: -5\r\n\r\n{}",
    POST + b"Content-Length: 2x\r\n\r\n{}",
    POST + b"Content-Length: 99999999999999999999\r\n\r\n{}",
    POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n",
    POST + b"Transfer-Encoding: gzip\r\n\r\n",
    POST + b"Expect: the-spanish-inquisition\r\nContent-Length: 2\r\n\r\n{}",
    b"X" * 40 + b" / HTTP/1.1\r\n" + HOST + b"\r\n",
]

# A second request hides in each for one of two readers.
SMUGGLING = [
    POST + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(NEXT),
    POST + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (5 + len(NEXT)),
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    POST + b"X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"X: y\nContent-Length: 5\r\n\r\n",
    POST + b"Content-Length: 1,%d\r\n\r\n{" % len(NEXT),
    POST + b"Content-Length: 0x5\r\n\r\n",
    POST + b" Content-Length: 5\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n0\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\r\n",
    b"POST /version HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
]


class Hardening(Case):
    def setUp(self):
        self.server = Server("--header-timeout-ms", "1500", "--body-timeout-ms", "1500", "--linger-ms", "2000", "--access-log", "off")
        self.addCleanup(self.server.__exit__)

    def alive(self):
        self.assertEqual(self.server.ask("GET", "/version", seconds=5)[0], 200)

    def test_malformed_requests(self):
        for data in MALFORMED:
            answer = self.server.raw(data, half_close=True)
            found = statuses(answer)
            self.assertEqual(len(found), 1, (data, answer))
            self.assertTrue(400 <= found[0] < 500 or found[0] in (501, 505), (data, answer))
            self.assertIn(b"Connection: close", answer)
        self.alive()
        self.assertEqual(self.server.metric("deepinfer_http_malformed_total") + self.server.metric("deepinfer_http_limits_total"), len(MALFORMED))

    def test_no_request_is_smuggled(self):
        for data in SMUGGLING:
            answer = self.server.raw(data + NEXT)
            self.assertEqual(len(statuses(answer)), 1, (data, answer))
            self.assertIn(statuses(answer)[0], (400, 501), (data, answer))
            self.assertNotIn(b'"version"', answer, data)
        self.alive()

    def test_endless_heads(self):
        for data, status in ((b"GET /" + b"a" * 1000000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
                             (b"GET / HTTP/1.1\r\nX: " + b"a" * 1000000 + b"\r\n\r\n", 431),
                             (b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % i for i in range(60000)) + b"\r\n", 431),
                             (b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"X%d: y\r\n" % i for i in range(200)) + b"\r\n", 431),
                             (b"\r\n" * 500000, 400)):
            answer = self.server.raw(data)
            self.assertEqual(statuses(answer), [status])
        self.alive()

    def test_what_ends_in_the_middle(self):
        whole = POST + b"Content-Length: 20\r\n\r\n" + b"{" * 19
        for cut in range(1, len(whole), 7):
            answer = self.server.raw(whole[:cut], half_close=True)
            self.assertEqual(statuses(answer), [400], whole[:cut])
        for cut in range(1, len(whole), 7):
            with self.server.connect() as s:
                s.sendall(whole[:cut])
        self.alive()

    def test_slow_clients_do_not_hold_others_up(self):
        """400 sockets that send a byte now and then; meanwhile everybody else is answered at once."""
        before = self.server.descriptors()
        head = POST + b"X: " + b"a" * 50
        sockets = [self.server.connect() for _ in range(400)]
        start = time.monotonic()
        ended, worst = 0, 0
        for i in range(len(head)):
            for s in sockets:
                try:
                    s.send(head[i:i + 1], socket.MSG_NOSIGNAL if hasattr(socket, "MSG_NOSIGNAL") else 0)
                except OSError:
                    ended += 1
            asked = time.monotonic()
            self.alive()
            worst = max(worst, time.monotonic() - asked)
            time.sleep(0.1)
            if time.monotonic() - start > 2.5:
                break
        self.assertLess(worst, 1.0)
        for s in sockets:
            s.settimeout(5)
            self.assertIn(statuses(receive(s)), ([408], []))
            s.close()
        for _ in range(300):
            if self.server.descriptors() <= before + 2:
                break
            time.sleep(0.02)
        self.assertLessEqual(self.server.descriptors(), before + 2)
        self.assertGreaterEqual(self.server.metric('deepinfer_http_limits_total{limit="header-timeout-ms"}'), 390)

    def test_connections_that_come_and_go_leave_nothing(self):
        self.alive()
        before = self.server.descriptors()
        for i in range(1500):
            s = self.server.connect()
            if i % 3:
                s.sendall((NEXT, POST + b"Content-Length: 100\r\n\r\n{")[i % 3 - 1])
            s.close()
        half = POST + b"Content-Length: 100000\r\n\r\n" + b" " * 50000
        for _ in range(500):
            with self.server.connect() as s:
                s.sendall(half)
        for _ in range(100):
            self.server.raw(half, half_close=True)
        resident = self.server.resident()
        for _ in range(700):
            self.assertEqual(statuses(self.server.raw(half, half_close=True)), [400])
        for _ in range(300):
            if self.server.descriptors() <= before:
                break
            time.sleep(0.02)
        self.assertLessEqual(self.server.descriptors(), before)
        self.assertLess(self.server.resident() - resident, 8 << 20)  # all of them together are 35 MB
        self.assertEqual(self.server.metric("deepinfer_http_body_bytes"), 0)

    def test_requests_sent_ahead(self):
        count = 200
        answer = self.server.raw(NEXT * count + b"GET /load HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        self.assertEqual(statuses(answer), [200] * (count + 1))
        # One that is malformed ends the row; what follows it is not looked at.
        answer = self.server.raw(NEXT * 3 + b"NONSENSE\r\n\r\n" + NEXT * 3)
        self.assertEqual(statuses(answer), [200, 200, 200, 400])

    def test_many_at_once(self):
        faults = []

        def ask():
            try:
                for _ in range(40):
                    self.assertEqual(self.server.ask("GET", "/version", seconds=10)[0], 200)
            except Exception as fault:
                faults.append(fault)

        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for data in MALFORMED + SMUGGLING:
            self.server.raw(data, half_close=True)
        for thread in threads:
            thread.join()
        self.assertEqual(faults, [])

    def test_an_idle_server_does_nothing(self):
        """No timer and no poll: less than 1% of a core."""
        def used():
            with open(f"/proc/{self.server.process.pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])

        connections = [self.server.connect() for _ in range(20)]
        time.sleep(0.2)
        before = used()
        time.sleep(1.2)
        self.assertLessEqual(used() - before, 2)  # hundredths of a second
        for s in connections:
            s.close()


if __name__ == "__main__":
    common.main()
