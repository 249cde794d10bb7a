#!/usr/bin/env python3
# labels: long
"""Every field of every endpoint, as docs/api.md lists them, with wrong values over HTTP: 4xx in the interface's own shape, the field named."""

import json
import re

import api_case
import common

SAMPLES = {"a boolean": "true", "an integer": "3", "a number": "3", "a string": '"x"', "an array": '[{"a":1}]', "an object": '{"a":1}'}
REQUIRED = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "prompt": "Hi", "tokens": [5], "input": "Hi"}


def table():
    """{path: [(field, types, range, use)]}"""
    rows, endpoint = {}, None
    for line in (common.ROOT / "docs/api.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("### POST "):
            endpoint = line.split()[-1]
            rows[endpoint] = []
        elif endpoint and line.startswith("| `"):
            name, kind, _, use, _ = [cell.strip() for cell in line.strip("|").split(" | ", 4)]
            types = [t for t in SAMPLES if re.search(r"(^|or )" + t + r"\b", kind)]
            bounds = re.search(r"([\[(])(\S+), (\S+)[\])]", kind)
            rows[endpoint].append((name.strip("`"), types, bounds, use))
    return rows


def with_field(base, path, value, twice=False):
    """JSON text of the body with raw text for one field, which may stand there twice."""
    names = path.split(".")
    member = json.dumps(names[-1]) + ":" + value
    text = member + "," + member if twice else member
    for name in reversed(names[:-1]):
        text = json.dumps(name) + ":{" + text + "}"
    rest = {k: v for k, v in base.items() if k != names[0]}
    return "{" + ",".join([text] + [json.dumps(k) + ":" + json.dumps(v) for k, v in rest.items()]) + "}"


def clean(answer):
    """The answer without what may differ between two answers to one request: its own id, times, what was cached, signs of life."""
    text = answer.body.decode()
    own = re.search(r'"id":"[a-z]+[-_](\w+)"', text)
    text = text.replace(own[1], "ID") if own else text
    text = re.sub(r'"(created|created_at|completed_at|cached_tokens|prompt_cache_\w+_tokens|cache_read_input_tokens|input_tokens)":\d+', r'"\1":0', text)
    return text.replace(": keep-alive\n\n", "").replace('event: ping\ndata: {"type":"ping"}\n\n', "")


class Fields(api_case.Case):
    arguments = ("--seed", "5")

    def base(self, endpoint, rows):
        needed = {name for name, _, _, use in rows if use == "required"}
        body = {k: v for k, v in REQUIRED.items() if k in needed}
        if endpoint.endswith("responses"):
            body["input"] = "Hi"
        if endpoint == "/tokenize":
            body["prompt"] = "Hi"
        return body

    def refused(self, endpoint, field, body):
        answer = self.client.post(endpoint, body)
        what = (endpoint, field, body[:200], answer.status, answer.body[:500])
        self.assertIn(answer.status, (400, 404, 413, 422), what)
        error = answer.json["error"]
        if "/messages" in endpoint:
            self.assertEqual(answer.json["type"], "error", what)
            self.assertIn(error["type"], ("invalid_request_error", "not_found_error", "request_too_large"), what)
        else:
            self.assertEqual(set(error), {"message", "type", "param", "code"}, what)
            self.assertTrue(error["param"] and error["param"].startswith(field.split(".")[0]), what)
        self.assertIn(field.split(".")[-1], error["message"] + str(error.get("param")), what)

    def each(self):
        for endpoint, rows in table().items():
            base = self.base(endpoint, rows)
            for field, types, bounds, use in rows:
                yield endpoint, base, field, types, bounds, use

    def test_the_table_is_found(self):
        rows = table()
        self.assertEqual(len(rows), 7)
        self.assertGreater(sum(map(len, rows.values())), 200)

    def test_wrong_types(self):
        for endpoint, base, field, types, _, _ in self.each():
            for name, value in SAMPLES.items():
                if name in types or (name == "an integer" and "a number" in types) or (name == "a number" and "an integer" in types):
                    continue
                self.refused(endpoint, field, with_field(base, field, value))

    def test_out_of_range(self):
        for endpoint, base, field, types, bounds, use in self.each():
            if use in ("refused", "only") or not bounds or not {"an integer", "a number"} & set(types):
                continue
            for value in ("-5000000000", "1e30", "1e400", "123456789012345678901234567890123456789"):
                self.refused(endpoint, field, with_field(base, field, value))

    def test_twice(self):
        for endpoint, base, field, _, _, _ in self.each():
            self.refused(endpoint, field, with_field(base, field, "null", twice=True))

    def test_missing_and_null(self):
        for endpoint, base, field, _, _, use in self.each():
            if use == "required":
                self.refused(endpoint, field, with_field(base, field, "null"))
                self.refused(endpoint, field, json.dumps({k: v for k, v in base.items() if k != field}))
        for endpoint, rows in table().items():
            base = dict(self.base(endpoint, rows), **({"max_tokens": 1} if "completions" in endpoint else {}))
            base.update({"max_output_tokens": 1} if endpoint.endswith("responses") else {})
            nulls = {name: None for name, _, _, _ in rows if "." not in name and name not in base}
            self.good(endpoint, dict(base, **nulls))

    def test_refused_and_only(self):
        for endpoint, base, field, types, _, use in self.each():
            if use == "refused":
                self.refused(endpoint, field, with_field(base, field, SAMPLES[types[0]]))

    def test_huge(self):
        text = json.dumps("a" * 300000)
        for endpoint, base, field, types, _, use in self.each():
            if types != ["a string"] or use in ("required", "used") and field in ("prompt", "suffix", "instructions"):
                continue
            if field == "truncation" or "regex" in field:
                continue
            self.refused(endpoint, field, with_field(base, field, text))

    def test_bodies_that_are_no_json_objects(self):
        for endpoint in table():
            for body in ("", "{", "[]", "null", "1", '{"a":}', '{"a":1}x', "{'a':1}", '{"a":"\ud800"}'.encode("utf-8", "surrogatepass"), "[" * 100000, "\ufeff{}"):
                answer = self.client.post(endpoint, body)
                self.assertEqual(answer.status, 400, (endpoint, body[:20], answer.body[:200]))
                self.assertTrue(answer.json["error"]["message"])

    def test_a_body_nested_too_deep_names_the_option(self):
        for path, body in (("/v1/completions", "[" * 65), ("/v1/messages", '{"x":' * 65)):
            answer = self.client.post(path, body)
            self.assertEqual(answer.status, 400)
            self.assertIn("nested deeper than the 64 levels allowed (--limit-json-depth)", answer.json["error"]["message"])
        answer = self.client.post("/v1/completions", '{"prompt":"levels allowed"')
        self.assertEqual((answer.status, answer.json["error"]["param"]), (400, None))
        self.assertNotIn("--limit", answer.json["error"]["message"])

    def test_unknown_fields_are_named(self):
        answer = self.good("/v1/chat/completions", {"messages": REQUIRED["messages"], "max_tokens": 1, "temprature": 0, "é": 1})
        self.assertEqual(answer.headers["x-ignored-fields"], "temprature, ??")

    def test_fields_of_other_endpoints_change_nothing(self):
        """Named as ignored, and ignored in truth, whatever they hold. Fields within fields: test_server_fields.c."""
        rows = table()
        sizes = {"/v1/chat/completions": "max_tokens", "/v1/completions": "max_tokens", "/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens"}
        names = {endpoint: {name for name, _, _, _ in own if "." not in name} for endpoint, own in rows.items()}
        for endpoint, own in rows.items():
            base = self.base(endpoint, own)
            if endpoint in sizes:
                base[sizes[endpoint]] = 3
            foreign = sorted(set().union(*names.values()) - names[endpoint])
            self.assertGreater(len(foreign), 20, endpoint)
            for stream in (False, True) if endpoint in sizes else (False,):
                base.update({"stream": True} if stream else {})
                wanted = clean(self.good(endpoint, base))
                for field in foreign:
                    for value in ("-4294967294", "2") if stream else ("-4294967294", '"x"', '{"type":"any"}', "true"):
                        answer = self.good(endpoint, with_field(base, field, value))
                        self.assertEqual(answer.headers["x-ignored-fields"], field, (endpoint, value))
                        self.assertEqual(clean(answer), wanted, (endpoint, field, value))

    def test_items_of_lists(self):
        chat = {"messages": REQUIRED["messages"], "max_tokens": 1}
        for field, value in (
            ("stop", ["a", 1]),
            ("stop", [""]),
            ("stop", ["a\0b"]),
            ("stop", ["a" * 70000]),
            ("stop_token_ids", [-1]),
            ("stop_token_ids", [10**9]),
            ("stop_token_ids", ["1"]),
            ("logit_bias", {"x": 1}),
            ("logit_bias", {"5": 101}),
            ("logit_bias", {"5": "1"}),
            ("logit_bias", {"99999999": 1}),
            ("top_logprobs", 3),
            ("stream_options", {}),
            ("n", 100),
            ("seed", -1),
            ("seed", 2**64),
            ("min_tokens", 5),
            ("messages", [{"role": "nobody", "content": "x"}]),
            ("messages", [{"content": "x"}]),
            ("messages", [5]),
            ("messages", [{"role": "user"}]),
            ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]),
            ("reasoning_effort", "enormous"),
            ("reasoning_effort", 101),
            ("tools", [{"type": "function"}]),
            ("tools", [{"type": "function", "function": {"name": "a b"}}]),
            ("tool_choice", "maybe"),
            ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}),
            ("response_format", {"type": "json_object"}),
        ):
            answer = self.client.post("/v1/chat/completions", dict(chat, **{field: value}))
            self.assertEqual(answer.status, 400, (field, value, answer.body[:300]))
            self.assertTrue(str(answer.json["error"]["param"]).startswith(field), (field, answer.body[:300]))
        for field, value in (("prompt", []), ("prompt", [1, "a"]), ("prompt", [[1], "x", None]), ("prompt", [10**9]), ("best_of", 3), ("suffix", "x")):
            body = {"prompt": [5] if field == "suffix" else "Hi", "max_tokens": 1}
            answer = self.client.post("/v1/completions", dict(body, **{field: value}))
            self.assertEqual(answer.status, 400, (field, value, answer.body[:300]))
            self.assertTrue(answer.json["error"]["param"].startswith(field), (field, answer.body[:300]))
        for prompt in (["a", "b"], ["a", [5]], [[5], "b"], [[5]], ["a", "b", 3]):
            answer = self.client.post("/v1/completions", {"prompt": prompt, "suffix": "x", "max_tokens": 1})
            self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "suffix"), prompt)
        texts = [self.good("/v1/completions", {"prompt": prompt, "suffix": "x", "max_tokens": 3}).json["choices"][0]["text"] for prompt in ("a", ["a"])]
        self.assertEqual(texts[0], texts[1])
        null = {"type": None, "function": {"name": "w", "description": None, "parameters": None, "strict": None}}
        for body in ({"tools": [null]}, {"tools": [null], "tool_choice": {"type": None, "function": {"name": "w"}}}, {"chat_template_kwargs": {"thinking": None, "foo": None}}):
            answer = self.good("/v1/chat/completions", dict(chat, **body))
            self.assertIsNone(answer.headers["x-ignored-fields"])


