// app.js - the conversation: what was said, what is sent, and how it is shown.
//
// A turn is {role: "user", content}, {role: "tool", id, content} or an answer: {role: "assistant", request options, seed,
// what came back}. The request of an answer is made from the turns before it and its own options, so the same request can
// be sent again at any time. The conversation and the settings are kept in sessionStorage: they outlive a reload, not the tab.

import { Answer, ApiError, chatBody, getModel, streamChat } from "./api.js";
import { compare, sameAgain } from "./again.js";
import { showLab, showTokens } from "./lab.js";
import { Live } from "./live.js";
import { showMarkdown } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const SETTINGS = ["system", "thinking", "effort", "temperature", "max-tokens", "top-p", "top-k", "seed", "format", "schema", "tools", "crowd", "theme", "key", "lab-length", "lab-threshold"];
const TOOLS_EXAMPLE = [{
    type: "function",
    function: {
        name: "order_status", description: "State of an order.",
        parameters: { type: "object", properties: { order_number: { type: "string" } }, required: ["order_number"] },
    },
}];

let turns = [];
let model = null;
let live = null;
let running = null; // {controller, turn} while an answer or a comparison is under way
const views = new Map(); // turn -> its element

// ------------------------------------------------------------------------------------------------ settings

function optionalNumber(id) {
    const text = $(id).value.trim();
    return text === "" ? undefined : Number(text);
}

/** JSON of a settings field; undefined when it is empty. `right(value)`: null, or what would be right. */
function parseJson(id, name, right) {
    const text = $(id).value.trim();
    if (!text) return undefined;
    let value;
    try {
        value = JSON.parse(text);
    } catch (error) {
        throw new ApiError(`${name} not JSON: ${error.message}`, { param: id });
    }
    if (!right(value)) throw new ApiError(`${name} not what is wanted here: ${$(id).placeholder}`, { param: id });
    return value;
}

function parseTools() {
    const tools = parseJson("tools", "Tools are", Array.isArray);
    return tools?.length ? tools : undefined;
}

function responseFormat() {
    const type = $("format").value;
    if (type !== "json_schema") return type ? { type } : undefined;
    const schema = parseJson("schema", "The schema is", (value) => typeof value === "boolean" || value?.constructor === Object);
    return { type, json_schema: { name: "answer", schema: schema ?? { type: "object" }, strict: true } };
}

/** Options of the next request, from the settings. Throws ApiError when one is not valid. */
function currentOptions() {
    for (const field of $("settings").elements) {
        if (field.validity && !field.validity.valid) {
            const name = field.labels[0].textContent;
            throw new ApiError(`${name}: ${field.validationMessage}`, { param: field.id });
        }
    }
    const thinking = $("thinking").value;
    return {
        system: $("system").value.trim() || undefined,
        thinking: thinking ? { type: thinking } : undefined,
        reasoning_effort: $("effort").value || undefined,
        temperature: optionalNumber("temperature"),
        top_p: optionalNumber("top-p"),
        top_k: optionalNumber("top-k"),
        max_tokens: optionalNumber("max-tokens"),
        response_format: responseFormat(),
        tools: parseTools(),
        ...(labOn() ? { draft_records: true, logprobs: true } : {}),
    };
}

const labOn = () => $("lab-on").checked;
const drawSeed = () => String(crypto.getRandomValues(new Uint32Array(1))[0]);
const nextSeed = () => $("seed").value.trim() || drawSeed();

function saveSettings() {
    store("settings", { ...Object.fromEntries(SETTINGS.map((id) => [id, $(id).value])), lab: labOn() });
}

function restoreSettings() {
    const saved = recall("settings") ?? {};
    for (const id of SETTINGS) if (typeof saved[id] === "string") $(id).value = saved[id];
    $("lab-on").checked = saved.lab === true;
    applyTheme();
    showSchema();
}

