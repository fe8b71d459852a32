// The approval page: what the host tells comes by one stream of events, answers go by requests.
import {History} from "./history.mjs";
import {Questions} from "./question.mjs";
import {Session} from "./session.mjs";
import {count, nameOf, printable} from "./text.mjs";

const notSignedIn = "this browser is not signed in any more: open a new link";
const at = (id) => document.getElementById(id);
const host = {
    connected: false,
    offset: 0,  // of the host's clock

    now: () => Date.now() + host.offset,
    codeOf: (execution) => session.codeOf(execution),
    say: announce,

    async post(path, body) {
        try {
            const response = await fetch(path, {method: "POST", body,
                headers: {"Content-Type": "application/json"}});
            const type = response.headers.get("Content-Type") ?? "";
            if (type.startsWith("application/json")) return await response.json();
            return {ok: false, problem: response.status === 401 ? notSignedIn :
                `the host refused this with status ${response.status}`};
        } catch (error) {
            return {ok: false, problem: "this may not have arrived, the connection broke: " +
                error.message};
        }
    },
    // `answers` are JSON texts, since numbers keep all their digits. A result for each.
    async answer(answers) {
        const result = await host.post("/answer", `{"answers":[${answers.join(",")}]}`);
        return result.results ?? answers.map((text) => (
            {id: JSON.parse(text).id, ok: false, problem: result.problem}));
    },
    preview: (id, grant) => host.post("/preview", `{"id":${JSON.stringify(id)},"grant":${grant}}`),
    cancel: (execution) => host.post("/cancel", JSON.stringify({execution})),
};

const questions = new Questions(at("cards"), host);
const session = new Session(at("cells"), host);
const history = new History({list: at("answers"), search: at("search"), found: at("found"),
    filters: document.querySelectorAll("input[name=verdicts]")});

// ---- what the host tells

const heard = {
    state({version, session_note: note, now, pending, history: past, cells}) {
        host.offset = now - Date.now();
        at("note").textContent = printable(note ?? "");
        at("version").textContent = `ipybox ${printable(version ?? "")}`;
        session.replace(cells);
        history.replace(past);
        const known = new Map(past.map((done) => [done.call.id, done]));
        questions.replace(pending, (id) => known.get(id) ??
            {verdict: "deny", by: "the host, while this page was not connected", reason: ""});
        connect(true);
        questions.setConnected();
    },
    pending({call}) {
        questions.add(call);
        arrived(call);
    },
    settled({id, done}) {
        settled.push({id, done});
        history.add(done);
        notes.get(id)?.close();
        notes.delete(id);
    },
    outcome({id, outcome, ms}) {
        history.outcome(id, outcome, ms);
    },
    cell({cell}) {
        session.begin(cell);
    },
    output({cell, stderr, text}) {
        session.output(cell, {stderr, text});
    },
    display({cell, mime, data, text}) {
        session.output(cell, {mime, data, text});
    },
    cell_end({cell, outcome, ms}) {
        session.end(cell, outcome, ms);
    },
};

let stream = null;
let events = [], settled = [];

// What comes at about the same time is shown at once, so that the page is laid out once.
function hear() {
    for (const event of events) {
        if (event.type === "state") settled = [];
        heard[event.type]?.(event);
    }
    questions.settle(settled);
    const quiet = events.every(({type}) => type === "output" || type === "display");
    events = [];
    settled = [];
    if (!quiet) update();
}

function listen() {
    stream?.close();
    stream = new EventSource("/events");
    stream.onmessage = ({data}) => {
        if (events.length === 0) setTimeout(hear);
        events.push(JSON.parse(data));
    };
    stream.onerror = () => {
        connect(false);
        // A refused stream is not tried again by the browser.
        if (stream.readyState === EventSource.CLOSED) refused();
    };
}

async function refused() {
    setTimeout(listen, 2000);
    const response = await fetch("/page.css").catch(() => null);
    if (response?.status === 401) at("connection").textContent = notSignedIn;
}

function connect(connected) {
    host.connected = connected;
    document.body.classList.toggle("offline", !connected);
    at("connection").textContent = connected ? "connected" :
        "not connected: answers cannot be given now";
    if (!connected) questions.setConnected();
}

