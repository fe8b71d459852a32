// The questions: calls that wait for an answer, each whole, those of one kind on one card.
import {Panel, button, denyPanel, editPanel, grantPanel, newId, pressToAllow} from "./answers.mjs";
import {codeView} from "./code.mjs";
import {diffView} from "./diff.mjs";
import {lookSoon, unsettle, watch} from "./steady.mjs";
import {clock, count, element, foldable, nameOf, printable, valueView, visible} from "./text.mjs";

const ORIGINS = {
    shell: "a shell command of the code", shell_magic: "a shell script of the code",
    package: "a package that is to be installed", register: "a server that is to be started",
};
const HINTS = {
    readOnlyHint: ["read-only", "writes"], destructiveHint: ["destructive", "not destructive"],
    idempotentHint: ["may be repeated", "not to be repeated"],
    openWorldHint: ["reaches the outside world", "stays in its own world"],
};
const STAYS = 1500;  // ms that an answered question is shown at least

function hintsView(hints) {
    const known = Object.keys(HINTS).filter((hint) => typeof hints?.[hint] === "boolean");
    if (!known.length) return null;
    return element("div", {className: "hints"},
        element("span", {className: "muted"}, "the server says, and promises nothing:"),
        element("ul", {aria: {label: "Hints of the server, which promise nothing"}},
            ...known.map((hint) => element("li", {className: `hint ${hint}-${hints[hint]}`},
                HINTS[hint][hints[hint] ? 0 : 1]))));
}

// What was different in the last similar call, below the argument.
function wasView(argument, previous) {
    const isBlock = (text) => typeof text === "string" && text.includes("\n");
    const open = isBlock(argument.text) && isBlock(previous.text) ?
        () => diffView(previous.text, argument.text) : () => valueView(previous);
    const details = element("details", {className: "was"},
        element("summary", {}, "what it was in the last similar call"));
    details.addEventListener("toggle", () => {
        if (details.open && details.childElementCount === 1) details.append(open());
    });
    return details;
}

function argumentsView(call, diffed) {
    const before = new Map((call.previous?.arguments ?? []).map((one) => [one.name, one]));
    const list = element("dl", {className: "arguments"});
    for (const argument of call.arguments) {
        const previous = before.get(argument.name);
        before.delete(argument.name);
        const differs = call.previous && (!previous || previous.json !== argument.json);
        list.append(element("div", {className: differs ? "differs" : ""},
            element("dt", {}, visible(argument.name),
                differs ? element("span", {className: "tag"}, previous ? "changed" : "new") : null),
            element("dd", {}, valueView(argument),
                differs && previous && !diffed ? wasView(argument, previous) : null)));
    }
    if (!call.arguments.length) list.append(element("div", {}, element("dt", {className: "muted"},
        "no arguments")));
    for (const [name, previous] of before) {
        list.append(element("div", {className: "differs"},
            element("dt", {}, visible(name),
                element("span", {className: "tag"}, "not in this call")),
            element("dd", {}, wasView({}, previous))));
    }
    return list;
}

function fileView(file) {
    const made = element("section", {className: "file"}, element("h4", {},
        file.problem ? "Writes the file " :
            file.before === null ? "A new file " : "What changes in ",
        element("span", {className: "mono"}, visible(file.path))));
    if (file.leads_to) made.append(element("p", {className: "odd"}, "The path leads to ",
        element("span", {className: "mono"}, visible(file.leads_to))));
    if (file.problem) made.append(element("p", {className: "odd"}, "No difference is shown: ",
        visible(file.problem)));
    else made.append(diffView(file.before ?? "", file.after));
    return made;
}

