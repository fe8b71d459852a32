// What changes between two texts, line by line.
import {count, element, foldable, visible} from "./text.mjs";

const MOST_CHANGES = 1500;  // beyond, looking for the smallest difference would take too long
const CONTEXT = 3;          // unchanged lines that are shown around a change
const MOST_ROWS = 300;

function linesOf(text) {
    return text === "" ? [] : text.match(/[^\n]*\n|[^\n]+$/g);
}

// Rows {sign: " ", "-" or "+", text, before, after (line numbers)}; null if there are too many
// changes. Myers' greedy search for the shortest edit script, between what both begin and end with.
export function lineDiff(before, after) {
    const a = linesOf(before), b = linesOf(after);
    let begin = 0, endA = a.length, endB = b.length;
    while (begin < endA && begin < endB && a[begin] === b[begin]) begin++;
    while (endA > begin && endB > begin && a[endA - 1] === b[endB - 1]) {
        endA--;
        endB--;
    }
    const steps = middle(a.slice(begin, endA), b.slice(begin, endB));
    if (!steps) return null;
    const rows = [];
    let x = 0, y = 0;
    const put = (sign) => rows.push({
        sign, text: sign === "+" ? b[y] : a[x],
        before: sign === "+" ? null : ++x, after: sign === "-" ? null : ++y});
    while (x < begin) put(" ");
    for (const sign of steps) put(sign);
    while (x < a.length) put(" ");
    return rows;
}

function middle(a, b) {
    const most = Math.min(a.length + b.length, MOST_CHANGES);
    if (a.length === 0 || b.length === 0)
        return [...a.map(() => "-"), ...b.map(() => "+")];
    const furthest = new Int32Array(2 * most + 3);
    const trace = [];
    for (let d = 0; d <= most; d++) {
        trace.push(furthest.slice(most - d, most + d + 3));
        for (let k = -d; k <= d; k += 2) {
            const at = most + 1 + k;
            let x = k === -d || (k !== d && furthest[at - 1] < furthest[at + 1]) ?
                furthest[at + 1] : furthest[at - 1] + 1;
            while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
            furthest[at] = x;
            if (x >= a.length && x - k >= b.length) return walkBack(trace, a.length, b.length);
        }
    }
    return null;
}

function walkBack(trace, x, y) {
    const steps = [];
    for (let d = trace.length - 1; d >= 0; d--) {
        const known = (k) => trace[d][k + d + 1];
        const k = x - y;
        const from = k === -d || (k !== d && known(k - 1) < known(k + 1)) ? k + 1 : k - 1;
        const fromX = d === 0 ? 0 : known(from), fromY = d === 0 ? 0 : fromX - from;
        while (x > fromX && y > fromY) {
            steps.push(" ");
            x--;
            y--;
        }
        if (d > 0) steps.push(x === fromX ? "+" : "-");
        x = fromX;
        y = fromY;
    }
    return steps.reverse();
}

const SPOKEN = {"+": "added: ", "-": "removed: ", " ": ""};

function rowView({sign, text, before, after}) {
    const line = text.replace(/\n$/, "");
    const cell = element("td", {className: "line"},
        element("span", {className: "unseen"}, SPOKEN[sign]), visible(line, {block: true}));
    if (!text.endsWith("\n"))
        cell.append(element("span", {className: "gap"}, " (no newline at the end)"));
    return element("tr", {className: {"+": "added", "-": "removed", " ": "same"}[sign]},
        element("td", {className: "number"}, before === null ? "" : String(before)),
        element("td", {className: "number"}, after === null ? "" : String(after)),
        element("td", {className: "sign", aria: {hidden: "true"}}, sign.replace("-", "−")), cell);
}

// A row that stands for others until its button is pressed.
function foldedRows(rows, label) {
    const row = element("tr", {className: "fold"});
    row.append(element("td", {colSpan: 4}, element("button", {
        type: "button", className: "quiet",
        on: {click: () => row.replaceWith(...rows.map(rowView))},
    }, label)));
    return row;
}

// A table of the difference; both texts whole if there are too many changes.
export function diffView(before, after, {was = "before", is = "after"} = {}) {
    const made = element("div", {className: "difference"});
    const rows = lineDiff(before, after);
    if (!rows) {
        made.append(
            element("p", {className: "odd"},
                "Too many lines differ to be compared: both are whole."),
            element("h5", {}, was), foldable(before, {what: was}),
            element("h5", {}, is), foldable(after, {what: is}));
        return made;
    }
    const added = rows.filter((row) => row.sign === "+").length;
    const removed = rows.filter((row) => row.sign === "-").length;
    if (!added && !removed) {
        made.append(element("p", {className: "muted"},
            "Nothing changes: it has this content already."));
        return made;
    }
    const body = element("tbody");
    const columns = ["number", "number", "sign", ""].map(
        (className) => element("col", {className}));
    const table = element("table", {className: "diff"}, element("caption", {},
        `${count(added, "line")} added, ${count(removed)} removed`),
    element("colgroup", {}, ...columns), body);
    const near = new Uint8Array(rows.length);
    rows.forEach((row, i) => {
        if (row.sign !== " ") near.fill(1, Math.max(0, i - CONTEXT), i + CONTEXT + 1);
    });
    const shown = [];  // functions that make a row each
    for (let i = 0; i < rows.length;) {
        let end = i + 1;
        while (!near[i] && end < rows.length && !near[end]) end++;
        const part = rows.slice(i, end);
        shown.push(part.length === 1 ? () => rowView(part[0]) :
            () => foldedRows(part, `show ${count(part.length, "unchanged line")}`));
        i = end;
    }
    const first = shown.length > MOST_ROWS + 20 ? shown.slice(0, MOST_ROWS) : shown;
    body.append(...first.map((make) => make()));
    if (first.length < shown.length) {
        const rest = shown.slice(first.length);
        const row = element("tr", {className: "fold"});
        row.append(element("td", {colSpan: 4}, element("button", {
            type: "button", className: "quiet",
            on: {click: () => row.replaceWith(...rest.map((make) => make()))},
        }, `show the other ${count(rest.length, "row")} of the difference`)));
        body.append(row);
    }
    made.append(table);
    return made;
}
