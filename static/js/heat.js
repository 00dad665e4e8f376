/* The heat map: restyles the cells that changed, switches what the colour shows, and moves between cells by arrow keys.
   What a cell says is put together as jobs/heat.py does it. */
import { changed, gib, latest, panel, snapshot, strip, words } from "./cells.js";
import { duration } from "./times.js";

const body = document.body;
const COLUMN = { memory: "m", use: "u", temp: "t" };
const pending = new Map();
let naming = 0;
const heat = () => document.querySelector("[data-heat]");

function step(value, [low, high]) {
  return Math.max(0, Math.min(20, Math.round((20 * (value - low)) / (high - low))));
}

function put(element, name, value) {
  if (value === undefined || value === "") { if (name in element.dataset) delete element.dataset[name]; }
  else if (element.dataset[name] !== String(value)) element.dataset[name] = value;
}

function label(cell, frame, i, said) {
  const parts = [cell.dataset.name];
  if (cell.dataset.who) parts.push(cell.dataset.who);
  parts.push(said.memory.replace("%s", frame.m[i] === null ? said.na : `${frame.m[i]}%`));
  parts.push(said.use.replace("%s", frame.u[i] === null ? said.na : `${frame.u[i]}%`));
  if (frame.t[i] !== null) parts.push(`${frame.t[i]}${said.joint}°C`);
  if (frame.r[i] !== null) parts.push(said.free.replace("%s", gib(frame.r[i], said)));
  for (const letter of frame.k[i]) parts.push(said.marks[letter][0]);
  if ("sim" in cell.dataset) parts.push(said.simulated);
  return parts.join(", ");
}

/* Names of many cells are brought up to date between frames, a few at a time: they cost more than the colours. */
function relabel() {
  clearTimeout(naming);
  const frame = latest(), said = words();
  if (!frame) return;
  for (const [cell, i] of [...pending].slice(0, 32)) {
    pending.delete(cell);
    cell.setAttribute("aria-label", label(cell, frame, i, said));
  }
  if (pending.size) naming = setTimeout(relabel, 30);
}

function draw(cell, frame, old, i, said, metric, sprite) {
  const marks = frame.k[i], value = frame[COLUMN[metric]][i], field = cell.firstElementChild;
  const off = value === null || /[MX]/.test(marks);
  put(field, "h", off ? "" : step(value, said.scales[metric]));
  if (!old || old.k[i] !== marks || off !== cell.hasAttribute("data-off") || "stale" in cell.dataset) {
    const mark = field.lastElementChild, [, icon, tone] = marks ? said.marks[marks[0]] : "sim" in cell.dataset ? ["", said.sim, "sim"] : ["", "", ""];
    put(cell, "tone", { S: "warn", I: "bad", X: "bad" }[marks[0]] ?? ("sim" in cell.dataset ? "sim" : ""));
    cell.toggleAttribute("data-off", off);
    cell.toggleAttribute("data-stale", !off && marks.includes("T"));
    mark.hidden = !icon;
    put(mark, "tone", tone);
    if (icon) mark.querySelector("use").setAttribute("href", `${sprite}#i-${icon}`);
  }
  const figure = field.childElementCount > 1 ? field.children[1] : null;
  if (figure) {
    const text = marks.includes("M") ? said.off : marks.includes("X") ? said.gone : value === null ? said.na : String(value);
    const unit = off || value >= 100 ? "" : metric === "temp" ? "°" : "%";   // three digits and a mark leave no room for it
    if (figure.textContent !== text + unit) {
      figure.textContent = text;
      if (unit) figure.append(Object.assign(document.createElement("small"), { textContent: unit }));
    }
  }
  if (!old || old.s[i] !== frame.s[i]) strip(cell.lastElementChild, frame.s[i], panel().dataset.me);
}

function nodes(frame, said) {
  for (const place of heat().querySelectorAll("[data-node]")) {
    const at = Number(place.dataset.node), state = frame.n[at];
    if (place.dataset.state !== state) return body.dispatchEvent(new CustomEvent("cells:layout"));   // its words are made on the server
    if (!state.startsWith("UNKNOWN") || frame.z[at] === null) continue;
    const text = place.querySelector("[data-node-state] .tc");
    if (text) text.lastChild.nodeValue = ` ${said.silent.replace("%s", duration(frame.at - frame.z[at]))}`;
  }
}

function restyle(frame, old) {
  if (!heat() || !frame) return;
  const said = words(), metric = panel().dataset.metric, sprite = heat().querySelector("use")?.getAttribute("href").split("#")[0];
  for (const cell of heat().getElementsByClassName("gpu")) {
    const i = Number(cell.dataset.i);
    if (!changed(frame, old, i)) continue;
    draw(cell, frame, old, i, said, metric, sprite);
    pending.set(cell, i);
  }
  relabel();
  nodes(frame, said);
}

function metricTo(link) {
  const frame = latest();
  panel().dataset.metric = link.dataset.metricTo;
  document.cookie = `metric=${link.dataset.metricTo}; Path=/; Max-Age=31536000; SameSite=Lax`;
  for (const each of document.querySelectorAll("[data-metric-to]")) each.toggleAttribute("aria-current", false);
  link.setAttribute("aria-current", "true");
  panel().querySelector(".legend [data-low]").textContent = link.dataset.low;
  panel().querySelector(".legend [data-high]").textContent = link.dataset.high;
  if (frame) restyle(frame, null); else snapshot();
}

function rove(current) {
  if (!heat()) return;
  const all = [...heat().querySelectorAll(".gpu")], chosen = current ?? all.find((cell) => cell.tabIndex === 0 && cell.hasAttribute("tabindex")) ?? all[0];
  for (const cell of all) cell.tabIndex = cell === chosen ? 0 : -1;
}

function move(cell, key) {
  const all = [...heat().querySelectorAll(".gpu")], at = all.indexOf(cell);
  if (key === "ArrowLeft" || key === "ArrowRight") return all[at + (key === "ArrowRight" ? 1 : -1)];
  if (key === "Home" || key === "End") return key === "Home" ? all[0] : all.at(-1);
  const here = cell.getBoundingClientRect(), down = key === "ArrowDown" ? 1 : -1;
  return all.map((each) => [each, each.getBoundingClientRect()])
    .filter(([, box]) => (box.top - here.top) * down > here.height / 2)
    .sort(([, a], [, b]) => Math.abs(a.top - here.top) * 4 + Math.abs(a.left - here.left) - Math.abs(b.top - here.top) * 4 - Math.abs(b.left - here.left))[0]?.[0];
}

body.addEventListener("pointerover", (event) => {
  const cell = event.target.closest?.("[data-heat] .gpu");
  if (cell) cell.title = cell.getAttribute("aria-label").replaceAll(", ", " · ");
});
body.addEventListener("cells:frame", (event) => restyle(event.detail.frame, event.detail.last));
body.addEventListener("cells:users", (event) => {
  for (const cell of event.detail.cells) pending.set(cell, Number(cell.dataset.i));
  relabel();
});
body.addEventListener("cells:dead", () => heat()?.querySelectorAll(".gpu:not([data-off])").forEach((cell) => cell.toggleAttribute("data-stale", true)));
body.addEventListener("htmx:afterSettle", () => rove());
body.addEventListener("click", (event) => {
  const link = event.target.closest("[data-metric-to]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  metricTo(link);
});
body.addEventListener("keydown", (event) => {
  const cell = event.target.closest?.("[data-heat] .gpu");
  if (!cell || !/^(Arrow|Home|End)/.test(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
  const next = move(cell, event.key);
  event.preventDefault();
  if (next) { rove(next); next.focus(); }
});
rove();