function update() {
    questions.update();
    const open = questions.open;
    document.title = open.length ? `(${open.length}) ipybox asks` : "ipybox asks";
    at("count").textContent = open.length ? count(open.length) : "";
    at("nothing").hidden = open.length > 0;
    at("no-cells").hidden = session.views.size > 0;
    session.mark(open.map(({call}) => call));
}

// ---- telling that somebody is waited for

let news = [], newsTimer = 0;

// What is new is said once for all that come at about the same time.
function arrived(call) {
    news.push(nameOf(call));
    clearTimeout(newsTimer);
    newsTimer = setTimeout(() => {
        const told = news.length === 1 ? `New question: ${news[0]}` :
            `${count(news.length)} new questions`;
        announce(`${told}. ${count(questions.open.length)} waiting.`);
        news = [];
    }, 400);
    notify(call);
}

function announce(text) {
    at("announcements").textContent = printable(text);
}

const notes = new Map();
let notifying = false;

function notify(call) {
    if (!notifying || !document.hidden || Notification.permission !== "granted") return;
    const note = new Notification("ipybox asks", {body: `${nameOf(call)} waits for an answer`,
        tag: call.id});
    note.onclick = () => window.focus();
    notes.set(call.id, note);
}

at("notify").hidden = !("Notification" in window);
at("notify").addEventListener("click", async () => {
    if (!notifying && await Notification.requestPermission() !== "granted") {
        announce("The browser does not allow notifications for this page.");
        return;
    }
    notifying = !notifying;
    at("notify").setAttribute("aria-pressed", String(notifying));
    announce(notifying ? "You are notified while this page is hidden." :
        "You are no longer notified.");
});

// ---- a link for another browser, and help

at("link").addEventListener("click", async () => {
    const {ok, link, problem} = await host.post("/link", "{}");
    at("link-text").value = ok ? link : "";
    at("link-problem").textContent = ok ? "" : printable(problem);
    at("link-dialog").showModal();
    at("link-text").select();
});
at("help").addEventListener("click", () => at("help-dialog").showModal());
for (const close of document.querySelectorAll("dialog .close"))
    close.addEventListener("click", () => close.closest("dialog").close());

// ---- keys

const keysOn = at("keys-on");
keysOn.checked = localStorage.getItem("keys") !== "off";
keysOn.addEventListener("change", () =>
    localStorage.setItem("keys", keysOn.checked ? "on" : "off"));

function move(by) {
    const open = questions.open.map(({element}) => element);
    const stops = [...at("cards").querySelectorAll(".call")];
    const here = stops.findIndex((stop) => stop.contains(document.activeElement));
    const ahead = by > 0 ? stops.slice(here + 1) : stops.slice(0, Math.max(0, here)).reverse();
    const next = ahead.find((stop) => open.includes(stop)) ?? (here < 0 ? open[0] : undefined);
    next?.focus();
    next?.scrollIntoView({block: "nearest"});
}

function isTyping(target) {
    return target.matches("textarea, select, input:not([type=radio], [type=checkbox])");
}

document.addEventListener("keydown", (event) => {
    const {key, target} = event;
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.repeat) return;
    const call = target.closest?.(".call");
    if (key === "Escape") {
        const question = call && questions.get(call.dataset.id);
        const card = [...questions.cards.values()].find((one) => one.element.contains(target));
        if (question?.panel.close() || card?.panel.close()) event.preventDefault();
        return;
    }
    if (!keysOn.checked || isTyping(target) || document.querySelector("dialog[open]")) return;
    if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
    else if (key === "?") at("help").click();
    else if (key === "/") at("search").focus();
    else if (!press(key, target, call)) return;
    event.preventDefault();
});

// The button of this key, of the question that has the focus, or of its card.
function press(key, target, call) {
    const place = "AD".includes(key) ? target.closest?.(".card")?.querySelector(".together") :
        call?.querySelector(".answers");
    const pressed = [...place?.querySelectorAll("button") ?? []].find(
        (button) => button.dataset.key === key);
    if (!pressed || place.disabled || place.hidden) return false;
    pressed.click();
    return true;
}

setInterval(() => questions.tick(host.now()), 250);
connect(false);
at("connection").textContent = "connecting…";
listen();
