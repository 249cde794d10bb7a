#!/usr/bin/env python3
"""deepinfer serve as a program: starting, signals, keys, TLS, logs, health, metrics."""
import json
import os
import re
import resource
import signal
import ssl
import tempfile
import time

import common
from common import Case, NANO, environment
from http_server import Hold, Server, certificate, receive, statuses

KEY = "sk-very-secret-1"


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class Start(Case):
    def test_it_listens_says_where_and_ends_with_code_0(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with Server("--quiet") as server:
                self.assertEqual(server.host, "127.0.0.1")
                self.assertEqual(server.ask("GET", "/health/live")[0], 200)
                server.signal(number)
                self.assertEqual(server.process.wait(20), 0)
                self.assertEqual(server.process.stdout.read(), b"")
                self.assertEqual(server.log().count("\n"), 1)

    def test_it_refuses_to_be_open_to_all(self):
        for host in ("0.0.0.0", "::", ""):
            self.usage("serve", NANO, "--host", host, "--port", "0", says="no key is set: give --api-key-file or DEEPINFER_API_KEY")
        with Server("--host", "0.0.0.0", env=environment(DEEPINFER_API_KEY=KEY)) as server:
            self.assertEqual(server.ask("GET", "/version")[0], 401)
            self.assertEqual(server.ask("GET", "/version", headers=bearer(KEY))[0], 200)
        with Server("--host", "localhost") as server:
            self.assertEqual(server.ask("GET", "/version")[0], 200)

    def test_what_is_wrong_is_found_before_the_model_is_loaded(self):
        with Server() as server:
            self.failed("serve", "/nowhere", "--port", server.port, says=f"another program listens on 127.0.0.1:{server.port} already")
        self.usage("serve", "/nowhere", "--host", "no.such.host.invalid", says="--host no.such.host.invalid is no address")
        self.usage("serve", "/nowhere", "--tls-cert", "x.pem", says="belong together")
        self.usage("serve", "/nowhere", "--tls-cert", "x.pem", "--tls-key", "y.pem", says="x.pem: no certificate chain")
        self.failed("serve", "/nowhere", "--api-key-file", "/no/such/file", says="/no/such/file")
        # An unset variable must not make a server that asks for no key, or speaks without TLS.
        for name in ("api-key", "api-key-file", "tls-cert", "access-log", "config"):
            self.usage("serve", "/nowhere", f"--{name}", "", says=f"option {name} is empty")
            variable = "DEEPINFER_" + name.upper().replace("-", "_")
            self.usage("serve", "/nowhere", env=environment(**{variable: ""}), says=f"{variable}: option {name} is empty")
        self.failed("serve", "/nowhere", "--port", "0", "--access-log", "/no/such/folder/log", says="/no/such/folder/log")
        self.failed("serve", "/nowhere", "--port", "0", says="/nowhere")
        self.usage("serve", "--port", "70000", says="port")
        with tempfile.TemporaryDirectory() as folder:
            for text, says in (("", "holds no key"), ("# only\n", "holds no key"), ("short\n", "line 1: a key has at least 8"),
                               (f"a {KEY}\nb {KEY}\n", "line 2: this key was given before"),
                               ("a two words\n", "line 1: a key has"), (f"{'n' * 70} {KEY}\n", "line 1: a name has at most")):
                path = f"{folder}/keys"
                with open(path, "w") as file:
                    file.write(text)
                os.chmod(path, 0o600)
                result = self.usage("serve", "/nowhere", "--api-key-file", path, says=says)
                self.assertNotIn(KEY, result.err)


class Loading(Case):
    """Loading stands still at the model's tokenizer until the test lets it go on."""

    def slow_model(self, tokenizer=None):
        """Folder and hold."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name in os.listdir(NANO):
            if name != "tokenizer.json" or tokenizer is None:
                os.symlink(f"{NANO}/{name}", f"{folder.name}/{name}")
        if tokenizer is not None:
            with open(f"{folder.name}/tokenizer.json", "w") as file:
                file.write(tokenizer)
        return folder.name, Hold("/tokenizer.json", folder.name)

    def test_health_answers_while_the_model_is_loaded(self):
        folder, hold = self.slow_model()
        with Server(model=folder, env=environment(DEEPINFER_API_KEY=KEY, **hold.environment), ready=False) as server:
            hold.wait(server.process)
            self.assertEqual(server.json("GET", "/health/live", headers=bearer(KEY)), (200, {"status": "live"}))
            status, ready = server.json("GET", "/health/ready", headers=bearer(KEY))
            self.assertEqual((status, ready["status"], ready["reason"]), (503, "not_ready", "loading"))
            self.assertGreaterEqual(ready["loading_ms"], 0)
            for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
                status, headers, body = server.ask(method, path, headers=bearer(KEY))
                self.assertEqual((status, body), (503, b""))
                self.assertIsNotNone(headers["Retry-After"])
            for method, path, code in (("POST", "/v1/chat/completions", ("error", "code")), ("POST", "/v1/messages", ("error", "type")),
                                       ("GET", "/v1/models", ("error", "code")), ("GET", "/metrics", ("error", "code")),
                                       ("GET", "/v1/requests", ("error", "code")), ("GET", "/", ("error", "code")), ("GET", "/nothing", ("error", "code"))):
                status, headers, body = server.ask(method, path, {} if method == "POST" else None, bearer(KEY))
                self.assertEqual(status, 503, path)
                self.assertIsNotNone(headers["Retry-After"])
                error = json.loads(body)["error"]
                self.assertIn("being loaded", error["message"])
                self.assertEqual(error[code[1]], "overloaded_error" if path == "/v1/messages" else "loading")
                if path != "/":
                    self.assertEqual(server.ask(method, path)[0], 401)
            server.signal(signal.SIGHUP)  # keys are read again, also now
            self.assertEqual(server.ask("GET", "/health/live", headers=bearer(KEY))[0], 200)
            self.assertNotIn("serving", server.log())
            hold.release()
            server.wait_for_log("serving")
            self.assertEqual(server.ask("GET", "/health/ready", headers=bearer(KEY))[0], 200)
            self.assertEqual(server.ask("GET", "/v1/models", headers=bearer(KEY))[0], 200)
            self.assertEqual(server.ask("GET", "/nothing", headers=bearer(KEY))[0], 404)
            self.assertEqual(server.stop(), 0)

    def test_a_load_that_fails_ends_the_process(self):
        folder, hold = self.slow_model("{nonsense")
        with Server(model=folder, env=environment(**hold.environment), ready=False) as server:
            hold.wait(server.process)
            self.assertEqual(server.ask("GET", "/health/live")[0], 200)
            with server.connect():  # somebody is connected
                hold.release()
                self.assertEqual(server.process.wait(20), 1)
            self.assertIn("tokenizer.json", server.log())

    def test_a_signal_ends_it_while_it_loads(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            folder, hold = self.slow_model()
            with Server(model=folder, env=environment(**hold.environment), ready=False) as server:
                hold.wait(server.process)
                self.assertEqual(server.ask("GET", "/health/live")[0], 200)
                server.signal(number)
                self.assertEqual(server.process.wait(20), 0)
                hold.release()
                self.assertNotIn("serving", server.log())


class Stop(Case):
    def test_a_second_signal_while_the_cache_is_written(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with tempfile.TemporaryDirectory() as folder:
                hold = Hold(".tmp", folder)  # a record on its way to the disk
                with Server("--cache-dir", f"{folder}/cache", "--cache-ram", "64M", env=environment(**hold.environment)) as server:
                    status, _ = server.json("POST", "/v1/completions", {"model": "nano", "prompt": "word " * 100, "max_tokens": 2})
                    self.assertEqual(status, 200)
                    server.signal(number)
                    hold.wait(server.process)
                    while True:  # until it has stopped serving
                        try:
                            server.connect().close()
                            time.sleep(0.01)
                        except OSError:
                            break
                    self.assertIsNone(server.process.poll())
                    server.signal(number)
                    self.assertEqual(server.process.wait(20), 130)
                    hold.release()

    def test_what_is_read_again_never_waits(self):
        """In place of each file that SIGHUP reads or opens stands a pipe that nobody serves."""
        with tempfile.TemporaryDirectory() as folder:
            config, keys, log = (f"{folder}/{name}" for name in ("config", "keys", "log"))
            cert, key = certificate(folder)
            for path, text in ((config, "log-level = info\n"), (keys, f"staff {KEY}\n"), (log, "")):
                with open(path, "w") as file:
                    file.write(text)
            options = ("--config", config, "--api-key-file", keys, "--access-log", log, "--tls-cert", cert, "--tls-key", key)
            with Server(*options) as server:
                for path, says in ((keys, f"keys stay as they were: {keys} is not a plain file"),
                                   (config, f"the log level stays as it was: {config} is not a plain file"),
                                   (cert, f"the certificate stays as it was: --tls-cert {cert} is not a plain file"),
                                   (key, f"the certificate stays as it was: --tls-key {key} is not a plain file"),
                                   (log, f"cannot write the access log {log}; a pipe must have a reader")):
                    os.rename(path, path + ".kept")
                    os.mkfifo(path)
                    server.signal(signal.SIGHUP)
                    server.wait_for_log(says)
                    self.assertEqual(server.ask("GET", "/health/live", headers=bearer(KEY))[0], 200)
                    os.rename(path + ".kept", path)
                self.assertEqual(server.stop(), 0)

    def test_a_pipe_gives_keys_and_options_at_the_start(self):
        for option, text in (("--api-key-file", f"staff {KEY}\n"), ("--config", f"api-key = {KEY}\n")):
            reader, writer = os.pipe()
            os.write(writer, text.encode())
            os.close(writer)
            with Server(option, f"/dev/fd/{reader}", pass_fds=(reader,)) as server:
                os.close(reader)
                self.assertEqual(server.ask("GET", "/version")[0], 401)
                self.assertEqual(server.ask("GET", "/version", headers=bearer(KEY))[0], 200)
                server.signal(signal.SIGHUP)
                server.wait_for_log("as it was" if option == "--config" else "as they were")
                self.assertEqual(server.ask("GET", "/version", headers=bearer(KEY))[0], 200)

    def test_an_access_log_at_its_limit_of_size_does_not_stop_it(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("--access-log", f"{folder}/log") as server:
                resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (300, 300))
                for _ in range(20):
                    self.assertEqual(server.ask("GET", "/version")[0], 200)
                self.assertEqual(os.path.getsize(f"{folder}/log"), 300)
                self.assertEqual(server.stop(), 0)


class Small(Case):
    """Answers of the small endpoints."""

    def test_endpoints(self):
        with Server("--served-model-name", 'a"b,c') as server:
            self.assertEqual(server.json("GET", "/health/live"), (200, {"status": "live"}))
            status, ready = server.json("GET", "/health/ready")
            self.assertEqual((status, ready["status"], ready["waiting"], ready["stuck_ms"]), (200, "ready", 0, 0))
            for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"), ("HEAD", "/health")):
                status, headers, body = server.ask(method, path)
                self.assertEqual((status, body, headers["Content-Length"]), (200, b"", "0"))
            self.assertRegex(server.json("GET", "/version")[1]["version"], r"^\d+\.\d+\.\d+$")
            self.assertEqual(server.json("GET", "/load"), (200, {"server_load": 0}))
            status, requests = server.json("GET", "/v1/requests")
            self.assertEqual((status, requests["data"], requests["running"]), (200, [], 0))
            status, headers, text = server.ask("GET", "/metrics")
            self.assertEqual(headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
            self.metrics(text.decode())

    def metrics(self, text):
        sample = re.compile(r'^[a-z_]+:?[a-z0-9_]*(\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\})? (\+Inf|-?[0-9.]+(e[-+][0-9]+)?)$')
        names, seen = set(), set()
        for line in text.splitlines():
            if line.startswith("#"):
                kind, name = line.split()[1:3]
                if kind == "TYPE":
                    self.assertNotIn(name, names)
                    names.add(name)
                continue
            self.assertRegex(line, sample)
            self.assertNotIn(line.rsplit(" ", 1)[0], seen)
            seen.add(line.rsplit(" ", 1)[0])
            base = re.match(r"[a-z0-9_:]+", line)[0]
            self.assertTrue(base in names or re.sub(r"_(bucket|sum|count)$", "", base) in names, line)
        for name in ("deepinfer_queue_requests", "deepinfer_http_connections", "vllm:num_requests_running", "vllm:num_requests_waiting",
                     "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds",
                     "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds", "vllm:prefix_cache_hits_total",
                     "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total", "process_resident_memory_bytes",
                     "process_start_time_seconds", "process_open_fds", "process_max_fds", "deepinfer_ready", "deepinfer_build_info"):
            self.assertIn(name, names)
        self.assertRegex(text, r'(?m)^deepinfer_build_info\{version="\d+\.\d+\.\d+",compiler=".+",isa="\w+",profile="\w+",architecture="deepseek_v41",fingerprint=".+",model_name="a\\"b"\} 1$')
        self.assertRegex(text, r"(?m)^deepinfer_ready 1$")
        read = set(re.findall(r'"((?:deepinfer|vllm)[_:]\w+)"', (common.ROOT / "src/server/page/live.js").read_text()))
        self.assertGreater(len(read), 8)
        self.assertEqual({name for name in read if name not in names and re.sub(r"_(sum|count)$", "", name) not in names}, set())
        self.assertIn('vllm:num_requests_running{model_name="a\\"b",engine="0"} 0', text)

    def test_every_request_has_a_line_in_the_access_log(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/access.jsonl"
            with Server("--access-log", path, "--api-key", KEY) as server:
                server.ask("GET", "/version?secret=1", headers=bearer(KEY) | {"x-request-id": "mine-1"})
                server.ask("GET", "/version", headers=bearer("sk-wrong-key"))
                server.ask("GET", "/health/live", headers=bearer(KEY))
                server.raw(b"NONSENSE\r\n\r\n")
                os.rename(path, path + ".1")
                server.signal(signal.SIGHUP)
                for _ in range(200):
                    if os.path.exists(path):
                        break
                    time.sleep(0.01)
                server.ask("GET", "/load", headers=bearer(KEY))
                self.assertEqual(server.stop(), 0)
                self.assertEqual(server.access(), [])
            with open(path + ".1") as file:
                text = file.read()
            with open(path) as file:
                moved = [json.loads(line) for line in file]
            lines = [json.loads(line) for line in text.splitlines()]
            self.assertNotIn("secret", text)
            self.assertEqual([(line["method"], line["path"], line["status"]) for line in lines],
                             [("GET", "/version", 200), ("GET", "/version", 401), ("", "", 400)])
            self.assertEqual((lines[0]["id"], lines[0]["end"], lines[0]["peer"]), ("mine-1", "done", "127.0.0.1"))
            self.assertRegex(lines[0]["tenant"], r"^key-[0-9a-f]{8}$")
            self.assertEqual(lines[1]["error"], "invalid_api_key")
            self.assertEqual([line["path"] for line in moved], ["/load"])


    def test_errors_are_counted_by_their_code(self):
        with Server("--api-key", KEY) as server:
            for _ in range(3):
                server.ask("GET", "/version")
            server.ask("GET", "/nothing", headers=bearer(KEY))
            status, wrong = server.json("POST", "/v1/chat/completions", {"model": "nano"}, bearer(KEY))
            self.assertEqual(status, 400)
            text = server.ask("GET", "/metrics", headers=bearer(KEY))[2].decode()
            self.assertEqual(dict(re.findall(r'(?m)^deepinfer_http_errors_total\{code="(\w+)"\} (\d+)$', text)),
                             {"internal": "0", "invalid_api_key": "3", "not_found": "1", wrong["error"]["code"]: "1"})
            value = lambda name: float(re.search(rf"(?m)^{name} (\S+)$", text)[1])
            self.assertLess(abs(value("process_start_time_seconds") - time.time()), 600)
            self.assertLess(abs(value("process_open_fds") - server.descriptors()), 4)  # connections that just end
            self.assertGreaterEqual(value("process_max_fds"), 1024)


class Secrets(Case):
    def test_no_key_is_in_any_log(self):
        """All that the most talkative log says, of right and wrong keys wherever they come from."""
        with tempfile.TemporaryDirectory() as folder:
            path, log = f"{folder}/keys", f"{folder}/access.jsonl"
            with open(path, "w") as file:
                file.write("alice sk-in-the-file\n")
            os.chmod(path, 0o644)
            with Server("--log-level", "debug", "--api-key", KEY, "--api-key-file", path, "--access-log", log) as server:
                server.ask("GET", "/version", headers=bearer(KEY))
                server.ask("GET", "/version?key=sk-in-the-query", headers={"x-api-key": "sk-in-the-file"})
                server.ask("GET", "/version", headers=bearer("sk-wrong-one"))
                server.ask("POST", "/v1/completions", {"model": "nano", "prompt": "sk-in-the-prompt", "max_tokens": 2}, bearer(KEY))
                server.ask("POST", "/v1/completions", {"model": "nano", "prompt": "sk-in-the-prompt", "max_tokens": -2}, bearer(KEY))
                with open(path, "w") as file:
                    file.write("alice sk-in-the-file\nbob sk-in-the-file\n")
                server.signal(signal.SIGHUP)
                server.wait_for_log("keys stay as they were")
                self.assertEqual(server.stop(), 0)
                text = server.log()
            with open(log) as file:
                self.assertNotIn("sk-", text + file.read())
            # Which options are set, and from where, is there for the reader of the log.
            self.assertRegex(text, r"serve: option api-key-file = \S+/keys \(command line\)")
            self.assertIn("option api-key = (secret) (command line)", text)
            self.assertIn("every user of this machine sees the key on the command line", text)
            self.assertIn(f"{path} can be read by every user of this machine", text)

    def test_a_private_key_that_all_may_read_is_warned_of(self):
        with tempfile.TemporaryDirectory() as folder:
            cert, key = certificate(folder)
            os.chmod(key, 0o600)
            with Server("--tls-cert", cert, "--tls-key", key) as server:
                self.assertNotIn("can be read by every user", server.log())
                os.chmod(key, 0o644)
                server.signal(signal.SIGHUP)
                server.wait_for_log(f"{key} can be read by every user")


class Keys(Case):
    PATHS = (("GET", "/health/live"), ("GET", "/health/ready"), ("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"), ("GET", "/version"),
             ("GET", "/load"), ("GET", "/metrics"), ("GET", "/v1/requests"), ("GET", "/v1/models"), ("POST", "/v1/chat/completions"),
             ("POST", "/v1/completions"), ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"), ("POST", "/v1/responses"),
             ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/nothing"), ("OPTIONS", "/v1/models"), ("OPTIONS", "*"))

    def write(self, path, text):
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o600)

    def test_keys_of_a_file_and_of_a_new_one(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/keys"
            self.write(path, f"# staff\nalice {KEY}\r\n\n  sk-no-name-2  \n")
            with Server("--api-key-file", path) as server:
                document = (common.ROOT / "docs/api.md").read_text(encoding="utf-8")
                paths = set(self.PATHS) | set(re.findall(r"^\| ([A-Z]+) \| `(/[^`]*)` \|$", document, re.M))
                self.assertGreater(len(paths), len(self.PATHS))
                for method, place in sorted(paths):
                    self.assertEqual(server.ask(method, place)[0], 401, place)
                    self.assertEqual(server.ask(method, place, headers=bearer("alice"))[0], 401, place)
                self.assertEqual(server.ask("GET", "/version", headers=bearer(KEY))[0], 200)
                self.assertEqual(server.ask("GET", "/version", headers={"x-api-key": "sk-no-name-2"})[0], 200)
                self.assertEqual([line.get("tenant") for line in server.access()][-2:-1], ["alice"])
                self.write(path, "bob sk-new-key-3\n")
                server.signal(signal.SIGHUP)
                for _ in range(200):
                    if server.ask("GET", "/version", headers=bearer("sk-new-key-3"))[0] == 200:
                        break
                    time.sleep(0.01)
                self.assertEqual(server.ask("GET", "/version", headers=bearer("sk-new-key-3"))[0], 200)
                self.assertEqual(server.ask("GET", "/version", headers=bearer(KEY))[0], 401)
                self.write(path, "")  # no key at all would open the server: the old ones stay
                server.signal(signal.SIGHUP)
                server.wait_for_log("keys stay as they were")
                self.assertEqual(server.ask("GET", "/version", headers=bearer("sk-new-key-3"))[0], 200)
                self.assertEqual(server.ask("GET", "/version")[0], 401)
                self.assertEqual(server.stop(), 0)
                self.assertNotIn("sk-", server.log())

    def test_probes_can_be_opened(self):
        with Server("--api-key", KEY, "--open-probes") as server:
            for path in ("/health/live", "/health/ready", "/health", "/ping"):
                self.assertEqual(server.ask("GET", path)[0], 200)
            self.assertEqual(server.ask("GET", "/metrics")[0], 401)

    def test_the_log_level_is_read_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/config"
            self.write(path, "log-level = error\n")
            with Server("--config", path) as server:
                self.write(path, "log-level = info\n")
                server.signal(signal.SIGHUP)
                server.wait_for_log("log level info")
                self.write(path, "log-level = loud\n")
                server.signal(signal.SIGHUP)
                server.wait_for_log("the log level stays as it was")
            self.write(path, "log-level = info\n")
            with Server("--config", path, "--log-level", "error") as server:  # the command line is stronger
                server.signal(signal.SIGHUP)
                self.assertEqual(server.ask("GET", "/health/live")[0], 200)
                self.assertNotIn("log level", server.log())


class Tls(Case):
    def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            cert, key = certificate(folder)
            trusting = ssl.create_default_context(cafile=cert)
            with Server("--tls-cert", cert, "--tls-key", key) as server:
                self.assertEqual(server.scheme, "https")
                self.assertEqual(server.ask("GET", "/health/live", context=trusting)[0], 200)
                self.assertEqual(server.ask("GET", "/nothing", context=trusting)[0], 404)
                self.assertGreater(len(server.ask("GET", "/metrics", context=trusting)[2]), 20000)
                # Requests sent ahead, and an orderly end.
                with trusting.wrap_socket(server.connect(), server_hostname="localhost") as s:
                    self.assertIn(s.version(), ("TLSv1.3", "TLSv1.2"))
                    s.sendall(b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n" * 3 + b"GET /load HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    self.assertEqual(statuses(receive(s)), [200] * 4)
                # A large body in both directions of a refusal.
                with trusting.wrap_socket(server.connect(), server_hostname="localhost") as s:
                    s.sendall(b"POST /version HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3000000)
                    self.assertEqual(statuses(receive(s)), [405])
                old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
                with self.assertRaises(OSError):
                    server.ask("GET", "/health/live", context=ssl.create_default_context())  # not trusted
                for data in (b"GET /health/live HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x00\x05abcde", b"\x80"):
                    self.assertNotIn(b"HTTP/1.1 200", server.raw(data, half_close=True))
                self.assertGreater(server.metric("deepinfer_http_tls_failures_total"), 0)
                # A new certificate for new connections.
                other, other_key = certificate(folder, "other")
                os.replace(other, cert)
                os.replace(other_key, key)
                server.signal(signal.SIGHUP)
                trusting = ssl.create_default_context(cafile=cert)
                for _ in range(100):
                    try:
                        self.assertEqual(server.ask("GET", "/health/live", context=trusting)[0], 200)
                        break
                    except ssl.SSLError:
                        time.sleep(0.02)
                with open(key, "w") as file:
                    file.write("nonsense")
                server.signal(signal.SIGHUP)
                server.wait_for_log("the certificate stays as it was")
                self.assertEqual(server.ask("GET", "/health/live", context=trusting)[0], 200)
                self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    common.main()
