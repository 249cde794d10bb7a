#!/usr/bin/env python3
"""deepinfer chat: from a pipe, and on a pseudo-terminal."""
import os
import pty
import select
import signal
import subprocess
import tempfile
import time

import common
from common import Case, NANO, environment

ASK = "I would like to book a table for two people in San Jose."
GREEDY = ("--temperature", "0")


class Pipe(Case):
    def test_one_line_one_answer(self):
        result = self.ok("chat", *GREEDY, stdin=ASK + "\n")
        self.assertEqual(result.text.count("\n"), 1)
        self.assertRegex(result.text, r"^[A-Z].*[?.!]\n$")
        self.assertIn("tokens", result.err)
        self.assertEqual(self.ok("chat", *GREEDY, stdin=ASK).out, result.out)  # the last line may lack its end
        self.assertEqual(self.ok("chat", *GREEDY, "--prompt", ASK).out, result.out)
        self.assertEqual(self.ok("chat", *GREEDY, "--quiet", stdin=ASK).err, "")

    def test_lines_are_one_conversation(self):
        first, second = self.ok("chat", *GREEDY, stdin=ASK + "\n\nAt 7 pm.\n").text.splitlines()
        alone = self.ok("chat", *GREEDY, stdin="At 7 pm.\n").text.splitlines()[0]
        self.assertNotEqual(second, alone)
        again = self.ok("chat", *GREEDY, stdin=ASK + "\n/reset\nAt 7 pm.\n").text.splitlines()
        self.assertEqual(again, [first, alone])
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(ASK + "\n\nAt 7 pm.\n")
            file.flush()
            self.assertEqual(self.ok("chat", *GREEDY, "--input", file.name).text.splitlines(), [first, second])

    def test_commands(self):
        result = self.ok("chat", *GREEDY, stdin="/help\n/seed 7\n/seed\n/seed x\n/seed off\n/think on\n/think maybe\n/nonsense\n/exit\nnever answered\n")
        self.assertEqual(result.out, b"")
        for text in ("/reset", "seed 7", "/seed takes", "drawn", "thinking is on", "on or off", "no command /nonsense"):
            self.assertIn(text, result.err)

    def test_a_seed_repeats_an_answer(self):
        ask = ASK + "\n"
        first = self.ok("chat", stdin="/seed 5\n" + ask)
        self.assertIn("seed 5", first.err)
        self.assertEqual(self.ok("chat", "--seed", "5", stdin=ask).out, first.out)

    def test_thinking_stands_apart(self):
        on = self.ok("chat", *GREEDY, "--thinking", "on", "--max-tokens", "60", stdin=ASK + "\n")
        off = self.ok("chat", *GREEDY, "--thinking", "off", stdin=ASK + "\n")
        model = self.ok("chat", *GREEDY, stdin=ASK + "\n")
        self.assertEqual(off.out, model.out)  # the model's own default
        self.assertNotIn("think>", on.text)
        switched = self.ok("chat", *GREEDY, "--max-tokens", "60", stdin="/think on\n" + ASK + "\n")
        self.assertEqual(switched.out, on.out)

    def test_system_and_double_slash(self):
        self.ok("chat", *GREEDY, "--system", "You are brief.", "--max-tokens", "5", stdin="//reset is a word\n")

    def test_an_answer_that_fails_does_not_end_the_conversation(self):
        result = common.run("chat", *GREEDY, "--context", "40", stdin="word " * 100 + "\nHello\n")
        self.assertEqual(result.code, 1)
        self.assertIn("40", result.err)
        self.assertEqual(result.text.count("\n"), 1)
        result = common.run("chat", *GREEDY, stdin=b"bad \xff\nHello\n")
        self.assertEqual(result.code, 1)
        self.assertIn("UTF-8", result.err)
        self.assertEqual(result.text.count("\n"), 1)

    def test_a_turn_that_has_no_room_is_not_computed(self):
        more = (*GREEDY, "--max-tokens", "3", "--limit-messages", "4", "--thinking", "off")
        result = common.run("chat", *more, stdin="One\nTwo\nThree\n/reset\nOne\n")
        self.assertEqual(result.code, 1)
        one, two, again = result.text.splitlines()
        self.assertEqual(again, one)
        self.assertEqual(result.err.count("[prompt"), 3)
        self.assertEqual(result.err.count("would have 6 messages; at most 4 are allowed (--limit-messages); /reset"), 1)
        # With the system message there is room for one turn.
        result = common.run("chat", *more, "--system", "Be brief.", stdin="One\nTwo\n")
        self.assertEqual((result.code, result.text.count("\n")), (1, 1))
        self.failed("chat", *GREEDY, "--limit-messages", "1", "--prompt", "One", says="--limit-messages")

    def test_end_of_input_at_once(self):
        self.assertEqual(self.ok("chat", stdin="").out, b"")

    def test_an_interrupt_while_waiting(self):
        process = subprocess.Popen([common.BINARY, "chat", *GREEDY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        process.stdin.write(ASK.encode() + b"\n")
        process.stdin.flush()
        self.assertTrue(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


class Terminal:
    """The program on a pseudo-terminal."""

    def __init__(self, *arguments):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.execve(common.BINARY, [common.BINARY, *arguments], environment(TERM="xterm"))
        self.seen = b""

    def wait_for(self, text, timeout=60):
        end = time.monotonic() + timeout
        while text.encode() not in self.seen:
            ready, _, _ = select.select([self.file], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise AssertionError("no %r in %r" % (text, self.seen))
            try:
                data = os.read(self.file, 65536)
            except OSError:
                data = b""
            if not data:
                raise AssertionError("ended without %r: %r" % (text, self.seen))
            self.seen += data
        at = self.seen.index(text.encode()) + len(text.encode())
        before, self.seen = self.seen[:at], self.seen[at:]
        return before.decode("utf-8", "replace")

    def type(self, text):
        os.write(self.file, text.encode())

    def end(self, timeout=60):
        """Exit code, reading what is left."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            ready, _, _ = select.select([self.file], [], [], 0.05)
            if ready:
                try:
                    self.seen += os.read(self.file, 65536)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.file)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("still running: %r" % self.seen)


class OnATerminal(Case):
    def test_a_conversation(self):
        terminal = Terminal("chat", *GREEDY)
        terminal.wait_for("/help helps")
        terminal.wait_for("> ")
        terminal.type(ASK + "\r")
        terminal.wait_for("[prompt")
        terminal.wait_for("> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.end(), 0)

    def test_text_beyond_ascii(self):
        terminal = Terminal("chat", *GREEDY, "--max-tokens", "3")
        terminal.wait_for("> ")
        terminal.type("/café 日本\r")
        terminal.wait_for("no command /café 日本")
        terminal.wait_for("> ")
        terminal.type("\x1b[A\r")  # the line before, from the history
        terminal.wait_for("no command /café 日本")
        terminal.wait_for("> ")
        terminal.type("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_a_signal_from_outside_counts_as_control_c(self):
        terminal = Terminal("chat", *GREEDY)
        terminal.wait_for("> ")
        os.kill(terminal.pid, signal.SIGINT)
        terminal.wait_for("again leaves")
        os.kill(terminal.pid, signal.SIGINT)
        self.assertEqual(terminal.end(), 130)

    def test_control_d_leaves(self):
        terminal = Terminal("chat", *GREEDY)
        terminal.wait_for("> ")
        terminal.type("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_thinking_is_dim(self):
        terminal = Terminal("chat", *GREEDY, "--thinking", "on", "--max-tokens", "40")
        terminal.wait_for("> ")
        terminal.type(ASK + "\r")
        text = terminal.wait_for("[prompt")
        if "\x1b[2m" in text:  # the model thought at all
            self.assertIn("\x1b[0m", text)
        terminal.wait_for("> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.end(), 0)

    def test_control_c_clears_a_line_and_leaves_the_second_time(self):
        terminal = Terminal("chat", *GREEDY)
        terminal.wait_for("> ")
        terminal.type("some text")
        terminal.type("\x03")
        terminal.wait_for("> ")
        terminal.type("/seed 5\r")
        terminal.wait_for("seed 5")
        terminal.wait_for("> ")
        terminal.type("\x03")
        terminal.wait_for("again leaves")
        terminal.type("\x03")
        self.assertEqual(terminal.end(), 130)

    def test_control_c_stops_an_answer_and_not_the_program(self):
        terminal = Terminal("chat", NANO, "--ignore-eos", "--context", "200000")
        terminal.wait_for("> ")
        terminal.type("talk\r")
        time.sleep(0.5)
        terminal.type("\x03")
        terminal.wait_for("(stopped)")
        terminal.wait_for("> ")
        terminal.type("/seed 9\r")
        terminal.wait_for("seed 9")
        terminal.type("talk\r")
        time.sleep(0.5)
        terminal.type("\x03")
        terminal.wait_for("(stopped)")
        terminal.wait_for("> ")
        terminal.type("\x03")
        self.assertEqual(terminal.end(), 130)


if __name__ == "__main__":
    common.main()
