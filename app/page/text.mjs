// Texts of calls and of output are written by others. What is made of them here shows everything
// that is in them, and nothing in it hides, moves, reorders or imitates anything. They reach the
// page as text nodes only.

// What cannot be seen, moves or reorders its neighbours, or looks like a space and is none.
const HIDDEN = String.raw`(?![\n ])[\p{C}\p{Z}\p{DI}\u2800]`;
const COMBINING = String.raw`[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff` +
    String.raw`\ufe20-\ufe2f]`;
const RIGHT_TO_LEFT = String.raw`[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc` +
    String.raw`\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]`;
const TOKENS = new RegExp([
    `(?<hidden>(?:${HIDDEN})+)`,
    `(?<blanks> {9,})`,
    `(?<empty>\\n{9,})`,
    `(?<marks>(?:(?<=${COMBINING}{2})|^)${COMBINING}+)`,
    `(?<rtl>(?!${HIDDEN})${RIGHT_TO_LEFT}(?:(?!${HIDDEN})${RIGHT_TO_LEFT})*)`,
    `(?<word>[\\p{sc=Latin}\\p{sc=Cyrillic}\\p{sc=Greek}]+)`,
    `(?<newline>\\n)`,
].join("|"), "gu");
const ANY_HIDDEN = new RegExp(HIDDEN, "u");
const ALL_HIDDEN = new RegExp(HIDDEN, "gu");
const LATIN = /\p{sc=Latin}/u;
const NOT_LATIN = /[\p{sc=Cyrillic}\p{sc=Greek}]/u;
const LONGEST_INDENT = 40;  // blanks that begin a line of a block and are shown as they are

const NAMES = {
    0x07: "bell", 0x08: "backspace", 0x09: "tab", 0x0d: "carriage return", 0x1b: "escape",
    0xa0: "no-break space", 0xad: "soft hyphen", 0x200b: "zero width space",
    0x200c: "zero width non-joiner", 0x200d: "zero width joiner", 0x200e: "left-to-right mark",
    0x200f: "right-to-left mark", 0x202a: "left-to-right embedding",
    0x202b: "right-to-left embedding", 0x202c: "pop directional formatting",
    0x202d: "left-to-right override", 0x202e: "right-to-left override",
    0x2066: "left-to-right isolate", 0x2067: "right-to-left isolate",
    0x2068: "first strong isolate", 0x2069: "pop directional isolate", 0x2800: "Braille blank",
    0x3164: "Hangul filler", 0xfeff: "byte order mark",
};

function escapeOf(character) {
    const code = character.codePointAt(0);
    if (character === "\n") return "\\n";
    if (character === "\r") return "\\r";
    if (character === "\t") return "\\t";
    const digits = code.toString(16);
    if (code < 0x100) return "\\x" + digits.padStart(2, "0");
    return code < 0x10000 ? "\\u" + digits.padStart(4, "0") : "\\U" + digits.padStart(8, "0");
}

// Escapes of a run; a character that is repeated is named once, with a number.
function escapesOf(run) {
    let text = "";
    const characters = [...run];
    for (let i = 0; i < characters.length;) {
        let end = i + 1;
        while (end < characters.length && characters[end] === characters[i]) end++;
        const escape = escapeOf(characters[i]);
        text += end - i > 4 ? `${escape}×${end - i} ` : escape.repeat(end - i);
        i = end;
    }
    return text.trimEnd();
}

// One line of plain text, for names of elements, titles and notifications.
export function printable(text) {
    return text.replace(/\n/g, "\\n").replace(ALL_HIDDEN, escapeOf);
}

// A JSON text in which everything hidden is an escape; hidden characters stand in its strings only.
export function escapedJson(json) {
    return json.replace(ALL_HIDDEN, (character) => /[\t\r]/.test(character) ? character :
        [...character].flatMap((c) => c.split("")).map(
            (unit) => "\\u" + unit.charCodeAt(0).toString(16).padStart(4, "0")).join(""));
}

export function hasHidden(text) {
    return ANY_HIDDEN.test(text.replace(/[\n\t]/g, ""));
}

export function count(number, thing = "") {
    const digits = String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
    return thing ? `${digits} ${thing}${number === 1 ? "" : "s"}` : digits;
}

