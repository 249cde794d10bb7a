#!/usr/bin/env python3
# labels: long
"""The official anthropic client against the server; assertions on what it hands to its user."""

import api_case

api_case.use_official_clients()

import anthropic  # noqa: E402
import common  # noqa: E402
import pydantic  # noqa: E402
from api_case import BOOK, BOOKED, BOOKING  # noqa: E402

TOOL = {"name": BOOK["name"], "description": BOOK["description"], "input_schema": BOOK["parameters"]}
HELLO = [{"role": "user", "content": "Hello, who are you?"}]
GREEDY = {"temperature": 0}


class Anthropic(api_case.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.anthropic = anthropic.Anthropic(base_url=cls.server.url, api_key="none", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.anthropic.close()
        super().tearDownClass()

    def arguments_of(self, more):
        extra = {**GREEDY, **more.pop("extra_body", {})}
        return {"model": "tiny", "max_tokens": 200, "messages": HELLO, "extra_body": extra, **more}

    def create(self, **more):
        return self.anthropic.messages.create(**self.arguments_of(more))

    def final(self, **more):
        with self.anthropic.messages.stream(**self.arguments_of(more)) as stream:
            names = [event.type for event in stream]
            self.assertEqual((names[0], names[-1]), ("message_start", "message_stop"))
            return stream.get_final_message()

    def test_plain_and_streaming(self):
        message = self.create(system="You are helpful.")
        self.assertEqual((message.role, message.stop_reason, message.content[0].type), ("assistant", "end_turn", "text"))
        self.assertTrue(message.content[0].text)
        self.assertGreater(message.usage.output_tokens, 0)
        self.assertIsNotNone(message.usage.cache_read_input_tokens)
        self.assertTrue(message._request_id)
        streamed = self.final(system="You are helpful.")
        self.assertEqual(streamed.content[0].text, message.content[0].text)
        self.assertEqual(streamed.usage.output_tokens, message.usage.output_tokens)

    def test_count_tokens(self):
        counted = self.anthropic.messages.count_tokens(model="tiny", messages=HELLO, system="You are helpful.", tools=[TOOL])
        usage = self.create(system="You are helpful.", tools=[TOOL], max_tokens=1).usage
        self.assertEqual(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_tools_over_three_turns(self):
        messages = [{"role": "user", "content": BOOKING}]
        first = self.create(messages=messages, tools=[TOOL])
        use = first.content[-1]
        self.assertEqual((first.stop_reason, use.type, use.name), ("tool_use", "tool_use", "book_table"))
        self.assertEqual(use.input["restaurant"], "Golden Dragon")
        self.assertEqual(self.final(messages=messages, tools=[TOOL]).content[-1].input, use.input)
        messages += [
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": BOOKED}]},
        ]
        second = self.create(messages=messages, tools=[TOOL])
        self.assertEqual(second.stop_reason, "end_turn")
        self.assertTrue(second.content[0].text)
        messages += [{"role": "assistant", "content": second.content[0].text}, {"role": "user", "content": "Thank you!"}]
        third = self.create(messages=messages, tools=[TOOL])
        self.assertTrue(third.content[0].text)
        self.assertGreater(third.usage.cache_read_input_tokens, 0)

    def test_thinking(self):
        thinking = {"type": "enabled", "budget_tokens": 1024}
        message = self.create(thinking=thinking, max_tokens=2000)
        self.assertEqual(message.content[0].type, "thinking")
        self.assertTrue(message.content[0].signature)
        streamed = self.final(thinking=thinking, max_tokens=2000)
        self.assertEqual([block.type for block in streamed.content], [block.type for block in message.content])
        self.assertEqual(streamed.content[0].thinking, message.content[0].thinking)

    def test_helpers(self):
        """The tool runner, which first tries to keep the conversation on the server; answers as classes; the beta interface."""
        class Booking(pydantic.BaseModel):
            restaurant: str
            people: int

        asked = []

        @anthropic.beta_tool
        def book_table(restaurant: str, time: str, city: str = "", date: str = "", people: int = 0, party_size: int = 0) -> str:
            """Book a table at a restaurant"""
            asked.append(restaurant)
            return BOOKED

        more = {"model": "tiny", "max_tokens": 300, "tools": [book_table], "messages": [{"role": "user", "content": BOOKING}], "max_iterations": 4, "extra_body": GREEDY}
        reasons = [message.stop_reason for message in self.anthropic.beta.messages.tool_runner(**more)]
        self.assertEqual((reasons[0], reasons[-1], asked[0]), ("tool_use", "end_turn", "Golden Dragon"))
        streamed = []
        for stream in self.anthropic.beta.messages.tool_runner(stream=True, **more):
            for _ in stream:
                pass
            streamed.append(stream.get_final_message().stop_reason)
        self.assertEqual(streamed, reasons)
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.create(extra_body={"thread": {"type": "create"}})
        self.assertEqual(caught.exception.body["error"]["details"]["error_code"], "thread_unsupported_request")

        messages = [{"role": "user", "content": "Give me this booking as json: Golden Dragon, 4 people."}]
        for interface in (self.anthropic.messages, self.anthropic.beta.messages):
            parsed = interface.parse(model="tiny", max_tokens=300, messages=messages, output_format=Booking, extra_body=GREEDY).parsed_output
            self.assertIsInstance(parsed, Booking)
            with interface.stream(model="tiny", max_tokens=300, messages=messages, output_format=Booking, extra_body=GREEDY) as stream:
                self.assertEqual(stream.get_final_message().parsed_output, parsed)
        raw = self.anthropic.messages.with_raw_response.create(model="tiny", max_tokens=2, messages=HELLO)
        self.assertEqual(raw.parse()._request_id, raw.headers["request-id"])
        self.assertEqual(self.anthropic.beta.messages.count_tokens(model="tiny", messages=HELLO).input_tokens, self.anthropic.messages.count_tokens(model="tiny", messages=HELLO).input_tokens)
        model = anthropic.Anthropic(base_url=self.server.url + "/anthropic", api_key="none").models.retrieve("tiny")
        self.assertEqual((model.id, model.max_input_tokens), ("tiny", self.client.get("/v1/models").json["data"][0]["max_model_len"]))

    def test_a_call_that_was_cut_goes_back(self):
        message = self.create(messages=[{"role": "user", "content": BOOKING}], tools=[TOOL], tool_choice={"type": "any"}, max_tokens=16)
        use = message.content[-1]
        self.assertEqual((message.stop_reason, use.type, use.input), ("max_tokens", "tool_use", {}))
        history = [{"role": "user", "content": BOOKING}, {"role": "assistant", "content": [block.model_dump() for block in message.content]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "The call was cut.", "is_error": True}]}]
        self.assertGreater(self.create(messages=history, tools=[TOOL], max_tokens=5).usage.output_tokens, 0)

    def test_stop_sequences(self):
        text = self.create().content[0].text
        message = self.create(stop_sequences=[text[6:10]])
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", text[6:10]))
        self.assertEqual(message.content[0].text, text[: text.index(text[6:10])])
        self.assertEqual(self.create(max_tokens=2).stop_reason, "max_tokens")

    def test_errors(self):
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.create(model="none")
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.create(extra_body={"temperature": 3})
        self.assertIn("temperature", str(caught.exception))
        with self.assertRaises(anthropic.BadRequestError):
            self.create(messages=[])
        self.assertEqual([m.id for m in self.anthropic.models.list()], ["tiny"])

    def test_timeouts_and_leaving(self):
        with self.assertRaises(anthropic.APITimeoutError):
            self.create(timeout=0.5, max_tokens=8000, extra_body={"ignore_eos": True})
        with self.anthropic.messages.stream(model="tiny", max_tokens=8000, messages=HELLO, extra_body={"temperature": 1}) as stream:
            for _, _ in zip(range(4), stream):
                pass
        self.eventually(lambda: not self.client.get("/v1/requests").json["data"], 3)


if __name__ == "__main__":
    common.main()
