// markdown.js - the little Markdown that answers use, as DOM nodes. Text goes into text nodes only, so nothing an answer
// holds can become markup of the page. Every scan is linear in the text.

const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}(?:\*[ \t]*){3,}$|^ {0,3}(?:-[ \t]*){3,}$|^ {0,3}(?:_[ \t]*){3,}$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_RULE = /^\|?(?: *:?-+:? *\|)+ *(?::?-+:?)?$/; // of a trimmed line
const MAX_DEPTH = 6;
const MAX_LINK = 2000;

/** Cuts text into blocks: {kind, source, ...}. A block's nodes depend on `source` alone. */
export function splitBlocks(text) {
    const lines = text.split("\n");
    const blocks = [];
    let at = 0;
    const take = (kind, from, more = {}) => blocks.push({ kind, source: `${kind}\n${lines.slice(from, at).join("\n")}`, ...more });
    while (at < lines.length) {
        const from = at;
        const line = lines[at];
        let match;
        if (!line.trim()) {
            at++;
        } else if ((match = FENCE.exec(line))) {
            const body = [];
            const close = new RegExp(`^ {0,3}${match[1][0]}{${match[1].length},}[ \\t]*$`);
            for (at++; at < lines.length && !close.test(lines[at]); at++) body.push(lines[at]);
            at = Math.min(at + 1, lines.length);
            take("code", from, { language: match[2].trim().split(/\s/)[0], text: body.join("\n") });
        } else if ((match = HEADING.exec(line))) {
            at++;
            take("heading", from, { level: match[1].length, text: match[2].trim() });
        } else if (RULE.test(line)) {
            at++;
            take("rule", from);
        } else if (QUOTE.test(line)) {
            const body = [];
            for (; at < lines.length && (match = QUOTE.exec(lines[at])); at++) body.push(match[1]);
            take("quote", from, { text: body.join("\n") });
        } else if (ITEM.test(line)) {
            at = endOfList(lines, at);
            take("list", from, { lines: lines.slice(from, at) });
        } else if (line.includes("|") && at + 1 < lines.length && TABLE_RULE.test(lines[at + 1].trim())) {
            for (at += 2; at < lines.length && lines[at].includes("|"); at++);
            take("table", from, { lines: lines.slice(from, at) });
        } else {
            for (at++; at < lines.length && lines[at].trim() && !startsBlock(lines[at]); at++);
            take("paragraph", from, { text: lines.slice(from, at).join("\n") });
        }
    }
    return blocks;
}

