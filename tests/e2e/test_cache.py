#!/usr/bin/env python3
"""The disk cache from outside: hits after a restart, folders that cannot be used, `deepinfer cache`."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import common
from common import Case, NANO, environment, jsonl, run

IDS = [3 + i * 37 % 600 for i in range(150)]


def request(count, **more):
    return {"id": count, "token_ids": IDS[:count], "sampling_params": {"temperature": 0, "max_tokens": 5, "ignore_eos": True, "logits_hash": True, **more}}


class Cache(Case):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name, "cache")

    def generate(self, *counts, folder=None, more=()):
        result = self.ok("generate", NANO, "--json", "--concurrency", "1", "--cache-dir", folder or self.folder, *more, stdin=jsonl(*(request(n) for n in counts)))
        lines = result.lines()
        return [line["choices"] for line in lines], [line["usage"]["cached_tokens"] for line in lines], result.err

    def cold(self, *counts, more=()):
        return [line["choices"] for line in self.ok("generate", NANO, "--json", "--cache-ram", "0", *more, stdin=jsonl(*(request(n) for n in counts))).lines()]

    def test_hits_after_a_restart(self):
        for more in ((), ("--prefill", "compact")):
            expected = self.cold(100, 150, more=more)
            self.assertEqual(self.generate(100, more=more)[1:], ([0], ""))
            choices, cached, err = self.generate(100, 150, more=more)
            self.assertEqual((choices, cached, err), (expected, [99, 99], ""))

    def test_unusable_folders_are_a_warning(self):
        expected = self.cold(100)
        file = pathlib.Path(self.scratch.name, "file")
        file.write_text("x")
        for folder in (file, "/proc/none", pathlib.Path(self.scratch.name, "no/parent"), "x" * 5000):
            choices, cached, err = self.generate(100, folder=folder)
            self.assertEqual((choices, cached), (expected, [0]))
            self.assertEqual(err.count("\n"), 1, err)
            self.assertIn("warn", err)
            self.assertIn("nothing will be stored", err)
        self.assertEqual(file.read_text(), "x")

    def test_a_second_program_reads(self):
        self.generate(100)
        holder = subprocess.Popen([common.BINARY, "generate", NANO, "--json", "--cache-dir", str(self.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        try:
            holder.stdin.write(jsonl(request(120)).encode())
            holder.stdin.flush()
            holder.stdout.readline()
            choices, cached, err = self.generate(100)
            self.assertEqual((choices, cached), (self.cold(100), [99]))
            self.assertIn("another process", err)
            refused = self.failed("cache", "trim", self.folder, "--cache-disk", "0", says="in use")
            self.assertEqual(refused.out, b"")
            self.ok("cache", "verify", self.folder)
        finally:
            holder.communicate()
        self.assertEqual(self.generate(120)[1:], ([119], ""))

    def test_a_folder_that_is_removed_meanwhile(self):
        def ask(process, body):
            process.stdin.write(jsonl(body).encode())
            process.stdin.flush()
            process.stdout.readline()

        def records(folder):
            return self.ok("cache", "list", folder, "--json").lines()[-1]["records"]

        self.generate(100)
        expected = records(self.folder)
        command = [common.BINARY, "generate", NANO, "--json", "--cache-dir", ""]
        other = {**request(120), "token_ids": IDS[120:0:-1]}
        for beside in (False, True):
            folder = self.folder.with_name(f"beside-{beside}")
            command[-1] = str(folder)
            first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
            ask(first, request(100))
            while records(folder) != expected:
                time.sleep(0.02)
            shutil.rmtree(folder)
            second = None
            if beside:
                second = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
                ask(second, request(60))
            ask(first, other)
            err = first.communicate()[1].decode()
            if second:
                self.assertEqual(second.communicate()[1], b"")
            self.assertEqual(err.count("another process is writing there"), int(beside), err)
            self.assertEqual(err.count("\n"), int(beside), err)
            result = self.ok("generate", NANO, "--json", "--cache-dir", folder, stdin=jsonl(other))
            self.assertEqual((result.lines()[0]["usage"]["cached_tokens"], result.err), (0 if beside else 119, ""))
            self.assertGreater(records(folder), 0)
            self.ok("cache", "trim", folder, "--cache-disk", "0")

    def test_a_full_disk(self):
        # A limit of the size of files stands in for a full disk.
        command = f"ulimit -f 1; exec '{common.BINARY}' generate {NANO} --json --cache-dir {self.folder}"
        done = subprocess.run(["bash", "-c", command], input=jsonl(request(100), request(150)).encode(), capture_output=True, env=environment(), timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([json.loads(line)["choices"] for line in done.stdout.splitlines()], self.cold(100, 150))
        self.assertIn(b"cannot store", done.stderr)
        self.assertEqual(self.ok("cache", "verify", self.folder, "--json").lines()[-1]["damaged"], 0)

    def test_damage_is_a_warning(self):
        self.generate(100)
        for path in self.folder.rglob("?-*"):
            if path.is_file():
                data = bytearray(path.read_bytes())
                data[-1] ^= 1
                path.write_bytes(data)
        self.failed("cache", "verify", self.folder, says="")
        choices, cached, err = self.generate(100)
        self.assertEqual((choices, cached), (self.cold(100), [0]))
        self.assertIn("checksum", err)
        self.assertIn("it is a miss", err)
        self.assertEqual(self.generate(100)[1:], ([99], ""))

    def test_list_verify_trim(self):
        self.generate(60, 100)
        self.generate(100, more=("--prefill", "compact"))
        files = [p for p in self.folder.rglob("?-*") if p.is_file()]
        size = sum(p.stat().st_size for p in files)
        listed = self.ok("cache", "list", self.folder, "--json").lines()
        self.assertEqual(listed[-1], {"records": len(files), "bytes": size, "temporary": 0, "unknown": 0})
        self.assertEqual({line["path"] for line in listed[:-1]}, {str(p.relative_to(self.folder)) for p in files})
        for line in listed[:-1]:
            self.assertIn(line["kind"], ("block", "snapshot"))
            self.assertRegex(line["used"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            self.assertRegex(line["digest"], r"^[0-9a-f]{16}$")
            self.assertEqual("position" in line, line["kind"] == "snapshot")
        text = self.ok("cache", "list", self.folder).text
        self.assertEqual(len(text.splitlines()), 4)  # heading, two profiles, sum
        verified = self.ok("cache", "verify", self.folder, "--json").lines()
        self.assertEqual({line["profile"].split("+")[0] for line in verified[:-1]}, {"exact"})
        self.assertTrue(all(line["sound"] for line in verified[:-1]))
        self.assertIn("0 damaged", self.ok("cache", "verify", self.folder).text)

        broken, rest = files[0], files[1].with_name(files[1].name + ".tmp")
        os.truncate(broken, 50)
        rest.write_text("half")
        (self.folder / "notes").write_text("mine")
        result = run("cache", "verify", self.folder, "--json")
        self.assertEqual(result.code, 1)
        faults = [line for line in result.lines()[:-1] if not line.get("sound", True)]
        self.assertEqual([(f["path"], f["fault"]) for f in faults], [(str(broken.relative_to(self.folder)), "it is cut off")])
        self.assertEqual({k: result.lines()[-1][k] for k in ("damaged", "temporary", "unknown")}, {"damaged": 1, "temporary": 1, "unknown": 1})
        text = run("cache", "verify", self.folder).text
        self.assertIn(f"damaged  {broken.relative_to(self.folder)}: it is cut off", text)

        trimmed = self.ok("cache", "trim", self.folder, "--cache-disk", "100k", "--json").lines()[0]
        self.assertLessEqual(trimmed["bytes"], 100 << 10)
        self.assertFalse(rest.exists())
        self.assertEqual(self.ok("cache", "list", self.folder, "--json").lines()[-1]["bytes"], trimmed["bytes"])
        self.assertIn("0 B left", self.ok("cache", "trim", self.folder, "--cache-disk", "0").text)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["lock", "notes"])

    def test_usage(self):
        self.usage("cache", says="what shall be done?")
        self.usage("cache", "list", says="which folder?")
        self.usage("cache", "lst", self.folder, says='did you mean "list"')
        self.usage("cache", "list", "a", "b", says="one argument too many")
        self.usage("cache", "list", "a", "--temperature", "0", says="cache does not take --temperature")
        self.failed("cache", "list", "/nonexistent/folder", says="/nonexistent/folder")
        self.failed("cache", "verify", common.BINARY, says="not a folder")
        self.failed("cache", "trim", self.scratch.name, says="not a cache folder")
        self.assertEqual(os.listdir(self.scratch.name), [])
        self.generate(40)
        self.assertEqual(self.ok("cache", "list", "--cache-dir", self.folder).out, self.ok("cache", "list", self.folder).out)


if __name__ == "__main__":
    common.main()
