"""Shared by the tests of the HTTP interfaces: a running server, a plain client for JSON and event streams, and the official clients."""

import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import unittest

import common

OPENAI, ANTHROPIC = "openai==3.57.0", "anthropic==2.14.0"

BOOK = {
    "name": "book_table",
    "description": "Book a table at a restaurant",
    "parameters": {
        "type": "object",
        "properties": {
            "restaurant": {"type": "string", "description": "Name of the restaurant"},
            "city": {"type": "string", "description": "City of the restaurant"},
            "date": {"type": "string", "description": "Date of the booking"},
            "time": {"type": "string", "description": "Time of the booking"},
            "party_size": {"type": "integer", "description": "Number of people"},
        },
        "required": ["restaurant", "time"],
    },
}
BOOKING = "Book a table for 4 at Golden Dragon in Seattle tomorrow at 7 pm."
BOOKED = json.dumps({"status": "confirmed", "restaurant": "Golden Dragon", "time": "19:00", "party_size": 4})


def every(seconds_are_short, under_a_sanitizer):
    """Step of a sweep: a program with a sanitizer is tens of times slower."""
    program = pathlib.Path(common.BINARY).read_bytes()
    return under_a_sanitizer if b"__asan_init" in program or b"__tsan_init" in program else seconds_are_short


def at_once(function, arguments):
    """Results of many calls, which the server computes together."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(function, arguments))


class Server:
    """`deepinfer serve` on a port of its own choosing."""

    def __init__(self, *arguments, model=common.TINY):
        command = [common.BINARY, "serve", model, "--port", "0", "--threads", "2", *map(str, arguments)]
        if "--access-log" not in command:
            command += ["--access-log", "off"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=common.environment())
        self.lines, self.port = [], None
        for line in self.process.stderr:
            self.lines.append(line.decode("utf-8", "replace"))
            found = re.search(r"http://127\.0\.0\.1:(\d+)", self.lines[-1])
            if found:
                self.port = int(found[1])
                break
        if not self.port:
            raise RuntimeError("the server did not start: " + "".join(self.lines))
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.decode("utf-8", "replace"))

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.port

    def stop(self):
        """Exit code after SIGTERM."""
        self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.reader.join(10)
            self.process.stderr.close()


class Answer:
    def __init__(self, response, body):
        self.status, self.headers, self.body = response.status, response.headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def events(self):
        """[(event or None, data)] of an event stream; [DONE] is the text."""
        events = []
        for block in self.body.decode("utf-8").split("\n\n"):
            lines = [line for line in block.split("\n") if not line.startswith(":")]
            if not any(lines):
                continue
            name = [line[7:] for line in lines if line.startswith("event: ")]
            data = [line[6:] for line in lines if line.startswith("data: ")]
            assert len(data) == 1 and len(lines) == len(name) + 1, block
            events.append((name[0] if name else None, data[0] if data[0] == "[DONE]" else json.loads(data[0])))
        return events


class Client:
    """One connection, kept alive."""

    def __init__(self, port, timeout=120):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def request(self, method, path, body=None, **headers):
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body, ensure_ascii=False)
        if isinstance(body, str):
            body = body.encode("utf-8")
        fields = {"Content-Type": "application/json"} if body is not None else {}
        fields.update({name.replace("_", "-"): value for name, value in headers.items()})
        try:
            return self._once(method, path, body, fields)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):  # idle for too long
            self.connection.close()
            return self._once(method, path, body, fields)

    def _once(self, method, path, body, fields):
        self.connection.request(method, path, body, fields)
        response = self.connection.getresponse()
        return Answer(response, response.read())

    def post(self, path, body, **headers):
        return self.request("POST", path, body, **headers)

    def get(self, path, **headers):
        return self.request("GET", path, **headers)

    def close(self):
        self.connection.close()


# ------------------------------------------------------------------------------ streams as whole answers


def join_chat(events):
    """The whole answer that the chunks of a chat stream add up to; checks their order."""
    assert events[-1][1] == "[DONE]", events[-1]
    choices, usage, seed = {}, None, None
    ids = {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for _, chunk in events[:-1]}
    assert len(ids) == 1, ids
    for _, chunk in events[:-1]:
        usage, seed = chunk.get("usage") or usage, chunk.get("seed", seed)
        for part in chunk["choices"]:
            assert {"index", "delta", "logprobs", "finish_reason"} <= set(part), part
            index, delta = part["index"], part["delta"]
            if index not in choices:
                assert delta["role"] == "assistant", part
                choices[index] = {"message": {"content": "", "reasoning_content": "", "tool_calls": []}, "finish_reason": None, "logprobs": [], "token_ids": []}
            choice = choices[index]
            assert choice["finish_reason"] is None, "a choice goes on after its end"
            message = choice["message"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(call)
                else:
                    assert call["index"] == len(message["tool_calls"]) - 1 and set(call) == {"index", "function"}, call
                    message["tool_calls"][-1]["function"]["arguments"] += call["function"]["arguments"]
            choice["finish_reason"] = part["finish_reason"]
            choice["stop_reason"] = part.get("stop_reason")
            choice["logprobs"] += (part["logprobs"] or {}).get("content", [])
            choice["token_ids"] += part.get("token_ids", [])
    assert all(c["finish_reason"] for c in choices.values()), "a choice has no end"
    return choices, usage, seed


def whole_chat(answer):
    """The same shape from a whole answer."""
    choices = {}
    for choice in answer["choices"]:
        message = choice["message"]
        choices[choice["index"]] = {
            "message": {"content": message["content"], "reasoning_content": message.get("reasoning_content", ""), "tool_calls": message.get("tool_calls", [])},
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice["stop_reason"],
            "logprobs": (choice["logprobs"] or {}).get("content", []),
            "token_ids": choice.get("token_ids", []),
        }
    return choices, answer["usage"], answer["seed"]


def join_messages(events):
    """The message that a stream of Anthropic's events adds up to; checks their order."""
    names = [name for name, _ in events]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], names
    message, is_open = events[0][1]["message"], None
    for name, data in events[1:-2]:
        assert data["type"] == name
        if name == "content_block_start":
            assert is_open is None and data["index"] == len(message["content"])
            is_open = data["index"]
            message["content"].append(dict(data["content_block"], input="") if data["content_block"]["type"] == "tool_use" else data["content_block"])
        elif name == "content_block_delta":
            assert data["index"] == is_open
            block, delta = message["content"][is_open], data["delta"]
            key = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "partial_json"}[delta["type"]]
            block["input" if key == "partial_json" else key] += delta[key]
        elif name == "content_block_stop":
            assert data["index"] == is_open
            is_open = None
        else:
            assert name == "ping", name
    assert is_open is None
    for block in message["content"]:
        if block["type"] == "tool_use":
            try:
                block["input"] = json.loads(block["input"])
            except ValueError:  # it was cut
                block["partial_json"], block["input"] = block["input"], {}
    message.update(events[-2][1]["delta"])
    message["usage"] = events[-2][1]["usage"]
    return message


