#!/usr/bin/env python3
# labels: timing
"""The web page in headless Chromium: against a server of this file's own whose answers can be anything (cut streams, errors,
tool calls), and against `deepinfer serve`."""
import hashlib
import http.server
import json
import os
import pathlib
import re
import threading
import time
import unittest

import browser
import common

browser.enter()
from playwright.sync_api import expect, sync_playwright  # noqa: E402 - only there once enter() has returned

PAGE = common.ROOT / "src/server/page"
SHOTS = os.environ.get("PAGE_SCREENSHOTS")  # a folder: screenshots are kept there
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
vllm:spec_decode_num_draft_tokens_total{{model_name="tiny"}} 100
vllm:spec_decode_num_accepted_tokens_total{{model_name="tiny"}} 71
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

    def delta(self, finish=None, more=None, **delta):
        self.event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny",
                    "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **(more or {})}]})

    def chat(self, body, last):
        what = last["content"]
        if what.startswith("error"):
            status = int(what.split()[1])
            more = {"Retry-After": "7"} if status == 429 else {}
            return self.reply(status, "application/json", json.dumps({"error": {"message": f"refused with {status}", "type": "x", "param": "messages", "code": status}}), **more)
        self.send_response(200)
        for name, value in {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", "x-request-id": "req-8"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.delta(role="assistant", content="")
        finish, text, reasoning = "stop", f"You said: {what}. Grüße 🌱 {hashlib.sha256(json.dumps([body['messages'], body['seed']]).encode()).hexdigest()}", ""
        pause = 0.02 if len(self.server.bodies) % 9 or what.startswith(("other", "You")) else 0.01
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
            time.sleep(pause)
        for i in range(0, len(text), 5):
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


class PageCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.playwright = sync_playwright().start()
        cls.chromium = cls.playwright.chromium.launch(executable_path=os.environ["DEEPINFER_TEST_BROWSER"], args=["--no-sandbox", "--disable-gpu"])

    @classmethod
    def tearDownClass(cls):
        cls.chromium.close()
        cls.playwright.stop()

    def open(self, address, width=1280, height=860, **more):
        context = self.chromium.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce", **more)
        self.addCleanup(context.close)
        page = context.new_page()
        page.set_default_timeout(20000)
        self.faults, self.requested = [], []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: message.type == "error" and "Failed to load resource" not in message.text and self.faults.append(message.text))
        page.on("request", lambda request: self.requested.append(request.url))
        page.goto(address)
        return page

    def shot(self, page, name):
        if SHOTS:
            pathlib.Path(SHOTS).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=f"{SHOTS}/{name}.png")

    def say(self, page, text):
        page.get_by_label("Message", exact=True).fill(text)
        page.get_by_label("Message", exact=True).press("Enter")

    def done(self, page, index=-1):
        """The last answer, once it is complete."""
        answer = page.locator(".answer").nth(index)
        expect(answer).to_have_attribute("aria-busy", "false", timeout=60000)
        return answer


