/* Find in the lines that are here. Marks are painted over the text (CSS Custom Highlight API), so that no line changes; a
   browser without it still goes from line to line. Enter next, Shift+Enter previous, Esc clears. */
const MOST = 10000;

export function finder(root, list) {
  const field = root.querySelector("[data-find]"), count = root.querySelector("[data-found]");
  let hits = [], at = -1, timer = 0;

  function ranges(word) {
    const found = [];
    for (const text of list.querySelectorAll("li > span:last-child")) {
      const whole = text.textContent.toLowerCase();
      for (let from = whole.indexOf(word); from >= 0 && found.length < MOST; from = whole.indexOf(word, from + word.length)) found.push([text, from, from + word.length]);
    }
    return found;
  }

  /** A range over characters `from`–`to` of an element's text, whatever runs it is made of. */
  function range([element, from, to]) {
    const made = document.createRange(), walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    let seen = 0;
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const end = seen + node.length;
      if (from >= seen && from < end) made.setStart(node, from - seen);
      if (to > seen && to <= end) {
        made.setEnd(node, to - seen);
        break;
      }
      seen = end;
    }
    return made;
  }

  function paint() {
    if (!globalThis.CSS?.highlights) return;
    CSS.highlights.set("log-found", new Highlight(...hits.map(range)));
    CSS.highlights.set("log-here", new Highlight(...(hits[at] ? [range(hits[at])] : [])));
  }

  function refresh() {
    clearTimeout(timer);
    timer = 0;
    const word = field.value.toLowerCase();
    const here = hits[at];
    hits = word ? ranges(word) : [];
    at = here ? hits.findIndex((hit) => hit[0] === here[0] && hit[1] === here[1]) : -1;
    count.textContent = word ? `${at + 1 || "–"} / ${hits.length}${hits.length === MOST ? "+" : ""}` : "";
    paint();
  }

  function go(step) {
    if (timer) refresh(); // typed a moment ago, not looked for yet
    if (!hits.length) return;
    list.querySelector("[data-hit]")?.removeAttribute("data-hit");
    at = at < 0 ? (step > 0 ? 0 : hits.length - 1) : (at + step + hits.length) % hits.length;
    const line = hits[at][0].closest("li");
    line.dataset.hit = "";
    line.scrollIntoView({ block: "center" });
    count.textContent = `${at + 1} / ${hits.length}`;
    paint();
  }

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { at = -1; refresh(); }, 150);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      go(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      field.value = "";
      refresh();
    }
  });
  return { refresh: () => field.value && refresh() };
}