class Strict(api_case.Case):
    arguments = ("--strict-fields", "--limit-messages", "2", "--max-seqs", "4", "--limit-stop-strings", "2", "--served-model-name", "first,second")

    def test_unknown_fields_are_refused(self):
        answer = self.client.post("/v1/chat/completions", {"messages": REQUIRED["messages"], "temprature": 0})
        self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "temprature"))
        self.assertIn('did you mean "temperature"?', answer.json["error"]["message"])

    def test_limits_and_names(self):
        answer = self.client.post("/v1/chat/completions", {"messages": REQUIRED["messages"] * 3})
        self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "messages"))
        self.assertIn("--limit-messages", answer.json["error"]["message"])
        for field, value, says in (("n", 5, "[1, 4] (--max-seqs)"), ("stop", ["a", "b", "c"], "at most 2 are allowed (--limit-stop-strings)")):
            answer = self.client.post("/v1/chat/completions", {"messages": REQUIRED["messages"], field: value})
            self.assertEqual((answer.status, answer.json["error"]["param"]), (400, field))
            self.assertIn(says, answer.json["error"]["message"])
        for name in ("first", "second", ""):
            answer = self.good("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})
            self.assertEqual(answer.json["model"], "first")
        self.assertEqual([m["id"] for m in self.client.get("/v1/models").json["data"]], ["first", "second"])


if __name__ == "__main__":
    common.main()