class Scripted(PageCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Script)
        self.server.daemon_threads = True
        self.server.key, self.server.ready, self.server.steps, self.server.dropped = "", True, 0, 0
        self.server.bodies, self.server.seen = [], []
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/"

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()
        self.assertEqual(self.faults, [], "the page logged errors or broke its own Content-Security-Policy")
        elsewhere = [url for url in self.requested if not url.startswith(self.address)]
        self.assertEqual(elsewhere, [], "the page asked for something outside its server")

    def sent(self, index=-1):
        return json.loads(self.server.bodies[index])

    def test_send_stream_and_figures(self):
        page = self.open(self.address)
        expect(page.locator("#model")).to_have_text("tiny")
        expect(page.locator("#health-text")).to_have_text("ready")
        self.shot(page, "empty-1280-light")
        self.say(page, "Where is it?")
        text = page.locator(".answer .text")
        expect(text).to_contain_text("You said: Wh")  # a part, while the rest is on its way
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        self.assertEqual(page.locator(".answer").get_attribute("aria-busy"), "true")
        answer = self.done(page)
        expect(text).to_contain_text("Grüße 🌱")
        body = self.sent()
        self.assertEqual((body["stream"], body["stream_options"], body["messages"]), (True, {"include_usage": True}, [{"role": "user", "content": "Where is it?"}]))
        facts = answer.locator(".facts").inner_text()
        self.assertIn(f"seed {body['seed']}", facts)
        self.assertIn("24 of 31 prompt tokens cached", facts)
        for name, shown in {"running": "5", "queue": "3", "cache": "63 %", "drafts": "71 %", "step": "12.5 ms"}.items():
            expect(page.locator(f"#live-{name}")).to_have_text(shown, timeout=8000)
        self.shot(page, "answer-1280-light")

    def test_thinking_and_markdown(self):
        page = self.open(self.address)
        self.say(page, "think about returns")
        box = page.locator(".thinking")
        expect(box.locator("summary")).to_have_text("Thinking")
        expect(box).to_have_attribute("open", "")
        self.shot(page, "thinking-1280-light")
        answer = self.done(page)
        self.assertIsNone(box.get_attribute("open"))
        expect(box.locator("summary")).to_contain_text("Thought for")
        box.locator("summary").click()
        expect(box.locator(".thought")).to_contain_text("The customer asks")
        self.assertNotIn("The customer asks", answer.locator(".text").inner_text())
        text = answer.locator(".text")
        self.assertEqual((text.locator("strong").inner_text(), text.locator("em").inner_text(), text.locator("h5").inner_text()), ("30 days", "this", "Returns"))
        self.assertEqual((text.locator("ol > li").count(), text.locator("ol ul > li").count(), text.locator("td.right").count()), (2, 2, 2))
        self.assertEqual(text.locator("pre code").inner_text().strip(), 'print("<b>not bold</b>")')
        self.assertEqual(text.locator("a").count(), 1)
        self.assertEqual((text.locator("img").count(), text.locator("b").count(), page.title()), (0, 0, "deepinfer"))
        expect(text).to_contain_text("<img src=x")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        text.get_by_role("button", name="Copy").click()
        expect(text.get_by_role("button", name="Copied")).to_be_visible()
        self.assertEqual(page.evaluate("navigator.clipboard.readText()"), 'print("<b>not bold</b>")')
        self.shot(page, "markdown-1280-light")

    def test_stop_and_retry_with_the_same_seed(self):
        page = self.open(self.address)
        self.say(page, "slow")
        expect(page.locator(".answer .text")).to_contain_text("word word")
        page.get_by_role("button", name="Stop").click()
        answer = self.done(page)
        expect(answer.locator(".facts")).to_contain_text("stopped")
        for _ in range(100):
            if self.server.dropped:
                break
            time.sleep(0.05)
        self.assertEqual(self.server.dropped, 1, "the server was not told")
        self.say(page, "once more")
        self.done(page)
        last = page.locator(".answer").nth(1)
        last.get_by_role("button", name="Retry, same seed").click()
        expect(last.locator(".facts")).to_contain_text("The same bytes as before.", timeout=20000)
        self.assertEqual(self.server.bodies[-1], self.server.bodies[-2])
        last.get_by_role("button", name="New seed").click()
        self.done(page)
        self.assertNotEqual(self.sent()["seed"], self.sent(-2)["seed"])

    def test_same_again(self):
        page = self.open(self.address)
        self.say(page, "Hello")
        answer = self.done(page)
        page.get_by_label("Size of the crowd").fill("5")
        answer.get_by_role("button", name="Same again?").click()
        verdict = answer.locator(".verdict")
        expect(verdict).to_have_attribute("data-result", "equal")
        expect(verdict).to_contain_text("The same.")
        expect(verdict).to_contain_text("token ids agree")
        expect(verdict).to_contain_text("hash")
        self.assertEqual(len(self.server.bodies), 7)
        self.assertEqual(self.server.bodies.count(self.server.bodies[0]), 2, "the request was not sent again byte for byte")
        self.shot(page, "same-1280-light")
        self.say(page, "other words each time")
        answer = self.done(page)
        answer.get_by_role("button", name="Same again?").click()
        verdict = answer.locator(".verdict")
        expect(verdict).to_have_attribute("data-result", "different")
        expect(verdict).to_contain_text("Not the same.")
        self.shot(page, "different-1280-light")

    def test_tool_calls(self):
        page = self.open(self.address)
        page.get_by_role("button", name="Put an example here").click()
        self.say(page, "tool")
        answer = self.done(page)
        expect(answer.locator(".call-name")).to_have_text("order_status")
        expect(answer.locator(".call-arguments")).to_have_text('{\n  "order_number": "A-17"\n}')
        self.assertEqual(self.sent()["tools"][0]["function"]["name"], "order_status")
        answer.get_by_label("Result").fill('{"state": "sent"}')
        self.shot(page, "tool-1280-light")
        page.get_by_role("button", name="Send the result").click()
        self.done(page, 1)
        messages = self.sent()["messages"]
        self.assertEqual(messages[1]["tool_calls"], [{"id": "call_1", "type": "function", "function": {"name": "order_status", "arguments": '{"order_number": "A-17"}'}}])
        self.assertEqual(messages[2], {"role": "tool", "tool_call_id": "call_1", "content": '{"state": "sent"}'})

    def test_errors_are_shown(self):
        page = self.open(self.address)
        for message, shown in (("error 400", ["refused with 400", "HTTP 400", "field messages", "request req-7"]), ("error 429", ["refused with 429", "try again in 7 s"]),
                               ("break", ["the step failed", "request req-8"]), ("cut", ["before the server said that it was complete"])):
            self.say(page, message)
            answer = self.done(page)
            for text in shown:
                expect(answer.get_by_role("alert")).to_contain_text(text)
        self.shot(page, "errors-1280-light")
        page.get_by_label("Temperature").fill("3")
        count = len(self.server.bodies)
        self.say(page, "not sent")
        expect(page.get_by_label("Temperature")).to_be_focused()
        self.assertEqual(len(self.server.bodies), count)
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Tools, as a JSON array").fill("[{")
        self.say(page, "not sent")
        expect(page.locator("#tools-note")).to_contain_text("not JSON")
        self.assertEqual(len(self.server.bodies), count)
        page.get_by_label("Tools, as a JSON array").fill("")
        page.context.set_offline(True)
        self.say(page, "nobody there")
        expect(self.done(page).get_by_role("alert")).to_contain_text("cannot be reached")
        expect(page.locator("#health-text")).to_have_text("unreachable", timeout=30000)

    def test_key(self):
        self.server.key = "sesame"
        page = self.open(self.address)
        expect(page.locator("#health-text")).to_have_text("needs a key")
        expect(page.get_by_label("API key")).to_be_focused()
        page.get_by_label("API key").fill("sesame")
        page.get_by_label("API key").press("Tab")
        expect(page.locator("#model")).to_have_text("tiny")
        self.say(page, "Hello")
        expect(self.done(page).locator(".text")).to_contain_text("You said: Hello")
        self.assertEqual(page.evaluate("[localStorage.length, document.cookie]"), [0, ""])
        self.assertNotIn("sesame", page.url)
        self.server.ready = False
        page.reload()
        expect(page.locator("#health-text")).to_have_text("step stalled")

    def test_keyboard_only(self):
        page = self.open(self.address)
        expect(page.get_by_label("Message", exact=True)).to_be_focused()
        page.keyboard.type("slow")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("one")
        page.keyboard.press("Enter")
        expect(page.locator(".answer .text")).to_contain_text("word")
        page.keyboard.press("Escape")
        self.done(page)
        self.assertEqual(self.sent()["messages"][0]["content"], "slow\none")
        page.keyboard.type("Hello")
        page.keyboard.press("Enter")
        self.done(page)
        reached = set()
        page.locator(".skip").focus()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.dataset.action || ''"))
        self.assertLessEqual({"new-chat", "panel-toggle", "prompt", "send", "copy", "retry", "again", "system", "temperature", "seed", "key"}, reached)
        page.locator('[data-action="again"]').last.focus()
        page.keyboard.press("Enter")
        expect(page.locator(".verdict").last).to_have_attribute("data-result", "equal")

    def test_reload(self):
        page = self.open(self.address)
        page.get_by_label("System message").fill("Be brief.")
        page.get_by_label("Seed").fill("18446744073709551615")
        self.say(page, "Hello")
        before = self.done(page).locator(".text").inner_text()
        self.assertIn('"seed":18446744073709551615', self.server.bodies[-1])
        self.assertEqual(self.sent()["messages"][0], {"role": "system", "content": "Be brief."})
        self.say(page, "slow")
        expect(page.locator(".answer .text").nth(1)).to_contain_text("word")
        page.reload()
        expect(page.locator(".answer .text").first).to_have_text(before.replace("\n", " "))
        expect(page.get_by_label("System message")).to_have_value("Be brief.")
        expect(page.locator(".answer .facts").nth(1)).to_contain_text("stopped")
        page.locator(".answer").first.get_by_role("button", name="Same again?").click()
        expect(page.locator(".verdict").first).to_have_attribute("data-result", "equal")
        page.get_by_role("button", name="New chat").click()
        expect(page.locator(".turn")).to_have_count(0)
        page.reload()
        expect(page.locator("#empty")).to_be_visible()

    def test_phone_and_dark(self):
        page = self.open(self.address, width=390, height=844, has_touch=True, is_mobile=True, color_scheme="dark")
        self.shot(page, "empty-390-dark")
        page.get_by_label("Message", exact=True).fill("think")
        page.get_by_role("button", name="Send").click()
        answer = self.done(page)
        self.shot(page, "answer-390-dark")
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 390, "the page is wider than the phone")
        for button in answer.locator(".actions button").all():
            self.assertGreaterEqual(button.bounding_box()["height"], 40)
        self.assertFalse(page.locator("#panel").is_visible())
        page.get_by_role("button", name="Settings").click()
        expect(page.get_by_label("Temperature")).to_be_visible()
        self.shot(page, "settings-390-dark")
        page.get_by_label("Colours").select_option("light")
        self.shot(page, "settings-390-light")
        page.get_by_role("button", name="Close").click()
        self.shot(page, "answer-390-light")
        self.assertFalse(page.locator("#panel").is_visible())
        wide = self.open(self.address, color_scheme="dark")
        self.say(wide, "think")
        answer = self.done(wide)
        answer.get_by_role("button", name="Same again?").click()
        expect(answer.locator(".verdict")).to_have_attribute("data-result", "equal", timeout=30000)
        self.shot(wide, "answer-1280-dark")


if __name__ == "__main__":
    common.main()
