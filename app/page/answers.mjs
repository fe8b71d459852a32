// How a question is answered: the panels that open below its buttons.
import {isSteady, unsettle, watch} from "./steady.mjs";
import {element, escapedJson, foldable, hasHidden, layOut, printable, visible}
    from "./text.mjs";

let numbers = 0;
export function newId(what) {
    return `${what}-${++numbers}`;
}

function key(name) {
    return element("kbd", {aria: {hidden: "true"}}, name);
}

// A button with a key that presses it while its question has the focus.
export function button(label, pressed, {className = "", shortcut = "", about = ""} = {}) {
    const made = element("button", {type: "button", className, on: {click: pressed}}, label);
    if (about) made.setAttribute("aria-label", `${label}: ${about}`);
    if (shortcut) {
        if (!about) made.setAttribute("aria-label", label);
        made.append(" ", key(shortcut));
        made.dataset.key = shortcut;
        made.setAttribute("aria-keyshortcuts", shortcut);
    }
    return made;
}

// What every press of a button that allows goes through. A click counts when the button has stood
// still; a key asks once more, so that Enter alone allows nothing.
export function pressToAllow(event, {guarded, panel, question, allow, say}) {
    if (!isSteady(guarded, event.detail > 0)) {
        say("Nothing was answered: this question had just appeared or moved. Read it, then press again.");
        return;
    }
    if (event.detail > 0) allow();
    else panel.open(confirmPanel({question, allow, say, panel}));
}

// Where one panel at a time is open.
export class Panel {
    constructor(place) {
        this.place = place;
        this.back = null;
    }

    open(content, focus = "[data-focus]") {
        this.back ??= document.activeElement;
        this.place.replaceChildren(content);
        watch(content);
        unsettle(content);
        content.querySelector(focus)?.focus({preventScroll: false});
    }

    close() {
        if (!this.place.hasChildNodes()) return false;
        this.place.replaceChildren();
        const back = this.back?.isConnected ? this.back : this.place.closest("[tabindex]");
        this.back = null;
        back?.focus();
        return true;
    }
}

export function confirmPanel({question, allow, say, panel}) {
    const yes = (isClick) => {
        const steady = isSteady(made, isClick);
        panel.close();
        if (steady) allow();
        else say("Nothing was answered: the yes came too soon after the question.");
    };
    const made = element("div", {className: "panel confirm", role: "group", aria: {label: question},
        on: {keydown: (event) => {
            const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
            if (event.key === "y" && plain && !event.repeat) yes(false);
            else if (event.key === "Escape") panel.close();
            else if (event.key.length > 1 || event.key === " " || !plain) return;  // Tab, Enter …
            event.preventDefault();
            event.stopPropagation();
        }}},
    element("p", {}, question),
    element("div", {className: "buttons"},
        button("Yes, allow", (event) => yes(event.detail > 0), {className: "allow", shortcut: "y"}),
        (() => {
            const back = button("Back", () => panel.close(), {shortcut: "Esc"});
            back.dataset.focus = "";
            return back;
        })()));
    return made;
}

export function denyPanel({question, deny, panel}) {
    const id = newId("reason");
    const input = element("input", {type: "text", id, maxLength: 1000, autocomplete: "off",
        dataset: {focus: ""}, on: {keydown: (event) => {
            if (event.key === "Enter" && !event.isComposing) deny(input.value.trim());
        }}});
    return element("div", {className: "panel", role: "group", aria: {label: question}},
        element("label", {htmlFor: id}, "Why not? The code is told."),
        input,
        element("div", {className: "buttons"},
            button(question, () => deny(input.value.trim()), {className: "deny"}),
            button("Back", () => panel.close(), {shortcut: "Esc"})));
}

// ---- edit, then allow

