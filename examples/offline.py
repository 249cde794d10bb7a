#!/usr/bin/env python3
"""Completes a batch of prompts and answers two conversations: offline.py [MODEL]"""

import sys

from deepinfer import LLM, SamplingParams

PROMPTS = ["Hello, my name is", "I would like to book a table", "The weather in Boston is", "Please cancel my"]
CONVERSATIONS = [
    [{"role": "user", "content": "Hello, who are you?"}],
    [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "I would like to book a table for two in San Francisco."},
    ],
]


def main() -> None:
    with LLM(sys.argv[1] if len(sys.argv) > 1 else None, max_model_len=1024) as llm:
        params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=24, seed=1)
        for output in llm.generate(PROMPTS, params):
            print(f"{output.prompt!r} -> {output.outputs[0].text!r}")

        for output in llm.chat(CONVERSATIONS, SamplingParams(temperature=0, max_tokens=64)):
            print(f"answer: {output.outputs[0].text!r} ({output.usage.completion_tokens} tokens)")

        for piece in llm.stream(
            messages=CONVERSATIONS[0], sampling_params=SamplingParams(temperature=0, max_tokens=64)
        ):
            print(piece.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
