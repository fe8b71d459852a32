// What was asked before, and what was answered.
import {clock, count, element, nameOf, printable, summary, valueView, visible} from "./text.mjs";
import {duration} from "./session.mjs";

const AT_ONCE = 100;  // rows that are shown before a button shows more

function row(done) {
    const {call, verdict, by, reason, expired, edited, at, outcome, ms} = done;
    const words = call.arguments.map(({name, json, text}) => `${name} ${text ?? json}`);
    const text = [`${call.server}.${call.tool}`, ...words, verdict, by, reason ?? ""].join(" ");
    const came = outcome ? `${{ok: "worked", error: "the tool reported an error", failed: "failed",
        withdrawn: "withdrawn"}[outcome] ?? printable(outcome)}${ms !== undefined && ms !== null ?
        `, ${duration(ms)}` : ""}` : "";
    const details = element("details", {},
        element("summary", {},
            element("span", {className: `verdict ${verdict}`},
                verdict === "allow" ? "allowed" : "denied"),
            element("time", {className: "muted"}, clock(at)), " ",
            element("b", {}, nameOf(call)),
            element("span", {className: "one-line"}, summary(call)),
            element("span", {className: "muted"}, "by ", visible(by),
                expired ? ", nobody answered in time" : "", edited ? ", edited" : "",
                came && ` · ${came}`),
            reason ? element("span", {className: "reason"}, "“", visible(reason), "”") : null));
    // What is inside is made when it is looked at.
    details.addEventListener("toggle", () => {
        if (!details.open || details.querySelector(".arguments")) return;
        details.append(argumentList(call.arguments));
        if (edited) details.append(
            element("p", {className: "label"}, "as it was sent, after editing:"),
            argumentList(edited));
    });
    return {done, text: text.toLowerCase(), element: element("li", {
        dataset: {id: call.id, verdict}}, details)};
}

function argumentList(list) {
    if (!list.length) return element("p", {className: "arguments muted"}, "no arguments");
    const made = element("dl", {className: "arguments"});
    for (const argument of list) made.append(element("div", {},
        element("dt", {}, visible(argument.name)), element("dd", {}, valueView(argument))));
    return made;
}

export class History {
    constructor({list, search, filters, found}) {
        Object.assign(this, {list, search, filters, found});
        this.rows = [];
        this.limit = AT_ONCE;
        search.addEventListener("input", () => this.show());
        for (const filter of filters) filter.addEventListener("change", () => this.show());
    }

    replace(history) {
        this.rows = history.map(row);
        this.show();
    }

    add(done) {
        this.rows.push(row(done));
        this.showSoon();
    }

    outcome(id, outcome, ms) {
        const at = this.rows.findLastIndex(({done}) => done.call.id === id);
        if (at < 0) return;
        const open = this.rows[at].element.firstElementChild.open;
        this.rows[at] = row({...this.rows[at].done, outcome, ms});
        this.rows[at].element.firstElementChild.open = open;
        this.showSoon();
    }

    showSoon() {
        if (!this.planned) requestAnimationFrame(() => this.show());
        this.planned = true;
    }

    show() {
        this.planned = false;
        const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
        const wanted = [...this.filters].find((filter) => filter.checked)?.value ?? "all";
        const hits = this.rows.filter(({done, text}) =>
            (wanted === "all" || done.verdict === wanted) &&
            words.every((word) => text.includes(word)));
        const shown = hits.slice(-this.limit).reverse().map((hit) => hit.element);
        const rest = hits.length - shown.length;
        if (rest > 0) shown.push(element("li", {className: "more"}, element("button", {
            type: "button", className: "quiet", on: {click: () => {
                this.limit += 5 * AT_ONCE;
                this.show();
            }}}, `show older ones (${count(rest)} more)`)));
        const focused = document.activeElement;
        this.list.replaceChildren(...shown);
        if (this.list.contains(focused)) focused.focus();
        this.found.textContent = this.rows.length === 0 ? "Nothing has been answered yet." :
            words.length || wanted !== "all" ?
                `${count(hits.length)} of ${count(this.rows.length)}` :
                count(hits.length, "answer");
    }
}
