// A cell's code with the lines that call marked.
import {count, element, visible} from "./text.mjs";

const WHOLE = 14;   // lines that are always shown
const AROUND = 4;   // lines that are shown around a marked one
const LONGEST = 400;  // characters that are shown of a line, but in the whole code

function lineView(text, number, marked, whole) {
    const shown = whole || text.length <= LONGEST ? visible(text, {block: true}) :
        element("span", {}, visible(text.slice(0, LONGEST).replace(/[\ud800-\udbff]$/, ""),
            {block: true}),
            element("span", {className: "gap"}, ` … folded: ${count(text.length, "character")} …`));
    return element("li", {className: marked ? "calls" : ""},
        element("span", {className: "arrow", aria: {hidden: "true"}}, marked ? "▶" : ""),
        element("span", {className: "number"}, String(number)),
        element("span", {className: "line"}, shown,
            marked ? element("span", {className: "unseen"}, " (this line calls)") : null));
}

// `marked` are numbers of lines, from 1. Without any the code begins at its beginning.
export function codeView(code, marked = []) {
    const made = element("div", {className: "code"});
    const lines = code.replace(/\n$/, "").split("\n");
    const wanted = marked.filter((line) => line >= 1 && line <= lines.length);
    const near = (line) => wanted.length ?
        wanted.some((mark) => Math.abs(mark - line) <= AROUND) : line <= WHOLE - 2;
    const short = lines.length <= WHOLE && lines.every((line) => line.length <= LONGEST);
    const show = (whole) => {
        const list = element("ol");
        let left = 0;
        lines.forEach((text, i) => {
            const number = i + 1;
            if (!whole && !near(number)) {
                left++;
                return;
            }
            if (left) list.append(element("li", {className: "gap"}, `… ${count(left, "line")} …`));
            left = 0;
            list.append(lineView(text, number, wanted.includes(number), whole));
        });
        if (left) list.append(element("li", {className: "gap"}, `… ${count(left, "line")} …`));
        made.replaceChildren(list);
        if (short) return null;
        const button = element("button", {
            type: "button", className: "quiet", aria: {expanded: String(whole)},
            on: {click: () => show(!whole).focus()},
        }, whole ? "fold the code" : `show all ${count(lines.length, "line")} of the code`);
        made.append(button);
        return button;
    };
    show(short);
    return made;
}