class Question {
    constructor(call, card, host) {
        this.call = call;
        this.card = card;
        this.host = host;
        this.name = nameOf(call);
        this.about = `${this.name}, question ${call.id.slice(0, 4)}`;
        this.left = element("span", {className: "left", role: "timer"});
        this.bar = element("span", {className: "bar", aria: {hidden: "true"}}, element("span"));
        this.problem = element("p", {className: "problem", role: "alert"});
        this.panelPlace = element("div");
        this.panel = new Panel(this.panelPlace);
        this.answers = this.buttons();
        this.element = element("li", {className: "call", tabIndex: 0, role: "group",
            dataset: {id: call.id}, aria: {label: `Question ${call.id.slice(0, 4)}: ${this.name}`}},
        element("div", {className: "top"},
            element("span", {className: "muted"}, `question ${call.id.slice(0, 4)}, asked ` +
                clock(call.asked)),
            this.left, this.bar),
        call.changed ? element("p", {className: "warning"}, visible(call.changed)) : null,
        call.previous ? element("p", {className: "muted"},
            `Compared with the last similar call, ${call.previous.verdict === "allow" ?
                "allowed" : "denied"} at ${clock(call.previous.asked)}.`) : null,
        argumentsView(call, Boolean(call.file && !call.file.problem)),
        call.file ? fileView(call.file) : null,
        this.codeView(), this.answers, this.panelPlace, this.problem);
    }

    // Open where it tells something that the question before has not shown already.
    codeView() {
        const {execution, line} = this.call;
        if (!execution) return null;
        const code = this.host.codeOf(execution);
        const made = element("details", {className: "from",
            open: !this.card.questions.some(({call}) => call.line === line)},
        element("summary", {}, line ? `called from line ${line}, as the code says` :
            "called from this cell; the line is not known"));
        const show = () => {
            if (!made.open || made.childElementCount > 1) return;
            made.append(code === undefined ?
                element("p", {className: "muted"}, "The code is not known here.") :
                codeView(code, line ? [line] : []));
        };
        made.addEventListener("toggle", show);
        show();
        return made;
    }

    buttons() {
        const {call, about} = this;
        const panel = (make) => () => {
            this.say("");
            this.panel.open(make());
        };
        const common = {call, host: this.host, panel: this.panel, say: (text) => this.say(text),
            allow: (more) => this.allow(more)};
        const label = `Answers to ${about}`;
        const made = element("fieldset", {className: "answers", aria: {label}},
            element("span", {className: "row"},
                button("Allow once", (event) => pressToAllow(event, {...common, guarded: made,
                    question: `Allow ${this.name} once?`, allow: () => this.allow({})}),
                {className: "allow", shortcut: "a", about}),
                call.may_remember === false ? null :
                    button("Allow more…", panel(() => grantPanel(common)), {shortcut: "m", about}),
                call.editable === false ? null :
                    button("Edit, then allow…", panel(() => editPanel(common)),
                        {shortcut: "e", about})),
            element("span", {className: "row"},
                button("Deny", () => this.deny(""), {className: "deny", about}),
                button("Deny, saying why…", panel(() => denyPanel({panel: this.panel,
                    question: `Deny ${this.name}`, deny: (reason) => this.deny(reason)})),
                {shortcut: "d", about}),
                call.execution ? button("Cancel the cell", () => this.cancel(),
                    {shortcut: "c", about}) : null));
        return made;
    }

    say(text) {
        this.problem.replaceChildren(visible(text));
    }

    allow({arguments: edited, grant}) {
        return this.send(`{"id":${JSON.stringify(this.call.id)},"verdict":"allow"` +
            (edited === undefined ? "" : `,"arguments":${JSON.stringify(edited)}`) +
            (grant === undefined ? "" : `,"grant":${grant}`) + "}");
    }

    deny(reason) {
        return this.send(JSON.stringify({id: this.call.id, verdict: "deny",
            ...(reason ? {reason} : {})}));
    }

    async send(answer) {
        this.say("");
        this.busy(true);
        const results = await this.host.answer([answer]);
        this.answered(results.find(({id}) => id === this.call.id) ?? results[0]);
    }

    // What the host said of an answer from here. What is still open may be answered again.
    answered(result) {
        if (result?.ok) return;
        this.busy(false);
        this.say(result?.problem ?? "The host said nothing of this answer.");
    }

    async cancel() {
        const {ok, problem} = await this.host.cancel(this.call.execution);
        if (!ok) this.say(problem);
    }

    busy(sending) {
        this.sending = sending;
        this.answers.disabled = sending || !this.host.connected;
        for (const made of this.panelPlace.querySelectorAll(".panel"))
            made.inert = this.answers.disabled;
    }

