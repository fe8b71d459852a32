// Beside the questions: the cells of the session with what their code printed and drew. All of it
// comes from the code, so that it is in a region of its own and can press nothing.
import {codeView} from "./code.mjs";
import {clock, element, printable, visible} from "./text.mjs";

const MOST_CELLS = 50;
const MOST_OUTPUT = 400_000;  // characters of a cell that are kept on the page
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"]);
const OUTCOMES = {
    ok: "done", error: "ended with an error", timed_out: "ran out of time", cancelled: "cancelled",
    kernel_lost: "the kernel ended", output_limit: "too much output", refused: "refused",
};

// Colours go, and a carriage return is a newline, as at the terminal; other escapes stay visible.
// What a chunk ends with may go on in the next one.
class Printed {
    held = "";

    next(chunk) {
        let text = this.held + chunk;
        const partial = /(?:\x1b(?:\[[0-9;]{0,64})?|\r)$/.exec(text);
        this.held = partial ? partial[0] : "";
        if (partial) text = text.slice(0, partial.index);
        return text.replace(/\x1b\[[0-9;]*m/g, "").replace(/\r\n?/g, "\n");
    }
}

class CellView {
    constructor(cell, host) {
        this.cell = cell;
        this.host = host;
        this.size = 0;
        this.printed = {out: new Printed(), err: new Printed()};
        this.status = element("span", {className: "status"});
        this.cancel = element("button", {
            type: "button", className: "small", on: {click: () => this.stop()},
        }, "Cancel this cell");
        this.code = element("div");
        this.pieces = element("div", {className: "pieces"});
        this.note = element("p", {className: "muted", hidden: true},
            "Earlier output is no longer on this page; the agent has all of it.");
        this.label = element("p", {className: "label"}, "what the code printed");
        this.output = element("div", {className: "printed", hidden: true, role: "group",
            aria: {label: "What the code printed; none of it is a question"}},
        this.label, this.note, this.pieces);
        this.element = element("li", {className: "cell", dataset: {cell: cell.id}},
            element("div", {className: "top"},
                element("span", {className: "muted"}, clock(cell.began),
                    cell.session && cell.session !== "default" ?
                        ` · session ${printable(cell.session)}` : ""),
                this.status, this.cancel),
            this.code, this.output);
        this.mark([]);
        if (cell.cut) this.note.hidden = this.output.hidden = false;
        for (const piece of cell.output ?? []) this.put(piece);
        this.end(cell);
    }

    async stop() {
        this.cancel.disabled = true;
        const {ok, problem} = await this.host.cancel(this.cell.id);
        if (ok) return;
        this.cancel.disabled = false;
        this.host.say(problem);
    }

    mark(lines) {
        const key = lines.join();
        if (this.marked === key) return;
        this.marked = key;
        this.code.replaceChildren(codeView(this.cell.code, lines));
    }

    put(piece) {
        this.output.hidden = false;
        const follows = this.pieces.scrollHeight - this.pieces.scrollTop -
            this.pieces.clientHeight < 40;
        if (piece.mime) this.picture(piece);
        else this.text(piece);
        while (this.size > MOST_OUTPUT && this.pieces.childElementCount > 1) {
            const first = this.pieces.firstElementChild;
            this.size -= Number(first.dataset.size);
            first.remove();
            this.note.hidden = false;
        }
        if (follows) this.pieces.scrollTop = this.pieces.scrollHeight;
    }

    text({stderr, text}) {
        const shown = this.printed[stderr ? "err" : "out"].next(text);
        if (!shown) return;
        let last = this.pieces.lastElementChild;
        const kind = stderr ? "err" : "out";
        if (last?.dataset.kind !== kind || last.dataset.size > MOST_OUTPUT / 8) {
            last = element("pre", {className: stderr ? "stderr" : "", dataset: {kind, size: "0"}});
            this.pieces.append(last);
        }
        last.dataset.size = Number(last.dataset.size) + shown.length;
        this.size += shown.length;
        last.append(visible(shown, {block: true}));
    }

    picture({mime, data, text}) {
        if (!PICTURES.has(mime)) {
            if (text || mime === "text/plain")
                this.text({stderr: false, text: (text || data) + "\n"});
            return;
        }
        const base64 = mime === "image/svg+xml" ? base64Of(data) : data;  // which comes as text
        this.size += data.length / 20;
        this.pieces.append(element("figure", {dataset: {kind: "picture", size: data.length / 20}},
            element("figcaption", {}, "a picture made by the code"),
            element("img", {src: `data:${mime};base64,${base64}`,
                alt: text ? `picture made by the code: ${printable(text).slice(0, 200)}` :
                    "picture made by the code"})));
    }

    end({ended, outcome, ms}) {
        const over = ended !== null && ended !== undefined;
        this.cancel.hidden = over;
        this.status.textContent =
            over ? OUTCOMES[outcome] ?? printable(String(outcome)) : "running";
        if (over && ms !== undefined) this.status.textContent += ` after ${duration(ms)}`;
        this.element.dataset.outcome = over ? outcome : "running";
    }
}

function base64Of(text) {
    const bytes = Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte));
    return btoa(bytes.join(""));
}

export function duration(ms) {
    return ms < 1000 ? `${ms} ms` : ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` :
        `${Math.floor(ms / 60_000)} min ${Math.round(ms % 60_000 / 1000)} s`;
}

// The cells, the newest first.
export class Session {
    constructor(list, host) {
        this.list = list;
        this.host = host;
        this.views = new Map();
    }

    replace(cells) {
        this.views.clear();
        this.list.replaceChildren();
        for (const cell of cells) this.begin(cell);
    }

    begin(cell) {
        const view = new CellView(cell, this.host);
        this.views.set(cell.id, view);
        this.list.prepend(view.element);
        if (this.views.size > MOST_CELLS) {
            const [id, oldest] = this.views.entries().next().value;
            oldest.element.remove();
            this.views.delete(id);
        }
    }

    output(execution, piece) {
        this.views.get(execution)?.put(piece);
    }

    end(execution, outcome, ms) {
        this.views.get(execution)?.end({ended: true, outcome, ms});
    }

    codeOf(execution) {
        return this.views.get(execution)?.cell.code;
    }

    // The lines that wait for an answer are marked.
    mark(calls) {
        const lines = new Map();
        for (const {execution, line} of calls)
            if (line) lines.set(execution, [...lines.get(execution) ?? [], line]);
        for (const [id, view] of this.views)
            view.mark([...new Set(lines.get(id) ?? [])].sort((a, b) => a - b));
    }
}
