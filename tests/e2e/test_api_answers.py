#!/usr/bin/env python3
# labels: long
"""Answers of all interfaces over plain HTTP: a stream is the whole answer byte for byte, cuts at every token, tools, seeds, errors."""

import json
import pathlib
import re
import shutil
import socket
import tempfile
import threading
import time

import api_case
import common
from api_case import BOOK, BOOKED, BOOKING, at_once, every, join_chat, join_messages, join_responses, whole_chat

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "Hello, who are you?"}]
CHAT_TOOL = {"type": "function", "function": BOOK}
MESSAGES_TOOL = {"name": BOOK["name"], "description": BOOK["description"], "input_schema": BOOK["parameters"]}
RESPONSES_TOOL = {"type": "function", **BOOK}


class Answers(api_case.Case):
    def chat(self, body):
        """The answer, whole and streamed; both must be the same."""
        body = {"temperature": 0, "messages": HELLO, **body}
        whole = self.good(CHAT, body).json
        first = whole_chat(whole)
        answer = self.good(CHAT, dict(body, stream=True, stream_options={"include_usage": True}, seed=whole["seed"]))
        self.assertEqual(answer.headers["Content-Type"], "text/event-stream; charset=utf-8")
        events = answer.events
        choices, usage, seed = join_chat(events)
        for choice in first[0].values():  # ids of calls are a function of seed and prompt
            for call in choice["message"]["tool_calls"]:
                self.assertRegex(call["id"], r"^call_\d\d_[A-Za-z0-9]{24}$")
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual((choices, seed), (first[0], first[2]))
        self.assertEqual(usage["completion_tokens"], first[1]["completion_tokens"])
        self.assertEqual(usage["completion_tokens_details"], first[1]["completion_tokens_details"])
        self.assertEqual(usage["prompt_cache_hit_tokens"], cached)
        self.assertEqual(usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"], usage["prompt_tokens"])
        self.assertEqual([c["choices"] for _, c in events[:-1]][-1], [])
        self.assertEqual([u for u in (c["usage"] for _, c in events[:-1]) if u], [usage, usage])
        return whole

    def test_plain(self):
        whole = self.chat({})
        self.assertEqual((whole["object"], whole["model"]), ("chat.completion", "tiny"))
        self.assertTrue(whole["choices"][0]["message"]["content"].strip())
        self.assertEqual(whole["choices"][0]["finish_reason"], "stop")
        self.assertNotIn("reasoning_content", whole["choices"][0]["message"])
        self.assertTrue(whole["system_fingerprint"])

    def test_seeds_make_answers_again(self):
        body = {"messages": HELLO, "n": 6, "temperature": 2, "max_tokens": 24}
        first = self.good(CHAT, body).json
        self.assertLess(first["seed"], 2**53)
        again = self.good(CHAT, dict(body, seed=first["seed"])).json
        self.assertEqual(again["choices"], first["choices"])
        self.assertGreater(len({c["message"]["content"] for c in first["choices"]}), 1)
        other = self.good(CHAT, body).json
        self.assertNotEqual(other["seed"], first["seed"])
        self.chat({"n": 6, "temperature": 2, "max_tokens": 24})
        self.assertEqual(self.good(CHAT, dict(body, seed=2**64 - 1)).json["seed"], 2**64 - 1)

    def test_logprobs(self):
        whole = self.chat({"logprobs": True, "top_logprobs": 3, "max_tokens": 12, "return_token_ids": True, "logits_hash": True})
        entries = whole["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(entries), 12)
        self.assertEqual(len(whole["choices"][0]["token_ids"]), 12)
        self.assertEqual(bytes(b for e in entries for b in e["bytes"]).decode(), whole["choices"][0]["message"]["content"])
        for entry in entries:
            self.assertEqual(len(entry["top_logprobs"]), 3)
            self.assertEqual(entry["logprob"], entry["top_logprobs"][0]["logprob"])
            self.assertLessEqual(entry["logprob"], 0)
        self.assertRegex(whole["choices"][0]["logits_hash"], "^[0-9a-f]{16}$")

    def test_stop_strings(self):
        text = self.chat({})["choices"][0]["message"]["content"]
        for stop in (text[5:9], [text[8:12], text[7:13]], text[-3:]):
            choice = self.chat({"stop": stop})["choices"][0]
            first = min((text.index(s) + len(s), -len(s), s) for s in ([stop] if isinstance(stop, str) else stop))[2]
            self.assertEqual(choice["message"]["content"], text[: text.index(first)])
            self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", first))
            choice = self.chat({"stop": stop, "include_stop_str_in_output": True})["choices"][0]
            self.assertEqual(choice["message"]["content"], text[: text.index(first) + len(first)])

    def test_pieces_of_characters(self):
        """Noise made of bytes of many scripts: what cannot be decoded becomes U+FFFD, at the same place streaming or not."""
        ids = self.good("/tokenize", {"prompt": "Größe 大きい привет 🙂🙃 عربى ไทย 한국어", "add_special_tokens": False}).json["tokens"]
        bias = {str(i): 12 for i in set(ids)}
        broken = 0
        for seed in range(6):
            whole = self.chat({"temperature": 2, "seed": seed, "max_tokens": 60, "logit_bias": bias, "logprobs": True, "ignore_eos": True, "tools": [CHAT_TOOL] if seed % 2 else []})
            broken += "\ufffd" in whole["choices"][0]["message"]["content"]
            entries = whole["choices"][0]["logprobs"]["content"]
            self.assertEqual(len(entries), 60)
        self.assertGreater(broken, 0)

    def test_thinking_and_every_cut_of_it(self):
        body = {"thinking": {"type": "enabled"}, "messages": HELLO, "max_tokens": 60, "logprobs": True}
        whole = self.chat(body)
        message = whole["choices"][0]["message"]
        self.assertIn("reasoning_content", message)
        total = whole["usage"]["completion_tokens"]
        reasoning = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
        def check(cut):
            part = self.chat(dict(body, max_tokens=cut))
            choice = part["choices"][0]
            self.assertEqual(choice["finish_reason"], "length")
            self.assertEqual(part["usage"]["completion_tokens"], cut)
            self.assertEqual(part["usage"]["completion_tokens_details"]["reasoning_tokens"], min(cut, reasoning))
            self.assertTrue(message["reasoning_content"].startswith(choice["message"]["reasoning_content"]) or cut > reasoning)
            self.assertTrue(message["content"].startswith(choice["message"]["content"]))

        at_once(check, range(1, min(total, 24), every(1, 6)))
        hidden = self.chat(dict(body, include_reasoning=False))
        self.assertNotIn("reasoning_content", hidden["choices"][0]["message"])
        self.assertEqual(hidden["choices"][0]["message"]["content"], message["content"])

    def test_a_tool_call_and_every_cut_of_it(self):
        body = {"messages": [{"role": "user", "content": BOOKING}], "tools": [CHAT_TOOL]}
        whole = self.chat(body)
        choice = whole["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        call = choice["message"]["tool_calls"][0]["function"]
        self.assertEqual(call["name"], "book_table")
        self.assertEqual(json.loads(call["arguments"])["restaurant"], "Golden Dragon")

        def check(cut):
            part = self.chat(dict(body, max_tokens=cut))["choices"][0]
            self.assertEqual(part["finish_reason"], "length", cut)
            calls = part["message"]["tool_calls"] if "tool_calls" in part["message"] else []
            for given in calls:  # what may be the beginning of a closing tag is given out at the end
                arguments = given["function"]["arguments"].removesuffix("</").removesuffix("<")
                self.assertTrue(call["arguments"].startswith(arguments), given)
            self.assertIn(part["message"]["content"], ("", "<"))

        at_once(check, range(1, whole["usage"]["completion_tokens"], every(1, 16)))

    def test_tools_through_all_interfaces(self):
        """Call, result, sentence; the prompt is the same for all three, and so is what comes."""
        chat = self.chat({"messages": [{"role": "user", "content": BOOKING}], "tools": [CHAT_TOOL]})
        call = chat["choices"][0]["message"]["tool_calls"][0]
        arguments = json.loads(call["function"]["arguments"])
        messages = self.messages({"messages": [{"role": "user", "content": BOOKING}], "tools": [MESSAGES_TOOL], "max_tokens": 300})
        self.assertEqual(messages["stop_reason"], "tool_use")
        use = messages["content"][-1]
        self.assertEqual((use["name"], use["input"]), ("book_table", arguments))
        responses = self.responses({"input": BOOKING, "tools": [RESPONSES_TOOL]})
        item = responses["output"][-1]
        self.assertEqual((item["type"], item["name"], json.loads(item["arguments"])), ("function_call", "book_table", arguments))

        history = [{"role": "user", "content": BOOKING}, chat["choices"][0]["message"], {"role": "tool", "tool_call_id": call["id"], "content": BOOKED}]
        sentence = self.chat({"messages": history, "tools": [CHAT_TOOL]})["choices"][0]
        self.assertEqual(sentence["finish_reason"], "stop")
        self.assertRegex(sentence["message"]["content"], r"\w+ \w+")
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": BOOKED}
        history = [{"role": "user", "content": BOOKING}, {"role": "assistant", "content": messages["content"]}, {"role": "user", "content": [result]}]
        message = self.messages({"messages": history, "tools": [MESSAGES_TOOL], "max_tokens": 300})
        self.assertEqual(message["content"][-1]["text"], sentence["message"]["content"])
        history = [{"role": "user", "content": BOOKING}, *responses["output"], {"type": "function_call_output", "call_id": item["call_id"], "output": BOOKED}]
        response = self.responses({"input": history, "tools": [RESPONSES_TOOL]})
        self.assertEqual(response["output"][-1]["content"][0]["text"], sentence["message"]["content"])

    def test_forced_and_forbidden_calls(self):
        body = {"messages": [{"role": "user", "content": BOOKING}], "tools": [CHAT_TOOL], "thinking": {"type": "disabled"}}
        for choice in ("required", {"type": "function", "function": {"name": "book_table"}}):
            answer = self.chat(dict(body, tool_choice=choice))["choices"][0]
            self.assertEqual(answer["finish_reason"], "tool_calls")
            self.assertEqual(answer["message"]["tool_calls"][0]["function"]["name"], "book_table")
        answer = self.chat(dict(body, tool_choice="none"))["choices"][0]
        self.assertNotIn("tool_calls", answer["message"])

    def test_forced_calls_follow_their_schemas(self):
        """Whatever was asked, at high temperature, with and without reasoning; strict tools also when the model calls by itself."""
        parameters = {
            "type": "object",
            "properties": {"place": {"type": "string", "enum": ["Rome", "Oslo"]}, "people": {"type": "integer", "minimum": 1, "maximum": 9}, "notes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
            "required": ["place", "people"],
        }
        tool = {"type": "function", "function": {"name": "reserve", "parameters": parameters}}

        def check(call):
            self.assertEqual(call["function"]["name"], "reserve")
            value = json.loads(call["function"]["arguments"])
            self.assertIn(value["place"], ("Rome", "Oslo"))
            self.assertIn(value["people"], range(1, 10))
            self.assertTrue(set(value) <= {"place", "people", "notes"} and all(type(item) is bool for item in value.get("notes", [])), value)

        body = {"messages": [{"role": "user", "content": "Tell me a story."}], "tools": [tool], "temperature": 1.5, "max_tokens": 600, "parallel_tool_calls": False}
        for thinking in ("disabled", "enabled"):
            for seed in range(3):
                for choice in ("required", {"type": "function", "function": {"name": "reserve"}}):
                    answer = self.chat(dict(body, tool_choice=choice, thinking={"type": thinking}, seed=seed))["choices"][0]
                    if answer["finish_reason"] == "length" and thinking == "enabled":
                        continue
                    self.assertEqual(answer["finish_reason"], "tool_calls", answer)
                    self.assertEqual(len(answer["message"]["tool_calls"]), 1)
                    check(answer["message"]["tool_calls"][0])
        strict = {"type": "function", "function": {"name": "book_table", "strict": True, "parameters": {"type": "object", "properties": {"restaurant": {"type": "string", "enum": ["Blue Whale"]}}, "required": ["restaurant"], "additionalProperties": False}}}
        answer = self.chat({"messages": [{"role": "user", "content": BOOKING}], "tools": [strict], "thinking": {"type": "disabled"}, "temperature": 0})["choices"][0]
        self.assertEqual(json.loads(answer["message"]["tool_calls"][0]["function"]["arguments"]), {"restaurant": "Blue Whale"})
        strict["function"]["parameters"]["properties"]["restaurant"]["type"] = "strin"
        refused = self.client.post(CHAT, {"messages": [{"role": "user", "content": BOOKING}], "tools": [strict], "tool_choice": "required"})
        self.assertEqual((refused.status, refused.json["error"]["param"]), (400, "tools"), refused.json)
        self.assertIn("/tools/0/parameters/properties/restaurant", refused.json["error"]["message"])

    def test_stop_strings_leave_markup_alone(self):
        """Line breaks and a bracket before the mark of a call are markup, whatever brought them."""
        body = {"messages": [{"role": "user", "content": BOOKING}], "tools": [CHAT_TOOL], "temperature": 0}
        for stop in ("\n\n", "\n", "<"):
            for more in ({"thinking": {"type": "disabled"}}, {"tool_choice": "required"}, {"tool_choice": "required", "thinking": {"type": "disabled"}}):
                answer = self.chat(dict(body, stop=[stop], **more))["choices"][0]
                self.assertEqual(answer["finish_reason"], "tool_calls", (stop, more, answer))
                json.loads(answer["message"]["tool_calls"][0]["function"]["arguments"])
        for choice in ("required", {"type": "function", "function": {"name": "f"}}):
            refused = self.client.post(CHAT, {"messages": body["messages"], "tool_choice": choice})
            self.assertEqual((refused.status, refused.json["error"]["param"]), (400, "tool_choice"), refused.json)

    def test_stop_strings_behind_a_stray_mark(self):
        """A mark in prose opens no call: what follows is the answer, and ends at a stop string."""
        added = json.loads((pathlib.Path(common.TINY) / "tokenizer.json").read_text())["added_tokens"]
        mark = next(t["id"] for t in added if t["content"] == "｜DSML｜")
        behind = 0
        for seed in range(6):
            body = {"tools": [CHAT_TOOL], "max_tokens": 24, "seed": seed, "temperature": 2, "n": 2, "logit_bias": {str(mark): 20, "1": -100}}
            plain, stopped = self.chat(body)["choices"], self.chat(dict(body, stop=["i", "an"]))["choices"]
            for whole, cut in zip(plain, stopped):
                text = whole["message"]["content"]
                found = [(text.index(stop) + len(stop), stop) for stop in ("i", "an") if stop in text]
                self.assertEqual(cut["stop_reason"], min(found)[1] if found else None)
                if found:
                    end, stop = min(found)
                    self.assertEqual((cut["message"]["content"], cut["finish_reason"]), (text[: end - len(stop)], "stop"))
                    behind += "｜DSML｜" in text[:end]
        self.assertGreater(behind, 3)

    def test_hostile_grammars_fail_alone(self):
        """Masks that take too long end their own request; others go on, and nobody waits for a compiler either."""
        strings = [{"type": "string", "pattern": "^(.{%d})*$" % n} for n in (31, 37, 41)]
        alternatives = "|".join("[a-z]{%d}[0-9]*\\p{L}*" % n for n in range(2, 280))
        hostile = [{"structured_outputs": {"json": {"allOf": strings}}, "n": 40}, {"structured_outputs": {"regex": "(%s)*" % alternatives}}]
        messages = [{"role": "user", "content": "Hello"}]
        attacks = [threading.Thread(target=api_case.Client(self.client.connection.port).post, args=(CHAT, dict({"messages": messages, "temperature": 1.5, "max_tokens": 60, "seed": 4}, **more))) for more in hostile]
        for attack in attacks:
            attack.start()
        slowest = 0
        while any(attack.is_alive() for attack in attacks):
            start = time.monotonic()
            self.chat({"messages": messages, "max_tokens": 3, "thinking": {"type": "disabled"}})
            slowest = max(slowest, time.monotonic() - start)
            time.sleep(0.05)
        self.assertLess(slowest, every(5, 60), "seconds that others waited")

    def test_json_object(self):
        messages = [{"role": "system", "content": "Answer in JSON."}, {"role": "user", "content": "Give me the booking as json: Golden Dragon, 7 pm, 4 people."}]
        choice = self.chat({"messages": messages, "response_format": {"type": "json_object"}})["choices"][0]
        self.assertIsInstance(json.loads(choice["message"]["content"]), dict)

    def test_bound_answers(self):
        """The answer follows what was asked for, in chat and behind the reasoning, through all interfaces."""
        schema = {"type": "object", "properties": {"name": {"type": "string"}, "people": {"type": "integer"}}, "required": ["name", "people"], "additionalProperties": False}
        booking = "Give me this booking as json: Golden Dragon, 4 people."
        messages = [{"role": "user", "content": booking}]

        def check(text):
            value = json.loads(text)
            self.assertEqual((list(value), type(value["name"]), type(value["people"])), (["name", "people"], str, int), text)

        def bound(**more):
            choice = self.chat({"messages": messages, "temperature": 1, "max_tokens": 400, **more})["choices"][0]
            self.assertEqual(choice["finish_reason"], "stop")
            return choice["message"]["content"]

        asked = {"type": "json_schema", "json_schema": {"name": "booking", "schema": schema}}
        for seed in range(every(3, 1)):
            for thinking in ("disabled", "enabled"):
                check(bound(response_format=asked, thinking={"type": thinking}, seed=seed))
        check(bound(structured_outputs={"json": schema}))
        check(bound(guided_json=json.dumps(schema)))
        self.assertIsInstance(json.loads(bound(response_format={"type": "json_object"}, temperature=1.5, seed=4)), dict)
        self.assertRegex(bound(response_format={"type": "regex", "regex": "[a-c]{3}-[0-9]{2}"}), "^[a-c]{3}-[0-9]{2}$")
        self.assertIn(bound(structured_outputs={"choice": ["a.b", "c|d", "(e)"]}), ("a.b", "c|d", "(e)"))
        self.assertIn(bound(structured_outputs={"grammar": 'root ::= "yes" | "no"'}), ("yes", "no"))
        self.assertIn(self.good(COMPLETIONS, {"prompt": "x", "guided_choice": ["yes", "no"]}).json["choices"][0]["text"], ("yes", "no"))
        message = self.messages({"messages": messages, "output_config": {"format": {"type": "json_schema", "schema": schema}}})
        check(message["content"][0]["text"])
        response = self.responses({"input": booking, "text": {"format": {"type": "json_schema", "name": "booking", "schema": schema}}})
        check(response["output"][0]["content"][0]["text"])
        for body, param in (
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}}, "response_format"),
            ({"response_format": {"type": "regex", "regex": "(a"}}, "response_format"),
            ({"response_format": asked, "ignore_eos": True}, "response_format"),
            ({"structured_outputs": {"json": schema, "regex": "a"}}, "structured_outputs.regex"),
            ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
            ({"guided_regex": "a", "tools": [CHAT_TOOL]}, "guided_regex"),
            ({"guided_choice": ["a", ""]}, "guided_choice"),
            ({"guided_grammar": "root ::= missing"}, "guided_grammar"),
        ):
            answer = self.client.post(CHAT, {"messages": messages, **body})
            self.assertEqual((answer.status, answer.json["error"]["param"]), (400, param), answer.body)
            self.assertNotIn("so_args", answer.json["error"]["message"])

    def test_prefix(self):
        text = self.chat({})["choices"][0]["message"]["content"]
        history = HELLO + [{"role": "assistant", "content": text[:10], "prefix": True}]
        self.assertEqual(self.chat({"messages": history})["choices"][0]["finish_reason"], "stop")
        answer = self.good("/beta/chat/completions", {"messages": history, "temperature": 0}).json
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")

    def test_completions(self):
        def both(body):
            body = {"temperature": 0, **body}
            whole = self.good(COMPLETIONS, body).json
            events = self.good(COMPLETIONS, dict(body, stream=True, seed=whole["seed"])).events
            self.assertEqual(events[-1][1], "[DONE]")
            texts, ends, lists = {}, {}, {}
            for _, chunk in events[:-1]:
                for choice in chunk["choices"]:
                    index = choice["index"]
                    self.assertNotIn(index, ends)
                    texts[index] = texts.get(index, "") + choice["text"]
                    for key, items in (choice["logprobs"] or {}).items():
                        lists.setdefault((index, key), []).extend(items)
                    if choice["finish_reason"]:
                        ends[index] = choice["finish_reason"]
            self.assertEqual(texts, {c["index"]: c["text"] for c in whole["choices"]})
            self.assertEqual(ends, {c["index"]: c["finish_reason"] for c in whole["choices"]})
            self.assertEqual(lists, {(c["index"], k): v for c in whole["choices"] for k, v in (c["logprobs"] or {}).items()})
            self.assertEqual(events[-2][1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
            return whole

        whole = both({"prompt": "The table is booked for", "logprobs": 2})
        self.assertEqual(whole["usage"]["completion_tokens"], 16)
        self.assertEqual("".join(whole["choices"][0]["logprobs"]["tokens"]), whole["choices"][0]["text"])
        offsets = whole["choices"][0]["logprobs"]["text_offset"]
        self.assertEqual(offsets, sorted(offsets))
        echo = both({"prompt": "The table is booked for", "logprobs": 2, "echo": True, "max_tokens": 16})
        self.assertEqual(echo["choices"][0]["text"], "The table is booked for" + whole["choices"][0]["text"])
        listed = echo["choices"][0]["logprobs"]["token_logprobs"]
        self.assertIsNone(listed[0])
        self.assertTrue(all(isinstance(x, float) for x in listed[1:]))
        scored = both({"prompt": "The table is booked for", "logprobs": 2, "echo": True, "max_tokens": 0})
        self.assertEqual((scored["choices"][0]["text"], scored["usage"]["completion_tokens"]), ("The table is booked for", 0))
        self.assertEqual(scored["choices"][0]["logprobs"]["token_logprobs"], echo["choices"][0]["logprobs"]["token_logprobs"][:-16])
        ids = self.good("/tokenize", {"prompt": "The table is booked for"}).json["tokens"]
        self.assertEqual(len(listed), len(ids) + 16)
        self.assertEqual(both({"prompt": ids})["choices"][0]["text"], whole["choices"][0]["text"])
        many = both({"prompt": ["The table is booked for", "Thank you"], "n": 2, "max_tokens": 8})
        self.assertEqual([c["index"] for c in many["choices"]], [0, 1, 2, 3])
        self.assertEqual(many["choices"][0]["text"], many["choices"][1]["text"])
        self.assertNotEqual(many["choices"][0]["text"], many["choices"][2]["text"])
        both({"prompt": [ids, [0, 5]], "max_tokens": 3})
        self.good("/beta/completions", {"prompt": "def f(", "suffix": "return x", "max_tokens": 4})
        both({"prompt": "Hello", "suffix": "bye", "max_tokens": 4})

    def check_offsets(self, choice, begins):
        """Every token stands in the text where its offset says; bytes of one character stand where that begins."""
        text, lists = choice["text"], choice["logprobs"]
        pieces = []  # [offset, bytes]: tokens joined to whole characters
        for token, offset in list(zip(lists["tokens"], lists["text_offset"]))[begins:]:
            raw = bytes.fromhex(token[6:].replace("\\x", "")) if token.startswith("bytes:") else token.encode()
            if pieces and pieces[-1][0] == offset:
                pieces[-1][1] += raw
            else:
                pieces.append([offset, raw])
        for offset, raw in pieces:
            said = raw.decode("utf-8", "replace")
            self.assertEqual(text[offset : offset + len(said)], said, choice)

    def test_tokens_and_offsets_of_completions(self):
        def unique(pairs):
            self.assertEqual(len(dict(pairs)), len(pairs), pairs)
            return dict(pairs)

        def ask(body):
            return json.loads(self.good(COMPLETIONS, {"logprobs": 20, "seed": 1, **body}).body, object_pairs_hook=unique)["choices"][0]

        for prompt in ("The table", "a😀b 漢字 c", [0] + self.good("/tokenize", {"prompt": "漢字"}).json["tokens"][1:-1]):
            choice = ask({"prompt": prompt, "max_tokens": 4, "temperature": 0, "echo": True})
            self.assertEqual(choice["logprobs"]["text_offset"][:2], [0, 0])  # BOS has no text
            self.check_offsets(choice, 1)
        spelled = set()
        for seed in range(12):
            choice = ask({"prompt": [0, 150 + seed, 200 + seed, 190], "max_tokens": 6, "seed": seed, "temperature": 2, "echo": True})
            spelled |= {name for top in choice["logprobs"]["top_logprobs"] if top for name in top if name.startswith("bytes:")}
            self.assertEqual(choice["logprobs"]["text_offset"], sorted(choice["logprobs"]["text_offset"]))
            self.assertLessEqual(choice["logprobs"]["text_offset"][-1], len(choice["text"]))
        self.assertTrue(all(re.fullmatch(r"bytes:(\\x[0-9a-f]{2})+", name) for name in spelled) and spelled, spelled)
        choice = ask({"prompt": "a", "max_tokens": 3, "temperature": 0, "ignore_eos": True, "logit_bias": {"1": 100}})  # ends of sequence
        self.assertEqual((choice["text"], choice["logprobs"]["text_offset"]), ("", [0, 0, 0]))

    def test_a_zero_character_is_text_like_any_other(self):
        for text in ("a\0b", "\0", "a\0"):
            ids = self.good("/tokenize", {"prompt": text}).json["tokens"]
            for prompt in (text, [text], ids, [ids]):
                body = {"prompt": prompt, "echo": True, "max_tokens": 0, "return_token_ids": True}
                choice = self.good(COMPLETIONS, body).json["choices"][0]
                self.assertEqual((choice["text"], choice["prompt_token_ids"]), (text, ids))
                events = self.good(COMPLETIONS, dict(body, stream=True)).events
                self.assertEqual("".join(c["text"] for _, chunk in events[:-1] for c in chunk["choices"]), text)
        self.assertEqual(self.good(RESPONSES, {"input": "Hi", "instructions": "a\0b", "max_output_tokens": 1}).json["instructions"], "a\0b")
        self.good(MESSAGES, {"messages": HELLO, "system": "a\0b", "max_tokens": 1})
        self.good(COMPLETIONS, {"prompt": "a\0b", "suffix": "c\0d", "max_tokens": 1})
        for field in ("user", "model", "request_id"):
            answer = self.client.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1, field: "a\0b"})
            self.assertEqual((answer.status, answer.json["error"]["param"]), (400, field))

    def messages(self, body):
        body = {"temperature": 0, "max_tokens": 200, "messages": HELLO, **body}
        whole = self.good(MESSAGES, body, anthropic_version="2023-06-01")
        self.assertTrue(whole.headers["request-id"])
        whole = whole.json
        joined = join_messages(self.good(MESSAGES, dict(body, stream=True, seed=whole["seed"])).events)
        for message in (whole, joined):
            message.pop("id")
            usage = message["usage"]
            message["usage"] = (usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"], usage["reasoning_tokens"])
        self.assertEqual(joined, whole)
        return whole

    def test_messages(self):
        message = self.messages({"system": [{"type": "text", "text": "You are helpful."}]})
        self.assertEqual((message["type"], message["role"], message["stop_reason"], message["stop_sequence"]), ("message", "assistant", "end_turn", None))
        text = message["content"][0]["text"]
        chat = self.chat({"messages": [{"role": "system", "content": "You are helpful."}] + HELLO})
        self.assertEqual(text, chat["choices"][0]["message"]["content"])
        stopped = self.messages({"system": "You are helpful.", "stop_sequences": [text[4:8]]})
        self.assertEqual((stopped["stop_reason"], stopped["stop_sequence"]), ("stop_sequence", text[4:8]))
        self.assertEqual(self.messages({"max_tokens": 3})["stop_reason"], "max_tokens")
        thought = self.messages({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 40})
        self.assertEqual(thought["content"][0]["type"], "thinking")
        omitted = self.messages({"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, "max_tokens": 40})
        self.assertEqual(omitted["content"][0], {"type": "thinking", "thinking": "", "signature": thought["content"][0]["signature"]})
        self.assertEqual(omitted["content"][1:], thought["content"][1:])
        history = [*HELLO, {"role": "assistant", "content": [*omitted["content"], {"type": "text", "text": "Hello."}]}, HELLO[0]]
        self.messages({"messages": history, "max_tokens": 2})
        body = {"messages": [{"role": "user", "content": BOOKING}], "tools": [MESSAGES_TOOL]}
        whole = self.messages(body)
        begun = 0
        for part in at_once(lambda cut: self.messages(dict(body, max_tokens=cut)), range(1, whole["usage"][1], every(6, 24))):
            self.assertEqual(part["stop_reason"], "max_tokens")
            for block in part["content"]:
                if "partial_json" in block:
                    self.assertEqual(block["input"], {})
                    begun += block["partial_json"].startswith('{"')
        self.assertGreater(begun, 1)

    def test_signatures_and_ids(self):
        """Equal requests have equal signatures; the id is the client's if it gives one."""
        body = {"thinking": {"type": "enabled"}, "max_tokens": 12, "temperature": 0, "messages": HELLO}
        signatures = [self.good(MESSAGES, dict(body, max_tokens=cut)).json["content"][0]["signature"] for cut in (12, 12, 11)]
        self.assertRegex(signatures[0], "^[0-9a-f]{32}$")
        self.assertEqual(signatures[0], signatures[1])
        self.assertNotEqual(signatures[0], signatures[2])
        first, second = [self.good(RESPONSES, {"input": "Hello", "reasoning": {"effort": "low"}, "max_output_tokens": 12, "temperature": 0, "request_id": "a-1.b_2"}).json for _ in range(2)]
        self.assertEqual(first["id"], "resp_a-1.b_2")
        self.assertEqual(first["output"], second["output"])
        self.assertTrue(first["output"][0]["encrypted_content"])
        for path, body, prefix in ((CHAT, {"messages": HELLO}, "chatcmpl-"), (COMPLETIONS, {"prompt": "Hi"}, "cmpl-"), (MESSAGES, {"messages": HELLO}, "msg_")):
            body = dict(body, max_tokens=2, request_id="x" * 128)
            self.assertEqual(self.good(path, body).json["id"], prefix + "x" * 128)
            for wrong in ("", "x" * 129, "a b", "ä", "a/b"):
                answer = self.client.post(path, dict(body, request_id=wrong))
                self.assertEqual(answer.status, 400, (path, wrong, answer.body))
                self.assertIn("request_id", answer.json["error"]["message"])

    def test_equal_bytes(self):
        """Whole answers to equal requests, alone and in a crowd: nothing differs but what docs/api.md names."""
        def shown(answer):
            value = answer.json
            for name in ("created", "created_at", "completed_at"):
                value.pop(name, None)
            usage = value["usage"]
            for name in ("prompt_tokens_details", "input_tokens_details", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "cache_read_input_tokens"):
                usage.pop(name, None)
            if value.get("type") == "message":  # counts what was not cached
                usage.pop("input_tokens")
            return value

        same = {"temperature": 1, "seed": 11, "request_id": "r-1"}
        thought = {"thinking": {"type": "enabled"}, **same}
        tools = {"tools": [CHAT_TOOL], "messages": [{"role": "user", "content": BOOKING}]}
        requests = [
            (CHAT, {"messages": HELLO, "n": 3, "max_tokens": 20, "logprobs": True, "top_logprobs": 2, "return_token_ids": True, "logits_hash": True, **thought}),
            (CHAT, {**tools, "tool_choice": "required", "max_tokens": 60, **same}),
            (COMPLETIONS, {"prompt": ["The table", "Thank you"], "n": 2, "logprobs": 2, "echo": True, **same}),
            (MESSAGES, {"messages": HELLO, "max_tokens": 30, **thought}),
            (RESPONSES, {"input": "Hello", "reasoning": {"effort": "low"}, "include": ["message.output_text.logprobs"], "max_output_tokens": 30, **same}),
        ]
        alone = [shown(self.good(path, body)) for path, body in requests]
        for answer, wanted in zip(at_once(lambda request: shown(self.good(*request)), requests * 3), alone * 3):
            self.assertEqual(answer, wanted)

    def test_logprobs_of_responses(self):
        body = {"input": "Hello, who are you?", "include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 12}
        whole = self.responses(body)
        part = whole["output"][0]["content"][0]
        chat = self.chat({"logprobs": True, "top_logprobs": 2, "max_tokens": 12})["choices"][0]
        self.assertEqual(part["logprobs"], chat["logprobs"]["content"])
        self.assertEqual((len(part["logprobs"]), whole["top_logprobs"], part["text"]), (12, 2, chat["message"]["content"]))
        thought = self.responses(dict(body, reasoning={"effort": "low"}, max_output_tokens=200))
        text = thought["output"][-1]["content"][0]
        self.assertTrue(bytes(b for e in text["logprobs"] for b in e["bytes"]).decode().startswith(text["text"]))
        self.responses(dict(body, input=BOOKING, tools=[RESPONSES_TOOL], max_output_tokens=200))
        self.assertEqual(self.responses({"input": "Hello", "max_output_tokens": 2})["output"][0]["content"][0]["logprobs"], [])
        answer = self.client.post(RESPONSES, {"input": "x", "top_logprobs": 2})
        self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "top_logprobs"))

    def test_a_call_by_any_name(self):
        """Anthropic's tool_choice any: a call comes, whatever was asked."""
        story = [{"role": "user", "content": "Tell me a story."}]
        for thinking in ("disabled", "enabled"):
            message = self.messages({"messages": story, "tools": [MESSAGES_TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "thinking": {"type": thinking}, "max_tokens": 1500})
            self.assertEqual((message["stop_reason"], message["content"][-1]["type"]), ("tool_use", "tool_use"), message)
            self.assertEqual(sum(block["type"] == "tool_use" for block in message["content"]), 1)
            self.assertLessEqual({"restaurant", "time"}, set(message["content"][-1]["input"]))
        answer = self.client.post(MESSAGES, {"messages": story, "max_tokens": 5, "tool_choice": {"type": "any"}})
        self.assertEqual((answer.status, answer.json["error"]["type"]), (400, "invalid_request_error"))
        self.assertIn("no tools", answer.json["error"]["message"])

    def responses(self, body):
        body = {"temperature": 0, **body}
        whole = self.good(RESPONSES, body).json
        joined = join_responses(self.good(RESPONSES, dict(body, stream=True, seed=whole["seed"])).events)

        def plain(value, tail):
            text = json.dumps(value).replace(tail, "ID")
            value = json.loads(text)
            for name in ("created_at", "completed_at"):
                value.pop(name)
            value["usage"].pop("input_tokens_details")
            return value

        self.assertEqual(plain(joined, joined["id"][5:]), plain(whole, whole["id"][5:]))
        return whole

    def test_responses(self):
        response = self.responses({"input": "Hello, who are you?", "metadata": {"a": "b"}, "instructions": "You are helpful."})
        self.assertEqual((response["status"], response["metadata"], response["store"]), ("completed", {"a": "b"}, False))
        self.assertLessEqual(response["created_at"], response["completed_at"])
        chat = self.chat({"messages": [{"role": "system", "content": "You are helpful."}] + HELLO})
        self.assertEqual(response["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"])
        self.assertEqual(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"])
        cut = self.responses({"input": "Hello", "max_output_tokens": 2})
        self.assertEqual((cut["status"], cut["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
        self.responses({"input": "Hello", "reasoning": {"effort": "low"}, "max_output_tokens": 30})
        whole = self.responses({"input": BOOKING, "tools": [RESPONSES_TOOL]})
        cuts = range(1, whole["usage"]["output_tokens"], every(6, 24))
        for part in at_once(lambda count: self.responses({"input": BOOKING, "tools": [RESPONSES_TOOL], "max_output_tokens": count}), cuts):
            self.assertEqual(part["status"], "incomplete")
        for field in ("previous_response_id", "conversation"):
            answer = self.client.post(RESPONSES, {"input": "x", field: "resp_1"})
            self.assertEqual((answer.status, answer.json["error"]["param"]), (400, field))

    def test_counts_are_the_same_everywhere(self):
        body = {"messages": [{"role": "user", "content": BOOKING}], "tools": [CHAT_TOOL]}
        chat = self.good(CHAT, dict(body, max_tokens=1)).json["usage"]["prompt_tokens"]
        tokens = self.good("/tokenize", dict(body, return_token_strs=True)).json
        self.assertEqual((tokens["count"], len(tokens["tokens"]), len(tokens["token_strs"])), (chat, chat, chat))
        counted = self.good("/v1/messages/count_tokens", {"messages": body["messages"], "tools": [MESSAGES_TOOL]}).json
        self.assertEqual(counted, {"input_tokens": chat})
        text = "Größe: 大 🙂 <｜User｜>"
        ids = self.good("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"]
        self.assertEqual(self.good("/detokenize", {"tokens": ids}).json, {"prompt": text})
        self.assertEqual(self.good("/tokenize", {"prompt": text}).json["tokens"], [0] + ids)

    def test_models_and_errors(self):
        models = self.client.get("/v1/models").json
        self.assertEqual([m["id"] for m in models["data"]], ["tiny"])
        self.assertGreater(models["data"][0]["max_model_len"], 1000)
        self.assertEqual(self.client.get("/v1/models/tiny").json["id"], "tiny")
        theirs = self.client.get("/v1/models", anthropic_version="2023-06-01").json
        self.assertEqual((theirs["first_id"], theirs["data"][0]["type"], theirs["has_more"]), ("tiny", "model", False))
        self.assertEqual(self.client.get("/v1/models/none").status, 404)
        answer = self.client.post(CHAT, {"model": "none", "messages": HELLO})
        self.assertEqual((answer.status, answer.json["error"]["code"], answer.json["error"]["param"]), (404, "model_not_found", "model"))
        answer = self.client.post(MESSAGES, {"model": "none", "messages": HELLO, "max_tokens": 1})
        self.assertEqual((answer.status, answer.json["error"]["type"]), (404, "not_found_error"))
        self.assertEqual(answer.json["request_id"], answer.headers["request-id"])
        answer = self.client.post(MESSAGES, "{", X_Request_Id="mine-9")
        self.assertEqual((answer.json["request_id"], answer.headers["request-id"], answer.headers["x-request-id"]), ("mine-9",) * 3)
        context = models["data"][0]["max_model_len"]
        for path, body in ((CHAT, {"messages": [{"role": "user", "content": "word " * context}]}), (COMPLETIONS, {"prompt": "word " * context})):
            for stream in (False, True):
                answer = self.client.post(path, dict(body, stream=stream))
                self.assertEqual((answer.status, answer.json["error"]["code"]), (400, "context_length_exceeded"))
                self.assertRegex(answer.json["error"]["message"], r"maximum context length is %d tokens.*requested \d+ tokens \(\d+ in" % context)

    def test_errors_have_the_shape_of_the_path(self):
        theirs = {"anthropic_version": "2023-06-01"}
        for method, path, headers, status, is_theirs in (
            ("GET", "/anthropic/v1/models/none", {}, 404, True),
            ("DELETE", "/anthropic/v1/models", {}, 405, True),
            ("GET", "/anthropic/v1/nothing", {}, 404, True),
            ("POST", "/v1/messages/batches", {}, 404, True),
            ("GET", "/v1/messages/count_tokens", {}, 405, True),
            ("GET", "/v1/models/none", theirs, 404, True),
            ("GET", "/v1/nothing", theirs, 404, True),
            ("GET", "/v1/models/none", {}, 404, False),
            ("GET", "/v1/nothing", {}, 404, False),
            ("GET", "/anthropic", {}, 404, False),
            ("GET", CHAT, theirs, 405, False),
            ("POST", CHAT, theirs, 415, False),
        ):
            answer = self.client.request(method, path, **headers)
            self.assertEqual(answer.status, status, (method, path))
            if is_theirs:
                self.assertEqual(set(answer.json), {"type", "error", "request_id"}, (method, path))
                self.assertEqual((answer.json["type"], answer.json["request_id"]), ("error", answer.headers["request-id"]))
                self.assertEqual(answer.json["error"]["type"], "not_found_error" if status == 404 else "invalid_request_error")
            else:
                self.assertEqual(set(answer.json), {"error"}, (method, path))
                self.assertEqual(set(answer.json["error"]), {"message", "type", "param", "code"})
        listed = self.client.get("/anthropic/v1/models").json
        self.assertEqual((listed["first_id"], listed["data"][0]["type"]), ("tiny", "model"))
        with socket.create_connection(("127.0.0.1", self.server.port), 60) as raw:
            raw.sendall(b"GET / HTTP/2.0\r\n\r\n")
            head, body = b"".join(iter(lambda: raw.recv(65536), b"")).split(b"\r\n\r\n", 1)
        self.assertIn(b" 505 ", head.splitlines()[0])
        self.assertEqual([json.loads(body)["error"][key] for key in ("type", "code")], ["invalid_request_error", "malformed_request"])

    def test_requests_in_progress(self):
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        body = json.dumps({"messages": HELLO, "max_tokens": 2000, "ignore_eos": True, "stream": True})
        connection.request("POST", CHAT, body, {"Content-Type": "application/json", "X-Request-Id": "my-request"})
        response = connection.getresponse()
        response.read(10)
        listed = self.client.get("/v1/requests")
        mine = [r for r in listed.json["data"] if r["id"] == "my-request"]
        self.assertEqual((len(mine), mine[0]["max_tokens"]), (1, 2000))
        self.assertNotIn(b"who are you", listed.body)
        connection.close()
        response.close()
        self.eventually(lambda: not [r for r in self.client.get("/v1/requests").json["data"] if r["id"] == "my-request"], 5)


class Drafts(api_case.Case):
    """What became of drafts: the same list streamed and whole, sums as in the usage, and no token changes."""

    arguments = ("--spec", "4")

    def one(self, path, body):
        whole = self.good(path, body).json
        chunks = [chunk for _, chunk in self.good(path, dict(body, stream=True, seed=whole["seed"])).events[:-1]]
        drafted = accepted = 0
        for index, choice in enumerate(whole["choices"]):
            parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
            self.assertEqual([record for part in parts for record in part.get("drafts", [])], choice["drafts"])
            self.assertTrue(all(part.get("drafts", [1]) for part in parts), "an empty list in a chunk")
            ids = choice["token_ids"]
            for record in choice["drafts"]:
                at, right = record["index"], record["accepted"]
                self.assertEqual(record["position"], whole["usage"]["prompt_tokens"] + at)
                self.assertEqual(record["drafted"][:right], ids[at : at + right])
                if right < len(record["drafted"]) and at + right < len(ids):
                    self.assertNotEqual(record["drafted"][right], ids[at + right])
                self.assertEqual(len(record["drafted_text"]), len(record["drafted"]))
                self.assertEqual(len(record["confidence"]), len(record["drafted"]))
                self.assertTrue(all(0 <= chance <= 1 for chance in record["confidence"]))
                drafted, accepted = drafted + len(record["drafted"]), accepted + right
        self.assertEqual((drafted, accepted), (whole["usage"]["draft_tokens"], whole["usage"]["accepted_draft_tokens"]))
        self.assertGreater(drafted, 4)
        self.assertNotIn("drafts", self.good(path, dict(body, draft_records=False)).json["choices"][0])
        return accepted

    def test_records(self):
        accepted = 0
        for more in ({"temperature": 0}, {"temperature": 1, "seed": 3, "n": 3}, {"temperature": 0.6, "seed": 9, "logprobs": True, "stop": ["zzz"]}):
            body = {"max_tokens": 40, "draft_records": True, "return_token_ids": True, "ignore_eos": True, **more}
            accepted += self.one(CHAT, {"messages": HELLO, **body})
            accepted += self.one(CHAT, {"messages": HELLO, "thinking": {"type": "enabled"}, **body})
            body.update({"logprobs": 2} if "logprobs" in body else {})
            accepted += self.one(COMPLETIONS, {"prompt": "The table is booked for", **body})
        self.assertGreater(accepted, 50)


class Recorded(api_case.Case):
    """Requests that the reference package took or refused: ours does the same, with the words that clients look for."""

    ROUTES = {"chat": CHAT, "messages": MESSAGES, "responses": RESPONSES}
    OURS = {"chat/n2", "chat/required-in-thinking"}  # n is available here, and a call that must come behind a thought
    arguments = ("--thinking", "on")

    def rows(self, kind):
        for line in (common.ROOT / "tests/data/recipe-golden.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
            row = json.loads(line)
            if row["kind"] == kind and row["profile"] == "v4.1":
                yield row, {k: v for k, v in row["request"].items() if k != "model"}

    def test_refused_requests(self):
        count = 0
        for row, request in self.rows("render_error"):
            if row["id"] in self.OURS or not isinstance(row["error"], dict):
                continue
            answer = self.client.post(self.ROUTES[row["api"]], request)
            self.assertEqual((answer.status, answer.json["error"]["message"]), (row["status"], row["error"]["error"]["message"]), row["id"])
            count += 1
        self.assertGreater(count, 12)

    def test_accepted_requests(self):
        count, step = 0, every(1, 4)
        for row, request in list(self.rows("render"))[::step]:
            request.update({"max_output_tokens": 1} if row["api"] == "responses" else {"max_tokens": 1})
            for name in ("stream", "stream_options"):
                request.pop(name, None)
            answer = self.client.post(self.ROUTES[row["api"]], request)
            if row["images"]:
                self.assertEqual(answer.status, 400, (row["id"], answer.body))
                self.assertIn("not available", answer.json["error"]["message"])
            else:
                self.assertEqual(answer.status, 200, (row["id"], answer.body))
                self.assertNotIn("x-ignored-fields", answer.headers, row["id"])
                count += 1
        self.assertGreater(count, 60 // step)


class OnlyIds(api_case.Case):
    """A model without a tokenizer: ids go in and out, everything else is refused by name."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        shutil.copy(common.NANO + "/config.json", cls.folder.name)
        cls.arguments = ("--load-format", "dummy")
        cls.server = api_case.Server(*cls.arguments, model=cls.folder.name)
        cls.threads, cls.clients = threading.local(), []

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def test_ids(self):
        answer = self.good(COMPLETIONS, {"prompt": [3, 4, 5], "max_tokens": 4, "return_token_ids": True, "ignore_eos": True}).json
        self.assertEqual((len(answer["choices"][0]["token_ids"]), answer["choices"][0]["prompt_token_ids"]), (4, [3, 4, 5]))
        for path, body, param in (
            (COMPLETIONS, {"prompt": "text"}, "prompt"),
            (COMPLETIONS, {"prompt": [1], "logprobs": 1}, "logprobs"),
            (COMPLETIONS, {"prompt": [1], "echo": True}, "echo"),
            (COMPLETIONS, {"prompt": [1], "stop": "a"}, "stop"),
            (CHAT, {"messages": HELLO}, "messages"),
            (RESPONSES, {"input": "x"}, "messages"),
            ("/tokenize", {"prompt": "x"}, "prompt"),
            ("/detokenize", {"tokens": [1]}, "tokens"),
        ):
            refused = self.client.post(path, body)
            self.assertEqual((refused.status, refused.json["error"]["param"]), (400, param), refused.body)


class Records(api_case.Case):
    """What is written about a request tells its figures and never its text."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.log = pathlib.Path(cls.folder.name) / "access.jsonl"
        cls.arguments = ("--access-log", cls.log, "--log-level", "info")
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def test_access_log(self):
        secret = "Xylophone"
        for body in ({}, {"stream": True}):
            answer = self.good(CHAT, {"messages": [{"role": "user", "content": secret}], "temperature": 0, "max_tokens": 3, "user": secret, **body}, X_Request_Id="mine-7")
            self.assertEqual(answer.headers["x-request-id"], "mine-7")
        self.assertEqual(self.client.post(CHAT, {"messages": [{"role": "user", "content": secret}], "stop": [secret, 5]}).status, 400)
        self.eventually(lambda: len(self.log.read_text().splitlines()) >= 3, 5)
        text = self.log.read_text() + "".join(self.server.lines)
        self.assertNotIn(secret, text)
        first = json.loads(self.log.read_text().splitlines()[0])
        self.assertIn("mine-7", first.values())
        for name, value in (("completion_tokens", 3), ("cached_tokens", 0), ("finish", "length")):
            self.assertEqual(first[name], value)
        self.assertGreater(first["prompt_tokens"], 3)


class Counts(api_case.Case):
    def counts(self):
        lines = self.client.get("/metrics").body.decode().splitlines()
        names = ("done", "abort", "error")
        found = {name: [line for line in lines if line.startswith("vllm:request_success_total{") and f'"{name}"' in line] for name in names}
        self.assertEqual([len(found[name]) for name in names], [1, 1, 1])
        return [float(found[name][0].split()[-1]) for name in names]

    def test_a_request_ends_in_one_way(self):
        import http.client

        self.assertEqual(self.counts(), [0, 0, 0])
        for _ in range(2):
            self.good(CHAT, {"messages": HELLO, "temperature": 0, "max_tokens": 4})
        stuck = {"prompt": "a", "temperature": 0, "min_tokens": 50, "max_tokens": 60, "structured_outputs": {"regex": "[a-z]{3}"}}
        self.assertEqual(self.client.post(COMPLETIONS, stuck).status, 400)
        self.assertEqual(self.counts(), [2, 0, 1])
        for left in (1, 2):
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
            body = json.dumps({"messages": HELLO, "max_tokens": 2000, "ignore_eos": True, "stream": True})
            connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read(10)
            connection.close()
            response.close()
            self.eventually(lambda: self.metric("deepinfer_requests_finished_total") == 3 + left, 60)
        done, abort, error = self.counts()
        self.assertEqual((done + abort, error), (4, 1))
        self.assertEqual(self.metric("deepinfer_cancels_total"), abort)


class LikeTheService(api_case.Case):
    arguments = ("--api-like-sampling", "--generation-config", "model", "--seed", "7")

    def test_values(self):
        def values(**more):
            answer = self.good(RESPONSES, {"input": "Hi", "max_output_tokens": 1, **more}).json
            return round(answer["temperature"], 4), round(answer["top_p"], 4), answer["presence_penalty"], answer["seed"]

        thinking = {"reasoning": {"effort": "high"}}
        self.assertEqual(values(temperature=0.3, top_p=0.5, presence_penalty=1, **thinking), (1, 0.95, 0, 7))
        self.assertEqual(values(temperature=0.3, top_p=0.97, seed=3, **thinking), (1, 0.97, 0, 3))
        self.assertEqual(values(temperature=0.3, top_p=0.5, presence_penalty=1), (0.3, 1, 1, 7))


if __name__ == "__main__":
    common.main()