    tick(now) {
        const {until, asked} = this.call;
        if (this.done || !until) return;
        const left = Math.max(0, until - now);
        const seconds = Math.ceil(left / 1000);
        const text = seconds >= 120 ? `${Math.floor(seconds / 60)} min left` : `${seconds} s left`;
        if (this.left.textContent !== text) this.left.textContent = text;
        this.left.classList.toggle("urgent", seconds <= 10);
        this.left.title = `silence is a no at ${clock(until)}`;
        const share = Math.min(1, left / Math.max(1, until - asked));
        this.bar.firstChild.style.transform = `scaleX(${share})`;
    }

    // The answer takes the place of the question and keeps its height, so that nothing moves.
    settle(done, height) {
        this.done = done;
        // Who answers by the pointer goes on with it.
        const focused = this.element.contains(document.activeElement) &&
            document.activeElement.matches(":focus-visible");
        this.element.style.minHeight = `${height}px`;
        this.element.classList.add("settled", done.verdict);
        this.element.removeAttribute("aria-label");
        this.element.replaceChildren(element("p", {className: "answer"},
            element("span", {className: `verdict ${done.verdict}`},
                done.verdict === "allow" ? "allowed" : "denied"),
            element("b", {}, this.name),
            element("span", {className: "muted"}, "by ", visible(done.by),
                done.expired ? ", nobody answered in time" : "", done.edited ? ", edited" : ""),
            done.reason ? element("span", {className: "reason"},
                "“", visible(done.reason), "”") : null),
        this.problem);
        if (this.problem.childNodes.length === 0 && this.sending === false) this.problem.remove();
        if (focused) this.element.focus({preventScroll: true});
        this.settledAt = performance.now();
    }
}

// Calls of the same tool in the same cell, which can be answered together.
class Card {
    constructor(call, host) {
        this.host = host;
        this.questions = [];
        this.list = element("ol", {className: "calls"});
        this.together = element("fieldset", {className: "answers together", hidden: true});
        this.panelPlace = element("div");
        this.panel = new Panel(this.panelPlace);
        this.problem = element("p", {className: "problem", role: "alert"});
        this.name = nameOf(call);
        const heading = newId("card");
        this.element = element("li", {className: "card"}, element("article", {
            aria: {labelledby: heading}},
        element("header", {},
            element("h3", {id: heading},
                element("span", {className: "server"}, visible(call.server)),
                element("span", {className: "dot"}, "."), element("span", {}, visible(call.tool))),
            ORIGINS[call.origin] ? element("p", {className: "origin"}, ORIGINS[call.origin]) : null,
            call.identity ? element("p", {className: "identity"},
                element("span", {className: "muted"}, "carried out by "),
                element("span", {className: "mono"}, visible(call.identity))) : null,
            call.session && call.session !== "default" ? element("p", {className: "muted"},
                "session ", visible(call.session)) : null,
            hintsView(call.hints),
            call.description ? element("details", {className: "description"},
                element("summary", {}, "what the server says of this tool"),
                foldable(call.description, {whole: true})) : null),
        this.list, this.together, this.panelPlace, this.problem));
    }

    add(call) {
        const question = new Question(call, this, this.host);
        this.questions.push(question);
        this.list.append(question.element);
        watch(question.answers);
        question.busy(false);
        return question;
    }

    get open() {
        return this.questions.filter((question) => !question.done);
    }

    // Buttons for all that are listed, and for no others.
    update() {
        const open = this.open;
        this.element.classList.toggle("many", this.questions.length > 1);
        this.panel.close();
        this.together.hidden = open.length < 2;
        if (open.length < 2) return;
        const calls = count(open.length);
        const common = {guarded: this.together, panel: this.panel,
            say: (text) => this.problem.replaceChildren(visible(text))};
        this.together.replaceChildren(element("legend", {className: "unseen"},
            `All ${calls} calls of ${this.name} above`),
        element("span", {className: "row"}, button(`Allow these ${calls}`, (event) =>
            pressToAllow(event, {...common,
                question: `Allow these ${calls} calls of ${this.name} once?`,
                allow: () => this.send(open, {verdict: "allow"})}),
        {className: "allow", shortcut: "A", about: this.name})),
        element("span", {className: "row"}, button(`Deny these ${calls}`,
            () => this.send(open, {verdict: "deny"}), {className: "deny", shortcut: "D",
                about: this.name})));
        watch(this.together);
        unsettle(this.together);
        this.together.disabled = !this.host.connected;
    }

