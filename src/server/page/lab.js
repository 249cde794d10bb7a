// lab.js - the draft lab: which tokens of an answer were drafted, and how many tokens a step would bring with other drafts.
//
// A record says what became of the drafts of one step: {index, drafted_text, accepted, confidence}. The first `accepted` drafts
// are the tokens at `index` and behind; then comes one token that the model chose itself. Drafts change no token, only how many
// steps they take, so every shorter length and every higher threshold can be computed from what was recorded.

const LENGTH_MOST = 8;
const WIDTH = 300, HEIGHT = 170;
const LEFT = 26, RIGHT = 10, TOP = 14, BOTTOM = 30; // room of the axes

/** How many leading drafts of a record are at least `threshold` likely to be reached and right. */
export function passing(record, threshold) {
    let survival = 1, count = 0;
    for (const chance of record.confidence) {
        survival *= chance;
        if (survival < threshold) break;
        count++;
    }
    return record.confidence.length ? count : record.drafted_text.length;
}

/**
 * Tokens a step for each length 0 .. length, from measured rates: rates[k - 1] is the share of steps in which draft k was
 * checked and right, among those that came as far. A step whose record ends earlier says nothing about what lies behind.
 */
export function expectedTokens(records, threshold, length = LENGTH_MOST) {
    const tokens = [1], rates = [], seen = [];
    let survival = 1;
    for (let k = 1; k <= length; k++) {
        let came = 0, right = 0;
        for (const record of records) {
            const checked = passing(record, threshold);
            if (record.drafted_text.length < k || record.accepted < k - 1 || checked < k - 1) continue;
            came++;
            if (checked >= k && record.accepted >= k) right++;
        }
        if (!came) break;
        survival *= right / came;
        rates.push(right / came);
        seen.push(came);
        tokens.push(tokens[k - 1] + survival);
    }
    return { tokens, rates, seen };
}

/** Drafts that are checked in a step, on average. */
export function checkedDrafts(records, threshold, length) {
    return records.reduce((sum, record) => sum + Math.min(passing(record, threshold), length), 0) / records.length;
}

/** What each token is: {text, kind: "accepted" | "own" | "single", rejected: [text], chance}. */
export function tokensWithDrafts(tokens, records) {
    const list = tokens.map((text) => ({ text, kind: "single", rejected: [], chance: null }));
    for (const record of records) {
        for (let i = 0; i < record.accepted; i++) {
            const token = list[record.index + i];
            if (token) Object.assign(token, { kind: "accepted", chance: record.confidence[i] ?? null });
        }
        const own = list[record.index + record.accepted];
        if (own) Object.assign(own, { kind: "own", rejected: record.drafted_text.slice(record.accepted) });
    }
    return list;
}

/** Control tokens by their names: few fonts have their bars. */
const readable = (text) => text.replace(/^<｜(.*)｜>$/, (_, name) => `‹${name.replaceAll("▁", " ")}›`);

const element = (name, className, textContent) => Object.assign(document.createElement(name), { className, textContent });

/** Shows tokens as they come. A record comes with its first token, so what stands there already stays as it is. */
export function showTokens(place, tokens, records) {
    while (place.children.length > tokens.length) place.lastElementChild.remove();
    for (const { text, kind, rejected, chance } of tokensWithDrafts(tokens, records).slice(place.children.length)) {
        const group = element("span", "step-token", "");
        if (rejected.length) {
            const gone = element("del", "token rejected", rejected.map(readable).join(""));
            gone.title = `Rejected draft${rejected.length > 1 ? "s" : ""}`;
            group.append(gone);
        }
        const token = element("span", `token ${kind}`, readable(text));
        if (kind === "accepted") token.title = chance === null ? "Accepted draft" : `Accepted draft; its chance was ${Math.round(100 * chance)} %`;
        group.append(token);
        place.append(group);
    }
}

// ------------------------------------------------------------------------------------------------ the panel

const $ = (id) => document.getElementById(id);

function svg(name, attributes, text = "") {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
}

function drawCurve(curve, all, length) {
    const most = Math.max(2, Math.ceil(all.tokens.at(-1)));
    const last = Math.max(1, all.tokens.length - 1);
    const x = (k) => LEFT + k * (WIDTH - LEFT - RIGHT) / last;
    const y = (tokens) => HEIGHT - BOTTOM - (tokens - 1) * (HEIGHT - TOP - BOTTOM) / (most - 1);
    const points = (tokens) => tokens.map((t, k) => `${x(k).toFixed(1)},${y(t).toFixed(1)}`).join(" ");
    const nodes = [];
    for (let tokens = 1; tokens <= most; tokens++) {
        nodes.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tokens), y2: y(tokens) }));
        nodes.push(svg("text", { class: "label end", x: LEFT - 6, y: y(tokens) + 4 }, String(tokens)));
    }
    for (let k = 0; k <= last; k++) nodes.push(svg("text", { class: "label middle", x: x(k), y: HEIGHT - BOTTOM + 15 }, String(k)));
    nodes.push(svg("text", { class: "label middle", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 2 }, "drafts in a step"));
    nodes.push(svg("polyline", { class: "all", points: points(all.tokens) }));
    nodes.push(svg("polyline", { class: "curve", points: points(curve.tokens) }));
    const at = Math.min(length, curve.tokens.length - 1);
    nodes.push(svg("line", { class: "here", x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM }));
    nodes.push(svg("circle", { class: "here", cx: x(at), cy: y(curve.tokens[at]), r: 4 }));
    $("lab-curve").replaceChildren(...nodes);
}

const share = (value) => `${(100 * value).toFixed(0)} %`;

function fillTable(curve) {
    const rows = curve.rates.map((rate, i) => {
        const row = document.createElement("tr");
        for (const text of [i + 1, share(rate), curve.seen[i], curve.tokens[i + 1].toFixed(2)]) row.append(element("td", "right", String(text)));
        return row;
    });
    $("lab-rates").replaceChildren(...rows);
}

/** Figures and curve of the records of all answers. asked: answers that were made with the lab on and are complete. */
export function showLab(records, asked) {
    const on = $("lab-on").checked;
    const length = Number($("lab-length").value), threshold = Number($("lab-threshold").value);
    const confident = records.some((record) => record.confidence.length);
    $("lab-body").hidden = !on;
    $("lab-length-value").textContent = length;
    $("lab-threshold-value").textContent = threshold.toFixed(2);
    $("lab-threshold").disabled = records.length > 0 && !confident;
    $("lab-figures").hidden = !records.length;
    $("lab-note").hidden = records.length > 0;
    $("lab-note").textContent = asked ? "No answer had drafts yet. With --spec auto the server makes them when they pay, with a number always." : "The next answer brings the first figures.";
    if (!on || !records.length) return;
    const limit = confident ? threshold : 0;
    const curve = expectedTokens(records, limit), all = expectedTokens(records, 0);
    const at = Math.min(length, curve.tokens.length - 1);
    const checked = checkedDrafts(records, limit, at);
    drawCurve(curve, all, length);
    fillTable(curve);
    $("lab-words").textContent = `${curve.tokens[at].toFixed(2)} tokens a step with up to ${at} draft${at === 1 ? "" : "s"}, of which ${checked.toFixed(1)} are checked; from ${records.length} recorded step${records.length === 1 ? "" : "s"}.`
        + (limit ? " The broken line is without threshold." : "")
        + (confident ? "" : " The drafts come from prompt look-up and have no chances, so there is no threshold.");
}