class Field {
    constructor(argument, changed) {
        this.argument = argument;
        const {name, json, text} = argument;
        this.isText = text !== undefined && text !== null && !hasHidden(text);
        this.gone = false;
        const id = newId("edit");
        this.before = this.isText ? text : layOut(escapedJson(json));
        this.input = element("textarea", {id, value: this.before, spellcheck: false,
            rows: Math.min(16, Math.max(1, this.before.split("\n").length,
                Math.ceil(this.before.length / 80))),
            aria: {describedby: `${id}-note`}, on: {input: () => {
                this.check();
                changed();
            }}});
        this.note = element("p", {id: `${id}-note`, className: "muted"}, this.kind());
        this.remove = element("button", {type: "button", className: "small", on: {click: () => {
            this.gone = !this.gone;
            this.input.disabled = this.gone;
            this.remove.textContent = this.gone ? "put back" : "leave out";
            this.remove.setAttribute("aria-label", `${this.remove.textContent} ${printable(name)}`);
            changed();
        }}}, "leave out");
        this.remove.setAttribute("aria-label", `leave out ${printable(name)}`);
        this.element = element("div", {className: "field"},
            element("label", {htmlFor: id}, visible(name)), this.remove, this.input, this.note);
    }

    kind() {
        if (this.isText) return "text";
        return typeof this.argument.text === "string" ?
            "JSON, since the text has characters that cannot be seen" : "JSON";
    }

    get edited() {
        return this.gone || this.input.value !== this.before || this.argument.added;
    }

    check() {
        let problem = "";
        if (!this.isText && !this.gone) {
            try {
                JSON.parse(this.input.value);
            } catch (error) {
                problem = `this is not JSON: ${error.message}`;
            }
        }
        this.note.textContent = problem ? "" : this.kind();
        this.note.append(visible(problem));
        this.note.classList.toggle("odd", Boolean(problem));
        this.input.setAttribute("aria-invalid", String(Boolean(problem)));
        return !problem;
    }

    // As it came unless it was edited, with all digits.
    json() {
        if (!this.edited) return this.argument.json;
        return this.isText ? JSON.stringify(this.input.value) : this.input.value;
    }
}

export function editPanel({call, allow, say, panel}) {
    const place = element("div", {className: "fields"});
    const fields = [];
    const question = `Allow ${printable(call.tool)} with the edited arguments?`;
    const update = () => {
        send.disabled = !fields.some((field) => field.edited);
        unsettle(made);
    };
    const put = (argument) => {
        const field = new Field(argument, update);
        fields.push(field);
        place.append(field.element);
        return field;
    };
    const all = () => "{" + fields.filter((field) => !field.gone).map((field) =>
        `${JSON.stringify(field.argument.name)}:${field.json()}`).join(",") + "}";
    const send = button("Allow the edited call", (event) => {
        if (fields.filter((field) => !field.check()).length) {
            fields.find((field) => !field.check()).input.focus();
            return;
        }
        pressToAllow(event, {guarded: made, panel: inner, question, say,
            allow: () => allow({arguments: all()})});
    }, {className: "allow", about: printable(call.tool)});
    send.disabled = true;
    const inside = element("div");
    const inner = new Panel(inside);
    const name = element("input", {type: "text", autocomplete: "off", id: newId("name")});
    const list = element("datalist", {id: newId("names")}, ...Object.keys(
        call.schema?.properties ?? {}).map((value) => element("option", {value})));
    name.setAttribute("list", list.id);
    const add = () => {
        if (!name.value || fields.some((field) => field.argument.name === name.value)) {
            name.focus();
            return;
        }
        const type = call.schema?.properties?.[name.value]?.type;
        const field = put(type === "string" || type === undefined ?
            {name: name.value, json: '""', text: "", added: true} :
            {name: name.value, json: "null", added: true});
        name.value = "";
        update();
        field.input.focus();
    };
    const made = element("div", {className: "panel edit", role: "group",
        aria: {label: `Edit, then allow ${printable(call.tool)}`}},
    place,
    element("div", {className: "add"},
        element("label", {htmlFor: name.id}, "another argument"), name, list,
        element("button", {type: "button", className: "small", on: {click: add}}, "add")),
    element("p", {className: "muted"}, "Both versions are recorded; the host checks the edited one " +
        "against what the tool takes."),
    element("div", {className: "buttons"}, send,
        button("Back", () => panel.close(), {shortcut: "Esc"})), inside);
    for (const argument of call.arguments) put(argument);
    if (fields.length) fields[0].input.dataset.focus = "";
    else name.dataset.focus = "";
    return made;
}

