// live.js - the panel that shows what the server does: queue, tokens per second, cache, step time; from /metrics.

import { getHealth, getMetrics } from "./api.js";

const POINTS = 60;
const BUSY_MS = 1000;
const IDLE_MS = 3000;
const MOST_MS = 15000;

/** Figures of the time between two samples of /metrics. Missing series give null. */
export function figures(before, now, seconds) {
    const value = (name) => now.get(name) ?? null;
    const grown = (name) => (before?.has(name) && now.has(name) ? now.get(name) - before.get(name) : null);
    const steps = grown("deepinfer_step_compute_seconds_count");
    const busy = grown("deepinfer_step_compute_seconds_sum");
    const output = grown("deepinfer_output_tokens_total");
    const prompt = value("deepinfer_prompt_tokens_total");
    const cached = (value("deepinfer_cached_tokens_ram_total") ?? 0) + (value("deepinfer_cached_tokens_disk_total") ?? 0);
    const drafted = value("deepinfer_draft_tokens_total");
    return {
        running: value("deepinfer_running_sequences"),
        queue: value("deepinfer_queue_requests"),
        tokens: output === null || output < 0 ? null : output / seconds,
        step: steps > 0 ? busy / steps : null,
        cache: prompt ? cached / prompt : null,
        drafts: drafted ? value("deepinfer_accepted_draft_tokens_total") / drafted : null,
    };
}

function seconds(value) {
    if (value >= 1) return `${value.toFixed(2)} s`;
    return `${(value * 1000).toPrecision(3).replace(/\.?0+$/, "")} ms`;
}

const share = (value) => `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;

class Spark {
    #values = [];
    #line;

    constructor(id) {
        this.#line = document.querySelector(`#${id} polyline`);
    }

    add(value) {
        this.#values.push(value ?? 0);
        if (this.#values.length > POINTS) this.#values.shift();
        const most = Math.max(...this.#values) || 1;
        const from = POINTS - this.#values.length;
        this.#line.setAttribute("points", this.#values
            .map((v, i) => `${((from + i) * 120 / (POINTS - 1)).toFixed(1)},${(26 - 24 * v / most).toFixed(1)}`).join(" "));
    }
}

export class Live {
    #key;
    #visible;
    #before = null;
    #beforeAt = 0;
    #failures = 0;
    #idle = false;
    #healthAt = -Infinity;
    #sparks = { tokens: new Spark("spark-tokens"), step: new Spark("spark-step") };

    /** key(): the API key or ""; visible(): whether anybody can see the panel. */
    constructor({ key, visible }) {
        this.#key = key;
        this.#visible = visible;
        document.addEventListener("visibilitychange", () => document.hidden || this.now());
        this.#tick();
    }

    /** Looks at once, because the key changed or something begins. */
    now() {
        this.#failures = 0;
        this.#idle = false;
        this.#healthAt = -Infinity;
        clearTimeout(this.timer);
        this.#tick();
    }

    async #tick() {
        if (!document.hidden) {
            await this.#checkHealth();
            if (this.#visible()) await this.#sample();
        }
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.#tick(), Math.min((this.#idle ? IDLE_MS : BUSY_MS) * 2 ** this.#failures, MOST_MS));
    }

    async #checkHealth() {
        if (performance.now() - this.#healthAt < 4000) return;
        this.#healthAt = performance.now();
        try {
            const { ready, reason } = await getHealth(this.#key());
            this.#lamp(ready ? "ready" : "waiting", ready ? "ready" : reason || "not ready");
        } catch (error) {
            if (error.status === 401 || error.status === 403) this.#lamp("waiting", "needs a key");
            else if (error.status) this.#lamp("unknown", "health unknown");
            else this.#lamp("down", "unreachable");
        }
    }

    #lamp(state, text) {
        const health = document.getElementById("health");
        if (health.dataset.state !== state) health.dataset.state = state;
        const label = document.getElementById("health-text");
        if (label.textContent !== text) label.textContent = text;
    }

    async #sample() {
        const note = document.getElementById("live-note");
        try {
            const now = await getMetrics(this.#key());
            const at = performance.now();
            if (this.#before && at - this.#beforeAt < BUSY_MS / 3) return; // too short a time for a rate
            this.#show(figures(this.#before, now, (at - this.#beforeAt) / 1000));
            this.#before = now;
            this.#beforeAt = at;
            this.#failures = 0;
            note.hidden = true;
        } catch (error) {
            this.#failures++;
            this.#before = null;
            note.textContent = error.status === 401 ? "The figures need the API key." : `No figures: ${error.message}`;
            note.hidden = false;
        }
    }

    #show(f) {
        this.#idle = f.running === 0 && f.queue === 0;
        const put = (id, text) => {
            document.getElementById(id).textContent = text;
        };
        put("live-running", f.running ?? "–");
        put("live-queue", f.queue ?? "–");
        put("live-tokens", f.tokens === null ? "–" : f.tokens.toFixed(f.tokens > 0 && f.tokens < 10 ? 1 : 0));
        put("live-step", f.step === null ? (f.running === 0 ? "idle" : "–") : seconds(f.step));
        put("live-cache", f.cache === null ? "–" : share(f.cache));
        document.getElementById("live-cache-bar").value = f.cache ?? 0;
        document.getElementById("live-drafts-row").hidden = f.drafts === null;
        if (f.drafts !== null) put("live-drafts", share(f.drafts));
        if (f.tokens === null) return; // the first sample: nothing to compare with
        this.#sparks.tokens.add(f.tokens);
        this.#sparks.step.add(f.step);
    }
}
