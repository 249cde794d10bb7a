#!/usr/bin/env python3
# labels: timing
"""The web page in headless Chromium: against a server of the tests whose answers can be anything (cut streams, errors,
tool calls), and against `deepinfer serve`."""
import json
import os
import pathlib
import time
import unittest

import browser
import common
import http_server
import scripted_server

browser.enter()
from playwright.sync_api import expect, sync_playwright  # noqa: E402 - only there once enter() has returned

SHOTS = os.environ.get("PAGE_SCREENSHOTS")  # a folder: screenshots are kept there


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
        self.server = scripted_server.start()
        self.address = self.server.address

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
        self.server.gate.clear()
        self.say(page, "Where is it?")
        text = page.locator(".answer .text")
        expect(text).to_have_text("You said: Where")  # a part, while the rest is on its way
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        self.assertEqual(page.locator(".answer").get_attribute("aria-busy"), "true")
        self.server.gate.set()
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
        self.server.gate.clear()
        self.say(page, "think about returns")
        box = page.locator(".thinking")
        expect(box.locator("summary")).to_have_text("Thinking")
        expect(box).to_have_attribute("open", "")
        self.shot(page, "thinking-1280-light")
        self.server.gate.set()
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
        expect(verdict).to_contain_text("beside 5 other answers in progress")
        self.assertEqual([sum(json.loads(body).get("n", 0) for body in self.server.bodies[1:4]), len(set(self.server.bodies))], [5, len(self.server.bodies) - 1])
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

    def test_answers_in_json(self):
        page = self.open(self.address)
        self.assertFalse(page.get_by_label("Schema").is_visible())
        for choice, schema, sent in (("A JSON object", None, {"type": "json_object"}), ("JSON by this schema", '{"type": "array"}', {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "array"}, "strict": True}}),
                                     ("Anything", None, None)):
            page.get_by_label("The answer must be").select_option(choice)
            if schema:
                page.get_by_label("Schema").fill(schema)
            self.say(page, "Hello")
            self.done(page)
            self.assertEqual(self.sent().get("response_format"), sent)

    def test_everything_is_labelled_and_can_be_read(self):
        """Names of all controls; contrast of text of at least 4.5 : 1, on both grounds."""
        for scheme in ("light", "dark"):
            page = self.open(self.address, color_scheme=scheme)
            self.say(page, "error 400")
            self.done(page)
            self.say(page, "think")
            self.done(page).get_by_role("button", name="Same again?").click()
            expect(page.locator(".verdict").last).to_have_attribute("data-result", "equal", timeout=30000)
            unnamed = page.evaluate("""() => [...document.querySelectorAll("button, input, select, textarea")]
                .filter((e) => !e.textContent.trim() && !e.labels?.length && !e.ariaLabel).map((e) => e.outerHTML)""")
            self.assertEqual(unnamed, [])
            pale = page.evaluate("""() => {
                const part = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
                const light = (c) => 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2]);
                const colour = (text) => text.match(/[0-9.]+/g).map(Number);
                const ground = (e) => {
                    for (; e; e = e.parentElement) {
                        const c = colour(getComputedStyle(e).backgroundColor);
                        if (c.length === 3 || c[3] > 0.5) return c;
                    }
                    return [255, 255, 255];
                };
                const pale = [];
                for (const e of document.querySelectorAll("body *")) {
                    if (!e.checkVisibility() || e.disabled || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
                    const [a, b] = [light(colour(getComputedStyle(e).color)), light(ground(e))];
                    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
                    if (contrast < 4.5) pale.push([e.className || e.tagName, e.textContent.slice(0, 20), contrast.toFixed(2)]);
                }
                return pale;
            }""")
            self.assertEqual(pale, [], scheme)

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
        page.get_by_label("Tools, as a JSON array").fill("{}")
        self.say(page, "not sent")
        expect(page.locator("#tools-note")).to_contain_text("not what is wanted here")
        self.assertEqual(len(self.server.bodies), count)
        page.get_by_label("Tools, as a JSON array").fill("")
        page.context.set_offline(True)
        self.say(page, "nobody there")
        expect(self.done(page).get_by_role("alert")).to_contain_text("cannot be reached")
        expect(page.locator("#health-text")).to_have_text("unreachable", timeout=30000)

    def test_markdown_of_any_text(self):
        """Streamed in pieces or at once: the same nodes. No text is lost or becomes markup, and nothing takes long."""
        page = self.open(self.address)
        faults = page.evaluate(r"""async () => {
            const { showMarkdown } = await import("/page/markdown.js");
            const faults = [];
            let state = 7;
            const random = (n) => (state = (state * 1103515245 + 12345) % 2147483648) % n;
            const atoms = ["*", "**", "_", "`", "```", "\n", "\n\n", "# ", "- ", "1. ", "> ", "| a | b |\n|---|--:|\n| c | d |\n", "[x](http://a.b)", "[", "](", ")",
                "<b>", "&amp;", "word ", " ", "  ", "\\", "~~~", "\t", "ü", "---", "|"];
            for (let round = 0; round < 400; round++) {
                const text = Array.from({ length: 1 + random(30) }, () => atoms[random(atoms.length)]).join("");
                const whole = document.createElement("div"), grown = document.createElement("div");
                showMarkdown(whole, text);
                for (let end = 0; end <= text.length; end += 1 + random(4)) showMarkdown(grown, text.slice(0, end));
                showMarkdown(grown, text);
                if (whole.innerHTML !== grown.innerHTML) faults.push(["streamed", text]);
                if (whole.querySelector("b, script, img")) faults.push(["markup", text]);
                const letters = (t) => t.replace(/[^a-zü]/g, "");
                if (!text.includes("http") && !text.includes("`") && !text.includes("~") && letters(whole.textContent) !== letters(text)) faults.push(["text", text, whole.textContent]);
            }
            for (const piece of ["*", "**a ", "_a ", "[", "[a](", "`", "> ", "- ", "  - ", "# #", "|", "| - ", " ", "\n", "~", "*_", "![", "\\", "1. "]) {
                const text = piece.repeat(50000 / piece.length), started = performance.now();
                showMarkdown(document.createElement("div"), text);
                if (performance.now() - started > 3000) faults.push(["slow", piece, performance.now() - started]);
            }
            return faults;
        }""")
        self.assertEqual(faults[:5], [])

    def test_expected_tokens(self):
        """The curve by hand: a record that ends early says nothing about what lies behind; a threshold cuts by survival."""
        page = self.open(self.address)
        got = page.evaluate("""async () => {
            const { expectedTokens, passing, tokensWithDrafts } = await import("/page/lab.js");
            const record = (accepted, ...confidence) => ({ index: 0, accepted, confidence, drafted_text: confidence.map(String) });
            const records = [record(2, 1, 1, 1), record(0, 0.5, 0.5, 0.5), record(3, 1, 0.9, 0.8), record(1, 0.9)];
            const list = tokensWithDrafts(["a", "b", "c", "d"], [{ index: 1, accepted: 1, confidence: [], drafted_text: ["b", "x", "y"] }]);
            return [expectedTokens(records, 0), expectedTokens(records, 0.75).tokens, expectedTokens([], 0).tokens, passing(records[2], 0.8),
                passing({ confidence: [], drafted_text: ["a", "b"] }, 0.9), list.map((t) => t.kind), list[2].rejected];
        }""")
        self.assertEqual(got[0]["seen"], [4, 2, 2])
        self.assertEqual(got[0]["rates"], [0.75, 1, 0.5])
        self.assertEqual(got[0]["tokens"], [1, 1.75, 2.5, 2.875])
        self.assertEqual(got[1], [1, 1.75, 2.5, 2.5])
        self.assertEqual(got[2:], [[1], 2, 2, ["single", "accepted", "own", "single"], ["x", "y"]])

    def test_lab_of_a_server_without_drafts(self):
        page = self.open(self.address)
        page.get_by_label("Show drafts in answers").check()
        self.say(page, "Hello")
        self.done(page)
        self.assertEqual((self.sent()["draft_records"], self.sent()["logprobs"]), (True, True))
        expect(page.locator(".answer .text")).to_contain_text("You said: Hello")  # the server of the test knows nothing of tokens
        self.assertFalse(page.locator("#lab-figures").is_visible())

    def test_events_at_every_cut(self):
        page = self.open(self.address)
        faults = page.evaluate(r"""async () => {
            const { EventSplitter } = await import("/page/api.js");
            const bytes = new TextEncoder().encode(": note\r\ndata: a\r\n\r\nevent: x\ndata:grün\ndata: 🌱\n\n\n\ndata: b\r\rdata: c\n\nid: 4\n\n");
            const faults = [];
            for (let i = 0; i <= bytes.length; i++) for (let j = i; j <= bytes.length; j++) {
                const splitter = new EventSplitter(), got = [];
                for (const part of [bytes.slice(0, i), bytes.slice(i, j), bytes.slice(j)]) splitter.push(part, (data) => got.push(data));
                if (got.join("|") !== "a|grün\n🌱|b|c") faults.push([i, j, got]);
            }
            return faults;
        }""")
        self.assertEqual(faults[:3], [])

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
        page.add_init_script("sessionStorage.setItem('deepinfer-turns', JSON.stringify([{ role: 'assistant' }, 7]))")
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


