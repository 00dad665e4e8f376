/* Who uses the cards: fetched when jobs came or went, as far as the reader may know it (jobs/holders.py).
   heat.js puts the words of a cell together again on "cells:users". */
import { panel } from "./cells.js";

const PAUSE_MS = 1000;
let timer = 0;

async function update() {
  timer = 0;
  const place = panel(), url = place?.dataset.usersUrl;
  if (!url || document.hidden) return;
  try {
    const answer = await fetch(url, { headers: { Accept: "application/json" }, redirect: "error" });
    if (answer.ok) show(place, await answer.json());
  } catch { /* the next change asks again */ }
}

function show(place, found) {
  if (found.v !== place.dataset.layout) return;
  const cells = [];
  for (const row of place.querySelectorAll("[data-i]")) {
    const [short, text] = found.who[Number(row.dataset.i)] ?? ["", ""];
    const line = row.querySelector("[data-users]"), name = row.querySelector(".cell-who");
    if (line && line.textContent !== text) line.textContent = text;
    if (name && name.textContent !== short) name.textContent = short;
    if ("who" in row.dataset && row.dataset.who !== text) { row.dataset.who = text; cells.push(row); }
  }
  if (cells.length) document.body.dispatchEvent(new CustomEvent("cells:users", { detail: { cells } }));
}

const soon = () => { timer ||= setTimeout(update, PAUSE_MS); };
document.body.addEventListener("pool:jobs", soon);
document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(); });