// An element; what is in `properties` is set on it, `dataset`, `aria` and `on` by their keys.
export function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(properties)) {
        if (key === "dataset") Object.assign(made.dataset, value);
        else if (key === "aria") {
            for (const [name, text] of Object.entries(value))
                made.setAttribute("aria-" + name, text);
        } else if (key === "on") {
            for (const [event, heard] of Object.entries(value)) made.addEventListener(event, heard);
        } else if (key === "role") made.setAttribute("role", value);
        else made[key] = value;
    }
    made.append(...children.filter((child) => (child ?? "") !== ""));
    return made;
}

function mark(text, title) {
    return element("span", {className: "mark", title}, text);
}

// What stands for a text. In a block newlines and the indent of lines are as they are; on one line
// (the default) everything but single characters is an escape.
export function visible(text, {block = false} = {}) {
    const made = document.createDocumentFragment();
    const words = NOT_LATIN.test(text);
    let plain = "", end = 0;
    const put = (node) => {
        if (plain) made.append(plain);
        plain = "";
        made.append(node);
    };
    for (const match of text.matchAll(TOKENS)) {
        plain += text.slice(end, match.index);
        end = match.index + match[0].length;
        const {hidden, blanks, empty, marks, rtl, word, newline} = match.groups;
        const begins = match.index === 0 || text[match.index - 1] === "\n";
        if (hidden && block && begins && /^\t+$/.test(hidden)) {
            plain += hidden;
        } else if (hidden) {
            const code = hidden.codePointAt(0);
            const name = NAMES[code] ?? "a character that cannot be seen";
            put(mark(escapesOf(hidden),
                `U+${code.toString(16).toUpperCase().padStart(4, "0")}, ${name}`));
        } else if (blanks && (!block || !begins || blanks.length > LONGEST_INDENT)) {
            put(mark(`[${count(blanks.length)} blanks]`, "so many spaces in a row"));
        } else if (empty && block) {
            put(mark(`[${count(empty.length - 1)} empty lines]`, "so many newlines in a row"));
            plain += "\n";
        } else if (empty || (newline && !block)) {
            put(mark(escapesOf(match[0]), "newline"));
        } else if (marks) {
            put(mark(escapesOf(marks), "characters that are drawn over others"));
        } else if (rtl) {
            put(element("bdi", {className: "rtl", dir: "rtl"}, rtl));
        } else if (words && word && LATIN.test(word) && NOT_LATIN.test(word)) {
            put(element("span", {className: "mixed", title: "letters of several scripts, some of " +
                "which look alike"}, word));
        } else {
            plain += match[0];
        }
    }
    plain += text.slice(end);
    if (plain) made.append(plain);
    return made;
}

// What a person should know of a text that does not strike the eye.
export function oddities(text) {
    const found = [];
    const hidden = [...text.matchAll(ALL_HIDDEN)].filter(([c]) => c !== "\t").length;
    if (hidden) found.push(`${count(hidden, "invisible or unusual character")}, shown as escapes`);
    if (NOT_LATIN.test(text) &&
        (text.match(/[\p{sc=Latin}\p{sc=Cyrillic}\p{sc=Greek}]+/gu) ?? []).some(
            (word) => LATIN.test(word) && NOT_LATIN.test(word)))
        found.push("a word in letters of several scripts, some of which look alike");
    return found;
}

// A JSON text laid out in lines; numbers keep all their digits.
export function layOut(json) {
    if (json.length <= 72) return json;
    let made = "", depth = 0, inString = false;
    const line = () => "\n" + "  ".repeat(Math.min(depth, 16));
    for (let i = 0; i < json.length; i++) {
        const c = json[i];
        if (inString) {
            made += c;
            if (c === "\\") made += json[++i] ?? "";
            else if (c === '"') inString = false;
        } else if (c === '"') {
            inString = true;
            made += c;
        } else if (c === "{" || c === "[") {
            const empty = /^[{[]\s*[}\]]/.exec(json.slice(i, i + 64));
            if (empty) {
                made += c + (c === "{" ? "}" : "]");
                i += empty[0].length - 1;
            } else {
                depth++;
                made += c + line();
            }
        } else if (c === "}" || c === "]") {
            depth--;
            made += line() + c;
        } else if (c === ",") {
            made += c + line();
        } else if (c === ":") {
            made += ": ";
        } else if (!/\s/.test(c)) {
            made += c;
        }
    }
    return made;
}

