"""Prompts against deepseek-recipe, DeepSeek's own package, on generated requests of the three interfaces.

The package goes into a virtual environment beside the program, pinned by version and hash, and is used nowhere else.
DEEPINFER_RECIPE_REQUESTS sets the number of requests per profile (1,000 by default). Where we differ on purpose the
difference has a name below and a line in docs/recipe.md; anything else fails.
"""
# labels: long
import collections
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import unittest

import common

PACKAGE = "deepseek-recipe==0.2.0"
WHEELS = {"--hash=sha256:259812bf382bc82668b672707c5922095cc4f5f60a6c514ff89640bb62a746f7"}
REQUESTS = int(os.environ.get("DEEPINFER_RECIPE_REQUESTS", "1000"))
PROFILES = {"v4.1": "DeepSeek-V4.1-Flash", "v4-0731": "DeepSeek-V4-Pro"}

# --------------------------------------------------------------------------------------- the package, in its own process

THEIRS = r"""
import json, sys
from deepseek_recipe import *
tokens = SpecialTokens(image="<｜deepseek_image｜>")
classes = {"chat": ChatCompletionRequest, "messages": MessagesRequest, "responses": ResponsesRequest}
encodings = {"v4.1": DeepseekV41Encoding, "v4-0731": DeepseekV4Encoding}
for line in sys.stdin:
    row = json.loads(line)
    try:
        request = classes[row["api"]](json.dumps(row["request"])).convert(ConversionOptions().with_special_tokens(tokens))
        rendered = encodings[row["profile"]]().with_special_tokens(tokens).render_conversation(request.conversation)
        constraint = request.inference_options.output_constraint
        parsing = request.parsing_options
        answer = {"prompt": rendered.prompt, "controls": rendered.special_ranges,
                  "constraint": constraint.kind if constraint else "none",
                  "parsing": {k: str(getattr(parsing, k)) for k in dir(parsing) if not k.startswith("_")}}
    except ConversionError as error:
        answer = {"error": json.loads(error.body)["error"]["message"]}
    except ValueError as error:
        answer = {"error": str(error), "untyped": True}
    print(json.dumps(answer))
"""

# --------------------------------------------------------------------------------------- requests

WORDS = ["harbour", "tide", "json", "JSON please", "", " ", "\n", "\n\n", "Möwe", "鷗が飛ぶ", "🙂👩‍🚀", "a\r\nb", "\t", "<think>",
         "</think>", "<｜User｜>", "<｜end▁of▁sentence｜>", "<｜deepseek_image｜>", "｜DSML｜", "<｜DSML｜ calls>", "</tool_result>",
         "<｜ref｜>x<｜/ref｜><｜box｜>[[1]]<｜/box｜>", "\\n \"q\" /", "\u0001\u007f\u2028", "```json\n{}\n```", "## Tools", "&amp;<b>"]


