/* The pool's live figures. Takes each frame (jobs/cells.py says what is in it) and tells what changed:
   "cells:frame" on body, detail {frame, last}; "cells:layout" when cards came or went: the piece is fetched again then.
   Rows and facts with data-i in a [data-layout] piece are updated here: [data-fig=m|u|t|w|r], [data-strip]; heat.js does cells. */

const body = document.body;
const DEAD_MS = 15000;
let last = null, at = 0, asking = false;

export const panel = () => document.querySelector("[data-layout]");
let spoken = null, parsed = null;
export function words() {
  const text = panel().dataset.words;
  if (text !== spoken) { spoken = text; parsed = JSON.parse(text); }
  return parsed;
}
export const changed = (frame, old, i) => !old || ["m", "u", "t", "w", "r", "k", "s"].some((key) => frame[key][i] !== old[key][i]);

export function gib(mib, said) {
  return mib === null ? said.na : `${(mib / 1024).toFixed(mib < 102400 ? 1 : 0).replace(/\.0$/, "").replace(/\B(?=(\d{3})+(?!\d))/g, ",")}${said.joint}GiB`;
}

/* Draws a memory strip; pieces that are there are used again. */
export function strip(element, text, me) {
  const pieces = text ? text.split(",") : [];
  while (element.childElementCount > pieces.length) element.lastElementChild.remove();
  pieces.forEach((piece, at) => {
    const [permille, whose] = piece.split(":"), part = element.children[at] ?? element.appendChild(document.createElement("i"));
    const kind = { "!g": "ghost", "!q": "quar" }[whose] ?? (whose === me ? "mine" : "");
    if ((part.dataset.k ?? "") !== kind) { if (kind) part.dataset.k = kind; else delete part.dataset.k; }
    part.style.setProperty("--w", `${permille / 10}%`);
  });
}

function figures(frame, old) {
  const said = words(), joint = said.joint;
  const show = {
    m: (v) => `${v}%`, u: (v) => `${v}%`, t: (v) => `${v}${joint}°C`, w: (v) => `${v}${joint}W`, r: (v) => gib(v, said),
  };
  for (const row of panel().querySelectorAll("[data-i]:not(.gpu)")) {
    const i = Number(row.dataset.i);
    if (i >= frame.m.length || !changed(frame, old, i)) continue;
    for (const fig of row.querySelectorAll("[data-fig]")) {
      const value = frame[fig.dataset.fig][i], text = value === null ? said.na : show[fig.dataset.fig](value);
      if (fig.textContent !== text) fig.textContent = text;
    }
    const bar = row.querySelector("[data-meter]");
    if (bar) bar.style.setProperty("--w", `${frame[bar.dataset.meter][i] ?? 0}%`);
    const memory = row.querySelector("[data-strip]");
    if (memory && (!old || old.s[i] !== frame.s[i])) strip(memory, frame.s[i], panel().dataset.me);
  }
}

function take(frame) {
  if (!panel()) return;
  if (frame.v !== panel().dataset.layout) {
    last = null;
    body.dispatchEvent(new CustomEvent("cells:layout"));
    return;
  }
  const old = last;
  last = frame; at = Date.now();
  delete panel().dataset.dead;
  figures(frame, old);
  body.dispatchEvent(new CustomEvent("cells:frame", { detail: { frame, last: old } }));
}

export const latest = () => last;

export async function snapshot() {
  if (asking || !panel()) return;
  asking = true;
  try {
    const answer = await fetch(panel().dataset.cellsUrl, { headers: { Accept: "application/json" }, redirect: "error" });
    if (answer.ok) take(await answer.json());
  } catch { /* the socket's next frame comes anyway */ } finally { asking = false; }
}

body.addEventListener("pool:cells", (event) => (event.detail.gap ? snapshot() : take(event.detail.cells)));
body.addEventListener("htmx:afterSettle", () => { if (!last) snapshot(); });
setInterval(() => {
  if (document.hidden || !panel() || !at || Date.now() - at < DEAD_MS || "dead" in panel().dataset) return;
  panel().dataset.dead = ""; last = null;
  body.dispatchEvent(new CustomEvent("cells:dead"));
}, 1000);
snapshot();