    async send(questions, answer) {
        this.problem.replaceChildren();
        for (const question of questions) question.busy(true);
        const results = await this.host.answer(questions.map(({call}) =>
            JSON.stringify({id: call.id, ...answer})));
        const known = new Map(results.map((result) => [result.id, result]));
        for (const question of questions)
            question.answered(known.get(question.call.id) ?? results[0]);
    }
}

function kindOf(call) {
    return JSON.stringify([call.session, call.execution || call.id, call.origin, call.server,
        call.identity, call.tool, call.hints, call.description, call.changed]);
}

export class Questions {
    constructor(list, host) {
        this.list = list;
        this.host = host;
        this.byId = new Map();
        this.cards = new Map();
        this.changed = new Set();  // cards
        this.pointerIn = false;
        list.addEventListener("pointerenter", ({pointerType}) => {
            this.pointerIn = pointerType !== "touch";
        });
        list.addEventListener("pointerleave", () => {
            this.pointerIn = false;
        });
    }

    get open() {
        return [...this.byId.values()].filter((question) => !question.done);
    }

    get(id) {
        return this.byId.get(id);
    }

    add(call) {
        if (this.byId.has(call.id)) return;
        const kind = kindOf(call);
        let card = this.cards.get(kind);
        if (!card) {
            card = new Card(call, this.host);
            this.cards.set(kind, card);
            this.list.append(card.element);
        }
        this.byId.set(call.id, card.add(call));
        this.changed.add(card);
    }

    // Several at once, so that the page is laid out once. `settled`: {id, done}.
    settle(settled) {
        const open = settled.map(({id, done}) => ({question: this.byId.get(id), done})).filter(
            ({question}) => question && !question.done);
        for (const one of open) one.height = one.question.element.offsetHeight;
        for (const {question, done, height} of open) {
            question.settle(done, height);
            this.changed.add(question.card);
        }
    }

    // To be called after calls were added or settled.
    update() {
        for (const card of this.changed) card.update();
        this.changed.clear();
        lookSoon();
    }

    // After a break of the connection: what is still open stays as it is.
    replace(calls, doneOf) {
        const pending = new Set(calls.map(({id}) => id));
        this.settle(this.open.map(({call: {id}}) => id).filter((id) => !pending.has(id)).map(
            (id) => ({id, done: doneOf(id)})));
        for (const call of calls) this.add(call);
    }

    setConnected() {
        for (const question of this.open) question.busy(false);
        for (const card of this.cards.values()) card.together.disabled = !this.host.connected;
    }

    tick(now) {
        for (const question of this.byId.values()) question.tick(now);
        this.clear();
    }

    // Answers go when nothing under the pointer moves by that, and nobody is at them.
    clear() {
        const now = performance.now();
        if (![...this.byId.values()].some((question) => question.done)) return;
        const last = [...this.list.querySelectorAll(
            ".call:not(.settled), .together:not([hidden])")].at(-1);
        // What goes above the window moves nothing in it, where browsers keep their place.
        const anchors = CSS.supports("overflow-anchor", "auto");
        const moves = (shown) => this.pointerIn && last &&
            shown.compareDocumentPosition(last) & Node.DOCUMENT_POSITION_FOLLOWING &&
            !(anchors && shown.getBoundingClientRect().bottom < 0);
        const gone = [];
        for (const card of this.cards.values()) {
            for (const question of [...card.questions]) {
                const {element: shown} = question;
                if (!question.done || now - question.settledAt < STAYS ||
                    shown.contains(document.activeElement) || moves(shown)) continue;
                gone.push(question);
            }
        }
        for (const question of gone) {
            const {card} = question;
            card.questions.splice(card.questions.indexOf(question), 1);
            this.byId.delete(question.call.id);
            question.element.remove();
            if (card.questions.length) continue;
            card.element.remove();
            for (const [kind, other] of this.cards) if (other === card) this.cards.delete(kind);
        }
        if (gone.length) lookSoon();
    }
}
