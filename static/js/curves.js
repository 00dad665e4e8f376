/* <section data-curves="URL" data-plotly="URL of plotly" data-empty data-failed>: curves, drawn when they come into sight.
   Within: [data-range] buttons, [data-plot], [data-none] (why there is nothing), [data-summary] (read aloud), [data-notes].
   The server sends a figure with names of tokens for colours ("--c1", "--c1@.4"); here they become the values of the theme. */
const every = { "run": 30000, "1h": 30000, "24h": 60000, "7d": 600000, "30d": 1800000 };
let loading;

function plotly(url) {
  loading ??= new Promise((done, failed) => {
    const script = Object.assign(document.createElement("script"), { src: url, async: true });
    script.onload = () => done(globalThis.Plotly);
    script.onerror = () => { loading = undefined; script.remove(); failed(new Error("plotly")); };
    document.head.append(script);
  });
  return loading;
}

/* A token is a light-dark() of two colours: what it is now only an element can tell. */
function painter(host) {
  const probe = host.appendChild(document.createElement("i")), known = new Map();
  const colour = (text) => {
    const [token, share] = text.split("@");
    if (!known.has(text)) {
      probe.style.color = share ? `color-mix(in srgb, var(${token}) ${100 * share}%, transparent)` : `var(${token})`;
      known.set(text, rgba(getComputedStyle(probe).color));
    }
    return known.get(text);
  };
  const paint = (value) =>
    typeof value === "string" ? (value.startsWith("--") ? colour(value) : value)
    : Array.isArray(value) ? value.map(paint)
    : value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, name === "x" || name === "y" ? inner : paint(inner)]))
    : value;
  return { paint, done: () => probe.remove() };
}

/* color(srgb 0.1 0.2 0.3 / 0.4), as browsers write mixed colours, is not read by plotly. */
function rgba(text) {
  const found = /^color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)(?: \/ ([\d.e-]+))?\)$/.exec(text);
  return found ? `rgba(${found.slice(1, 4).map((part) => Math.round(255 * part)).join(",")},${found[4] ?? 1})` : text;
}

class Curves {
  constructor(host) {
    this.host = host;
    this.plot = host.querySelector("[data-plot]");
    this.range = host.querySelector('[data-range][aria-pressed="true"]').dataset.range;
    this.told = null;
    this.seen = false;
    host.addEventListener("click", (event) => {
      const button = event.target.closest("[data-range]");
      if (button) this.choose(button.dataset.range);
    });
    new IntersectionObserver(([entry]) => {
      this.seen = entry.isIntersecting;
      if (this.seen) this.soon(0);
    }, { rootMargin: "200px" }).observe(host);
  }

  choose(range) {
    this.range = range;
    for (const button of this.host.querySelectorAll("[data-range]")) {
      const on = button.dataset.range === range;
      button.setAttribute("aria-pressed", on);
      button.toggleAttribute("aria-current", on);
    }
    this.at = 0;
    this.soon(0);
  }

  soon(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), wait);
  }

  async fetch() {
    const rest = (this.at ?? 0) + every[this.range] - Date.now();
    if (!this.seen || document.hidden) return;     // looked at again, it fetches again
    if (rest > 0) return this.soon(rest);
    const range = this.range;
    this.at = Date.now();
    try {
      const answer = await fetch(`${this.host.dataset.curves}?range=${range}`, { headers: { Accept: "application/json" } });
      if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
      const told = await answer.json();
      if (range !== this.range) return;
      this.told = told;
      await this.draw();
    } catch {
      if (!this.told?.figure) this.say(this.host.dataset.failed);
    }
    this.soon(every[this.range]);
  }

  say(text) {
    const none = this.host.querySelector("[data-none]");
    none.hidden = !text;
    none.lastElementChild.textContent = text;
    this.plot.hidden = Boolean(text);
  }

  async draw() {
    const { figure, summary, notes } = this.told;
    this.host.querySelector("[data-notes]").replaceChildren(...notes.map((text) => Object.assign(document.createElement("p"), { className: "hint", textContent: text })));
    this.host.querySelector("[data-summary]").textContent = summary;
    if (!figure) return this.say(this.host.dataset.empty);
    const Plotly = await plotly(this.host.dataset.plotly);
    this.say("");
    const { paint, done } = painter(this.host);
    const { data, layout } = paint(figure);
    done();
    this.plot.querySelector(".skel")?.remove();
    this.plot.style.height = `${figure.height}px`;
    await Plotly.react(this.plot, data, layout, { displayModeBar: false, responsive: true });
    this.plot.dataset.drawn = this.range;
  }
}

const all = [...document.querySelectorAll("[data-curves]")].map((host) => new Curves(host));
const redraw = () => { for (const curves of all) if (curves.told?.figure) curves.draw(); };
document.body.addEventListener("theme:changed", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("visibilitychange", () => { if (!document.hidden) for (const curves of all) curves.soon(0); });