const PLACES = new Set(("path paths file files filename filenames filepath dir dirs directory " +
    "directories folder folders uri uris url urls link href cwd root location source destination " +
    "target").split(" "));
const COMMANDS = new Set(("command commands cmd cmds shell script sql query argv args " +
    "environment").split(" "));

function isPlace(text) {
    return /^(\/|~|\.\.?\/)/.test(text) || /^[^:]{1,30}:\/\//.test(text);
}

// Whether a value is shown whole however long it is: places and commands decide what a call does.
function isWeighty(name, text) {
    const words = name.replace(/([a-z0-9])([A-Z])/g, "$1 $2").toLowerCase().split(/[^a-z0-9]+/);
    if (words.some((word) => COMMANDS.has(word))) return true;
    return text.length <= 4096 && !text.includes("\n") &&
        (isPlace(text) || words.some((word) => PLACES.has(word)));
}

const LONGEST_UNFOLDED = 500, MOST_LINES = 12, SHOWN = 200;

// A long text as its first and last line with its size, and a button that shows all of it.
export function foldable(text, {block = true, quote = "", whole = false, what = ""} = {}) {
    const lines = text.split("\n").length;
    const quoted = (part) => [
        quote && element("span", {className: "quote"}, quote), visible(part, {block}),
        quote && element("span", {className: "quote"}, quote)].filter(Boolean);
    if (whole || (text.length <= LONGEST_UNFOLDED && lines <= MOST_LINES))
        return element("div", {className: "text"}, ...quoted(text));
    const made = element("div", {className: "text folded"});
    const body = text.replace(/\n+$/, "");
    const first = [...text.slice(0, 2 * SHOWN).split("\n", 1)[0]].slice(0, SHOWN).join("");
    const end = body.slice(body.lastIndexOf("\n") + 1);
    const last = [...end.slice(-2 * SHOWN)].slice(-SHOWN).join("");
    const size = `${count([...text].length, "character")}` +
        (lines > 1 ? `, ${count(lines, "line")}` : "");
    const show = (open) => {
        const button = element("button", {
            type: "button", className: "quiet", aria: {expanded: String(open)},
            on: {click: () => show(!open).focus()},
        }, open ? "fold" : `show all ${count([...text].length, "character")}`);
        if (what) button.setAttribute("aria-label", `${button.textContent} of ${what}`);
        made.classList.toggle("open", open);
        made.replaceChildren(...(open ? quoted(text) : [
            ...quoted(first), element("span", {className: "gap"}, ` … folded: ${size} … `),
            ...quoted(last)]), " ", button);
        return button;
    };
    show(false);
    return made;
}

// The value of an argument, as the host sends it: {name, json, text if it is a string}.
export function valueView({name, json, text}) {
    const made = element("div", {className: "value"});
    const isText = text !== undefined && text !== null;
    const shown = isText ? text : layOut(json);
    made.append(foldable(shown, {quote: isText ? '"' : "", whole: isWeighty(name, shown),
        what: printable(name)}));
    for (const odd of oddities(isText ? text : json))
        made.append(element("p", {className: "odd"}, odd));
    return made;
}

// All arguments on one line, for lists: long texts are folded.
export function summary(call) {
    const made = document.createDocumentFragment();
    call.arguments.forEach((argument, i) => {
        const isText = argument.text !== undefined && argument.text !== null;
        const value = isText ? argument.text : argument.json;
        if (i > 0) made.append(", ");
        made.append(visible(argument.name), "=", isText ? '"' : "");
        if (value.length <= LONGEST_UNFOLDED) {
            made.append(visible(value));
        } else {
            made.append(visible([...value.slice(0, 160)].slice(0, 80).join("")),
                element("span", {className: "gap"}, ` … ${count([...value].length, "character")}`));
        }
        made.append(isText ? '"' : "");
    });
    return made;
}

export function nameOf(call) {
    return `${printable(call.server)}.${printable(call.tool)}`;
}

export function clock(time) {
    return new Date(time).toLocaleTimeString("en-GB");
}
