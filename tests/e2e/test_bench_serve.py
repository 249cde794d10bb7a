#!/usr/bin/env python3
# labels: serial timing
"""`deepinfer bench serve` against a server whose answers can be wrong in every way, and against `deepinfer serve`; a short soak."""
import json
import pathlib
import signal
import subprocess
import tempfile
import unittest

import common
import http_server
import scripted_server

FIGURES = ("tokens_per_s", "requests_per_s", "first_token_ms", "gap_ms", "total_ms", "goodput_per_s", "cache_hit_share", "errors", "compared", "differing")


def bench(*arguments, timeout=300):
    done = subprocess.run([common.BINARY, "bench", "serve", *map(str, arguments)], capture_output=True, text=True, timeout=timeout, env=common.environment())
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def parent(stat):
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


class Scripted(unittest.TestCase):
    def bench(self, fault, *arguments):
        server = scripted_server.start(fault=fault, pause=0.006)
        try:
            return *bench("--url", server.address, "--clients", 4, "--turns", 2, *arguments), server
        finally:
            server.shutdown()
            server.server_close()

    def test_figures(self):
        code, lines, table, server = self.bench("", "--seconds", 1, "--rate", 3, "--max-tokens", 7, "--temperature", 0.5)
        self.assertEqual(code, 0, table)
        environment, closed, opened = lines
        self.assertEqual((environment["what"], closed["what"], opened["what"]), ("environment", "closed", "open"))
        self.assertEqual((environment["model"], environment["url"]), ("tiny", server.address))
        for line in (closed, opened):
            self.assertLessEqual(set(FIGURES), set(line))
            self.assertEqual((line["failed"], line["refused"], line["differing"], line["errors"]), (0, 0, 0, []))
            self.assertEqual(line["good"], line["requests"])
            self.assertEqual(line["compared"], line["good"])
            self.assertEqual(line["cache_hit_share"], 0.7742)
            for name in ("first_token_ms", "gap_ms", "total_ms"):
                figures = line[name]
                self.assertTrue(0 < figures["p50"] <= figures["p90"] <= figures["p95"] <= figures["p99"] <= figures["max"], figures)
            self.assertGreater(line["gap_ms"]["p50"], 5)
        self.assertGreaterEqual(closed["requests"], 8)
        self.assertIn("same as", table)
        bodies = [json.loads(body) for body in server.bodies]
        self.assertEqual({(b["max_tokens"], b["temperature"], b["stream"]) for b in bodies}, {(7, 0.5, True)})
        self.assertEqual({len(b["messages"]) for b in bodies}, {2, 4})
        second = next(b for b in bodies if len(b["messages"]) == 4)
        self.assertEqual([m["role"] for m in second["messages"]], ["system", "user", "assistant", "user"])
        self.assertTrue(second["messages"][2]["content"].startswith("You said: "))
        # Every request was sent twice, byte for byte: in the crowd and alone.
        self.assertEqual({server.bodies.count(body) for body in server.bodies}, {2})

    def test_wrong_answers_are_found(self):
        for fault, key, text in (("other", "differing", ""), ("cut", "failed", "before [DONE]"), ("break", "failed", "the step failed"), ("error 500", "failed", "refused with 500")):
            code, lines, stderr, _ = self.bench(fault, "--part", "closed")
            self.assertEqual(code, 1, fault)
            self.assertGreater(lines[-1][key], 0, fault)
            self.assertIn(text, json.dumps(lines[-1]["errors"]))
            self.assertEqual("bytes differ" in stderr, fault == "other")

    def test_refusals_are_counted_apart(self):
        code, lines, _, _ = self.bench("error 429", "--part", "closed")
        self.assertEqual((code, lines[-1]["refused"], lines[-1]["failed"], lines[-1]["good"]), (1, 4, 0, 0))
        self.assertEqual(lines[-1]["refused_typed"], 4)  # with Retry-After and a message

    def test_clients_that_leave(self):
        code, lines, stderr, server = self.bench("", "--part", "closed", "--drop", 1, "--seconds", 1)
        self.assertEqual((code, lines[-1]["good"], lines[-1]["dropped"]), (0, 0, lines[-1]["requests"]), stderr)
        self.assertGreater(server.dropped, 0)

    def test_plain_sends_only_what_openai_has(self):
        _, _, _, server = self.bench("", "--part", "closed", "--plain", "--verify", "off")
        self.assertEqual(len(server.bodies), 8)
        self.assertEqual({key for body in server.bodies for key in json.loads(body)}, {"model", "messages", "max_tokens", "temperature", "seed", "stream", "stream_options"})

    def test_wrong_usage(self):
        for arguments in (["--clients", "0"], ["--turns", "9"], ["--nothing"], ["--rate", "x"], ["--drop", "2"], ["--url"], ["--prompt", "x"]):
            self.assertEqual(bench(*arguments)[0], 2, arguments)
        for words in (["bench"], ["bench", "kernels"]):
            done = subprocess.run([common.BINARY, *words], capture_output=True, text=True, timeout=60, env=common.environment())
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("serve", done.stderr)
        code, _, stderr = bench("--url", "ftp://127.0.0.1:1/")
        self.assertEqual(code, 2)
        self.assertIn("http://HOST:PORT or https://HOST:PORT", stderr)
        code, _, stderr = bench("--url", "https://127.0.0.1:1/", "--ca-file", "/no/such/file")
        self.assertEqual(code, 2)
        self.assertIn("--ca-file /no/such/file", stderr)
        code, _, stderr = bench("--url", "http://127.0.0.1:1/")
        self.assertEqual(code, 1)
        self.assertIn("no connection", stderr)

    def test_key(self):
        server = scripted_server.start(key="sesame")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# keys\nsomebody sesame\n")
            file.flush()
            code, lines, stderr = bench("--url", server.address, "--clients", 2, "--turns", 1, "--part", "closed", "--api-key-file", file.name)
        self.assertEqual(code, 0, stderr)
        self.assertEqual(bench("--url", server.address, "--part", "closed")[0], 1)
        server.shutdown()
        server.server_close()