class Generator:
    def __init__(self, seed, profile):
        self.random = random.Random(f"{seed} {profile}")
        self.profile = profile
        self.v4 = profile != "v4.1"
        self.calls = 0

    def chance(self, share):
        return self.random.random() < share

    def text(self):
        return self.random.choice(["", " ", "\n"]).join(
            self.random.choice(WORDS) for _ in range(self.random.choice([0, 1, 1, 1, 2, 3])))

    def number(self):
        kind = self.random.random()
        if kind < 0.6:
            return self.random.choice([0, 1, -1, 7, 12, -300, 2**31, 2**53, 2**63 - 1, -(2**63)])
        if kind < 0.97:
            return self.random.choice([0.5, 1.0, -0.0, 2.5, 100.0, 1e15, 123456.789, 0.001, -3.25, 0.1, 1e16, 1e-5, 1.5e-7, 1e22])
        return self.random.choice([2**64, 10**30, -(2**70)])

    def value(self, depth=0):
        kind = self.random.random()
        if depth > 2 or kind < 0.5:
            return self.random.choice([self.text, self.number, lambda: True, lambda: False, lambda: None])()
        if kind < 0.75:
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 3))]
        return {self.text()[:12]: self.value(depth + 1) for _ in range(self.random.randint(0, 3))}

    def schema(self, strict):
        names = self.random.sample(["a", "b", "city", "größe", "n 1"], self.random.randint(0, 3))
        kinds = [{"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"},
                 {"type": "array", "items": {"type": "string"}}, {"type": "object", "properties": {"x": {"type": "string"}}}]
        properties = {name: dict(self.random.choice(kinds)) for name in names}
        if not strict:
            for item in properties.values():
                if self.chance(0.3):
                    item["description"] = self.text()
                if self.chance(0.2):
                    item["default"] = self.value()
        schema = {"type": "object", "properties": properties}
        if not strict and self.chance(0.4):
            schema["required"] = names[:1]
        if not strict and self.chance(0.2):
            schema["additionalProperties"] = self.chance(0.5)
        return schema

    def tools(self, api):
        strict = self.chance(0.15) and api != "messages"
        made = []
        for name in self.random.sample(["clock", "dock_ship", "get-weather", "f", "x" * 64], self.random.randint(1, 3)):
            tool = {"name": name}
            if self.chance(0.7):
                tool["description"] = self.text()
            if api == "messages":
                tool["input_schema"] = self.schema(False)
            elif strict or self.chance(0.8):
                tool["parameters"] = self.schema(strict)
            if strict:
                tool["strict"] = True
            if api == "chat":
                tool = {"type": "function", "function": tool}
            if api == "responses":
                tool["type"] = "function"
                if self.chance(0.2) and not self.v4:  # V4: theirs spells them space__name
                    tool = {"type": "namespace", "name": "port", "description": "Port\n" + self.text(), "tools": [tool]}
            made.append(tool)
        return made

    def ids(self):
        """V4: theirs sorts the calls of a message by id, we keep their order as the reference does."""
        made = [self.id() for _ in range(self.random.randint(1, 3))]
        return sorted(made) if self.v4 else made

    def said(self, content):
        """V4: theirs leaves out empty messages where a user's turn is joined, we join them as the reference does."""
        return content if content and not self.v4 or isinstance(content, str) and content.strip() else "x"

    def id(self):
        self.calls += 1
        return self.random.choice(["c", "z", "call_"]) + str(self.random.randint(0, 99)) + "_" + str(self.calls)

    def arguments(self):
        if self.chance(0.1):
            return self.random.choice(["oops", "[1, 2]", "5", "\"s\"", "", "null", "{\"a\": 1"])
        made = {self.random.choice(["a", "b", "city", "q\"x", "é"]): self.value() for _ in range(self.random.randint(0, 3))}
        text = json.dumps(made, ensure_ascii=self.chance(0.5), separators=(",", ":") if self.chance(0.5) else None)
        if self.chance(0.05) and made:
            text = "{\"a\":1,\"b\":2,\"a\":[1.0,1e2]}"
        return text

    # ----------------------------------------------------------------------------------- chat

    def parts(self, images):
        made = [{"type": "text", "text": self.text()} for _ in range(self.random.randint(0, 3))]
        if images and self.chance(0.3):
            made.insert(self.random.randint(0, len(made)), {"type": "image_url", "image_url": {"url": "http://x/y.png"}})
        return made

    def content(self, images=False):
        return self.parts(images) if self.chance(0.15) else self.text()

    def chat_turns(self):
        messages = []
        for _ in range(self.random.randint(1, 7)):
            role = self.random.choices(["user", "system", "assistant", "latest_reminder", "loop"], [5, 2, 3, 1, 2])[0]
            if role in ("user", "system"):
                content = self.content(True)
                messages.append({"role": role, "content": self.said(content) if self.v4 and role == "user" else content})
            elif role == "latest_reminder":
                messages.append({"role": role, "content": self.text()})
            else:
                message = {"role": "assistant", "content": self.content()}
                if self.chance(0.5):
                    message["reasoning_content"] = self.text()
                if role == "loop":
                    ids = self.ids()
                    message["tool_calls"] = [{"id": i, "type": "function", "function": {
                        "name": self.random.choice(["clock", "dock_ship", "who"]), "arguments": self.arguments()}} for i in ids]
                    if self.chance(0.2):
                        message["content"] = None
                messages.append(message)
                if role == "loop":
                    self.random.shuffle(ids)
                    messages += [{"role": "tool", "tool_call_id": i, "content": self.content(True)} for i in ids]
        return messages

    def choice(self, api, tools):
        name = self.random.choice(["clock", "f", "nosuch"])
        if api == "messages":
            return self.random.choice([{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": name}])
        named = {"type": "function", "function": {"name": name}} if api == "chat" else {"type": "function", "name": name}
        return self.random.choice(["auto", "none", "required", named])

    def chat(self):
        request = {"messages": self.chat_turns()}
        self.common(request, "chat")
        if self.chance(0.1):
            message = {"role": "assistant", "content": self.random.choice(["", "The harbour", "a\n"]), "prefix": True}
            if self.chance(0.5):
                message["reasoning_content"] = self.random.choice(["", "Start lo"])
            request["messages"].append(message)
        if self.chance(0.5):
            request["reasoning_effort"] = self.random.choice(
                ["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra", "nonsense"])
        if self.chance(0.25):
            request["response_format"] = self.random.choice([
                {"type": "text"}, {"type": "json_object"}, {"type": "regex", "regex": "[0-9]+"},
                {"type": "json_schema", "json_schema": {"name": "z", "schema": self.schema(False)}}])
        return request

    def common(self, request, api):
        if self.chance(0.4):
            request["tools"] = self.tools(api)
        if self.chance(0.15):
            request["tool_choice"] = self.choice(api, request.get("tools"))
        if api != "responses" and self.chance(0.5):
            request["thinking"] = {"type": self.random.choice(["enabled", "disabled", "disabled", "adaptive"])}

    # ----------------------------------------------------------------------------------- messages

    def blocks(self, images=True):
        made = [{"type": "text", "text": self.text()} for _ in range(self.random.randint(0, 2))]
        if images and self.chance(0.2):
            made.append(self.random.choice([
                {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}]))
        return made

    def messages(self):
        messages = []
        for _ in range(self.random.randint(1, 6)):
            # V4: theirs makes user text of a system message inside, we put it to the front as in chat requests.
            role = self.random.choices(["user", "assistant", "system", "loop"], [4, 2, 0 if self.v4 else 1, 2])[0]
            if role == "user" or role == "system":
                content = self.text() if self.chance(0.6) else self.blocks(role == "user")
                messages.append({"role": role, "content": self.said(content) if self.v4 else content})
                continue
            content = []
            for _ in range(self.random.randint(0, 2)):
                content.append({"type": "thinking", "thinking": self.text(), "signature": "s"})
            content += self.blocks(False)
            if role == "loop":
                ids = self.ids()
                content += [{"type": "tool_use", "id": i, "name": "clock", "input": {"a": self.value()}} for i in ids]
            messages.append({"role": "assistant", "content": content})
            if role == "loop":
                self.random.shuffle(ids)
                results = [{"type": "tool_result", "tool_use_id": i,
                            "content": self.text() if self.chance(0.5) else self.blocks()} for i in ids]
                messages.append({"role": "user", "content": results + ([] if self.v4 else self.blocks())})
        request = {"max_tokens": 100, "messages": messages}
        self.common(request, "messages")
        if self.chance(0.4):
            request["system"] = self.text() if self.chance(0.6) else self.blocks(False)
        if self.chance(0.4):
            request["output_config"] = {"effort": self.random.choice(["low", "medium", "high", "xhigh", "ultra", "max"])}
        return request

    # ----------------------------------------------------------------------------------- responses

    def item_content(self, kind, images):
        if self.chance(0.6):
            return self.text()
        made = [{"type": kind, "text": self.text()} for _ in range(self.random.randint(0, 2))]
        if images and self.chance(0.2):
            made.append({"type": "input_image", "image_url": "http://x/y.png"})
        return made

    def responses(self):
        items = []
        for _ in range(self.random.randint(1, 6)):
            # V4: theirs makes user text of a developer's, to us it is a system message.
            role = self.random.choices(["user", "system", "developer", "assistant", "loop", "unknown"],
                                       [4, 1, 0 if self.v4 else 1, 2, 2, 0.3])[0]
            if role in ("user", "system", "developer"):
                content = self.item_content("input_text", True)
                items.append({"role": role, "content": self.said(content) if self.v4 and role == "user" else content})
            elif role == "unknown":
                items.append({"type": "web_search_call", "id": "w"})
            else:
                if self.chance(0.5):
                    items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}], "content": [
                        {"type": "reasoning_text", "text": self.text()} for _ in range(self.random.randint(0, 2))]})
                if role == "assistant" or self.chance(0.4):
                    items.append({"type": "message", "role": "assistant", "content": self.item_content("output_text", False)})
                if role == "loop":
                    ids = self.ids()
                    items += [{"type": "function_call", "call_id": i, "name": "clock", "arguments": self.arguments()}
                              for i in ids]
                    self.random.shuffle(ids)
                    items += [{"type": "function_call_output", "call_id": i, "output": self.item_content("input_text", True)}
                              for i in ids]
        request = {"input": items if self.chance(0.9) else self.said(self.text())}
        self.common(request, "responses")
        if self.chance(0.4):
            request["instructions"] = self.text()
        if self.chance(0.5):
            request["reasoning"] = {"effort": self.random.choice(["none", "minimal", "low", "high", "max"])}
        if self.chance(0.2):
            request["text"] = {"format": self.random.choice([
                {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "name": "z", "schema": self.schema(False)}])}
        return request

    def row(self):
        api = self.random.choices(["chat", "messages", "responses"], [6, 2, 2])[0]
        request = {"chat": self.chat, "messages": self.messages, "responses": self.responses}[api]()
        request["model"] = PROFILES[self.profile]
        return {"api": api, "profile": self.profile, "request": request}