class Real(PageCase):
    """The page as the program serves it, with the program's own answers."""

    def serve(self, *options, **environment):
        self.faults = []
        self.server = http_server.Server("--access-log", "off", *(options or ("--thinking", "on")), model=common.TINY, threads=0, env=common.environment(**environment))
        self.address = f"http://{self.server.host}:{self.server.port}/"

    def tearDown(self):
        with self.server as server:
            self.assertEqual(server.stop(60), 0)
        self.assertEqual(self.faults, [], "the page logged errors or broke its own Content-Security-Policy")

    def test_files(self):
        self.serve(DEEPINFER_API_KEY="open-sesame")
        for file in sorted(scripted_server.PAGE.iterdir()):
            if file.suffix not in scripted_server.TYPES:
                continue
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            status, headers, body = self.server.ask("GET", path)
            self.assertEqual((status, body, headers["Content-Type"]), (200, file.read_bytes(), f"{scripted_server.TYPES[file.suffix]}; charset=utf-8"))
            self.assertEqual(headers["Content-Security-Policy"], scripted_server.policy())
            self.assertNotIn("unsafe", headers["Content-Security-Policy"])
            self.assertEqual((headers["X-Content-Type-Options"], headers["Referrer-Policy"]), ("nosniff", "no-referrer"))
            self.assertEqual(self.server.ask("GET", path, headers={"If-None-Match": f'W/"x", {headers["ETag"]}'})[::2], (304, b""))
            self.assertEqual(self.server.ask("GET", path, headers={"If-None-Match": '"other"'})[0], 200)
        self.assertEqual([self.server.ask("GET", path)[0] for path in ("/page/", "/page/embed.cmake", "/page/../metrics", "/v1/models", "/metrics")], [401, 404, 404, 401, 401])

    def test_conversation(self):
        self.serve()
        page = self.open(self.address)
        expect(page.locator("#health-text")).to_have_text("ready")
        expect(page.locator("#model")).to_have_text("tiny")
        page.get_by_label("Token limit").fill("120")
        page.get_by_label("Size of the crowd").fill("6")
        page.get_by_role("button", name="Where is my order?").click()
        answer = self.done(page)
        expect(answer.locator(".facts")).to_contain_text("seed ")
        expect(answer.locator(".facts")).to_contain_text("prompt tokens cached")
        expect(answer.locator(".facts")).to_contain_text("logits ")
        self.assertTrue((answer.locator(".text").inner_text() + answer.locator(".thought").text_content()).strip())
        answer.get_by_role("button", name="Same again?").click()
        verdict = answer.locator(".verdict")
        expect(verdict).to_have_attribute("data-result", "equal", timeout=120000)
        expect(verdict).to_contain_text("token ids agree, beside 6 other answers")
        expect(verdict).to_contain_text("The logits have the hash")
        self.shot(page, "real-1280-light")
        self.say(page, "And when will it be here?")
        second = self.done(page, 1)
        second.get_by_role("button", name="Retry, same seed").click()
        expect(second.locator(".facts")).to_contain_text("The same bytes as before.", timeout=60000)
        self.assertNotEqual(page.locator("#live-cache").inner_text(), "0 %")
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("System message").fill("Be brief.")
        page.get_by_label("Thinking").select_option("disabled")
        self.say(page, "Do you ship abroad?")
        third = self.done(page, 2)
        expect(third.locator(".text")).not_to_be_empty()
        self.assertFalse(third.locator(".thinking").is_visible())

    def test_draft_lab(self):
        """Accepted and rejected drafts in the stream; the figures come from what was recorded, and the sliders move them."""
        self.serve("--thinking", "off", "--spec", "4")
        page = self.open(self.address)
        page.get_by_label("Temperature").fill("1.2")
        page.get_by_label("Token limit").fill("120")
        page.get_by_label("Seed").fill("5")
        self.say(page, "Where is my order?")
        plain = self.done(page).locator(".text").inner_text()
        lab = page.get_by_label("Show drafts in answers")
        lab.check()
        expect(page.locator("#lab-note")).to_have_text("The next answer brings the first figures.")
        page.get_by_role("button", name="New chat").click()
        self.say(page, "Where is my order?")
        answer = self.done(page)
        tokens = answer.locator(".tokens")
        self.assertGreater(tokens.locator(".accepted").count(), 3)
        self.assertGreater(tokens.locator("del.rejected").count(), 0)
        shown = tokens.evaluate("(e) => [...e.querySelectorAll('span.token')].map((t) => t.textContent).join('')")
        squeezed = lambda text: "".join(text.split())
        self.assertTrue(squeezed(shown).startswith(squeezed(plain)), (shown, plain))
        expect(answer.locator(".facts")).to_contain_text("drafts accepted")
        for cue in ("border-bottom-style", "text-decoration-line"):
            marks = [tokens.locator(mark).first.evaluate(f"(e) => getComputedStyle(e).getPropertyValue('{cue}')") for mark in (".accepted", ".rejected")]
            self.assertNotEqual(*marks, "the marks differ in colour only")
        words = page.locator("#lab-words")
        expect(words).to_contain_text("tokens a step with up to 4 drafts")
        whole = float(words.inner_text().split()[0])
        self.assertGreater(whole, 1)
        rates = page.locator("#lab-rates tr")
        self.assertEqual(rates.count(), 4)
        self.assertEqual(page.locator("#lab-curve polyline.curve").count(), 1)
        self.shot(page, "lab-1280-light")
        length = page.get_by_label("Draft length")
        length.focus()
        for _ in range(3):
            page.keyboard.press("ArrowLeft")
        expect(words).to_contain_text("with up to 1 draft,")
        self.assertLess(float(words.inner_text().split()[0]), whole)
        length.press("End")
        page.get_by_label("Threshold").press("End")
        expect(words).to_contain_text("1.00 tokens a step")
        expect(page.locator("#live-drafts")).to_contain_text("%", timeout=8000)
        page.reload()
        expect(page.locator(".tokens .accepted").first).to_be_visible()
        expect(lab).to_be_checked()
        answer = page.locator(".answer")
        answer.get_by_role("button", name="Same again?").click()
        expect(answer.locator(".verdict")).to_have_attribute("data-result", "equal", timeout=60000)
        lab.uncheck()
        expect(page.locator(".tokens")).to_be_hidden()
        self.assertEqual(answer.locator(".text").inner_text(), plain)
        phone = self.open(self.address, width=390, height=844, has_touch=True, is_mobile=True, color_scheme="dark")
        phone.get_by_role("button", name="Settings").click()
        phone.get_by_label("Show drafts in answers").check()
        phone.get_by_role("button", name="Close").click()
        phone.get_by_label("Message", exact=True).fill("Where is my order?")
        phone.get_by_role("button", name="Send").click()
        self.done(phone)
        self.shot(phone, "lab-answer-390-dark")
        phone.get_by_role("button", name="Settings").click()
        phone.locator("#lab-curve").scroll_into_view_if_needed()
        self.shot(phone, "lab-390-dark")
        self.assertLessEqual(phone.evaluate("document.documentElement.scrollWidth"), 390)
        self.assertLess(phone.locator("#lab-curve").bounding_box()["width"], 390)


if __name__ == "__main__":
    common.main()
