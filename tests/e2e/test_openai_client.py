#!/usr/bin/env python3
# labels: long
"""The official openai client against the server: chat, completions, responses; assertions on what it hands to its user."""

import api_case

api_case.use_official_clients()

import asyncio  # noqa: E402
import json  # noqa: E402
import time  # noqa: E402

import common  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402
from api_case import BOOK, BOOKED, BOOKING  # noqa: E402

TOOL = {"type": "function", "function": BOOK}
HELLO = [{"role": "user", "content": "Hello, who are you?"}]


class OpenAI(api_case.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.openai = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.openai.close()
        super().tearDownClass()

    def chat(self, **more):
        return self.openai.chat.completions.create(**{"model": "tiny", "messages": HELLO, "temperature": 0, **more})

    def test_plain_and_streaming(self):
        answer = self.chat()
        text = answer.choices[0].message.content
        self.assertTrue(text)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertIsNotNone(answer.usage.prompt_tokens_details.cached_tokens)
        self.assertIsNotNone(answer.usage.completion_tokens_details.reasoning_tokens)
        self.assertTrue(answer.system_fingerprint)
        self.assertIsInstance(answer.seed, int)
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), text)
        self.assertEqual(chunks[-1].usage.completion_tokens, answer.usage.completion_tokens)
        with self.openai.chat.completions.stream(model="tiny", messages=HELLO, temperature=0) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_completion().choices[0].message.content, text)

    def test_tools_over_three_turns(self):
        messages = [{"role": "user", "content": BOOKING}]
        answer = self.chat(messages=messages, tools=[TOOL])
        message = answer.choices[0].message
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        call = message.tool_calls[0]
        self.assertEqual((call.type, call.function.name), ("function", "book_table"))
        self.assertEqual(json.loads(call.function.arguments)["restaurant"], "Golden Dragon")
        with self.openai.chat.completions.stream(model="tiny", messages=messages, tools=[TOOL], temperature=0) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
        self.assertEqual(streamed.function.arguments, call.function.arguments)
        messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": BOOKED}]
        second = self.chat(messages=messages, tools=[TOOL])
        self.assertEqual(second.choices[0].finish_reason, "stop")
        self.assertTrue(second.choices[0].message.content)
        messages += [second.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Thank you!"}]
        third = self.chat(messages=messages, tools=[TOOL])
        self.assertTrue(third.choices[0].message.content)
        self.assertGreater(third.usage.prompt_tokens, second.usage.prompt_tokens)
        self.assertGreater(third.usage.prompt_tokens_details.cached_tokens, 0)

    def test_thinking(self):
        answer = self.chat(reasoning_effort="low", extra_body={"thinking": {"type": "enabled"}}, max_completion_tokens=60)
        reasoning = answer.choices[0].message.reasoning_content
        chunks = list(self.chat(extra_body={"thinking": {"type": "enabled"}}, reasoning_effort="low", max_completion_tokens=60, stream=True))
        self.assertEqual("".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks), reasoning)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), answer.choices[0].message.content)

    def test_n_logprobs_stop(self):
        answer = self.chat(n=4, temperature=1, seed=5, max_tokens=16, logprobs=True, top_logprobs=2)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2, 3])
        self.assertGreater(len({c.message.content for c in answer.choices}), 1)
        for choice in answer.choices:
            for entry in choice.logprobs.content:
                self.assertEqual(len(entry.top_logprobs), 2)
                self.assertLessEqual(entry.logprob, entry.top_logprobs[0].logprob)
        texts = {}
        for chunk in self.chat(n=4, temperature=1, seed=5, max_tokens=16, stream=True):
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        self.assertEqual(texts, {c.index: c.message.content for c in answer.choices})
        text = self.chat().choices[0].message.content
        self.assertEqual(self.chat(stop=[text[6:9]]).choices[0].message.content, text[: text.index(text[6:9])])
        biased = self.chat(logit_bias={"1": 100}, max_tokens=5)
        self.assertEqual((biased.choices[0].message.content, biased.usage.completion_tokens), ("", 1))

    def test_json_object(self):
        messages = [{"role": "user", "content": "Give me this booking as json: Golden Dragon, 7 pm, 4 people."}]
        answer = self.chat(messages=messages, response_format={"type": "json_object"})
        self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)

    def test_answers_as_classes(self):
        class Booking(pydantic.BaseModel):
            restaurant: str
            people: int

        messages = [{"role": "user", "content": "Give me this booking as json: Golden Dragon, 7 pm, 4 people."}]
        answer = self.openai.chat.completions.parse(model="tiny", messages=messages, response_format=Booking, temperature=0)
        self.assertIsInstance(answer.choices[0].message.parsed, Booking)
        answer = self.openai.responses.parse(model="tiny", input=messages, text_format=Booking, temperature=0)
        self.assertIsInstance(answer.output_parsed, Booking)

    def test_completions(self):
        answer = self.openai.completions.create(model="tiny", prompt="The table is booked for", temperature=0, logprobs=1)
        chunks = list(self.openai.completions.create(model="tiny", prompt="The table is booked for", temperature=0, stream=True))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), answer.choices[0].text)
        self.assertEqual("".join(answer.choices[0].logprobs.tokens), answer.choices[0].text)
        self.assertEqual(answer.usage.completion_tokens, 16)

    def test_responses(self):
        answer = self.openai.responses.create(model="tiny", input="Hello, who are you?", temperature=0)
        self.assertEqual((answer.status, answer.output[0].type), ("completed", "message"))
        self.assertEqual(answer.output_text, self.chat().choices[0].message.content)
        events = list(self.openai.responses.create(model="tiny", input="Hello, who are you?", temperature=0, stream=True))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), answer.output_text)
        self.assertEqual((events[0].type, events[-1].type), ("response.created", "response.completed"))
        self.assertEqual(events[-1].response.usage.output_tokens, answer.usage.output_tokens)
        with self.openai.responses.stream(model="tiny", input="Hello, who are you?", temperature=0) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_response().output_text, answer.output_text)
        tool = {"type": "function", **BOOK}
        called = self.openai.responses.create(model="tiny", input=BOOKING, tools=[tool], temperature=0)
        call = called.output[-1]
        self.assertEqual((call.type, call.name, json.loads(call.arguments)["restaurant"]), ("function_call", "book_table", "Golden Dragon"))
        history = [{"role": "user", "content": BOOKING}, *[item.model_dump(exclude_none=True) for item in called.output]]
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": BOOKED})
        self.assertTrue(self.openai.responses.create(model="tiny", input=history, tools=[tool], temperature=0).output_text)

    def test_tools_as_classes(self):
        """Schemas made from classes are strict: what comes is an object of the class."""
        class Book(pydantic.BaseModel):
            restaurant: str
            time: str

        more = {"model": "tiny", "messages": [{"role": "user", "content": BOOKING}], "tools": [openai.pydantic_function_tool(Book, name="book_table")], "temperature": 0}
        parsed = self.openai.chat.completions.parse(**more).choices[0].message.tool_calls[0].function.parsed_arguments
        self.assertIsInstance(parsed, Book)
        with self.openai.chat.completions.stream(**more) as stream:
            kinds = {event.type for event in stream}
            self.assertIn("tool_calls.function.arguments.done", kinds)
            self.assertEqual(stream.get_final_completion().choices[0].message.tool_calls[0].function.parsed_arguments, parsed)
        schema = {"type": "object", "properties": {"restaurant": {"type": "string"}}, "required": ["restaurant"], "additionalProperties": False}
        other = {"name": "cancel_table", "parameters": schema}
        tools = [TOOL, {"type": "function", "function": other}]
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "cancel_table"}}]}}
        call = self.chat(messages=more["messages"], tools=tools, tool_choice=allowed, parallel_tool_calls=False).choices[0].message.tool_calls[0]
        self.assertEqual((call.function.name, set(json.loads(call.function.arguments))), ("cancel_table", {"restaurant"}))
        tools = [{"type": "function", **BOOK}, {"type": "function", **other}]
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "cancel_table"}]}
        answer = self.openai.responses.create(model="tiny", input=BOOKING, tools=tools, tool_choice=allowed, temperature=0, parallel_tool_calls=False)
        self.assertEqual(answer.output[-1].name, "cancel_table")
        allowed["tools"][0]["name"] = "nothing"
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.responses.create(model="tiny", input=BOOKING, tools=tools, tool_choice=allowed)
        self.assertEqual(caught.exception.param, "tool_choice.tools[0]")

    def test_history_of_other_models(self):
        """Answers go back as they came; refusals of other models are what was said."""
        said = self.chat().choices[0].message
        refused = [{"role": "assistant", "content": None, "refusal": "I can not."}, {"role": "assistant", "content": [{"type": "refusal", "refusal": "I can not."}]}, {"role": "assistant", "content": "I can not."}]
        counts = {self.chat(messages=[*HELLO, answer, HELLO[0]], max_tokens=1).usage.prompt_tokens for answer in refused}
        self.assertEqual(len(counts), 1)
        counts = {self.chat(messages=[*HELLO, answer, HELLO[0]], max_tokens=1).usage.prompt_tokens for answer in (said, said.model_dump(), {"role": "assistant", "content": said.content})}
        self.assertEqual(len(counts), 1)

    def test_raw_responses_and_paths(self):
        raw = self.openai.chat.completions.with_raw_response.create(model="tiny", messages=HELLO, max_tokens=2, extra_headers={"X-Request-Id": "mine-3"}, extra_query={"api-version": "1"})
        self.assertEqual((raw.headers["x-request-id"], raw.parse()._request_id), ("mine-3", "mine-3"))
        with self.openai.chat.completions.with_streaming_response.create(model="tiny", messages=HELLO, max_tokens=2, stream=True) as stream:
            self.assertEqual(list(stream.iter_lines())[-2:], ["data: [DONE]", ""])
        for call in (lambda: self.openai.embeddings.create(model="tiny", input="x"), lambda: self.openai.responses.retrieve("resp_x"), lambda: self.openai.models.retrieve("no/thing")):
            with self.assertRaises(openai.NotFoundError):
                call()

    def test_fifty_at_once(self):
        """The asynchronous client: whole and streamed answers in a crowd are those of each question alone."""
        async def ask(client, number, stream):
            messages = [{"role": "user", "content": f"Hello {number}"}]
            answer = await client.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=8, stream=stream)
            if not stream:
                return answer.choices[0].message.content
            return "".join([chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices])

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
                crowds = [await asyncio.gather(*[ask(client, number, stream) for number in range(50)]) for stream in (False, True)]
                return crowds, [await ask(client, number, False) for number in range(0, 50, 10)]

        (whole, streamed), alone = asyncio.run(all_of_them())
        self.assertEqual(whole, streamed)
        self.assertEqual(whole[::10], alone)

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.chat(model="none")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=3)
        self.assertEqual((caught.exception.param, caught.exception.code), ("temperature", "invalid_request_error"))
        self.assertIn("the valid range of temperature is [0, 2]", str(caught.exception))
        with self.assertRaises(openai.BadRequestError):
            self.chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}})
        self.assertEqual([m.id for m in self.openai.models.list()], ["tiny"])
        self.assertEqual(self.openai.models.retrieve("tiny").id, "tiny")

    def test_timeouts_and_leaving(self):
        long = {"max_tokens": 8000, "extra_body": {"ignore_eos": True}}
        with self.assertRaises(openai.APITimeoutError):
            self.chat(timeout=0.5, **long)
        stream = self.chat(stream=True, **long)
        for _, chunk in zip(range(5), stream):
            self.assertTrue(chunk.choices)
        stream.close()
        self.eventually(lambda: not self.client.get("/v1/requests").json["data"], 3)
        start = time.monotonic()
        self.assertTrue(self.chat().choices[0].message.content)
        self.assertLess(time.monotonic() - start, 30)


if __name__ == "__main__":
    common.main()