class Tls(unittest.TestCase):
    def test_https(self):
        """The certificate is checked, name and all."""
        with tempfile.TemporaryDirectory() as folder:
            cert, key = http_server.certificate(folder)
            other, _ = http_server.certificate(folder, "other")
            with http_server.Server("--tls-cert", cert, "--tls-key", key, "--access-log", "off", model=common.TINY) as server:
                load = ("--clients", 3, "--turns", 2, "--max-tokens", 4, "--part", "closed")
                for host in ("127.0.0.1", "localhost"):
                    code, lines, stderr = bench("--url", f"https://{host}:{server.port}", "--ca-file", cert, *load)
                    self.assertEqual(code, 0, stderr)
                    self.assertEqual((lines[-1]["good"], lines[-1]["compared"], lines[-1]["differing"]), (6, 6, 0))
                    self.assertRegex(lines[-1]["fingerprint"], r"\w+")
                for trusted in ((), ("--ca-file", other)):
                    code, _, stderr = bench("--url", f"https://127.0.0.1:{server.port}", *trusted, *load)
                    self.assertEqual(code, 1)
                    self.assertIn("TLS cannot begin", stderr)
                code, _, stderr = bench("--url", f"https://ip6-localhost:{server.port}", "--ca-file", cert, *load)
                self.assertEqual(code, 1)
                code, _, stderr = bench("--url", f"http://127.0.0.1:{server.port}", *load)
                self.assertEqual(code, 1)


class Real(unittest.TestCase):
    def test_fifty_customers(self):
        """With its own server: fifty conversations at once, every byte as alone."""
        code, lines, stderr = bench("--clients", 50, "--turns", 2, "--max-tokens", 12, "--part", "closed", "--verify", 40, timeout=600)
        self.assertEqual(code, 0, stderr)
        line = lines[-1]
        self.assertEqual((line["good"], line["failed"], line["compared"], line["differing"]), (100, 0, 40, 0))
        self.assertGreater(line["cache_hit_share"], 0.3)
        self.assertGreater(line["tokens"], 100)

    def test_options_of_its_own_server(self):
        code, lines, stderr = bench(common.NANO, "--clients", 2, "--turns", 1, "--part", "closed", "--served-model-name", "mine", "--max-seqs", 1, "--log-level", "info")
        self.assertEqual(code, 0, stderr)
        self.assertEqual(lines[0]["model"], "mine")
        self.assertEqual(lines[0]["settings"]["max-seqs"], "1")
        self.assertIn("option max-seqs = 1 (command line)", stderr)

    def test_a_signal_ends_its_server_too(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            arguments = [common.BINARY, "bench", "serve", common.TINY, "--clients", "4", "--seconds", "600", "--max-tokens", "200", "--part", "closed"]
            with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=common.environment()) as process:
                process.stdout.readline()  # the environment: its server answers
                server = [int(p.parent.name) for p in pathlib.Path("/proc").glob("[0-9]*/stat") if parent(p) == process.pid]
                self.assertEqual(len(server), 1)
                process.send_signal(number)
                process.communicate(timeout=120)
                self.assertEqual(process.returncode, 130)
                self.assertFalse(pathlib.Path(f"/proc/{server[0]}").exists())

    def test_short_soak(self):
        build = pathlib.Path(common.BINARY).parent
        done = subprocess.run([common.ROOT / "scripts/soak", build, "--seconds", "6", "--clients", "8"], capture_output=True, text=True, timeout=600, env=common.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertGreaterEqual(lines[-1]["rounds"], 3)
        self.assertGreater(sum(line.get("dropped", 0) for line in lines), 10)
        self.assertGreater(sum(sum(line.get("others", {}).values()) for line in lines), 10)

    def test_short_overload(self):
        """What waits and what is refused; not for how long, which is the machine's affair."""
        build = pathlib.Path(common.BINARY).parent
        done = subprocess.run([common.ROOT / "scripts/overload", build, "--seconds", "1.5", "--times", "10", "--queue", "4", "--sequences", "2", "--no-latency"],
                              capture_output=True, text=True, timeout=600, env=common.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        line = json.loads(done.stdout)
        self.assertEqual(line["good"] + line["refused"], line["requests"])
        self.assertEqual(line["refused_typed"], line["refused"])
        self.assertGreater(line["refused"], 0)


if __name__ == "__main__":
    common.main()
