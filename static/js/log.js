/* A job's output, live: <section data-log data-url data-job data-attempt data-rank data-live="1|">. Read by byte offset over
   REST; the socket only says when to look. Tail first, earlier output as one scrolls up, never a gap: every read begins where
   the last one ended. Text becomes text nodes, never markup. Keys: F follow, W wrap, End newest. */
import { Terminal, utf8Length } from "./ansi.js";
import { finder } from "./logfind.js";

const PIECE = 262144, MOST = 5000, KEEP = 4000, POLL_MS = 3000;
const SYSTEM = "[nebulagrid] ";

function lineElement(line) {
  const item = document.createElement("li"), number = document.createElement("a"), text = document.createElement("span");
  for (const [words, style] of line.runs) {
    const run = style ? document.createElement("span") : document.createTextNode(words);
    if (style) {
      run.className = style;
      run.textContent = words;
    }
    text.append(run);
  }
  if (text.textContent.startsWith(SYSTEM)) item.className = "sys";
  item.append(number, text);
  return item;
}

class LogView {
  constructor(root) {
    this.root = root;
    this.list = root.querySelector("ol");
    this.say = root.dataset;
    this.following = Boolean(this.say.live);
    this.busy = this.again = this.isDone = false;
    this.find = finder(root, this.list, () => this.lines.map((line) => line.item));
    this.buttons();
    this.list.addEventListener("scroll", () => this.scrolled());
    for (const name of [`job:${this.say.job}`, `job:${this.say.job}:log`, "live:on"]) document.body.addEventListener(name, () => this.pump());
    document.addEventListener("visibilitychange", () => this.pump());
    setInterval(() => this.pump(), POLL_MS); // the socket is a hint: without it the log is three seconds behind
    this.restart();
  }

  /** From the end, whatever was shown before. */
  restart() {
    this.lines = [];
    this.open = null;
    this.list.replaceChildren();
    this.next = this.start = null;
    this.isDone = false;
    this.list.dataset.loading = "";
    return this.pump();
  }

