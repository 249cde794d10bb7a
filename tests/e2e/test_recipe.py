"""Tools, thinking and formats through generate --json: calls, results fed back, limits through a call, faults by name."""
# labels: long
import json

import common
from common import Case, run

ASK = {"role": "user", "content": "Book a table for 4 at Golden Dragon in Seattle tomorrow at 7 pm."}
TEXT = {"type": "string"}
TOOLS = [{"type": "function", "function": {
    "name": "book_table", "description": "Book a table at a restaurant",
    "parameters": {"type": "object", "properties": {"restaurant": TEXT, "city": TEXT, "people": {"type": "integer"},
                                                    "date": TEXT, "time": TEXT}, "required": ["restaurant"]}}}]


def request(messages, max_tokens=250, **more):
    return dict(messages=messages, sampling_params={"temperature": 0, "max_tokens": max_tokens}, **more)


def choices(*requests):
    text = "".join(json.dumps(dict(r, id=i)) + "\n" for i, r in enumerate(requests))
    result = run("generate", "--json", stdin=text)
    return result, [line.get("choices", [None])[0] or line for line in result.lines()]


class Tools(Case):
    def test_a_call_and_its_result(self):
        for thinking in (False, True):
            result, (called,) = choices(request([ASK], tools=TOOLS, thinking=thinking))
            self.assertEqual(result.code, 0, result.err)
            self.assertEqual(called["finish_reason"], "tool_calls")
            self.assertEqual(called["text"], "")
            self.assertEqual("reasoning" in called, thinking)
            (call,) = called["tool_calls"]
            self.assertRegex(call["id"], "^call_00_[0-9A-Za-z]{24}$")
            self.assertEqual(call["function"]["name"], "book_table")
            self.assertEqual(json.loads(call["function"]["arguments"])["restaurant"], "Golden Dragon")
            turn = {"role": "assistant", "content": "", "tool_calls": [call]}
            if thinking:
                turn["reasoning_content"] = called["reasoning"]
            answer = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"status": "booked"})}
            _, (said,) = choices(request([ASK, turn, answer], tools=TOOLS, thinking=thinking))
            self.assertEqual(said["finish_reason"], "stop")
            self.assertNotIn("tool_calls", said)
            self.assertGreater(len(said["text"]), 10)
            self.assertNotIn("DSML", said["text"])

    def test_a_limit_anywhere_in_a_call(self):
        """What was emitted is a beginning of the whole, and says that it was cut."""
        _, (whole,) = choices(request([ASK], tools=TOOLS, thinking=True))
        arguments = whole["tool_calls"][0]["function"]["arguments"]
        length = len(whole["token_ids"])
        limits = sorted(set(range(1, length, 16)) | {length - 2, length - 1, length})
        result, cut = choices(*[request([ASK], limit, tools=TOOLS, thinking=True) for limit in limits])
        self.assertEqual(result.code, 0, result.err)
        for limit, choice in zip(limits, cut):
            self.assertEqual(choice["token_ids"], whole["token_ids"][:limit])
            self.assertEqual(choice["finish_reason"], "length" if limit < length else "tool_calls")
            self.assertEqual(choice["text"], "")
            self.assertTrue(whole["reasoning"].startswith(choice["reasoning"]), choice["reasoning"])
            for call in choice.get("tool_calls", []):
                self.assertEqual(call["function"]["name"], "book_table")
                emitted = call["function"]["arguments"]
                self.assertTrue(arguments.startswith(emitted), emitted)
        self.assertTrue(any("tool_calls" in c and c["finish_reason"] == "length" for c in cut))

    def test_tools_that_may_not_be_used(self):
        result, (none, bare) = choices(request([ASK], 20, tools=TOOLS, tool_choice="none", thinking=False),
                                       request([ASK], 20, thinking=False))
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(none["token_ids"], bare["token_ids"])

    def test_ids_are_the_same_every_time(self):
        runs = [choices(request([ASK], tools=TOOLS, thinking=False), request([ASK], tools=TOOLS, thinking=False))[1]
                for _ in range(2)]
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0][0]["tool_calls"][0]["id"], runs[0][1]["tool_calls"][0]["id"])


