#!/usr/bin/env python3
# labels: long
"""kill -9 at random moments while the disk cache is written.

usage: test_cache_crash.py PROGRAM [--rounds=N] [--seed=N] [test options]   50 rounds; a long run is --rounds=1000

Every round starts the program on the same folder, asks for what earlier rounds left, then for fresh prompts, and kills
it at a random moment. Always: no load meets damage, every record is sound, every answer is the one that a program
without a cache gives, and what was found before is found again.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import common
from common import Case, NANO, environment

FRESH, ASKED, VERIFIED_EVERY = 6, 8, 5
rounds, seed = 50, 20260101


def prompt(number):
    dice = random.Random(number)
    return {"id": number, "token_ids": [dice.randrange(3, 600) for _ in range(dice.randrange(70, 200))],
            "sampling_params": {"temperature": 0, "max_tokens": 4, "ignore_eos": True, "logits_hash": True}}


def essence(line):
    choice = line["choices"][0]
    return choice["token_ids"], choice["logits_hash"]


class Program:
    def __init__(self, folder, *more):
        command = [common.BINARY, "generate", NANO, "--json", "--cache-dir", folder, "--cache-ram", "0",
                   "--threads", "1", *more]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, env=environment())

    def send(self, number):
        self.process.stdin.write((json.dumps(prompt(number)) + "\n").encode())
        self.process.stdin.flush()

    def ask(self, number):
        self.send(number)
        return json.loads(self.process.stdout.readline())

    def kill(self):
        """What it had complained about; that a large folder takes long to list is no fault."""
        self.process.kill()
        lines = self.process.communicate()[1].decode().splitlines(keepends=True)
        return "".join(line for line in lines if "is still being listed" not in line)


class Crash(Case):
    def check_folder(self, folder):
        verified = self.ok("cache", "verify", folder, "--json").lines()
        self.assertEqual(verified[-1]["damaged"], 0, verified)
        return verified[-1]

    def one_round(self, folder, dice, asked, more=()):
        """Returns the numbers that were found, and answers by number."""
        answers, found = {}, set()
        program = Program(folder, *more)
        if dice.random() < 0.1:  # while it starts: it lists, clears away, evicts
            time.sleep(dice.random() * 0.1)
            return answers, None, program.kill()
        for number in asked:
            line = program.ask(number)
            answers[number] = essence(line)
            if line["usage"]["cached_tokens"] == line["usage"]["prompt_tokens"] - 1:  # all that can be
                found.add(number)
        fresh = [self.next + i for i in range(FRESH)]
        self.next += FRESH
        for number in fresh:
            program.send(number)
        answered = fresh[:dice.randrange(1, FRESH)]
        for number in answered:
            answers[number] = essence(json.loads(program.process.stdout.readline()))
        time.sleep(dice.random() ** 3 * 0.02)  # the states of the last answers are being written
        complaints = program.kill()
        self.pending.update(answered)
        return answers, found, complaints

    def test_killed_at_random_moments(self):
        dice = random.Random(seed)
        answers, known, lost, asked_again, torn = {}, set(), 0, 0, 0
        self.next, self.pending = 0, set()
        with tempfile.TemporaryDirectory() as folder:
            for number in range(rounds):
                again = dice.sample(sorted(known), min(ASKED, len(known)))
                news = dice.sample(sorted(self.pending), min(ASKED, len(self.pending)))
                got, found, complaints = self.one_round(folder, dice, again + news)
                self.assertEqual(complaints, "", f"round {number}")
                torn += len(list(pathlib.Path(folder).rglob("*.tmp")))
                if number % VERIFIED_EVERY == 0:
                    self.check_folder(folder)
                for key, value in got.items():
                    self.assertEqual(answers.setdefault(key, value), value, f"round {number}, prompt {key}")
                if number % 100 == 99:
                    print(f"\n{number + 1} rounds, {asked_again} asked again, {lost} lost, {torn} writes interrupted",
                          file=sys.stderr, flush=True)
                if found is None:
                    continue
                asked_again += len(again)
                lost += len(set(again) - found)
                known |= found
                self.pending -= set(news)
            self.assertGreater(len(known), rounds)  # the folder does serve
            self.assertLessEqual(lost, 0.05 * asked_again, f"{lost} of {asked_again} were lost")
            self.check_folder(folder)
            # Nothing of an interrupted write is left once a program has started.
            self.ok("generate", NANO, "--prompt", "x", "--max-tokens", "1", "--cache-dir", folder)
            self.assertEqual(self.check_folder(folder)["temporary"], 0)
        lines = "".join(json.dumps(prompt(key)) + "\n" for key in sorted(answers))
        for line in self.ok("generate", NANO, "--json", "--cache-ram", "0", stdin=lines).lines():
            self.assertEqual(essence(line), answers[line["id"]], f"prompt {line['id']}")
        print(f"\n{rounds} rounds, {len(answers)} prompts, {asked_again} asked again, {lost} lost, {torn} writes "
              "interrupted", file=sys.stderr)

    def test_killed_while_it_evicts(self):
        dice = random.Random(seed + 1)
        answers = {}
        self.next, self.pending = 0, set()
        with tempfile.TemporaryDirectory() as folder:
            for number in range(max(6, rounds // 5)):
                asked = dice.sample(range(self.next), min(4, self.next))
                got, _, complaints = self.one_round(folder, dice, asked, ("--cache-disk", "600k"))
                self.assertEqual(complaints, "", f"round {number}")
                self.assertLessEqual(self.check_folder(folder)["bytes"], 600 << 10)
                for key, value in got.items():
                    self.assertEqual(answers.setdefault(key, value), value, f"round {number}, prompt {key}")


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        name, _, value = argument.partition("=")
        if name in ("--rounds", "--seed"):
            globals()[name[2:]] = int(value)
            sys.argv.remove(argument)
    common.main()
