#!/usr/bin/env python3
"""deepinfer tokenize: text to ids and back, lines, bad input."""
import json
import pathlib
import shutil
import tempfile

import common
from common import Case, NANO, TINY, jsonl

BOS = "<｜begin▁of▁sentence｜>"


class Text(Case):
    def test_there_and_back(self):
        for text in ("", "Hello there", "naïve café — 12,345\n\n\ttab", "日本語 and 🙂", BOS, "a\r\nb\n"):
            ids = self.ok("tokenize", stdin=text).text
            self.assertTrue(ids.endswith("\n"))
            back = self.ok("tokenize", "--decode", stdin=ids)
            self.assertEqual(back.out, text.encode())
            self.assertEqual(self.ok("tokenize", "--prompt", text).text, ids)

    def test_no_ids_are_no_text(self):
        self.assertEqual(self.ok("tokenize", "--token-ids", "", stdin="Hello").out, b"")
        self.assertEqual(self.ok("tokenize", "--token-ids", "", "--json", stdin="Hello").lines(), [{"text": ""}])

    def test_control_tokens_are_plain_text_unless_asked_for(self):
        plain = self.ok("tokenize", "--prompt", BOS).text.split()
        control = self.ok("tokenize", "--control", "--prompt", BOS).text.split()
        self.assertGreater(len(plain), 1)
        self.assertEqual(control, ["0"])

    def test_a_folder_with_a_tokenizer_is_enough(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(NANO + "/tokenizer.json", folder)
            self.assertEqual(self.ok("tokenize", folder, "--prompt", "hello").out, self.ok("tokenize", NANO, "--prompt", "hello").out)
            file = pathlib.Path(folder, "text")
            file.write_bytes(b"hello")
            self.assertEqual(self.ok("tokenize", folder, "--input", file).out, self.ok("tokenize", NANO, "--prompt", "hello").out)

    def test_golden(self):
        golden = json.loads(pathlib.Path(NANO, "golden/tokenizer.json").read_text())
        texts = golden["encode"]
        lines = self.ok("tokenize", NANO, "--json", "--control", stdin=jsonl(*({"id": i, "text": t["text"]} for i, t in enumerate(texts)))).lines()
        for line, expected in zip(lines, texts):
            self.assertEqual(line["token_ids"], expected["ids"], expected["text"])

    def test_bad_text(self):
        self.failed("tokenize", stdin=b"ab\xff", says="UTF-8")
        self.failed("tokenize", "--decode", stdin="1 2 x", says="token id")
        self.failed("tokenize", "--decode", stdin="999999999", says="999999999")
        self.failed("tokenize", "--decode", stdin="99999999999999999999", says="token id")
        self.failed("tokenize", "--input", "/nonexistent", says="/nonexistent")
        self.usage("tokenize", "--input", "/dev/null", "--prompt", "x", says="exclude")


class Lines(Case):
    def test_faults_name_their_line_once(self):
        done = common.run("tokenize", NANO, "--json", stdin='{"text":"a"}\n\n{"text":}\n')
        self.assertEqual(done.code, 1)
        fault = done.lines()[1]
        self.assertEqual(fault["line"], 3)
        self.assertEqual(fault["error"]["message"], "column 9 (byte 8): expected a value, found '}'")

    def test_shapes(self):
        lines = self.ok("tokenize", "--json", stdin=jsonl({"text": "Hello there"}, {"id": "b", "text": ""})).lines()
        self.assertEqual(set(lines[0]), {"token_ids", "tokens"})
        self.assertEqual(len(lines[0]["token_ids"]), len(lines[0]["tokens"]))
        self.assertEqual(lines[1], {"id": "b", "token_ids": [], "tokens": []})
        back = self.ok("tokenize", "--json", "--decode", stdin=jsonl({"token_ids": lines[0]["token_ids"]})).lines()
        self.assertEqual(back, [{"text": "Hello there"}])

    def test_only_newline_ends_a_line(self):
        text = "a\u2028b\u0085c\rd"
        lines = self.ok("tokenize", "--json", stdin=('{"text": "%s"}\r\n\n{"text": "x"}' % text.replace("\r", "\\r"))).lines()
        self.assertEqual(len(lines), 2)

    def test_a_bad_line_does_not_stop_the_others(self):
        bad = b'{"id": 1, "text": "ok"}\n{"text": \n[1]\n{"id": 4}\n{"id": 5, "text": 7}\n{"id": 6, "text": "a", "x": 1}\n{"text": "\xff"}\n{"id": 8, "text": "ok"}\n'
        result = common.run("tokenize", "--json", stdin=bad)
        self.assertEqual(result.code, 1)
        lines = result.lines()
        self.assertEqual(len(lines), 8)
        for number in range(2, 8):
            line = lines[number - 1]
            self.assertEqual(line["line"], number)
            self.assertEqual(set(line["error"]), {"code", "message", "param"})
        self.assertEqual([l.get("id") for l in lines], [1, None, None, 4, 5, 6, None, 8])
        self.assertEqual(lines[3]["error"]["param"], "text")
        self.assertEqual(lines[5]["error"]["param"], "x")
        self.assertIn("token_ids", lines[7])

    def test_a_line_that_is_too_long(self):
        data = jsonl({"text": "x" * 500}, {"text": "short"}) + '{"text": "' + "y" * 100000
        result = common.run("tokenize", "--json", "--limit-line-bytes", "100", stdin=data)
        self.assertEqual(result.code, 1)
        lines = result.lines()
        self.assertEqual([l.get("error", {}).get("code") for l in lines], ["limit", None, "limit"])
        self.assertIn("limit-line-bytes", lines[0]["error"]["message"])

    def test_ids(self):
        for token_ids in ([1, -1], [1.5], ["1"], 5, [4096], None):
            result = common.run("tokenize", TINY, "--json", "--decode", stdin=jsonl({"token_ids": token_ids}))
            self.assertEqual(result.code, 1, token_ids)
            self.assertEqual(result.lines()[0]["error"]["param"], "token_ids")


if __name__ == "__main__":
    common.main()