# --------------------------------------------------------------------------------------- differences that are meant

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def only_numbers_differ(ours, theirs, v4):
    """Integers beyond 64 bits stay exact where theirs become floats; V4: floats as Python writes them, not as Rust."""
    if NUMBER.sub("#", ours) != NUMBER.sub("#", theirs):
        return False
    for mine, other in zip(NUMBER.findall(ours), NUMBER.findall(theirs)):
        huge = not set(mine) & set(".eE") and not -(2**63) <= int(mine) < 2**64
        fraction = v4 and set(mine) & set(".eE") and set(other) & set(".eE")
        if mine != other and not ((huge or fraction) and float(mine) == float(other)):
            return False
    return True


def explain(row, ours, theirs):
    """The name of a difference that is meant, or None."""
    messages = row["request"].get("messages") or [{}]
    if row["api"] == "messages" and (row["request"].get("tool_choice") or {}).get("type") == "any" and "error" not in theirs:
        if ours.get("error") in ("Thinking mode does not support this tool_choice", "tool_choice asks for a call, but there are no tools"):
            return "any asks for a call"
        for opener in ("\n\n<｜DSML｜ calls>\n", "\n\n<｜DSML｜tool_calls>\n"):
            if ours.get("prompt", "").endswith(opener):
                prompt = ours["prompt"].removesuffix(opener)
                same = prompt == theirs["prompt"] or only_numbers_differ(prompt, theirs["prompt"], row["profile"] != "v4.1")
                return "any asks for a call" if same else None
    if "error" in ours and "error" in theirs:
        return "refused by both, for different faults of one request"
    if "error" in theirs:
        if theirs["error"] == "Function call should not be used with prefix":
            return "prefix beside calls of the history or tool_choice none is accepted"
        if theirs["error"] == "response_format should not be used with tools":
            return "response_format text beside strict tools is accepted"
        return None
    if "error" in ours:
        if ours["error"] == "tool_choice asks for a call, but there are no tools":
            return "a forced call without tools is refused"
        return "only empty system messages are refused" if ours["error"] == "Empty input messages" else None
    if only_numbers_differ(ours["prompt"], theirs["prompt"], row["profile"] != "v4.1"):
        return "numbers: integers stay exact, V4 floats as Python writes them"
    if messages[-1].get("prefix") and not any(m["content"] for m in messages[:-1]):
        return "a prefix that is the first message begins with <think> in thinking mode"
    return None


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        build = pathlib.Path(common.BINARY).resolve().parent
        cls.filter = build / "tests" / "test_recipe_filter"
        if not cls.filter.exists():
            raise unittest.SkipTest(f"{cls.filter} is not built")
        cls.python = common.venv([PACKAGE + " " + " ".join(sorted(WHEELS))], dependencies=False)

    def pipe(self, command, rows):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        done = subprocess.run(command, input=lines.encode("utf-8"), stdout=subprocess.PIPE, check=True)
        answers = [json.loads(line) for line in done.stdout.decode("utf-8").split("\n") if line]
        self.assertEqual(len(answers), len(rows))
        return answers

    def same(self, ours, theirs):
        if "error" in ours or "error" in theirs:
            return "error" in ours and "error" in theirs and (theirs.get("untyped") or ours["error"] == theirs["error"])
        controls = [[len(ours["prompt"].encode()[:at].decode()) for at in pair] for pair in ours["controls"]]
        return (ours["prompt"] == theirs["prompt"] and controls == [list(pair) for pair in theirs["controls"]]
                and ours["constraint"] == theirs["constraint"])

    def compare(self, profile):
        generator = Generator(os.environ.get("DEEPINFER_RECIPE_SEED", "1"), profile)
        rows = [generator.row() for _ in range(REQUESTS)]
        ours = self.pipe([str(self.filter), "--filter"], rows)
        theirs = self.pipe([str(self.python), "-c", THEIRS], rows)
        counts = collections.Counter()
        unexplained = []
        for row, mine, other in zip(rows, ours, theirs):
            if self.same(mine, other):
                counts["refused by both" if "error" in mine else "equal prompts"] += 1
                continue
            why = explain(row, mine, other)
            counts[why or "UNEXPLAINED"] += 1
            if not why:
                unexplained.append((row, mine, other))
        print(f"{profile}: {REQUESTS} requests: " + "; ".join(f"{n} {name}" for name, n in counts.most_common()))
        for row, mine, other in unexplained[:3]:
            print(json.dumps(row, ensure_ascii=False), "\n  ours  ", mine, "\n  theirs", other)
        self.assertEqual(len(unexplained), 0)
        self.assertGreater(counts["equal prompts"], REQUESTS // 2)

    def test_v41(self):
        self.compare("v4.1")

    def test_v4(self):
        self.compare("v4-0731")


if __name__ == "__main__":
    common.main()
