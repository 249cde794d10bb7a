# labels: long
"""Constrained generation by the engine: whatever random weights say, every text that ends is valid.

Many requests at once in one process, on both test models at temperature 1; jsonschema and re are the judges.
A long run: test_structured.py PROGRAM --generations 10000
"""
import json
import re
import subprocess
import sys

import common
from common import Case, NANO, TINY, jsonl
from test_grammar import SCHEMAS, VALIDATOR

GENERATIONS = 300
MOST_TOKENS = 256

SHORT = {"type": "string", "maxLength": 12}
MORE_SCHEMAS = [
    {"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}, "when": {"type": "string", "format": "date-time"}},
     "required": ["id", "when"], "additionalProperties": False},
    {"type": "object", "properties": {"mail": {"type": "string", "format": "email", "maxLength": 40}, "host": {"type": "string", "format": "ipv4"}},
     "required": ["host"], "additionalProperties": False},
    {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 99}, "y": SHORT},
                                "required": ["x", "y"], "additionalProperties": False}, "minItems": 1, "maxItems": 3},
    {"type": "object", "properties": {"a": {"anyOf": [SHORT, {"type": "null"}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}]}},
     "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {"words": {"type": "string", "pattern": r"^(?:\S+\s+){0,3}\S+$", "maxLength": 40},
                                      "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"}}, "required": ["words", "code"],
     "additionalProperties": False},
    {"type": "string", "oneOf": [{"pattern": "cat"}, {"pattern": "dog"}], "maxLength": 14},
    {"type": "string", "pattern": "^.+$", "maxLength": 30, "not": {"pattern": "[aeiou]"}},
    {"type": "object", "patternProperties": {"^k[0-9]$": {"type": "integer", "maximum": 7}}, "additionalProperties": False, "minProperties": 1,
     "maxProperties": 3},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
               {"properties": {"a": {"maximum": 12}, "b": {"const": {"deep": [1, "two", None]}}}, "required": ["b"]}],
     "propertyNames": {"enum": ["a", "b", "cc"]}, "unevaluatedProperties": {"type": "boolean"}},
    {"type": "array", "items": {"enum": ["red", "green", 1, None, True]}, "uniqueItems": True, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": {"anyOf": [{"type": ["integer", "boolean"], "minimum": 3, "maximum": 9}, {"enum": [{"a": [1]}, {"a": [2]}]}]},
     "uniqueItems": True, "minItems": 3, "maxItems": 6},
    {"$ref": "#/$defs/list", "$defs": {"list": {"type": ["object", "null"], "properties": {"next": {"$ref": "#/$defs/list"}, "v": {"type": "integer"}},
                                                "required": ["v"], "additionalProperties": False}}},
    {"enum": ["a", ["b", 1], {"c": None}, 4.5, "Ünïcode \u2028 \"quoted\""]},
]
# (schema_type, source, regular expression that judges the text)
TEXTS = [
    ("regex", r"\d{4}-\d{2}-\d{2}", r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    ("regex", r"(foo|ba[rz]){1,4}(?=;);", r"(foo|ba[rz]){1,4};"),
    ("regex", r"[^\x00-\x7f]{1,6}|(?i:ab)c", r"[^\x00-\x7f]{1,6}|[aA][bB]c"),
    ("regex", r"[a-z]+@[a-z]{2,8}\.(com|org)", r"[a-z]+@[a-z]{2,8}\.(com|org)"),
    ("regex", r"(?:\+|-)?(0|[1-9][0-9]{0,5})(\.[0-9]{1,3})?", r"[+-]?(0|[1-9][0-9]{0,5})(\.[0-9]{1,3})?"),
    ("regex", r"(\w{1,4}[ ,]){2,5}\bend", r"([0-9A-Za-z_]{1,4}[ ,]){2,5}end"),
    ("gbnf", 'root ::= item ("," item){0,4} "."\nitem ::= [a-c]+ | "<" root ">"', None),
    ("gbnf", 'root ::= ("yes" | "no") (" because " [a-z ]{3,20})?', r"(yes|no)( because [a-z ]{3,20})?"),
    ("lark", 'start: NAME "=" NUMBER ";"\nNAME: /[a-z]{1,8}/\nNUMBER: /[0-9]{1,5}/', r"[a-z]{1,8}=[0-9]{1,5};"),
    ("w3c", 'list ::= "[" entry ("," entry)? "]"\nentry ::= [0-9] [0-9]? | "nil"', r"\[([0-9]{1,2}|nil)(,([0-9]{1,2}|nil))?\]"),
    ("iso", 'pair = digit, "-", digit, [ "!" ] ; digit = "0" | "1" | "2" ;', r"[012]-[012]!?"),
]
JUDGE = """
import json, sys, jsonschema
checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
for line in sys.stdin:
    case = json.loads(line)
    jsonschema.Draft202012Validator(case["schema"], format_checker=checker).validate(json.loads(case["text"]))
"""


def nested(text):
    """The first GBNF grammar, which no expression follows."""
    while True:
        shorter = re.sub(r"<[a-c]+(,[a-c]+){0,4}\.>", "a", text)
        if shorter == text:
            return re.fullmatch(r"[a-c]+(,[a-c]+){0,4}\.", text) is not None
        text = shorter


class Structured(Case):
    def generate(self, model, count, first):
        schemas, cases = SCHEMAS + MORE_SCHEMAS, {}
        for n in range(count):
            number = first + n
            schema, text = None, None
            if n % 3 == 2:
                text = TEXTS[n // 3 % len(TEXTS)]
                bound = {"schema_type": text[0], "schema": text[1]}
            else:
                schema = schemas[(n - n // 3) % len(schemas)]
                bound = {"schema_type": "json", "schema": json.dumps(schema, ensure_ascii=n % 2 == 0)}
            cases[number] = (schema, text, {"id": number, "prompt": f"Request {number % 7}", "sampling_params": {
                "temperature": 1, "seed": number, "max_tokens": MOST_TOKENS, "so_args": bound}})
        out = common.run("generate", model, "--json", stdin=jsonl(*(c[2] for c in cases.values())), timeout=3600).lines()
        self.assertEqual([line for line in out if "error" in line], [])
        self.assertEqual(sorted(line["id"] for line in out), sorted(cases))
        return [(cases[line["id"]], line) for line in out]

    def test_every_text_is_valid(self):
        made, cut, judged = 0, [], []
        for model, share in ((NANO, 0.5), (TINY, 0.5)):
            for (schema, text, request), line in self.generate(model, int(GENERATIONS * share), made):
                choice, used = line["choices"][0], line["usage"]["completion_tokens"]
                made += 1
                if choice["finish_reason"] != "stop":
                    self.assertEqual((choice["finish_reason"], used), ("length", MOST_TOKENS), request)
                    cut.append((model, schema, text, choice["token_ids"]))
                elif schema is not None:
                    judged.append({"schema": schema, "text": choice["text"]})
                elif text[2] is None:
                    self.assertTrue(nested(choice["text"]), choice["text"])
                else:
                    self.assertTrue(re.fullmatch(text[2], choice["text"]), (text, choice["text"]))
        done = subprocess.run([common.venv(VALIDATOR), "-c", JUDGE], input=jsonl(*judged).encode(), capture_output=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr.decode()[-800:])
        print(f"{made} generations, {made - len(cut)} complete and valid, {len(cut)} cut by max_tokens", file=sys.stderr)
        self.assertEqual(made, GENERATIONS)
        self.assertLess(len(cut), made // 3)
        self.check_cut(cut)

    def check_cut(self, cut):
        """What was cut could have gone on."""
        for model in (NANO, TINY):
            lines = []
            own = [c for c in cut if c[0] == model][:100]
            texts = self.ok("tokenize", model, "--json", "--decode", stdin=jsonl(*({"token_ids": c[3]} for c in own))).lines() if own else []
            for (_, schema, text, _), decoded in zip(own, texts, strict=True):
                source = {"json_schema": schema} if schema is not None else {"regex": text[1]} if text[0] == "regex" else {
                    "ebnf": text[1], "dialect": text[0]}
                lines.append({**source, "text": decoded["text"].rstrip("\ufffd")})
            for line, asked in zip(self.ok("grammar", "check", model, "--json", stdin=jsonl(*lines)).lines() if lines else [], lines):
                self.assertTrue(line["accepted"], (asked, line))


if __name__ == "__main__":
    if "--generations" in sys.argv:
        at = sys.argv.index("--generations")
        GENERATIONS = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    common.main()
