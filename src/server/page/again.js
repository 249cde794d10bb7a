// again.js - "Same again?": sends a request once more in the middle of a crowd of others and compares what comes back.

import { Answer, chatBody, streamChat } from "./api.js";

const QUESTIONS = [
    "Where is my order?", "How do I return a pair of shoes?", "Can I change my delivery address?", "My parcel arrived damaged.",
    "Do you ship abroad?", "I was charged twice.", "How long does a refund take?", "Is the blue one in stock?",
    "Please cancel my subscription.", "How do I reset my password?", "The coupon does not work.", "I need an invoice.",
];
const MOST_GROUPS = 3;
const HEAD_START_MS = 3000; // at most; the crowd should be there first

/** First place where two texts differ, -1 if nowhere. */
export function firstDifference(a, b) {
    const most = Math.min(a.length, b.length);
    for (let i = 0; i < most; i++) if (a[i] !== b[i]) return i;
    return a.length === b.length ? -1 : most;
}

/** What an answer said, in one text, so that two of them can be compared. */
export function transcript(answer) {
    return parts(answer).join("\u0000");
}

function parts(answer) {
    return [answer.reasoning, answer.content, ...answer.toolCalls.flatMap((call) => [call.name, call.arguments])];
}

const bytes = (text) => new TextEncoder().encode(text).length;

/**
 * request, seed: what was sent for `first`, an Answer. size: how many others. onProgress({dots, matched(), total}) is called
 * with every piece; matched: characters that agree so far; dots: for each of the crowd "", "on" or "refused".
 * Returns {equal, bytes, tokens, hash, others, where}; where: what differs and the two excerpts.
 */
export async function sameAgain({ request, seed, first, size, key, signal, onProgress }) {
    const crowd = new AbortController();
    signal.addEventListener("abort", () => crowd.abort(), { once: true });
    const dots = Array(size).fill("");
    const wanted = transcript(first);
    const second = new Answer();
    let allThere = () => {};
    const crowded = new Promise((resolve) => (allThere = resolve));
    const matched = () => {
        const at = firstDifference(wanted, transcript(second));
        return at < 0 ? wanted.length : at;
    };
    const progress = () => onProgress({ dots, matched, total: wanted.length });

    // A browser opens six connections to a server at most, and one of them must stay free: the crowd comes as a few requests
    // for several answers each. Some share the conversation up to its last message, some begin with something else: both
    // kinds of neighbour, in the step and in the cache. Who has been answered asks again, so that the crowd stays.
    const neighbours = async (group, from, count) => {
        const question = { role: "user", content: QUESTIONS[Math.floor(Math.random() * QUESTIONS.length)] };
        const messages = group % 2 ? [question] : [...request.messages.slice(0, -1), question];
        const theirs = { ...request, tools: undefined, messages, temperature: 1, n: count };
        const mark = (i, dot) => {
            if (dots[i] === dot || i >= from + count) return;
            dots[i] = dot;
            progress();
            if (dots.every(Boolean)) allThere();
        };
        const onChunk = (chunk) => chunk.choices?.forEach((choice) => mark(from + choice.index, "on"));
        try {
            for (let time = 0; !crowd.signal.aborted; time++) await streamChat(chatBody(theirs, 1 + from + time * size), { key, signal: crowd.signal, onChunk });
        } catch (error) {
            for (let i = from; i < from + count && error.name !== "AbortError"; i++) mark(i, "refused");
        }
    };
    const groups = Math.min(size, MOST_GROUPS);
    const others = Array.from({ length: groups }, (_, i) => {
        const from = Math.floor(i * size / groups);
        return neighbours(i, from, Math.floor((i + 1) * size / groups) - from);
    });
    try {
        await Promise.race([crowded, Promise.allSettled(others), new Promise((resolve) => setTimeout(resolve, HEAD_START_MS))]);
        await streamChat(chatBody(request, seed), {
            key, signal,
            onChunk: (chunk) => {
                second.add(chunk);
                progress();
            },
        });
    } finally {
        crowd.abort();
        await Promise.allSettled(others);
    }
    return {
        equal: compare(first, second) === null, where: compare(first, second), bytes: bytes(parts(first).join("")), tokens: second.tokenIds?.length ?? 0,
        hash: first.logitsHash && second.logitsHash ? second.logitsHash : "", others: dots.filter((dot) => dot === "on").length,
    };
}

/** null when equal, else {what, at, first, second}. */
export function compare(first, second) {
    const a = transcript(first);
    const b = transcript(second);
    const at = firstDifference(a, b);
    if (at >= 0) {
        const from = Math.max(0, at - 12);
        return { what: "The text", at: bytes(a.slice(0, at)), first: a.slice(from, at + 24), second: b.slice(from, at + 24) };
    }
    if (first.tokenIds && second.tokenIds) {
        const token = first.tokenIds.findIndex((id, i) => id !== second.tokenIds[i]);
        if (token >= 0 || first.tokenIds.length !== second.tokenIds.length)
            return { what: "Token ids", at: token, first: String(first.tokenIds[token]), second: String(second.tokenIds[token]) };
    }
    if (first.logitsHash && second.logitsHash && first.logitsHash !== second.logitsHash)
        return { what: "The hash of the logits", at: 0, first: first.logitsHash, second: second.logitsHash };
    if (first.finish !== second.finish) return { what: "The reason of the end", at: 0, first: first.finish, second: second.finish };
    return null;
}