def join_responses(events):
    """The response in the last event, after checking that the events before it add up to it."""
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(data["type"] == name for name, data in events)
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    items, texts, logprobs = [], {}, {}
    for name, data in events[2:-1]:
        place = data["output_index"]
        if name == "response.output_item.added":
            assert place == len(items)
            items.append(None)
            texts[place] = ""
        elif name.endswith(".delta"):
            texts[place] += data["delta"]
            logprobs.setdefault(place, []).extend(data.get("logprobs", []))
        elif name == "response.output_item.done":
            items[place] = data["item"]
            for part in data["item"].get("content", []):
                assert part.get("logprobs", []) == logprobs[place]
        elif name.endswith("text.done"):
            assert data["text"] == texts[place]
            logprobs.setdefault(place, []).extend(data.get("logprobs", []))  # of tokens that brought no text any more
        elif name == "response.function_call_arguments.done":
            assert data["arguments"] == texts[place]
        else:
            assert name in ("response.content_part.added", "response.content_part.done"), name
            assert data["part"].get("logprobs", []) == []  # they are in the item
    response = events[-1][1]["response"]
    assert events[-1][0] == "response." + response["status"]
    assert response["output"] == items
    return response


# --------------------------------------------------------------------------------- official clients


def use_official_clients():
    """Starts the test again in a virtual environment that has the clients."""
    try:
        import anthropic  # noqa: F401
        import openai  # noqa: F401

        return
    except ImportError:
        pass
    try:
        python = common.venv([OPENAI, ANTHROPIC])
    except unittest.SkipTest as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        sys.exit(0)
    if pathlib.Path(sys.prefix).resolve() == pathlib.Path(python).parents[1].resolve():
        sys.exit("the clients cannot be imported from " + sys.prefix)
    os.execv(python, [python, *sys.argv])


class Case(common.Case):
    """One server for all tests of the class; each thread has its own connection."""

    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.arguments)
        cls.threads, cls.clients = threading.local(), []

    @property
    def client(self):
        if not hasattr(self.threads, "client"):
            self.threads.client = Client(self.server.port)
            self.clients.append(self.threads.client)
        return self.threads.client

    @classmethod
    def tearDownClass(cls):
        for client in cls.clients:
            client.close()
        code = cls.server.stop()
        assert code == 0, (code, cls.server.lines)

    def good(self, path, body, **headers):
        answer = self.client.post(path, body, **headers)
        self.assertEqual(answer.status, 200, answer.body[:2000])
        return answer

    def metric(self, name):
        for line in self.client.get("/metrics").body.decode().splitlines():
            if re.match(re.escape(name) + r"(\{.*\})? ", line):
                return float(line.split()[-1])
        raise AssertionError(name + " is not among the metrics")

    def eventually(self, condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, "it takes too long")
            time.sleep(0.02)