function showSchema() {
    $("schema-field").hidden = $("format").value !== "json_schema";
}

function applyTheme() {
    const theme = $("theme").value;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
}

function store(name, value) {
    try {
        sessionStorage.setItem(`deepinfer-${name}`, JSON.stringify(value));
    } catch {
        // full or forbidden: the page works without, only a reload forgets
    }
}

function recall(name) {
    try {
        return JSON.parse(sessionStorage.getItem(`deepinfer-${name}`));
    } catch {
        return null;
    }
}

const saveTurns = () => store("turns", turns);

// ------------------------------------------------------------------------------------------------ requests

/** The messages that precede turns[end]. Answers that failed before they said anything are left out. */
function messagesBefore(end, system) {
    const messages = system ? [{ role: "system", content: system }] : [];
    for (const turn of turns.slice(0, end)) {
        if (turn.role === "user") messages.push({ role: "user", content: turn.content });
        else if (turn.role === "tool") messages.push({ role: "tool", tool_call_id: turn.id, content: turn.content });
        else if (turn.content || turn.toolCalls.length) {
            const message = { role: "assistant", content: turn.content };
            if (turn.reasoning) message.reasoning_content = turn.reasoning;
            if (turn.toolCalls.length)
                message.tool_calls = turn.toolCalls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
            messages.push(message);
        }
    }
    return messages;
}

function requestOf(turn) {
    const { system, ...options } = turn.options;
    return {
        model: model?.id ?? "", messages: messagesBefore(turns.indexOf(turn), system), ...options,
        stream: true, stream_options: { include_usage: true }, return_token_ids: true, logits_hash: true,
    };
}

/** An Answer from a turn, for comparisons. */
function answerOf(turn) {
    return Object.assign(new Answer(), {
        content: turn.content, reasoning: turn.reasoning, toolCalls: turn.toolCalls, finish: turn.finish,
        tokenIds: turn.tokenIds, logitsHash: turn.logitsHash,
    });
}

function newAnswer(options, seed) {
    return {
        role: "assistant", options, seed, state: "running", content: "", reasoning: "", toolCalls: [], finish: "", usage: null,
        tokenIds: null, tokens: [], drafts: [], logitsHash: "", error: null, times: null, note: "",
    };
}

function take(turn, answer) {
    const { content, reasoning, toolCalls, finish, usage, tokenIds, tokens, drafts, logitsHash, started, firstAt, answerAt, endedAt } = answer;
    Object.assign(turn, { content, reasoning, toolCalls, finish, usage, tokenIds, tokens, drafts, logitsHash, times: { started, firstAt, answerAt, endedAt } });
}

function describe(error) {
    if (error instanceof ApiError) return { message: error.message, status: error.status, param: error.param, retryAfter: error.retryAfter, requestId: error.requestId };
    console.error(error);
    return { message: `The page failed: ${error.message}`, status: 0, param: "", retryAfter: "", requestId: "" };
}

/** Lets the server answer what precedes `turn`, and shows the answer as it comes. `earlier`: an Answer to compare with. */
async function generate(turn, earlier = null) {
    const controller = new AbortController();
    const answer = new Answer();
    begin(controller, turn);
    Object.assign(turn, newAnswer(turn.options, turn.seed));
    turn.times = { started: answer.started, firstAt: 0, answerAt: 0, endedAt: 0 };
    follow();
    paint(turn);
    try {
        await streamChat(chatBody(requestOf(turn), turn.seed), {
            key: $("key").value, signal: controller.signal,
            onChunk: (chunk) => {
                answer.add(chunk);
                take(turn, answer);
                schedulePaint(turn);
            },
        });
        turn.state = "done";
        if (earlier && transcriptLength(earlier)) turn.note = compare(earlier, answer) ? "Not the bytes of the answer before." : "The same bytes as before.";
    } catch (error) {
        turn.state = error.name === "AbortError" ? "stopped" : "failed";
        if (turn.state === "failed") turn.error = describe(error);
    }
    answer.end();
    take(turn, answer);
    finish();
    paint(turn);
    saveTurns();
    announce({ done: "The answer is complete.", stopped: "Stopped.", failed: "The request failed." }[turn.state]);
    if (turn.error?.status === 401) askForKey();
}

