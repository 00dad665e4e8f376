/* Keys: an element with data-key="n" or data-key="g j" is clicked (a field is focused) by that key. J and K move through
   the rows of the page's table or list, Enter opens, ? lists what there is. Single keys can be switched off in that list. */
import { themeToggle } from "./theme.js";

const help = document.getElementById("keys");
const box = help?.querySelector("[data-keys-off]");
let prefix = "", timer = 0;
const store = (value) => { try { if (value === undefined) return localStorage.getItem("keys"); localStorage.setItem("keys", value); } catch { return null; } };
const isOff = () => store() === "off";

function act(key) {
  const target = [...document.querySelectorAll(`[data-key="${CSS.escape(key).replace(/\\ /g, " ")}"]`)].find((e) => e.checkVisibility());
  if (!target) return false;
  if (target.matches("input, textarea, select")) target.focus();
  else target.click();
  return true;
}

function row(step) {
  const links = [...document.querySelectorAll(".table tbody .name[href], .rows .name[href]")].filter((e) => e.checkVisibility());
  const at = links.indexOf(document.activeElement);
  links[Math.max(0, Math.min(links.length - 1, at < 0 && step < 0 ? links.length - 1 : at + step))]?.focus();
}

function choose() {
  const boxes = document.activeElement?.closest("tr, li")?.querySelector("input[type=checkbox]");
  boxes?.click();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const typing = event.target.closest?.("input:not([type=checkbox],[type=radio]), textarea, select, [contenteditable]");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (document.querySelector("dialog[open]") || isOff() && event.key !== "?") return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const whole = prefix ? `${prefix} ${key}` : key;
  prefix = ""; clearTimeout(timer);
  let done = true;
  if (key === "?") help?.showModal();
  else if (whole === "g") { prefix = "g"; timer = setTimeout(() => { prefix = ""; }, 1200); }
  else if (whole === "j") row(1);
  else if (whole === "k") row(-1);
  else if (whole === "t") themeToggle();
  else if (whole === "x") choose();
  else done = act(whole);
  if (done) event.preventDefault();
});

if (box) {
  box.checked = isOff();
  box.addEventListener("change", () => store(box.checked ? "off" : "on"));
}
document.querySelectorAll("[data-keys-help]").forEach((e) => e.addEventListener("click", () => help?.showModal()));
