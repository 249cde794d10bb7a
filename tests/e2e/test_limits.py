#!/usr/bin/env python3
# labels: long
"""Limits that a single request meets by its size, and a full queue: the refusal names its option, and the metrics count it
by its code. Those of time and of connections are in test_http_hardening.py."""
import json
import re
import time

import api_case
import common
import http_server
from common import Case

OPTIONS = {
    "limit-messages": 3, "limit-tools": 2, "limit-stop-strings": 2, "limit-stop-bytes": 20, "limit-choices": 3, "limit-prompts": 2,
    "limit-logit-bias": 2, "limit-json-depth": 12, "limit-prompt-bytes": 3000, "limit-grammar-bytes": 300, "limit-grammar-work": 2000,
    "limit-body-bytes": 20000, "limit-header-bytes": 2000, "limit-header-fields": 12,
}


def deep(levels):
    return {"a": deep(levels - 1)} if levels else 1


def tool(i):
    return {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": {}}}}


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGE = {"role": "user", "content": "Hi"}
WIDE = {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 9} for i in range(4)}}
CASES = {
    "limit-messages": (CHAT, {"messages": [MESSAGE] * 4}),
    "limit-tools": (CHAT, {"tools": [tool(i) for i in range(3)]}),
    "limit-stop-strings": (CHAT, {"stop": ["a", "b", "c"]}),
    "limit-stop-bytes": (CHAT, {"stop": ["a" * 21]}),
    "limit-choices": (CHAT, {"n": 4}),
    "limit-prompts": (COMPLETIONS, {"prompt": ["a", "b", "c"]}),
    "limit-logit-bias": (CHAT, {"logit_bias": {"5": 1, "6": 1, "7": 1}}),
    "limit-json-depth": (CHAT, {"metadata": deep(20)}),
    "limit-prompt-bytes": (CHAT, {"messages": [{"role": "user", "content": "a " * 2000}]}),
    "limit-grammar-bytes": (CHAT, {"structured_outputs": {"regex": "a" * 301}}),
    "limit-grammar-work": (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WIDE}}}),
    "limit-body-bytes": (CHAT, {"messages": [{"role": "user", "content": "a " * 20000}]}),
}

HEADS = {"limit-header-bytes": {"x-long": "a" * 2000}, "limit-header-fields": {f"x-{i}": "a" for i in range(12)}}


class Limits(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = api_case.Server(*(f"--{name}={value}" for name, value in OPTIONS.items()))
        cls.client = api_case.Client(cls.server.port)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def errors(self):
        text = self.client.get("/metrics").body.decode()
        return {code: int(count) for code, count in re.findall(r'deepinfer_http_errors_total\{code="(\w+)"\} (\d+)', text)}

    def refused(self, option, statuses, ask):
        before = self.errors()
        answer = ask()
        error = answer.json["error"]
        self.assertIn(answer.status, statuses, error)
        self.assertIn(f"--{option}", error["message"])
        after = self.errors()
        self.assertEqual(after.pop(error["code"]), before.pop(error["code"], 0) + 1)
        self.assertEqual(after, before)

    def test_each_is_named_and_counted(self):
        self.assertEqual(set(CASES) | set(HEADS), set(OPTIONS))
        for option, (path, body) in CASES.items():
            with self.subTest(option):
                body = {"messages": [MESSAGE], "max_tokens": 1} | body if path == CHAT else body
                self.refused(option, (400, 413), lambda: self.client.post(path, body))
        for option, fields in HEADS.items():
            with self.subTest(option):
                self.refused(option, (431,), lambda: self.client.get("/v1/models", **fields))

    def test_a_full_queue(self):
        server = http_server.Server("--max-seqs", 1, "--max-queue", 1, "--access-log", "off", model=common.TINY)
        self.addCleanup(server.__exit__)
        body = json.dumps({"messages": [MESSAGE], "max_tokens": 16000, "ignore_eos": True, "stream": True}).encode()
        held = []
        for state in ("running", "queue"):
            held.append(server.connect(60))
            held[-1].sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            while server.metric(f"deepinfer_{state}_requests") < 1:
                time.sleep(0.005)
        status, headers, answer = server.ask("POST", CHAT, {"messages": [MESSAGE], "max_tokens": 1})
        self.assertEqual(status, 429)
        self.assertIsNotNone(headers["Retry-After"])
        error = json.loads(answer)["error"]
        self.assertIn("--max-queue", error["message"])
        self.assertEqual(server.metric("deepinfer_http_errors_total"), 1)
        for connection in held:
            connection.close()


if __name__ == "__main__":
    common.main()
