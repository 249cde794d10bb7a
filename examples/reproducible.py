#!/usr/bin/env python3
"""The same question alone and in a crowd, twice: the answers are equal byte for byte. reproducible.py [MODEL]"""

import sys

from deepinfer import LLM, SamplingParams

QUESTION = [{"role": "user", "content": "I need a hotel in London for three nights. What do you have?"}]
CROWD = [
    [{"role": "user", "content": f"Question {i}: what is the weather like " + "today and tomorrow " * (i % 7)}]
    for i in range(40)
]


def main() -> None:
    # Random sampling on purpose: with the seed the noise is fixed, and nothing else may move the answer.
    params = SamplingParams(temperature=1, max_tokens=48, seed=20261, logits_hash=True)
    others = SamplingParams(temperature=1, max_tokens=24)
    answers = []
    for run in range(2):
        # Another shape of the machine each time; the bits may not notice.
        with LLM(
            sys.argv[1] if len(sys.argv) > 1 else None, max_model_len=1024, threads=1 + run, chunk=7 + 50 * run
        ) as llm:
            alone = llm.chat(QUESTION, params)[0]
            crowd = llm.chat(CROWD[:20] + [QUESTION] + CROWD[20:], [others] * 20 + [params] + [others] * 20)[20]
            answers += [alone.outputs[0], crowd.outputs[0]]
            for name, output in (("alone", alone), ("in a crowd of 40", crowd)):
                print(f"run {run + 1}, {name}: logits {output.logits_hash} {output.outputs[0].text.encode()[:48]!r}...")
    for answer in answers[1:]:
        if (answer.token_ids, answer.text.encode(), answer.logits_hash) != (
            answers[0].token_ids,
            answers[0].text.encode(),
            answers[0].logits_hash,
        ):
            sys.exit("the answers differ; this must not happen")
    print("four answers, the same bytes")


if __name__ == "__main__":
    main()
