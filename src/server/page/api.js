// api.js - requests to this server: chat answers as a stream of server-sent events, the model's name, health, metrics.
//
// Everything is relative to the page's own address, so that a proxy may put the server below a path.

const base = new URL(".", document.baseURI);

/** What went wrong, as a person and as a program want to know it. status 0: no answer at all. */
export class ApiError extends Error {
    constructor(message, { status = 0, type = "", param = "", retryAfter = "", requestId = "" } = {}) {
        super(message);
        Object.assign(this, { status, type, param, retryAfter, requestId });
    }
}

function headers(key, more = {}) {
    return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

function errorOf(body, details = {}) {
    const error = body && typeof body === "object" ? body.error : null;
    if (typeof error === "string") return new ApiError(error, details);
    if (!error || typeof error.message !== "string") return null;
    return new ApiError(error.message, { ...details, type: String(error.type ?? ""), param: String(error.param ?? "") });
}

async function refusal(response) {
    const details = {
        status: response.status,
        retryAfter: response.headers.get("Retry-After") ?? "",
        requestId: response.headers.get("x-request-id") ?? "",
    };
    let text = "";
    try {
        text = await response.text();
        const error = errorOf(JSON.parse(text), details);
        if (error) return error;
    } catch {
        // not JSON: the status has to do
    }
    return new ApiError(text.slice(0, 300) || `The server answered ${response.status} ${response.statusText}`.trim() + ".", details);
}

async function reach(path, options) {
    try {
        return await fetch(new URL(path, base), { cache: "no-store", credentials: "same-origin", redirect: "error", ...options });
    } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError("The server cannot be reached.");
    }
}

/** Splits bytes into the data of server-sent events, however the network has cut them. */
export class EventSplitter {
    #decoder = new TextDecoder();
    #rest = "";
    #data = [];

    /** Calls onData(text) for each complete event. */
    push(bytes, onData) {
        this.#rest += this.#decoder.decode(bytes, { stream: true });
        // A lone \r at the end may be half of \r\n.
        const lines = this.#rest.split(/\r\n|\n|\r(?!$)/);
        this.#rest = lines.pop();
        for (const line of lines) {
            if (line === "") {
                if (this.#data.length) onData(this.#data.join("\n"));
                this.#data = [];
            } else if (line.startsWith("data:")) {
                this.#data.push(line.slice(line[5] === " " ? 6 : 5));
            }
        }
    }
}

/** The body of a chat request as text. The seed is spliced in: it may exceed what a JavaScript number holds. */
export function chatBody(request, seed) {
    return `${JSON.stringify(request).slice(0, -1)},"seed":${seed}}`;
}

/**
 * Sends a chat request and calls onChunk(chunk) for each piece. Returns when the answer is complete, throws ApiError
 * when it is not, AbortError when `signal` fired.
 */
export async function streamChat(body, { key, signal, onChunk }) {
    const response = await reach("v1/chat/completions", {
        method: "POST", body, signal, headers: headers(key, { "Content-Type": "application/json", Accept: "text/event-stream" }),
    });
    if (!response.ok) throw await refusal(response);
    const requestId = response.headers.get("x-request-id") ?? "";
    const reader = response.body.getReader();
    const splitter = new EventSplitter();
    let complete = false;
    try {
        while (!complete) {
            const { done, value } = await reader.read();
            if (done) break;
            splitter.push(value, (data) => {
                if (data === "[DONE]") {
                    complete = true;
                    return;
                }
                let chunk;
                try {
                    chunk = JSON.parse(data);
                } catch {
                    throw new ApiError("The server sent an event that is not JSON.", { requestId });
                }
                const error = errorOf(chunk, { requestId });
                if (error) throw error;
                onChunk(chunk);
            });
        }
    } catch (error) {
        if (error instanceof ApiError || error.name === "AbortError") throw error;
        throw new ApiError("The connection broke before the answer was complete.", { requestId });
    } finally {
        reader.cancel().catch(() => {});
    }
    if (!complete) throw new ApiError("The answer ended before the server said that it was complete.", { requestId });
}

/** Collects the chunks of one answer. */
export class Answer {
    content = "";
    reasoning = "";
    toolCalls = [];
    finish = "";
    usage = null;
    tokenIds = null;
    tokens = []; // texts of the tokens, if log-probabilities were asked for
    drafts = []; // records, if they were asked for
    logitsHash = "";
    seed = "";
    started = performance.now();
    firstAt = 0;
    answerAt = 0;
    endedAt = 0;
    #decoder = new TextDecoder();

    add(chunk) {
        if (chunk.usage) this.usage = chunk.usage;
        const choice = chunk.choices?.[0];
        if (!choice) return;
        const delta = choice.delta ?? {};
        const thought = delta.reasoning_content ?? delta.reasoning ?? "";
        if (thought) this.reasoning += thought;
        if (delta.content) this.content += delta.content;
        for (const part of delta.tool_calls ?? []) this.#addCall(part);
        const now = performance.now();
        if (!this.firstAt && (thought || delta.content || delta.tool_calls)) this.firstAt = now;
        if (!this.answerAt && (delta.content || delta.tool_calls)) this.answerAt = now;
        if (choice.finish_reason) this.finish = choice.finish_reason;
        if (Array.isArray(choice.token_ids)) this.tokenIds = [...(this.tokenIds ?? []), ...choice.token_ids];
        const { reasoning_content: thoughts, content: said } = choice.logprobs ?? {};
        for (const entry of [...(thoughts ?? []), ...(said ?? [])])
            this.tokens.push(entry.bytes ? this.#decoder.decode(new Uint8Array(entry.bytes), { stream: true }) : entry.token);
        if (Array.isArray(choice.drafts)) this.drafts.push(...choice.drafts);
        if (choice.logits_hash) this.logitsHash = choice.logits_hash;
    }

    #addCall(part) {
        const index = part.index ?? this.toolCalls.length;
        if (!Number.isInteger(index) || index < 0 || index > 1024) return;
        while (this.toolCalls.length <= index) this.toolCalls.push({ id: "", name: "", arguments: "" });
        const call = this.toolCalls[index];
        if (part.id) call.id = part.id;
        if (part.function?.name) call.name = part.function.name;
        if (part.function?.arguments) call.arguments += part.function.arguments;
    }

    end() {
        this.endedAt = performance.now();
    }
}

export async function getModel(key) {
    const response = await reach("v1/models", { headers: headers(key) });
    if (!response.ok) throw await refusal(response);
    const list = await response.json();
    return list.data?.[0] ?? null;
}

/** {ready, reason}. */
export async function getHealth(key) {
    const response = await reach("health/ready", { headers: headers(key) });
    if (response.ok) return { ready: true, reason: "" };
    if (response.status === 503) {
        let reason = "";
        try {
            const body = await response.json();
            reason = String(body.reason ?? body.error?.message ?? "");
        } catch {
            // the status says enough
        }
        return { ready: false, reason };
    }
    throw await refusal(response);
}

/** Prometheus text as a Map from series ('name' or 'name{labels}') to number; series of one name are also summed under the bare name. */
export async function getMetrics(key) {
    const response = await reach("metrics", { headers: headers(key) });
    if (!response.ok) throw await refusal(response);
    const values = new Map();
    for (const line of (await response.text()).split("\n")) {
        const match = /^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)/.exec(line);
        if (!match) continue;
        const value = Number(match[3]);
        if (match[2]) values.set(match[1] + match[2], value);
        values.set(match[1], (values.get(match[1]) ?? 0) + value);
    }
    return values;
}
