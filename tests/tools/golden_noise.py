#!/usr/bin/env python3
"""Golden vectors of the sampler, made independently of the C code: pure Python, its own Philox and XXH64.

    python3 tests/tools/golden_noise.py            writes tests/data/sampling/{noise,cases}.jsonl
    python3 tests/tools/golden_noise.py --check    compares with the files that are there

noise.jsonl: one object a line {seed, sample, prompt, key, position, noise: [[id, E as hexadecimal float], ...]}.
cases.jsonl: one row and one set of parameters a line with the id chosen; absent parameters are neutral. The row is made
by `row` below, which the C test repeats, so that no file of floats is needed.
"""
import json
import math
import os
import struct
import sys

M32 = (1 << 32) - 1
M64 = (1 << 64) - 1
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "sampling")


# ---------------------------------------------------------------------- XXH64 and Philox4x32-10, from their papers
P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                      0x27D4EB2F165667C5)


def rotate(x, n):
    return (x << n | x >> (64 - n)) & M64


def xxh64_round(lane, word):
    return rotate((lane + word * P2) & M64, 31) * P1 & M64


def xxh64(data, seed=0):
    at, n = 0, len(data)
    if n >= 32:
        lanes = [(seed + P1 + P2) & M64, (seed + P2) & M64, seed, (seed - P1) & M64]
        while at + 32 <= n:
            words = struct.unpack_from("<4Q", data, at)
            lanes = [xxh64_round(lane, word) for lane, word in zip(lanes, words)]
            at += 32
        h = sum(rotate(lane, r) for lane, r in zip(lanes, (1, 7, 12, 18))) & M64
        for lane in lanes:
            h = ((h ^ xxh64_round(0, lane)) * P1 + P4) & M64
    else:
        h = (seed + P5) & M64
    h = (h + n) & M64
    while at + 8 <= n:
        h = (rotate(h ^ xxh64_round(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & M64
        at += 8
    if at + 4 <= n:
        h = (rotate(h ^ struct.unpack_from("<I", data, at)[0] * P1 & M64, 23) * P2 + P3) & M64
        at += 4
    while at < n:
        h = rotate(h ^ data[at] * P5 & M64, 11) * P1 & M64
        at += 1
    h = (h ^ h >> 33) * P2 & M64
    h = (h ^ h >> 29) * P3 & M64
    return h ^ h >> 32


def philox(key, counter):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ k[0], b & M32, a >> 32 ^ c[3] ^ k[1], a & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


# ---------------------------------------------------------------------- the contract
def make_key(seed, sample, prompt):
    ids = xxh64(struct.pack("<%di" % len(prompt), *prompt))
    return xxh64(struct.pack("<QIQ", seed, sample, ids))


def noise(key, position, v):
    bits = philox((key & M32, key >> 32), (v >> 2, position & M32, 0, 1))[v & 3]
    u = min((bits + 0.5) * 2.0 ** -32, 1 - 2.0 ** -24)
    return -math.log1p(-u)


def f32(x):
    """Nearest float, saturated at the largest finite one."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(3.4028234663852886e38, x)


def row(seed, count, span, levels):
    """Exact in fp32: sums of four 24-bit draws, or `levels` distinct values."""
    state, out = seed, []

    def draw():
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & M64
        z = state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
        return (z ^ z >> 31) >> 40

    for _ in range(count):
        if levels:
            out.append(float(draw() % levels - levels // 2) * span)
        else:
            out.append(float((draw() + draw() + draw() + draw() - 4 * 2 ** 23) >> 2) * 2.0 ** -23 * span)
    return out


def sample(case):
    n = case["count"]
    x = row(case["row"], n, case["span"], case["levels"])
    for v, bias in case.get("bias", []):
        x[v] = f32(x[v] + f32(bias))
    repetition, presence, frequency = (f32(case.get(name, neutral)) for name, neutral in
                                       (("repetition", 1.0), ("presence", 0.0), ("frequency", 0.0)))
    for v, prompt, output in case.get("counts", []):
        if prompt or output:
            x[v] = f32(x[v] / repetition) if x[v] > 0 else f32(x[v] * repetition)
        if output:
            x[v] = f32(f32(x[v] - presence) - f32(frequency * output))
    gone = set(case.get("banned", []))
    order = sorted((v for v in range(n) if v not in gone), key=lambda v: (-x[v], v))
    if not order:
        return -1
    temperature = f32(case["temperature"])
    if temperature == 0:
        return order[0]
    scaled = [value / temperature for value in x]
    best = scaled[order[0]]

    def relative(v):
        return f32(math.exp(f32(scaled[v] - best))) if scaled[v] - best >= -28 else 0.0

    if case.get("top_k", 0) > 0:
        order = order[:case["top_k"]]
    top_p = f32(case.get("top_p", 1.0))
    if top_p < 1:
        weights = [int(relative(v) * 2 ** 40) for v in order]
        need = -((-max(1, int(top_p * 2 ** 32)) * sum(weights)) >> 32)
        kept, before = [], 0
        for v, weight in zip(order, weights):
            if before >= need:
                break
            kept.append(v)
            before += weight
        order = kept
    min_p = f32(case.get("min_p", 0.0))
    order = [v for v in order if relative(v) >= min_p]
    return max(order, key=lambda v: (scaled[v] - math.log(noise(case["key"], case["position"], v)), -v))


# ---------------------------------------------------------------------- the cases
class Draw:
    """A small generator of our own, so that the files do not depend on Python's."""

    def __init__(self, seed):
        self.key, self.count = (seed, 0), 0

    def below(self, n):
        self.count += 1
        return philox(self.key, (self.count, 0, 0, 0))[0] * n >> 32

    def pick(self, *values):
        return values[self.below(len(values))]


def noise_lines():
    d = Draw(1)
    for i in range(24):
        seed = d.pick(0, 1, 42, M64, d.below(1 << 32) << 32 | d.below(1 << 32))
        which = d.pick(0, 0, 1, 7, 4095)
        prompt = [d.below(129280) for _ in range((0, 1, 2, 7, 8, 9, 31, 100)[i % 8])]
        key, position = make_key(seed, which, prompt), d.pick(1, 17, 4096, 1048575)
        ids = [0, 1, 2, 3, 4, 5, 127, 128, 4095, 129279] + [d.below(129280) for _ in range(30)]
        yield {"seed": seed, "sample": which, "prompt": prompt, "key": key, "position": position,
               "noise": [[v, noise(key, position, v).hex()] for v in ids]}
    # Words with 24 leading ones (u is clamped) and with 27 leading zeros, found by search.
    key = make_key(0, 0, [])
    for position, v in ((40, 71429), (119, 107677), (3116, 53471), (3823, 6585)):
        yield {"seed": 0, "sample": 0, "prompt": [], "key": key, "position": position,
               "noise": [[v, noise(key, position, v).hex()]]}


def case_lines():
    d = Draw(2)
    for i in range(620):
        large = i >= 616
        n = 129280 if large else d.pick(1, 2, 5, 63, 64, 65, 200, 257, 512)
        case = {"row": d.below(1 << 32), "count": n, "span": d.pick(0.5, 4.0, 16.0, 64.0), "levels": d.pick(0, 0, 3, 40),
                "key": d.below(1 << 32) << 32 | d.below(1 << 32), "position": d.below(1 << 20),
                "temperature": d.pick(0.0, 1.0, 1.0, 0.7, 0.6, 0.2, 1e-6, 1.7, 30.0, 1e6)}
        if large:
            case.update(span=16.0, levels=0, temperature=(1.0, 0.7, 1.0, 1.5)[i - 616])
        if d.below(3) == 0:
            case["top_k"] = d.pick(1, 2, 3, 20, 50, 1000)
        if d.below(3) == 0:
            case["top_p"] = d.pick(0.95, 0.9, 0.5, 0.1, 0.999, 1e-6, 1e-12)
        if d.below(4) == 0:
            case["min_p"] = d.pick(0.01, 0.05, 0.3, 1.0)
        if d.below(4) == 0:
            case["bias"] = [[v, d.pick(-100.0, -1.5, 0.1, 3.0, 100.0)]
                            for v in sorted({d.below(n) for _ in range(5)})]
        if d.below(3) == 0:
            case["counts"] = [[v, d.below(3), d.below(4)] for v in sorted({d.below(n) for _ in range(20)})]
            case.update(repetition=d.pick(1.0, 1.1, 1.3, 0.8), presence=d.pick(0.0, 0.5, -0.3, 2.0),
                        frequency=d.pick(0.0, 0.1, -0.7, 2.0))
        if d.below(4) == 0:
            case["banned"] = sorted({d.below(n) for _ in range(d.pick(1, 3, 400))})
        case["id"] = sample(case)
        yield case


def main():
    assert xxh64(b"") == 0xEF46DB3751D8E999 and xxh64(b"abc") == 0x44BC2CF5AD770999
    assert philox((0, 0), (0, 0, 0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    failed = False
    for name, lines in (("noise.jsonl", noise_lines()), ("cases.jsonl", case_lines())):
        path = os.path.join(FOLDER, name)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        if sys.argv[1:] == ["--check"]:
            with open(path) as stored:
                same = stored.read() == text
            print(name, "equal" if same else "differs")
            failed |= not same
        else:
            with open(path, "w") as out:
                out.write(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
