// Buttons that allow do nothing until they have stood still for a moment: a question that has just
// appeared, or has just moved, gets no click that was meant for something else.
const MOMENT = 600;  // ms

const watched = new Map();  // element with such buttons -> {top, left, appeared, moved}
let planned = false;

function placeOf(target) {
    const box = target.getBoundingClientRect();
    return {top: box.top + scrollY, left: box.left + scrollX};
}

function show(target, entry) {
    clearTimeout(entry.timer);
    if (target.dataset.steady !== "no") target.dataset.steady = "no";
    entry.timer = setTimeout(() => {
        target.dataset.steady = "yes";
    }, Math.max(0, entry.moved + MOMENT - performance.now()));
}

function look() {
    planned = false;
    for (const [target, entry] of watched) {
        if (target.isConnected) continue;
        clearTimeout(entry.timer);
        watched.delete(target);
        sizes.unobserve(target);
    }
    // All are measured before anything is changed, so that the page is laid out once.
    const places = Array.from(watched, ([target, entry]) => ({target, entry, ...placeOf(target)}));
    for (const {target, entry, top, left} of places) {
        if (Math.abs(top - entry.top) < 1 && Math.abs(left - entry.left) < 1) continue;
        Object.assign(entry, {top, left, moved: performance.now()});
        show(target, entry);
    }
}

// To be called after every change of the page that may move something.
export function lookSoon() {
    if (!planned) requestAnimationFrame(look);
    planned = true;
}
const sizes = new ResizeObserver(lookSoon);
sizes.observe(document.body);

export function watch(target) {
    if (watched.has(target)) return;
    const now = performance.now();
    const entry = {top: NaN, left: NaN, appeared: now, moved: now};  // measured when all are there
    watched.set(target, entry);
    sizes.observe(target);
    show(target, entry);
    lookSoon();
}

// What is in it has changed: it is as if it had just appeared.
export function unsettle(target) {
    const entry = watched.get(target);
    if (!entry) return;
    entry.appeared = entry.moved = performance.now();
    show(target, entry);
}

// Whether it is there long enough. Keys go to what has the focus, wherever it moves; a click counts
// if it stood still before the pointer's button went down.
export function isSteady(target, isClick = false) {
    if (planned) look();
    const entry = watched.get(target);
    if (!entry) return false;
    const now = performance.now();
    // Clicks of screen readers may come without a pointer.
    const since = isClick ? entry.moved : entry.appeared;
    return (isClick && now - released < 500 ? pressed : now) - since >= MOMENT;
}

let pressed = 0, released = -Infinity;
addEventListener("pointerdown", () => {
    pressed = performance.now();
}, {capture: true});
addEventListener("pointerup", () => {
    released = performance.now();
}, {capture: true});

// The first click into a window that was behind another one may have been meant for that one.
function unsettleAll() {
    for (const target of watched.keys()) unsettle(target);
}
addEventListener("focus", unsettleAll);
document.addEventListener("visibilitychange", unsettleAll);
