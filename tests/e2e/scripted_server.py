"""A server for tests that answers like OpenAI's chat interface, and whose answers can be anything: thinking, tool calls, errors,
streams that break. It also serves the files of the web page as `deepinfer serve` does."""
import hashlib
import http.server
import json
import re
import threading
import time

import common

PAGE = common.ROOT / "src/server/page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def policy():
    """The Content-Security-Policy as src/server/page.c sends it."""
    source = (common.ROOT / "src/server/page.c").read_text()
    found = re.search(r'"Content-Security-Policy",((?:\s*"[^"]*")+)', source)
    return "".join(re.findall(r'"([^"]*)"', found[1]))


MARKDOWN = """## Returns

You have **30 days**. Send it back like *this*:

1. Open `Orders`
2. Choose the pair
   - unworn
   - in its box

| step | days |
|---|--:|
| parcel | 2 |
| refund | 5 |

```python
print("<b>not bold</b>")
```

> As written on [our page](https://shop.example/returns) and not on [this](javascript:alert(1)).

<img src=x onerror="document.title='owned'"> is text."""


class Script(http.server.BaseHTTPRequestHandler):
    """Answers by the last message: "think ...", "tool ...", "slow ...", "error 400", "cut", "break", "other ...", else text."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, kind, body, **more):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), "x-request-id": "req-7", **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refused(self):
        if not self.server.key or self.headers.get("Authorization") == f"Bearer {self.server.key}":
            return False
        self.reply(401, "application/json", json.dumps({"error": {"message": "a key is needed", "type": "authentication_error", "param": None, "code": None}}))
        return True

    def do_GET(self):
        path = "/page/index.html" if self.path == "/" else self.path
        file = PAGE / path.removeprefix("/page/")
        if path.startswith("/page/") and file.is_file():
            return self.reply(200, TYPES[file.suffix], file.read_bytes(), **{"Content-Security-Policy": policy()})
        self.server.seen.append(self.path)
        if self.refused():
            return None
        if self.path == "/v1/models":
            return self.reply(200, "application/json", json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 4096}]}))
        if self.path == "/health/ready":
            return self.reply(*((200, "application/json", "{}") if self.server.ready else (503, "application/json", '{"reason": "step stalled"}')))
        if self.path == "/metrics":
            self.server.steps += 10
            n = self.server.steps
            return self.reply(200, "text/plain", f"""# TYPE deepinfer_queue_requests gauge
deepinfer_queue_requests 3
deepinfer_running_sequences 5
deepinfer_output_tokens_total {n * 4}
deepinfer_prompt_tokens_total 1000
deepinfer_cached_tokens_ram_total 620
deepinfer_cached_tokens_disk_total 10
deepinfer_step_compute_seconds_bucket{{le="+Inf"}} {n}
deepinfer_step_compute_seconds_sum {n * 0.0125}
deepinfer_step_compute_seconds_count {n}
deepinfer_draft_tokens_total 100
deepinfer_accepted_draft_tokens_total 71
""")
        return self.reply(404, "application/json", '{"error": {"message": "no such path"}}')

    def do_POST(self):
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(raw)
        self.server.bodies.append(raw.decode())
        if self.refused():
            return
        try:
            self.chat(body, body["messages"][-1])
        except (BrokenPipeError, ConnectionResetError):
            self.server.dropped += 1
            self.close_connection = True

    def event(self, data):
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        piece = f": keep-alive\r\n\r\ndata: {text}\r\n\r\n".encode()
        for part in (piece[:23], piece[23:]):  # never at the border of an event
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()

    def delta(self, finish=None, more=None, index=0, **delta):
        self.event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny",
                    "choices": [{"index": index, "delta": delta, "finish_reason": finish, **(more or {})}]})

    def chat(self, body, last):
        what = self.server.fault or last["content"]
        if what.startswith("error"):
            status = int(what.split()[1])
            more = {"Retry-After": "7"} if status == 429 else {}
            return self.reply(status, "application/json", json.dumps({"error": {"message": f"refused with {status}", "type": "x", "param": "messages", "code": status}}), **more)
        self.send_response(200)
        for name, value in {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", "x-request-id": "req-8"}.items():
            self.send_header(name, value)
        self.end_headers()
        for index in range(body.get("n", 1)):  # more than the first say nothing
            self.delta(role="assistant", content="", index=index)
        finish, text, reasoning = "stop", f"You said: {what}. Grüße 🌱 {hashlib.sha256(json.dumps([body['messages'], body['seed']]).encode()).hexdigest()}", ""
        pause = 0.005 if what.startswith("think") else self.server.pause
        if what.startswith("think"):
            reasoning, text = "The customer asks about returns. " * 6, MARKDOWN
        if what.startswith("slow"):
            text, pause = "word " * 400, 0.05
        if what.startswith("other"):
            text += f" {time.time_ns()}"
        if what.startswith("tool"):
            for i in range(0, len(reasoning), 9):
                self.delta(reasoning_content=reasoning[i:i + 9])
            self.delta(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": {"name": "order_status", "arguments": ""}}])
            for piece in ('{"order_', 'number": "A-1', '7"}'):
                self.delta(tool_calls=[{"index": 0, "function": {"arguments": piece}}])
            finish, text = "tool_calls", ""
        count = 0
        for i in range(0, len(reasoning), 9):
            self.delta(reasoning_content=reasoning[i:i + 9], more={"token_ids": [i]})
            count += 1
            time.sleep(0.01)
        if reasoning:
            self.server.gate.wait(60)
        for i in range(0, len(text), 5):
            if i == 15:
                self.server.gate.wait(60)
            self.delta(content=text[i:i + 5], more={"token_ids": [len(text) + i]})
            count += 1
            time.sleep(pause)
            if i > 20 and what.startswith("break"):
                self.event({"error": {"message": "the step failed", "type": "server_error", "param": None, "code": 500}})
                self.event("[DONE]")
                self.wfile.write(b"0\r\n\r\n")
                return None
            if i > 20 and what.startswith("cut"):
                self.close_connection = True
                self.wfile.write(b"0\r\n\r\n")
                return None
        self.delta(finish=finish, more={"logits_hash": hashlib.sha256(text.encode()).hexdigest()[:16]})
        self.event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [], "usage": {
            "prompt_tokens": 31, "completion_tokens": count, "total_tokens": 31 + count, "prompt_tokens_details": {"cached_tokens": 24}}})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        return None


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that left


def start(**more):
    """A running server: .address, .bodies (what was asked), .seen (paths), .dropped (clients that left). While .gate is cleared,
    every answer stops after its thoughts or its first few characters."""
    server = Server(("127.0.0.1", 0), Script)
    server.key, server.ready, server.fault, server.steps, server.dropped, server.pause = "", True, "", 0, 0, 0.02
    server.bodies, server.seen = [], []
    server.gate = threading.Event()
    server.gate.set()
    for name, value in more.items():
        setattr(server, name, value)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.address = f"http://127.0.0.1:{server.server_port}/"
    return server
