/* A job's output, live: <section data-log data-url data-job data-attempt data-rank data-live="1|">. Read by byte offset over
   REST; the socket only says when to look. Tail first, earlier output as one scrolls up, and never a gap: each read begins
   where the last one ended. Keys (data-key on the buttons): F follow, W wrap, End newest. */
import { Lines } from "./loglines.js";
import { bar } from "./logbar.js";
import { finder } from "./logfind.js";

const PIECE = 262144, POLL_MS = 3000;

class LogView {
  constructor(root) {
    this.root = root;
    this.list = root.querySelector("ol");
    this.lines = new Lines(this.list);
    this.following = Boolean(root.dataset.live);
    this.busy = this.again = this.isDone = this.wantsEarlier = false;
    this.next = null; // the byte that is read next; null = begin anew at the tail
    this.length = 0;
    this.find = finder(root, this.list);
    this.bar = bar(root, {
      follow: () => this.follow(!this.following),
      wrap: () => this.bar.press("wrap", !this.list.toggleAttribute("data-nowrap")),
      newest: () => this.newest(),
      earlier: () => this.earlier(),
    });
    this.list.addEventListener("scroll", () => this.scrolled());
    const job = `job:${root.dataset.job}`;
    for (const name of [job, `${job}:log`, "live:on"]) document.body.addEventListener(name, () => this.pump());
    document.addEventListener("visibilitychange", () => this.pump());
    this.timer = setInterval(() => this.pump(), POLL_MS); // without the socket the log is three seconds behind, no more
    this.pump();
  }

  async ask(query) {
    const { url, attempt, rank } = this.root.dataset, address = new URL(url, location.href);
    for (const [key, value] of Object.entries({ attempt, rank, ...query })) address.searchParams.set(key, value);
    const answer = await fetch(address, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`${answer.status}`);
    return answer.json();
  }

  async pump() {
    if (!this.root.isConnected) return clearInterval(this.timer);
    if (document.hidden || this.isDone) return;
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    try {
      do {
        this.again = false;
        // Full, and the reader looks at something: it stays where it is. The rest comes with scrolling down, or with End.
        if (this.lines.isFull && !this.following && !this.isLow()) break;
        this.take(await this.ask(this.next === null ? { tail: PIECE, align: "lines" } : { offset: this.next, limit: PIECE }));
      } while (this.again && !this.isDone);
      this.bar.trouble("");
    } catch {
      this.bar.trouble(this.root.dataset.lost); // the next hint or tick goes on from the same byte
    } finally {
      this.busy = false;
    }
    if (this.wantsEarlier) this.earlier();
  }

  take(piece) {
    if (this.next !== null && piece.offset !== this.next) {
      this.next = null; // the file is another one now
      this.again = true;
      return;
    }
    const isFirst = this.next === null;
    if (isFirst) this.lines.clear(piece.offset);
    this.next = piece.next_offset;
    this.length = piece.length;
    this.isDone = piece.is_complete;
    this.again ||= piece.text !== "" && piece.next_offset < piece.length;
    if (piece.text) {
      this.lines.append(piece);
      if (this.lines.isFull && (this.following || this.isLow())) this.lines.trimTop();
    }
    this.changed();
    if (this.following || isFirst) this.toEnd();
  }

  changed() {
    const { dataset } = this.root;
    this.lines.number();
    this.find.refresh();
    dataset.empty = this.lines.isEmpty ? "1" : "";
    dataset.cut = this.lines.start ? "1" : "";
    dataset.done = this.isDone ? "1" : "";
    this.bar.size(this.length);
  }

  async earlier() {
    const end = this.lines.start;
    this.wantsEarlier = this.busy;
    if (this.busy || !end || this.lines.isFull) return;
    this.busy = true;
    try {
      const limit = Math.min(PIECE, end);
      this.lines.prepend(await this.ask({ offset: end - limit, limit, align: "lines" }));
      this.changed();
    } catch {
      this.bar.trouble(this.root.dataset.lost);
    } finally {
      this.busy = false;
    }
  }

  isLow() {
    return this.list.scrollTop + this.list.clientHeight >= this.list.scrollHeight - 24;
  }

  toEnd() {
    this.list.scrollTop = this.list.scrollHeight;
  }

  scrolled() {
    if (this.root.dataset.live && !this.isDone) this.follow(this.isLow());
    if (this.list.scrollTop < 200) this.earlier();
    else if (this.isLow() && this.next < this.length) this.pump();
  }

  follow(on) {
    if (this.following === on) return;
    this.following = on;
    this.bar.press("follow", on);
    if (on) this.newest();
  }

  async newest() {
    if (this.next !== null && this.length - this.next > PIECE) this.next = null;
    await this.pump();
    this.toEnd();
  }
}

const views = new WeakMap();
const begin = () => document.querySelectorAll("[data-log]").forEach((root) => views.has(root) || views.set(root, new LogView(root)));
document.body.addEventListener("htmx:afterSettle", begin); // the log of a new attempt comes by itself
begin();