function startsBlock(line) {
    return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

/** A list goes on over indented lines, further items, and one empty line before either. */
function endOfList(lines, from) {
    let at = from;
    while (at < lines.length) {
        if (!lines[at].trim()) {
            const next = lines[at + 1];
            if (next === undefined || !(ITEM.test(next) || /^ {2,}\S/.test(next))) break;
        } else if (at > from && !ITEM.test(lines[at]) && !/^ {2,}\S/.test(lines[at]) && startsBlock(lines[at])) {
            break;
        }
        at++;
    }
    return at;
}

function element(name, className, ...children) {
    const node = document.createElement(name);
    if (className) node.className = className;
    node.append(...children);
    return node;
}

function codeBlock(block) {
    const node = document.getElementById("code-template").content.firstElementChild.cloneNode(true);
    node.querySelector(".language").textContent = block.language || "text";
    node.querySelector("code").textContent = block.text;
    return node;
}

function list(block, depth) {
    const first = ITEM.exec(block.lines[0]);
    const ordered = /\d/.test(first[2]);
    const node = element(ordered ? "ol" : "ul");
    if (ordered && Number.parseInt(first[2], 10) !== 1) node.start = Number.parseInt(first[2], 10);
    const indent = first[1].length;
    let item = null;
    const finish = () => {
        if (!item) return;
        const inner = splitBlocks(item.join("\n"));
        const li = element("li");
        // A single paragraph needs no paragraph of its own.
        inner.forEach((b, i) => (i === 0 && b.kind === "paragraph" ? li.append(...inline(b.text)) : li.append(render(b, depth + 1))));
        node.append(li);
    };
    for (const line of block.lines) {
        const match = ITEM.exec(line);
        if (match && match[1].length <= indent + 1) {
            finish();
            item = [match[3]];
        } else {
            item.push(line.slice(Math.min(line.search(/\S|$/), indent + (ordered ? 3 : 2))));
        }
    }
    finish();
    return node;
}

function cells(line) {
    return line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((cell) => cell.trim());
}

function table(block) {
    const [head, rule, ...rows] = block.lines;
    const align = cells(rule).map((cell) => (/^:-+:$/.test(cell) ? "centre" : /-:$/.test(cell) ? "right" : ""));
    const row = (line, name) => element("tr", "", ...cells(line).map((cell, i) => element(name, align[i] ?? "", ...inline(cell))));
    const node = element("div", "table", element("table", "", element("thead", "", row(head, "th")), element("tbody", "", ...rows.map((r) => row(r, "td")))));
    node.tabIndex = 0;
    return node;
}

function render(block, depth) {
    switch (block.kind) {
        case "code": return codeBlock(block);
        case "heading": return element(`h${Math.min(block.level + 3, 6)}`, "", ...inline(block.text));
        case "rule": return element("hr");
        case "table": return table(block);
    }
    if (depth < MAX_DEPTH && block.kind === "list") return list(block, depth);
    if (depth < MAX_DEPTH && block.kind === "quote") return element("blockquote", "", ...splitBlocks(block.text).map((b) => render(b, depth + 1)));
    return element("p", "", ...inline(block.text ?? block.lines.join("\n")));
}

/** Emphasis, code and links of one run of text, as nodes. */
export function inline(text, depth = 0) {
    const nodes = [];
    const found = new Map(); // where each closer comes next; a search is not made twice over the same text
    let plain = "";
    const find = (closer, from) => {
        let at = found.get(closer) ?? -2;
        if (at !== -1 && at < from) found.set(closer, (at = text.indexOf(closer, from)));
        return at;
    };
    const flush = () => {
        if (plain) nodes.push(document.createTextNode(plain));
        plain = "";
    };
    for (let i = 0; i < text.length;) {
        const c = text[i];
        let end;
        if (c === "\\" && i + 1 < text.length && /[\\`*_[\]()#+\-.!|>~{}]/.test(text[i + 1])) {
            plain += text[i + 1];
            i += 2;
        } else if (c === "`") {
            let run = 1;
            while (text[i + run] === "`") run++;
            const closer = "`".repeat(run);
            if ((end = find(closer, i + run)) > 0) {
                flush();
                nodes.push(element("code", "", text.slice(i + run, end).replace(/^ (.*) $/, "$1")));
                i = end + run;
            } else {
                plain += closer;
                i += run;
            }
        } else if ((c === "*" || c === "_") && !(c === "_" && /\w/.test(text[i - 1] ?? ""))) {
            const closer = text[i + 1] === c ? c + c : c;
            const from = i + closer.length;
            end = depth < MAX_DEPTH && /\S/.test(text[from] ?? "") && text[from] !== c ? find(closer, from) : -1;
            if (end > from && /\S/.test(text[end - 1])) {
                flush();
                nodes.push(element(closer.length === 2 ? "strong" : "em", "", ...inline(text.slice(from, end), depth + 1)));
                i = end + closer.length;
            } else {
                plain += closer;
                i = from;
            }
        } else if (c === "[" && (end = find("](", i)) > 0) {
            const close = find(")", end);
            const target = close > 0 && close - i < MAX_LINK ? safeLink(text.slice(end + 2, close)) : null;
            if (target) {
                flush();
                const link = element("a", "", text.slice(i + 1, end));
                link.href = target;
                link.target = "_blank";
                link.rel = "noopener noreferrer";
                nodes.push(link);
                i = close + 1;
            } else {
                plain += c;
                i++;
            }
        } else {
            plain += c;
            i++;
        }
    }
    flush();
    return nodes;
}

/** Only addresses of the web, written out in full. */
function safeLink(text) {
    const address = text.trim().split(/\s/)[0];
    if (!/^https?:\/\//i.test(address)) return null;
    try {
        return new URL(address).href;
    } catch {
        return null;
    }
}

/** Makes `container` show `text`. Blocks that did not change keep their nodes, so a selection survives streaming. */
export function showMarkdown(container, text) {
    const blocks = splitBlocks(text);
    blocks.forEach((block, i) => {
        const old = container.children[i];
        if (old && old.blockSource === block.source) return;
        const node = render(block, 0);
        node.blockSource = block.source;
        if (old) old.replaceWith(node);
        else container.append(node);
    });
    while (container.children.length > blocks.length) container.lastElementChild.remove();
}