class Formats(Case):
    def test_answers_follow_the_format(self):
        schema = {"type": "object", "properties": {"city": {"enum": ["Seattle", "Paris"]}, "n": {"type": "integer", "minimum": 1}},
                  "required": ["city", "n"], "additionalProperties": False}
        bound = {"type": "json_schema", "json_schema": {"name": "z", "schema": schema}}
        ask = [{"role": "user", "content": "Give me json about Seattle."}]
        result, (plain, thought, number, free) = choices(
            request(ask, 60, response_format=bound, thinking=False), request(ask, 200, response_format=bound, thinking=True),
            request(ask, 60, response_format={"type": "regex", "regex": "[0-9]{3}-[0-9]{2}"}, thinking=False),
            request(ask, 100, response_format={"type": "json_object"}, thinking=False))
        self.assertEqual(result.code, 0, result.err)
        for choice in (plain, thought):
            answer = json.loads(choice["text"])
            self.assertEqual(sorted(answer), ["city", "n"])
            self.assertIn(answer["city"], ("Seattle", "Paris"))
        self.assertIn("reasoning", thought)
        self.assertRegex(number["text"], "^[0-9]{3}-[0-9]{2}$")
        if free["finish_reason"] == "stop":
            self.assertIsInstance(json.loads(free["text"]), dict)

    def test_a_format_that_cannot_be_enforced(self):
        result, lines = choices(request([ASK], response_format={"type": "regex", "regex": "[0-9"}, thinking=False))
        self.assertEqual(result.code, 1)
        self.assertEqual(lines[0]["error"]["param"], "response_format")
        self.assertIn("class of characters", lines[0]["error"]["message"])


class History(Case):
    def test_the_rule_can_be_chosen(self):
        turns = [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "a", "reasoning_content": "because"},
                 {"role": "user", "content": "B?"}]
        line = json.dumps(request(turns, 1, thinking=True)) + "\n"
        lengths = {}
        for rule in ("recipe", "reference", "keep"):
            result = self.ok("generate", "--json", "--reasoning-history", rule, stdin=line)
            lengths[rule] = result.lines()[0]["usage"]["prompt_tokens"]
        self.assertEqual(lengths["recipe"], lengths["reference"])
        self.assertGreater(lengths["keep"], lengths["recipe"])
        self.usage("generate", "--json", "--reasoning-history", "all", says="reasoning-history")


class Faults(Case):
    def test_each_names_its_field(self):
        text = {"type": "json_schema", "json_schema": {"name": "z"}}
        cases = (
            (dict(tools=[{"type": "function", "function": {"name": "a b"}}]), "tools[0].function.name"),
            (dict(tools=TOOLS + TOOLS), "tools"),
            (dict(tools=TOOLS, tool_choice="need"), "tool_choice"),
            (dict(tools=TOOLS, parallel_tool_calls="no"), "parallel_tool_calls"),
            (dict(response_format=text), "response_format.json_schema.schema"),
            (dict(response_format={"type": "json_object"}), "response_format"),
            (dict(chat_template_kwargs={"tools_in_user_message": True}), "chat_template_kwargs.tools_in_user_message"),
        )
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
        orphan = {"role": "tool", "tool_call_id": "x", "content": "y"}
        requests = [request([ASK], **more) for more, _ in cases] + [request([image]), request([ASK, orphan])]
        params = [param for _, param in cases] + ["messages[0].content[0]", "messages[1]"]
        result, lines = choices(*requests)
        self.assertEqual(result.code, 1)
        for line, param in zip(lines, params):
            self.assertEqual(line["error"]["param"], param)
        self.assertEqual(lines[-2]["error"]["code"], "unsupported")


if __name__ == "__main__":
    common.main()