  async ask(query) {
    const url = new URL(this.say.url, location.href);
    for (const [key, value] of Object.entries({ attempt: this.say.attempt, rank: this.say.rank, align: "lines", ...query })) url.searchParams.set(key, value);
    const answer = await fetch(url, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(answer.status);
    return answer.json();
  }

  async pump() {
    if (document.hidden || this.isDone) return;
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    try {
      do {
        this.again = false;
        // Past the cap and not following: what is on the screen stays, the rest comes with the newest or by scrolling down.
        if (this.isFull() && !this.following && !this.isLow()) break;
        const piece = await this.ask(this.next === null ? { tail: PIECE } : { offset: this.next, limit: PIECE });
        this.take(piece);
        this.isDone = piece.is_complete;
        if (piece.next_offset < piece.length) this.again = true;
      } while (this.again);
      this.tell("");
    } catch (error) {
      this.tell(this.say.lost); // the next hint or the next tick tries again from the same offset
    } finally {
      this.busy = false;
    }
  }

  take(piece) {
    if (this.next !== null && piece.offset !== this.next) return void (this.next = null) || (this.again = true); // the file was replaced
    if (this.next === null) {
      this.start = piece.offset;
      this.terminal = new Terminal(piece.offset);
      this.list.replaceChildren();
      this.lines = [];
      this.open = null;
      delete this.list.dataset.loading;
    }
    this.next = piece.next_offset;
    this.length = piece.length;
    if (piece.text) this.append(this.terminal, piece);
    this.root.dataset.empty = this.lines.length || this.open ? "" : "1";
    this.root.dataset.end = piece.is_complete ? "1" : "";
    this.foot(piece.text);
  }

  append(terminal, piece) {
    let lines = terminal.feed(piece.text);
    this.exact(terminal, piece, lines);
    this.open?.remove();
    this.open = null;
    if (lines.length > MOST) {
      // Only lines whose place is known can be dropped: they are loaded again from there.
      const from = lines.findIndex((line, at) => at >= lines.length - KEEP && line.at !== null);
      if (from > 0) {
        this.lines = [];
        this.list.replaceChildren();
        lines = lines.slice(from);
        this.start = lines[0].at;
      }
    }
    this.lines.push(...this.render(lines));
    const last = terminal.open();
    if (last.runs.length) this.list.append((this.open = lineElement(last)));
    if (this.isFull() && (this.following || this.isLow())) this.trimTop();
    this.number();
    this.find.refresh();
    if (this.following) this.toEnd();
  }

  render(lines) {
    const fragment = document.createDocumentFragment();
    const made = lines.map((line) => ({ at: line.at, item: fragment.appendChild(lineElement(line)) }));
    this.list.append(fragment);
    return made;
  }

  /** Bytes that are no UTF-8 came as U+FFFD: then the lines' places can't be told from the text. */
  exact(terminal, piece, lines) {
    const waiting = utf8Length(terminal.rest);
    if (terminal.position + waiting === piece.next_offset) return;
    for (const line of lines.slice(1)) line.at = null;
    terminal.position = piece.next_offset - waiting;
    terminal.lineAt = null;
  }

  isFull() {
    return this.lines.length > MOST;
  }

  trimTop() {
    const from = this.lines.findIndex((line, at) => at >= this.lines.length - KEEP && line.at !== null);
    if (from <= 0) return;
    this.lines.splice(0, from).forEach((line) => line.item.remove());
    this.start = this.lines[0].at;
  }

  async earlier() {
    if (this.busy || !this.start || this.isFull()) return;
    this.busy = true;
    try {
      const end = this.start, limit = Math.min(PIECE, end);
      const piece = await this.ask({ offset: end - limit, limit });
      const terminal = new Terminal(piece.offset);
      let lines = terminal.feed(piece.text);
      this.exact(terminal, piece, lines);
      const last = terminal.open();
      if (last.runs.length) lines.push(last);
      if (lines.length > MOST) lines = lines.slice(Math.max(1, lines.findIndex((line, at) => at >= lines.length - KEEP && line.at !== null)));
      const anchor = this.list.firstElementChild, before = anchor?.offsetTop ?? 0;
      const made = this.render(lines);
      this.list.prepend(...made.map((line) => line.item));
      this.lines.unshift(...made);
      this.start = made[0]?.at ?? piece.offset;
      if (anchor) this.list.scrollTop += anchor.offsetTop - before;
      this.number();
      this.find.refresh();
    } catch (error) {
      this.tell(this.say.lost);
    } finally {
      this.busy = false;
    }
  }

  number() {
    this.root.dataset.cut = this.start ? "1" : "";
    this.lines.forEach((line, at) => {
      const text = this.start ? "" : String(at + 1);
      if (line.item.firstChild.textContent !== text) line.item.firstChild.textContent = text;
    });
    if (this.open && !this.start) this.open.firstChild.textContent = String(this.lines.length + 1);
  }

  isLow() {
    return this.list.scrollTop + this.list.clientHeight >= this.list.scrollHeight - 24;
  }

  toEnd() {
    this.list.scrollTop = this.list.scrollHeight;
  }

  scrolled() {
    if (this.say.live && !this.isDone) this.follow(this.isLow());
    if (this.list.scrollTop < 200) this.earlier();
    else if (this.isLow() && this.next < this.length) this.pump();
  }

  follow(on) {
    if (this.following === on) return;
    this.following = on;
    this.press("[data-follow]", on);
    if (on) this.newest();
  }

  newest() {
    if (this.next !== null && this.length - this.next > PIECE) this.restart().then(() => this.toEnd());
    else this.pump().then(() => this.toEnd());
    this.toEnd();
  }

  press(selector, on) {
    const button = this.root.querySelector(selector);
    button?.setAttribute("aria-pressed", String(on));
    const word = button?.querySelector("[data-on]");
    if (word) word.textContent = on ? word.dataset.on : word.dataset.off;
  }

  buttons() {
    const act = {
      "[data-follow]": () => this.follow(!this.following),
      "[data-wrap]": () => this.press("[data-wrap]", this.list.toggleAttribute("data-nowrap") === false),
      "[data-newest]": () => this.newest(),
      "[data-earlier]": () => this.earlier(),
    };
    for (const [selector, run] of Object.entries(act)) this.root.querySelector(selector)?.addEventListener("click", run);
    this.press("[data-follow]", this.following);
  }

  tell(text) {
    this.root.querySelector("[data-trouble]").textContent = text;
  }

  foot(text) {
    if (text) this.root.querySelector("[data-last]")?.setAttribute("datetime", new Date().toISOString());
    this.root.dataset.seen = text || this.root.dataset.seen ? "1" : "";
  }
}

document.querySelectorAll("[data-log]").forEach((root) => new LogView(root));