const transcriptLength = (answer) => answer.content.length + answer.reasoning.length + answer.toolCalls.length;

function begin(controller, turn) {
    running = { controller, turn };
    live?.now();
    $("send").hidden = true;
    $("stop").hidden = false;
    document.body.classList.add("busy");
    paintActions();
}

function finish() {
    const stopHadFocus = document.activeElement === $("stop");
    running = null;
    $("send").hidden = false;
    $("stop").hidden = true;
    if (stopHadFocus) $("prompt").focus();
    document.body.classList.remove("busy");
    paintActions();
}

function stop() {
    running?.controller.abort();
}

function send(text) {
    let options;
    try {
        options = currentOptions();
    } catch (error) {
        showPanel(true);
        settingFault(error);
        return false;
    }
    turns.push({ role: "user", content: text });
    const turn = newAnswer(options, nextSeed());
    turns.push(turn);
    showTurns();
    generate(turn);
    return true;
}

function settingFault(error) {
    announce(error.message);
    const note = $(`${error.param}-note`);
    if (note?.classList.contains("fault")) {
        note.textContent = error.message;
        note.hidden = false;
    }
    const field = $(error.param);
    field.focus();
    field.reportValidity();
}

function askForKey() {
    showPanel(true);
    $("key").focus();
}

// ------------------------------------------------------------------------------------------------ what is shown

function announce(text) {
    $("announce").textContent = text;
}

/** Keeps the end in sight while an answer grows, unless the reader has scrolled away. */
let following = true;
function follow() {
    following = true;
    scrollToEnd();
}
function scrollToEnd() {
    if (following) $("scroll").scrollTop = $("scroll").scrollHeight;
}

let scheduled = new Set();
function schedulePaint(turn) {
    if (!scheduled.size) {
        requestAnimationFrame(() => {
            const now = scheduled;
            scheduled = new Set();
            now.forEach(paint);
        });
    }
    scheduled.add(turn);
}

function showTurns() {
    const log = $("log");
    const wanted = turns.filter((turn) => turn.role !== "tool");
    for (const [turn, view] of views) {
        if (turns.includes(turn)) continue;
        view.remove();
        views.delete(turn);
    }
    for (const turn of wanted) {
        if (views.has(turn)) continue;
        const view = $(turn.role === "user" ? "user-template" : "answer-template").content.firstElementChild.cloneNode(true);
        if (turn.role === "user") view.querySelector(".said").textContent = turn.content;
        view.addEventListener("click", (event) => act(event, turn, view));
        view.querySelector(".thinking")?.addEventListener("toggle", (event) => {
            view.thinkingChosen ||= event.target.open !== view.thinkingOpen;
        });
        views.set(turn, view);
        log.append(view);
        if (turn.role === "assistant") paint(turn);
    }
    $("empty").hidden = turns.length > 0;
    paintActions();
}

