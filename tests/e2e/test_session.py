#!/usr/bin/env python3
"""deepinfer chat --session: a conversation goes on where it was left, whatever became of its state."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import common
from common import Case, environment, run

FIRST = "I would like to book a table for two people in San Jose."
SECOND = "At 7 pm."
GREEDY = ("--temperature", "0")


class Session(Case):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name, "deep/er/sessions")

    def chat(self, text, *more, name="one", **kwargs):
        return run("chat", *GREEDY, "--session-dir", self.folder, "--session", name, "--log-level", "info", *more, stdin=text, **kwargs)

    def answer(self, *arguments, **kwargs):
        result = self.chat(*arguments, **kwargs)
        self.assertEqual(result.code, 0, result.err)
        return result

    def cached(self, result):
        return [int(n) for n in re.findall(r'"cached_tokens":(\d+)', result.err)]

    def whole(self, *more):
        return self.ok("chat", *GREEDY, *more, stdin=FIRST + "\n" + SECOND + "\n").text.splitlines()

    def file(self, kind, name="one"):
        return self.folder / f"{name}.{kind}"

    def test_it_goes_on(self):
        for more in ((), ("--thinking", "on", "--max-tokens", "40"), ("--prefill", "compact"), ("--system", "Be short.")):
            name = "s" + str(len(more)) + (more[0].strip("-") if more else "")
            first, second = self.whole(*more)
            self.assertEqual(self.answer(FIRST + "\n", *more, name=name).text.splitlines(), [first])
            resumed = self.answer(SECOND + "\n", *more, name=name)
            self.assertEqual(resumed.text.splitlines(), [second])
            self.assertGreater(self.cached(resumed)[0], 10, resumed.err)
            messages = json.loads(self.file("json", name).read_text())["messages"]
            self.assertEqual([m["role"] for m in messages][-4:], ["user", "assistant"] * 2)
            self.assertEqual(messages[-4]["content"], FIRST)
            for kind in ("json", "state"):
                self.assertEqual(os.stat(self.file(kind, name)).st_mode & 0o077, 0)

    def test_one_prompt_at_a_time(self):
        first, second = self.whole()
        self.assertEqual(self.answer("", "--prompt", FIRST).text, first + "\n")
        self.assertEqual(self.answer("", "--prompt", SECOND).text, second + "\n")

    def damage(self, change, says, *more):
        name = f"d{len(list(self.folder.glob('d*.json')))}"
        _, second = self.whole()
        self.answer(FIRST + "\n", name=name)
        change(self.file("state", name))
        result = self.answer(SECOND + "\n", *more, name=name)
        self.assertEqual(result.text.splitlines(), [second])
        self.assertEqual(self.cached(result), [0])
        if says:
            self.assertIn(says, result.err)
            self.assertIn(str(self.file("state", name)), result.err)
            self.assertIn("computed again", result.err)

    def test_a_damaged_state_is_a_warning(self):
        def flip(path):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 4
            path.write_bytes(data)

        self.damage(flip, "checksum")
        self.damage(lambda path: os.truncate(path, 1000), "cut off")
        self.damage(lambda path: path.write_bytes(b""), "cut off")
        self.damage(lambda path: path.write_text("hello " * 100), "not a record")
        self.damage(lambda path: path.unlink(), None)
        self.damage(lambda path: (path.unlink(), path.mkdir()), "plain file")

    def test_a_state_of_another_profile_or_model_is_a_warning(self):
        self.answer(FIRST + "\n", "--prefill", "compact", name="other")
        self.answer(FIRST + "\n", name="mine")
        _, second = self.whole()
        self.file("state", "other").replace(self.file("state", "mine"))
        result = self.answer(SECOND + "\n", name="mine")
        self.assertEqual(result.text.splitlines(), [second])
        self.assertIn("exact+compact", result.err)

    def test_without_a_cache_it_is_computed(self):
        _, second = self.whole()
        self.answer(FIRST + "\n", "--cache-ram", "0")
        self.assertFalse(self.file("state").exists())
        self.assertEqual(self.answer(SECOND + "\n", "--cache-ram", "0").text.splitlines(), [second])

    def test_a_damaged_conversation_is_not_overwritten(self):
        self.answer(FIRST + "\n")
        good = self.file("json").read_text()
        for bad in ("", "{", good[:-3], "[]", good.replace("deepinfer_session", "x"), good.replace(":1,", ":2,"), good.replace('"user"', '"nobody"'), good.replace('"content"', '"text"')):
            self.file("json").write_text(bad)
            result = self.chat(SECOND + "\n")
            self.assertEqual((result.code, result.out), (1, b""), bad)
            self.assertIn(str(self.file("json")), result.err)
            self.assertEqual(self.file("json").read_text(), bad)

    def test_a_long_one_meets_its_limit_whole(self):
        messages = [{"role": role, "content": f"{role} {i}"} for i in range(100) for role in ("user", "assistant")]
        self.folder.mkdir(parents=True)
        kept = json.dumps({"deepinfer_session": 1, "messages": messages})
        self.file("json").write_text(kept)
        result = self.chat("Hi\n/seed 1\nHi\n", "--limit-messages", "201")
        self.assertEqual((result.code, result.out), (1, b""))
        self.assertEqual(result.err.count("would have 202 messages"), 2)
        self.assertEqual(json.loads(self.file("json").read_text()), json.loads(kept))
        result = self.chat("Hi\n", "--limit-messages", "199")
        self.assertEqual((result.code, result.out), (1, b""))
        self.assertIn("--limit-messages", result.err)
        self.answer("Hi\n", "--limit-messages", "202", "--max-tokens", "2", "--thinking", "off")
        self.assertEqual(json.loads(self.file("json").read_text())["messages"][:200], messages)

    def test_names(self):
        for name in ("", ".", "..", ".hidden", "a/b", "../x", "a b", "\u00e9", "x" * 101, "a\tb"):
            result = self.chat("", name=name)
            self.assertEqual(result.code, 2, name)
            self.assertIn("--session", result.err)
        self.assertEqual(self.chat("", name="A-1_b.c").code, 0)

    def test_reset_forgets(self):
        first, _ = self.whole()
        self.answer(FIRST + "\n")
        self.answer("/reset\n")
        self.assertEqual(json.loads(self.file("json").read_text())["messages"], [])
        self.assertFalse(self.file("state").exists())
        self.assertEqual(self.answer(FIRST + "\n").text.splitlines(), [first])

    def test_one_process_at_a_time(self):
        command = [common.BINARY, "chat", "--session-dir", str(self.folder), "--session", "one"]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        try:
            end = time.time() + 60
            while not self.file("lock").exists() and time.time() < end:
                time.sleep(0.05)
            time.sleep(0.2)
            refused = self.chat(FIRST + "\n")
            self.assertEqual(refused.code, 1)
            self.assertIn("another process", refused.err)
            self.assertEqual(self.chat("", name="two").code, 0)
        finally:
            holder.send_signal(signal.SIGKILL)
            holder.communicate()
        self.answer(FIRST + "\n")  # a dead process leaves no lock behind

    def test_killed_in_the_middle_it_is_whole(self):
        self.answer(FIRST + "\n")
        for delay in (0.05, 0.2, 0.3, 0.4, 0.5, 0.7):
            command = [common.BINARY, "chat", *GREEDY, "--session-dir", str(self.folder), "--session", "one"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
            process.stdin.write((SECOND + "\n").encode() * 3)
            process.stdin.flush()
            time.sleep(delay)
            process.kill()
            process.communicate()
            messages = json.loads(self.file("json").read_text())["messages"]
            self.assertEqual(len(messages) % 2, 0)
            self.assertEqual(messages[0]["content"], FIRST)
        self.answer("")

    def test_where_sessions_are(self):
        def kept(**env):
            clean = {k: v for k, v in environment().items() if k not in ("HOME", "XDG_STATE_HOME")}
            return run("chat", *GREEDY, "--session", "one", stdin=FIRST + "\n", env={**clean, **env})

        home = pathlib.Path(self.scratch.name, "home")
        home.mkdir()
        self.assertEqual(kept(HOME=str(home)).code, 0)
        self.assertTrue((home / ".local/state/deepinfer/sessions/one.json").exists())
        self.assertEqual(kept(HOME=str(home), XDG_STATE_HOME=str(home / "xdg")).code, 0)
        self.assertTrue((home / "xdg/deepinfer/sessions/one.json").exists())
        self.assertEqual(kept(HOME=str(home), XDG_STATE_HOME="relative").code, 0)
        nowhere = kept()
        self.assertEqual(nowhere.code, 2)
        self.assertIn("--session-dir", nowhere.err)
        blocked = run("chat", "--session", "one", "--session-dir", common.BINARY, stdin="")
        self.assertEqual(blocked.code, 1)
        self.assertIn(common.BINARY, blocked.err)

    def test_a_conversation_that_cannot_be_kept_goes_on(self):
        self.answer(FIRST + "\n")
        self.file("json.tmp").mkdir()
        _, second = self.whole()
        result = self.chat(SECOND + "\n")
        self.assertEqual(result.text.splitlines(), [second])
        self.assertEqual(result.code, 1)
        self.assertIn("cannot write the session", result.err)


if __name__ == "__main__":
    common.main()