// ---- allow more than this once

const CONDITIONS = [
    // kind, what it is called, how many inputs, whether they are JSON
    ["equals", "is exactly", 1, true],
    ["anything", "may be anything", 0],
    ["under", "is a path in the directory", 1],
    ["url_host", "is a URL on the host", 1],
    ["glob", "matches, with * for any text,", 1],
    ["regex", "matches the regular expression", 1],
    ["one_of", "is one of (JSON array)", 1, true],
    ["range", "is a number between", 2, true],
    ["present", "is there", 0],
    ["absent", "is not there", 0],
    ["json", "fulfils the conditions (JSON)", 1, true],
];

function pointerOf(name) {
    return "/" + name.replaceAll("~", "~0").replaceAll("/", "~1");
}

class Condition {
    constructor({name, json, text}, changed) {
        this.name = name;
        this.value = {json: escapedJson(json), text};
        const id = newId("condition");
        const isText = typeof text === "string";
        const isNumber = /^-?[0-9]/.test(json);
        const kinds = CONDITIONS.filter(([kind]) => kind === "range" ? isNumber :
            ["under", "url_host", "glob", "regex"].includes(kind) ? isText : true);
        this.select = element("select", {id, on: {change: () => {
            this.fill();
            changed();
        }}}, ...kinds.map(([kind, label]) => element("option", {value: kind}, label)));
        this.changed = changed;
        this.inputs = element("span", {className: "inputs"});
        this.element = element("div", {className: "field condition"},
            element("label", {htmlFor: id}, visible(name)), this.select, this.inputs);
        if (isText && /^\/[^\n]*$/.test(text)) this.select.value = "under";
        else if (isText && /^(https?|wss?):\/\//.test(text)) this.select.value = "url_host";
        this.fill();
    }

    // The value of the call, in the form that the chosen condition takes.
    proposals() {
        const {json, text} = this.value;
        switch (this.select.value) {
            case "equals": return [json];
            case "one_of": return [`[${json}]`];
            case "under": return [text.slice(0, Math.max(1, text.lastIndexOf("/")))];
            case "url_host": return [URL.canParse(text) ? new URL(text).host : ""];
            case "glob": return [text.replace(/[*?\\]/g, "\\$&")];
            case "regex": return [text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")];
            case "range": return [json, json];
            case "json": return [`{"equals": ${json}}`];
            default: return [];
        }
    }

    fill() {
        const values = this.proposals();
        const labels = values.length > 1 ? ["from", "to"] : [this.select.selectedOptions[0].text];
        // What cannot be seen in a field is not edited in it.
        this.inputs.replaceChildren(...values.map((value, i) => element("input", {
            type: "text", value: hasHidden(value) ? "" : value, spellcheck: false, autocomplete: "off",
            aria: {label: `${printable(this.name)} ${labels[i]}`}, on: {input: this.changed}})));
        this.element.classList.toggle("any", this.select.value === "anything");
    }

    // A JSON text, or nothing; throws a SyntaxError.
    json() {
        const texts = [...this.inputs.children].map((input) => input.value);
        const kind = this.select.value;
        const [, , , isJson] = CONDITIONS.find(([name]) => name === kind);
        if (isJson) {
            for (const text of texts) {
                try {
                    if (text.trim() || kind !== "range") JSON.parse(text);
                } catch {
                    throw new SyntaxError(`${this.name}: "${text}" is not JSON; texts need quotes`);
                }
            }
        }
        switch (kind) {
            case "anything": return "";
            case "present": return '{"present":true}';
            case "absent": return '{"present":false}';
            case "json": return texts[0];
            case "range": return "{" + [["minimum", texts[0]], ["maximum", texts[1]]].filter(
                ([, text]) => text.trim()).map(([name, text]) => `"${name}":${text}`).join(",") + "}";
            default: return `{"${kind}":${isJson ? texts[0] : JSON.stringify(texts[0])}}`;
        }
    }
}

function choice(name, options, changed) {
    return element("div", {className: "choices"}, ...options.map(([value, label, ...more]) =>
        element("div", {className: "choice"},
            element("label", {}, element("input", {type: "radio", name, value,
                on: {change: changed}}), " ", label), ...more)));
}

function chosen(place) {
    return place.querySelector("input[type=radio]:checked")?.value ?? "";
}

export function grantPanel({call, host, allow, say, panel}) {
    const tool = printable(call.tool), server = printable(call.server);
    let asked = 0, timer = 0, ready = null;
    const changed = () => {
        ready = null;
        send.disabled = true;
        unsettle(made);
        like.hidden = chosen(scopes) !== "like";
        hours.disabled = chosen(spans) !== "hours";
        clearTimeout(timer);
        timer = setTimeout(preview, 250);
    };
    const conditions = call.arguments.map((argument) => new Condition(argument, () => changed()));
    const like = element("div", {className: "fields", hidden: true},
        ...conditions.map((condition) => condition.element));
    const hours = element("input", {type: "number", min: 1, max: 8760, value: 24, disabled: true,
        aria: {label: "hours"}, on: {input: () => changed()}});
    const scopes = choice(newId("scope"), [
        ["arguments", "with exactly these arguments"],
        ["like", "with arguments like these", like],
        ["tool", `${tool} with any arguments`],
        ["server", `every tool of ${server}`]], () => changed());
    const spans = choice(newId("lasts"), [
        ["cell", "in this cell"], ["session", "in this session"],
        ["hours", "for some hours", hours], ["always", "always"]], () => changed());
    const shown = element("div", {className: "preview", aria: {live: "polite"}},
        element("p", {className: "muted"}, "Choose what, and for how long: the rule is shown here."));
    const grant = () => {
        const lasts = chosen(spans);
        const texts = chosen(scopes) !== "like" ? [] : conditions.map((condition) => [
            pointerOf(condition.name), condition.json()]).filter(([, json]) => json);
        return `{"scope":${JSON.stringify(chosen(scopes))},` +
            `"lasts":${JSON.stringify(lasts === "hours" ? "always" : lasts)},` +
            `"hours":${lasts === "hours" ? JSON.stringify(hours.valueAsNumber) : "null"}` +
            (chosen(scopes) === "like" ? `,"conditions":{${texts.map(([pointer, json]) =>
                `${JSON.stringify(pointer)}:${json}`).join(",")}}` : "") + "}";
    };
    const preview = async () => {
        if (!chosen(scopes) || !chosen(spans)) return;
        const mine = ++asked;
        const tell = (problem) => shown.replaceChildren(
            element("p", {className: "odd", role: "alert"}, visible(problem)));
        let text;
        try {
            text = grant();
            if (chosen(spans) === "hours" && !(hours.valueAsNumber > 0))
                throw new SyntaxError("the number of hours is missing");
        } catch (error) {
            tell(error.message);
            return;
        }
        const result = await host.preview(call.id, text);
        if (mine !== asked) return;
        if (!result.ok) {
            tell(result.problem);
            return;
        }
        const rule = layOut(result.rule_text);
        shown.replaceChildren(
            element("p", {className: "label"}, "the rule that will be written"),
            foldable(rule, {whole: rule.length < 4000, what: "the rule"}),
            element("p", {}, result.of ? `It would have matched ${result.matched} of the last ` +
                `${result.of} calls.` : "There are no earlier calls to compare it with."));
        ready = text;
        send.disabled = false;
        unsettle(made);
    };
    const inside = element("div");
    const inner = new Panel(inside);
    const send = button("Allow, and write this rule", (event) => {
        const text = ready;
        if (text) pressToAllow(event, {guarded: made, panel: inner, say,
            question: `Allow ${server}.${tool}, and write this rule?`, allow: () => allow({grant: text})});
    }, {className: "allow", about: `${server}.${tool}`});
    send.disabled = true;
    const group = (title, place) => element("fieldset", {}, element("legend", {}, title), place);
    const made = element("div", {className: "panel grant", role: "group",
        aria: {label: `Allow more of ${server}.${tool}`}},
    group(`Allow ${server}.${tool}`, scopes), group("For how long", spans), shown,
    element("div", {className: "buttons"}, send,
        button("Back", () => panel.close(), {shortcut: "Esc"})), inside);
    scopes.querySelector("input").dataset.focus = "";
    return made;
}