function duration(seconds) {
    if (seconds < 1) return `${(1000 * seconds).toFixed(0)} ms`;
    return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

function paintThinking(turn, view) {
    const box = view.querySelector(".thinking");
    box.hidden = !turn.reasoning;
    if (!turn.reasoning) return;
    const thinking = turn.state === "running" && !turn.content && !turn.toolCalls.length;
    const thought = box.querySelector(".thought");
    if (thought.textContent !== turn.reasoning) thought.textContent = turn.reasoning;
    const { started, firstAt, answerAt, endedAt } = turn.times;
    const spent = ((answerAt || endedAt || performance.now()) - (firstAt || started)) / 1000;
    box.querySelector("summary").textContent = thinking ? "Thinking" : spent < 0.01 ? "Thought" : `Thought for ${duration(spent)}`;
    box.classList.toggle("active", thinking);
    if (view.thinkingChosen || box.open === thinking) return;
    view.thinkingOpen = thinking;
    box.open = thinking;
}

function pretty(text) {
    try {
        return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
        return text;
    }
}

function paintCalls(turn, view) {
    const place = view.querySelector(".calls");
    turn.toolCalls.forEach((call, i) => {
        let card = place.children[i];
        if (!card?.classList.contains("call")) {
            card = $("call-template").content.firstElementChild.cloneNode(true);
            place.append(card);
        }
        card.querySelector(".call-name").textContent = call.name;
        card.querySelector(".call-arguments").textContent = turn.state === "running" ? call.arguments : pretty(call.arguments);
        card.querySelector(".call-result").hidden = turn.state !== "done";
    });
    while (place.children.length > turn.toolCalls.length) place.lastElementChild.remove();
    if (!turn.toolCalls.length || turn.state !== "done") return;
    const results = turns.slice(turns.indexOf(turn) + 1, turns.indexOf(turn) + 1 + turn.toolCalls.length).filter((t) => t.role === "tool");
    const fields = place.querySelectorAll("textarea");
    results.forEach((result, i) => (fields[i].value = result.content));
    fields.forEach((field) => (field.readOnly = results.length > 0));
    if (results.length) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "primary small";
    button.dataset.action = "results";
    button.textContent = turn.toolCalls.length > 1 ? "Send the results" : "Send the result";
    place.append(button);
}

function paintFailure(turn, view) {
    const box = view.querySelector(".failure");
    box.hidden = !turn.error;
    box.replaceChildren();
    if (!turn.error) return;
    const { message, status, param, retryAfter, requestId } = turn.error;
    const add = (name, text) => {
        const node = document.createElement(name);
        node.textContent = text;
        box.append(node);
    };
    add("strong", message);
    const details = [status ? `HTTP ${status}` : "", param ? `field ${param}` : "", retryAfter ? `try again in ${retryAfter} s` : "", requestId ? `request ${requestId}` : ""];
    if (details.some(Boolean)) add("span", details.filter(Boolean).join(" · "));
}

/** With the lab on, an answer that was made with it is shown token by token: reasoning, markup of calls and all. */
function paintDrafts(turn, view) {
    const place = view.querySelector(".tokens");
    const inLab = labOn() && Boolean(turn.tokens?.length);
    place.hidden = !inLab;
    view.querySelector(".text").hidden = inLab;
    if (!inLab) return;
    view.querySelector(".thinking").hidden = true;
    showTokens(place, turn.tokens, turn.drafts);
    paintLab();
}

function paintLab() {
    const made = turns.filter((turn) => turn.options?.draft_records && turn.tokens?.length);
    showLab(made.flatMap((turn) => turn.drafts), made.some((turn) => turn.state === "done"));
}

function facts(turn) {
    const { usage, times, options } = turn;
    const parts = [`seed ${turn.seed}`];
    if (options.temperature !== undefined) parts.push(`temperature ${options.temperature}`);
    if (usage) {
        const count = usage.completion_tokens;
        parts.push(`${count} token${count === 1 ? "" : "s"}`);
        const span = (times.endedAt - times.firstAt) / 1000;
        if (count > 1 && span > 0.1) parts.push(`${((count - 1) / span).toFixed(0)} per second`);
    }
    if (times?.firstAt) parts.push(`first after ${duration((times.firstAt - times.started) / 1000)}`);
    const cached = usage?.prompt_tokens_details?.cached_tokens ?? usage?.prompt_cache_hit_tokens;
    if (cached !== undefined) parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens cached`);
    if (usage?.draft_tokens) parts.push(`${usage.accepted_draft_tokens} of ${usage.draft_tokens} drafts accepted`);
    if (turn.state === "stopped") parts.push("stopped");
    else if (turn.finish === "length") parts.push("cut at the limit of tokens");
    if (turn.logitsHash) parts.push(`logits ${turn.logitsHash}`);
    if (turn.note) parts.push(turn.note);
    return parts;
}

function paint(turn) {
    const view = views.get(turn);
    if (!view) return;
    view.dataset.state = turn.state;
    view.setAttribute("aria-busy", String(turn.state === "running"));
    paintThinking(turn, view);
    showMarkdown(view.querySelector(".text"), turn.content);
    paintDrafts(turn, view);
    paintCalls(turn, view);
    paintFailure(turn, view);
    view.querySelector(".waiting").hidden = turn.state !== "running" || Boolean(turn.content || turn.reasoning || turn.toolCalls.length);
    const line = view.querySelector(".facts");
    line.hidden = turn.state === "running" || turn.state === "failed" && !turn.content;
    line.replaceChildren(...facts(turn).map((text) => Object.assign(document.createElement("span"), { textContent: text })));
    scrollToEnd();
}

/** Which buttons make sense now. */
function paintActions() {
    turns.forEach((turn) => {
        const view = views.get(turn);
        if (!view) return;
        const busy = running !== null;
        const allow = (action, when) => {
            const button = view.querySelector(`[data-action="${action}"]`);
            if (button) button.disabled = !when;
        };
        for (const action of ["edit", "retry", "reseed", "results"]) allow(action, !busy);
        allow("again", !busy && turn.state === "done");
        allow("copy", turn.state !== "running" && Boolean(turn.content || turn.reasoning));
    });
}

// ------------------------------------------------------------------------------------------------ actions

async function copy(text, button) {
    try {
        await navigator.clipboard.writeText(text);
    } catch {
        // No clipboard without https: the old way.
        const field = Object.assign(document.createElement("textarea"), { value: text, className: "hidden-label" });
        document.body.append(field);
        field.select();
        document.execCommand("copy");
        field.remove();
        button.focus();
    }
    const label = button.textContent;
    if (label === "Copied") return;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
}

/** Everything behind `turn` is forgotten: it answers what is about to change. */
function forgetAfter(turn) {
    turns.splice(turns.indexOf(turn) + 1);
    showTurns();
}

function act(event, turn, view) {
    const button = event.target.closest("button");
    const action = button?.dataset.action;
    if (action === "copy") copy(turn.content || turn.reasoning, button);
    if (action === "copy-code") copy(button.closest("figure").querySelector("code").textContent, button);
    if (running || !action) return;
    if (action === "edit") {
        $("prompt").value = turn.content;
        turns.splice(turns.indexOf(turn));
        showTurns();
        saveTurns();
        fit();
        $("prompt").focus();
    } else if (action === "retry" || action === "reseed") {
        const earlier = action === "retry" && turn.state === "done" ? answerOf(turn) : null;
        if (action === "reseed") turn.seed = drawSeed();
        view.querySelector(".verdict").hidden = true;
        view.thinkingChosen = false;
        forgetAfter(turn);
        generate(turn, earlier);
    } else if (action === "again") {
        again(turn, view);
    } else if (action === "results") {
        sendResults(turn, view);
    }
}

function sendResults(turn, view) {
    const fields = view.querySelectorAll(".call textarea");
    forgetAfter(turn);
    turn.toolCalls.forEach((call, i) => turns.push({ role: "tool", id: call.id, content: fields[i].value }));
    view.querySelector('[data-action="results"]').remove();
    fields.forEach((field) => (field.readOnly = true));
    const next = newAnswer(turn.options, nextSeed());
    turns.push(next);
    showTurns();
    generate(next);
}

// ------------------------------------------------------------------------------------------------ same again?

function line(className, ...parts) {
    const node = Object.assign(document.createElement("p"), { className });
    node.append(...parts);
    return node;
}

function crowdSize() {
    const size = optionalNumber("crowd");
    return Number.isInteger(size) && size >= 1 && size <= 64 ? size : 8;
}

async function again(turn, view) {
    const box = view.querySelector(".verdict");
    const size = crowdSize();
    const crowd = Object.assign(document.createElement("span"), { className: "crowd" });
    crowd.setAttribute("aria-hidden", "true");
    const you = Math.floor(size / 2);
    for (let i = 0; i <= size; i++) crowd.append(Object.assign(document.createElement("i"), { className: i === you ? "you" : "" }));
    const words = Object.assign(document.createElement("span"), { textContent: `Asking again beside ${size} others` });
    box.hidden = false;
    box.ariaLive = "off"; // the result is announced, not the way there
    box.dataset.result = "running";
    box.replaceChildren(crowd, line("verdict-words", words));
    box.scrollIntoView({ block: "nearest" });
    const controller = new AbortController();
    begin(controller, turn);
    let latest = null;
    const show = () => {
        if (!latest) return;
        latest.dots.forEach((dot, i) => (crowd.children[i < you ? i : i + 1].dataset.dot = dot));
        const share = latest.total ? latest.matched() / latest.total : 0;
        words.textContent = `Asking again beside ${size} others: ${Math.floor(100 * share)} % compared`;
        latest = null;
    };
    try {
        const result = await sameAgain({
            request: requestOf(turn), seed: turn.seed, first: answerOf(turn), size, key: $("key").value, signal: controller.signal,
            onProgress: (progress) => {
                if (!latest) requestAnimationFrame(show);
                latest = progress;
            },
        });
        show();
        box.ariaLive = "polite";
        showVerdict(box, crowd, result);
    } catch (error) {
        box.dataset.result = "none";
        const why = error.name === "AbortError" ? "Stopped before the comparison was complete." : describe(error).message;
        box.replaceChildren(crowd, line("verdict-words", why));
    }
    finish();
    box.scrollIntoView({ block: "nearest" });
}

function showVerdict(box, crowd, result) {
    const strong = (text) => Object.assign(document.createElement("strong"), { textContent: text });
    const code = (text) => Object.assign(document.createElement("code"), { textContent: text });
    const number = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
    box.dataset.result = result.equal ? "equal" : "different";
    if (result.equal) {
        const what = [number(result.bytes, "byte")];
        if (result.tokens) what.push(number(result.tokens, "token id"));
        const beside = result.others ? `, beside ${number(result.others, "other answer")} in progress` : "; there was no crowd: the server refused it";
        const words = line("verdict-words", strong("The same."), ` ${what.join(" and ")} agree${beside}.`);
        if (result.hash) words.append(" The logits have the hash ", code(result.hash), " both times.");
        box.replaceChildren(crowd, words);
        return;
    }
    const { what, at, first, second } = result.where;
    const rows = document.createElement("dl");
    for (const [name, text] of [["first", first], ["second", second]]) {
        rows.append(Object.assign(document.createElement("dt"), { textContent: name }));
        const value = document.createElement("dd");
        value.append(code(text || "(nothing)"));
        rows.append(value);
    }
    box.replaceChildren(crowd, line("verdict-words", strong("Not the same."), ` ${what} differ${what.endsWith("ids") ? "" : "s"}${at ? ` at ${what === "The text" ? "byte" : "index"} ${at}` : ""}. Please report this: it is a fault of the server.`), rows);
}

// ------------------------------------------------------------------------------------------------ the page

const wide = matchMedia("(min-width: 60rem)");

/** On a wide window the panel stands beside the conversation, else it lies over it. */
function showPanel(open) {
    const over = !wide.matches;
    document.body.classList.toggle("panel-open", open);
    document.body.classList.toggle("panel-closed", !open && !over);
    $("panel-toggle").setAttribute("aria-expanded", String(open));
    $("panel").inert = !open;
    $("main").inert = open && over;
}

const panelOpen = () => !$("panel").inert;

function fit() {
    const prompt = $("prompt");
    prompt.style.height = "auto";
    const borders = prompt.offsetHeight - prompt.clientHeight;
    prompt.style.height = `${Math.min(prompt.scrollHeight + borders, innerHeight * 0.4)}px`;
}

function submit(event) {
    event?.preventDefault();
    const text = $("prompt").value;
    if (running || !text.trim()) return;
    if (!send(text)) return;
    $("prompt").value = "";
    fit();
    saveTurns();
}

async function loadModel() {
    try {
        model = await getModel($("key").value);
        $("model").textContent = model ? model.id : "";
        if (model?.max_model_len) $("model").title = `${model.max_model_len.toLocaleString("en")} tokens of context`;
    } catch (error) {
        $("model").textContent = "";
        if (error.status === 401) askForKey();
    }
}

function restoreTurns() {
    const saved = recall("turns");
    if (!Array.isArray(saved)) return;
    turns = saved;
    try {
        for (const turn of turns) if (turn.state === "running") turn.state = "stopped";
        showTurns();
        follow();
    } catch (error) {
        console.warn("the kept conversation cannot be shown", error); // of another version of this page
        turns = [];
        views.clear();
        $("log").replaceChildren();
        showTurns();
    }
}

function listen() {
    $("composer").addEventListener("submit", submit);
    $("stop").addEventListener("click", stop);
    $("prompt").addEventListener("input", fit);
    $("prompt").addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing && matchMedia("(pointer: fine)").matches) submit(event);
    });
    document.addEventListener("keydown", (event) => {
        if (event.key !== "Escape") return;
        if (running) stop();
        else if (panelOpen() && !wide.matches) {
            showPanel(false);
            $("panel-toggle").focus();
        }
    });
    $("scroll").addEventListener("scroll", () => {
        const box = $("scroll");
        following = box.scrollHeight - box.scrollTop - box.clientHeight < 48;
    }, { passive: true });
    $("starters").addEventListener("click", (event) => {
        if (event.target.closest("button") && !running) send(event.target.textContent);
    });
    $("new-chat").addEventListener("click", () => {
        stop();
        turns = [];
        showTurns();
        paintLab();
        saveTurns();
        $("prompt").focus();
    });
    $("panel-toggle").addEventListener("click", () => {
        showPanel(!panelOpen());
        if (!panelOpen()) return;
        live.now();
        if (!wide.matches) $("panel-close").focus();
    });
    $("panel-close").addEventListener("click", () => {
        showPanel(false);
        $("panel-toggle").focus();
    });
    wide.addEventListener("change", () => showPanel(wide.matches));
    $("settings").addEventListener("input", (event) => {
        if (event.target.id === "theme") applyTheme();
        const note = $(`${event.target.id}-note`);
        if (note?.classList.contains("fault")) note.hidden = true;
        showSchema();
        saveSettings();
    });
    $("lab").addEventListener("input", () => {
        turns.filter((turn) => turn.role === "assistant").forEach(paint);
        paintLab();
        saveSettings();
    });
    $("settings").addEventListener("submit", (event) => event.preventDefault());
    $("key").addEventListener("change", () => {
        loadModel();
        live.now();
    });
    $("tools-example").addEventListener("click", () => {
        $("tools").value = JSON.stringify(TOOLS_EXAMPLE, null, 2);
        $("tools-note").hidden = true;
        saveSettings();
        $("tools").focus();
    });
    // Leaving breaks the connection: that is a stop, not a failure.
    addEventListener("beforeunload", stop);
    addEventListener("pagehide", saveTurns);
}

restoreSettings();
restoreTurns();
paintLab();
showPanel(wide.matches);
live = new Live({ key: () => $("key").value, visible: panelOpen });
listen();
loadModel();
fit();
if (matchMedia("(pointer: fine)").matches) $("prompt").focus();
