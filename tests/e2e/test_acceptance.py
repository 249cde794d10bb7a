#!/usr/bin/env python3
# labels: long
"""What operators ask of any server of models, as rows of docs/testing.md name it, over HTTP. The argument `full` gives every test
the size the row states; without it they are small."""
import concurrent.futures
import json
import pathlib
import re
import socket
import sys
import tempfile
import threading
import time

import common
from common import Case, NANO, TINY
from http_server import Server

FULL = "full" in sys.argv[1:]
CHAT = "/v1/chat/completions"
KEYS = {"Authorization": "Bearer sk-acceptance-1"}


def chat(text, tokens=24, **more):
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "seed": 11, "temperature": 0.9,
            "return_token_ids": True, "logits_hash": True} | more


def send(server, body, path=CHAT):
    """A request on a socket of its own, not waited for."""
    data = json.dumps(body).encode()
    s = socket.create_connection((server.host, server.port), timeout=60)
    s.sendall((f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n").encode() + data)
    return s


class Acceptance(Case):
    def serve(self, *options, **more):
        server = Server("--access-log", "off", *options, **({"model": TINY, "threads": 2} | more))
        self.addCleanup(server.__exit__)
        return server

    def ask(self, server, body, path=CHAT):
        status, answer = server.json("POST", path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def core(self, answer):
        """What must be the same again: text, ids, and the hash of all logits the answer was sampled from."""
        choice = answer["choices"][0]
        self.assertRegex(choice["logits_hash"], r"^[0-9a-f]{16}$")
        return choice["message"], choice["token_ids"], choice["finish_reason"], choice["logits_hash"], answer["usage"]["prompt_tokens"]

    def eventually(self, condition, seconds=120):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                self.fail("it did not come to that")
            time.sleep(0.02)

    def settled(self, server):
        names = ("deepinfer_queue_requests", "deepinfer_running_requests", "deepinfer_running_sequences", "deepinfer_swapped_requests", "deepinfer_swap_bytes",
                 "deepinfer_pages_sequences", "deepinfer_http_exchanges", "deepinfer_http_body_bytes", "deepinfer_http_queued_bytes")
        text = server.ask("GET", "/metrics")[2].decode()
        return all(float(re.search(rf"(?m)^{name} (\S+)$", text)[1]) == 0 for name in names)

    def test_crowd(self):
        server = self.serve()
        watched = chat("Where is my order 4711? I have been waiting for a week.", 20)
        alone = self.core(self.ask(server, watched))
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            for crowd in range(50 if FULL else 4):
                def other(i):
                    return self.ask(server, chat(f"I am customer {crowd * 100 + i} " * (1 + 7 * i % 40), 4 + i % 30, seed=i, temperature=i % 3 / 2))
                others = [pool.submit(other, i) for i in range(2 + crowd * 5 % 19)]
                self.assertEqual(self.core(self.ask(server, watched)), alone)
                for future in others:
                    future.result()

    def test_cold_warm_disk(self):
        body = chat("The same long question about an order. " * 60, 12)
        with tempfile.TemporaryDirectory() as folder:
            options = ("--cache-dir", folder)
            server = self.serve(*options)
            cold, warm = self.ask(server, body), self.ask(server, body)
            counts = [server.metric(f"deepinfer_cached_tokens_{tier}_total") for tier in ("ram", "disk")]
            self.assertEqual(server.stop(), 0)
            server = self.serve(*options)
            restored = self.ask(server, body)
            self.assertEqual(self.core(cold), self.core(warm))
            self.assertEqual(self.core(cold), self.core(restored))
            cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (cold, warm, restored)]
            self.assertEqual((cached[0], counts), (0, [cached[1], 0]))
            self.assertGreater(cached[1], cold["usage"]["prompt_tokens"] // 2)
            self.assertGreater(cached[2], cold["usage"]["prompt_tokens"] // 2)
            self.assertEqual(server.metric("deepinfer_cached_tokens_disk_total"), cached[2])

    def test_spec_parity(self):
        bodies = [chat(text, 40 if FULL else 24, seed=seed, temperature=temperature, logprobs=True, top_logprobs=3)
                  for seed, (text, temperature) in enumerate((t, x) for t in ("Hello, I need help.", "Where is order 1234?", "Tell me about the weather.") for x in (0, 0.8))]
        answers = []
        for spec in ("off", "5", "auto"):
            server = self.serve("--spec", spec)
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                answers.append([(self.core(a), a["choices"][0]["logprobs"]) for a in pool.map(lambda b: self.ask(server, b), bodies)])
            if spec == "5":
                self.assertGreater(server.metric("deepinfer_accepted_draft_tokens_total"), 0)
            self.assertEqual(server.stop(), 0)
        self.assertEqual(answers[1], answers[0])
        self.assertEqual(answers[2], answers[0])

    def test_drop_10k(self):
        """10,000 (small: 500) streams opened and dropped, at once, in the queue, in the prompt or within the answer."""
        server = self.serve("--cache-ram", "8M")
        count, threads, resident = 10000 if FULL else 500, 4, []

        def drop(first, number):
            for i in range(first, first + number):
                s = send(server, chat(f"Hello {i % 97} " * (1 + i % 5 * 30), 4000, stream=i % 4 > 0, ignore_eos=True))
                if i % 3 == 1 and i % 4:
                    s.recv(1)
                elif i % 3 == 2:
                    time.sleep(0.002)
                s.close()

        def round_of(number):
            workers = [threading.Thread(target=drop, args=(t * 100000, number // threads)) for t in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            self.eventually(lambda: self.settled(server))
            resident.append(server.resident())

        round_of(count // 5)  # fills caches and buffers
        files = server.descriptors()
        for _ in range(4):
            round_of(count // 5)
        self.assertLess(max(resident[1:]) - resident[0], 24 << 20)
        self.assertLessEqual(server.descriptors(), files + 2)
        self.assertEqual(server.json("GET", "/v1/requests")[1]["data"], [])
        self.assertEqual(server.metric("deepinfer_requests_submitted_total"), server.metric("deepinfer_requests_finished_total"))
        self.ask(server, chat("Hello"))
        self.assertEqual(server.stop(), 0)

    def test_starve(self):
        """Four streams go on while a prompt of 65,536 tokens (small: 8,000) is computed. What the clock says is test_engine_gaps' to judge,
        which knows what else the machine does; here it is printed."""
        server = self.serve("--cache-ram", "0", model=NANO)
        prompt = 65536 if FULL else 8000
        counts, gaps, ended = [0] * 4, [0] * 4, threading.Event()

        def read(index, s):
            with s:
                last = None
                while not ended.is_set():
                    counts[index] += s.recv(65536).count(b"data: ")
                    now = time.monotonic()
                    gaps[index] = max(gaps[index], now - last if last else 0)
                    last = now

        completion = {"model": "nano", "prompt": [9, 8, 7], "max_tokens": 500000, "stream": True, "ignore_eos": True, "temperature": 0}
        readers = [threading.Thread(target=read, args=(i, send(server, completion, "/v1/completions")), daemon=True) for i in range(4)]
        for reader in readers:
            reader.start()
        self.eventually(lambda: min(counts) > 5)
        long_one = {"model": "nano", "prompt": [10 + i * 7919 % 500 for i in range(prompt)], "max_tokens": 1, "temperature": 0}

        def tokens():
            """What the engine has made for each stream, wherever it is on its way to the reader."""
            return [r["completion_tokens"] for r in server.json("GET", "/v1/requests")[1]["data"] if r["max_tokens"] > 1]

        before, steps = tokens(), server.metric("deepinfer_steps_total")
        gaps[:] = [0] * 4
        start = time.monotonic()
        status, answer = server.json("POST", "/v1/completions", long_one, seconds=3600)
        self.assertEqual((status, answer["usage"]["prompt_tokens"]), (200, prompt))
        print(f"starve: {prompt} tokens in {time.monotonic() - start:.1f} s, worst gap beside it {1e3 * max(gaps):.0f} ms", file=sys.stderr)
        steps, after = server.metric("deepinfer_steps_total") - steps, tokens()
        ended.set()
        # Every step but those around the measurement brought each stream a token.
        self.assertGreater(steps, prompt / 256 - 1)
        self.assertEqual((len(before), len(after)), (4, 4))
        for index in range(4):
            self.assertGreater(after[index] - before[index], 0.5 * steps, (before, after, steps))
        for reader in readers:
            reader.join(30)

    def test_schema_bomb(self):
        """Refused with 400, by name, while a stream goes on; and the stream has the bytes it has alone."""
        deep = {"type": "string"}
        for _ in range(40):
            deep = {"oneOf": [deep, {"type": "object", "properties": {"a": deep}}]} if len(json.dumps(deep)) < 200000 else {"oneOf": [deep]}
        ways = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 100} for i in range(7)}
        bombs = {  # what can be followed may be answered; these cannot
            "nested oneOf": deep,
            "huge repetition": {"type": "string", "pattern": "^([a-z]{2,900}[0-9]{3,800}){5,700}$"},
            "repeated pattern": {"type": "string", "pattern": "^((a{1,999}){1,999}){1,999}$"},
            "recursive reference": {"$ref": "#"},
            "unique items found in a million ways": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/a0"}, "$defs": {**ways, "a7": {"type": "string"}}},
            "references in a ring": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
        }
        server = self.serve()
        stream = chat("Tell me a story.", 60, ignore_eos=True)
        alone = self.core(self.ask(server, stream))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            beside = pool.submit(self.ask, server, stream)
            for name, schema in bombs.items():
                body = chat("Hello", response_format={"type": "json_schema", "json_schema": {"name": "bomb", "strict": False, "schema": schema}})
                status, answer = server.json("POST", CHAT, body)
                self.assertEqual(status, 400, name)
                self.assertTrue(answer["error"]["message"], name)
            self.assertEqual(self.core(beside.result()), alone)
        self.eventually(lambda: self.settled(server))

    def test_ssrf_no_address_is_fetched(self):
        """Remote images are refused by every interface, and nobody is asked for them."""
        visits = []
        canary = socket.create_server(("127.0.0.1", 0))
        port = canary.getsockname()[1]

        def watch():
            try:
                while True:
                    visits.append(canary.accept())
            except OSError:
                return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        server = self.serve()
        for url in (f"http://127.0.0.1:{port}/a.png", f"http://localhost:{port}/", f"http://[::ffff:127.0.0.1]:{port}/", "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd",
                    f"ftp://127.0.0.1:{port}/x", f"//127.0.0.1:{port}/x"):
            requests = (
                (CHAT, chat([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}])),
                ("/v1/messages", {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}]}),
                ("/v1/responses", {"model": "tiny", "max_output_tokens": 4, "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}),
            )
            for path, body in requests:
                status, answer = server.json("POST", path, body)
                self.assertEqual(status, 400, (path, url))
                self.assertTrue(answer["error"]["message"])
        canary.shutdown(socket.SHUT_RDWR)
        canary.close()
        thread.join(10)
        self.assertEqual(visits, [])

    def test_auth_every_route(self):
        """Every row of every table of routes, and every method of it, is refused without a key; only files of the page are not."""
        sources = "".join(path.read_text() for path in (common.ROOT / "src/server").glob("*.c"))
        routes = re.findall(r'\{"([A-Z]+)", "(/[^"]*)", (DI_ACCESS_\w+),', sources)
        self.assertGreater(len(routes), 25)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "keys"
            path.write_text("somebody sk-acceptance-1\n")
            path.chmod(0o600)
            server = self.serve("--api-key-file", path)
            for method, route, access in routes:
                place = route.replace("*", "x")
                for verb in (method, "OPTIONS", "GET", "POST", "PUT", "DELETE", "HEAD"):
                    static = access == "DI_ACCESS_STATIC" and verb in ("GET", "HEAD")
                    for wrong in ({}, {"Authorization": "Bearer sk-acceptance-2"}, {"Authorization": "sk-acceptance-1"}, {"x-api-key": ""}):
                        status = server.ask(verb, place, b"{}" if verb == "POST" else None, wrong)[0]
                        self.assertIn(status, (200, 404) if static else (401,), (verb, place, wrong))
                self.assertNotEqual(server.ask(method, place, b"{}" if method == "POST" else None, KEYS)[0], 401, place)


class Table(Case):
    def test_what_the_document_names_exists(self):
        text = (common.ROOT / "docs/testing.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| ([a-z0-9-]+) \| .* \| (`.*`) \|$", text, re.M)
        self.assertEqual(len(rows), 12)
        for _, commands in rows:
            for command in re.findall(r"`([^`]+)`", commands):
                program, *words = command.split()
                path = common.ROOT / ("tests/e2e/" + program if program.endswith(".py") else f"tests/unit/{program}.c")
                source = path.read_text(encoding="utf-8")
                for word in words:
                    for name in word.split("."):
                        self.assertTrue(name == "full" or re.search(rf"\b{name}\b", source), f"{name} is not in {path.name}")


if __name__ == "__main__":
    if FULL:
        sys.argv.remove("full")
    common.main()
