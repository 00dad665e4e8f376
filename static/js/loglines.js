/* The lines of a log that are on the page, each with the byte offset where it begins. At most MOST of them: what is dropped
   at one end is read again when it is wanted. Text becomes text nodes, never markup. */
import { Terminal, utf8Length } from "./ansi.js";

const MOST = 5000, KEEP = 4000;
const SYSTEM = "[nebulagrid] ";

function lineElement(line) {
  const item = document.createElement("li"), number = document.createElement("span"), text = document.createElement("span");
  for (const [words, style] of line.runs) {
    if (!style) text.append(words);
    else {
      const run = document.createElement("span");
      run.className = style;
      run.textContent = words;
      text.append(run);
    }
  }
  if (text.textContent.startsWith(SYSTEM)) item.className = "sys";
  number.className = "no";
  item.append(number, text);
  return item;
}

/** Bytes that are no UTF-8 came as U+FFFD: then where the lines begin can't be told from the text, and `at` is null. */
function placesCheck(terminal, piece, lines) {
  const waiting = utf8Length(terminal.rest);
  if (terminal.position + waiting === piece.next_offset) return;
  for (const line of lines.slice(1)) line.at = null;
  terminal.position = piece.next_offset - waiting;
  terminal.lineAt = terminal.cells.length || waiting ? null : piece.next_offset;
}

export class Lines {
  constructor(list) {
    this.list = list;
    this.clear(0);
  }

  /** Nothing, and what comes next begins at byte `start`. */
  clear(start) {
    this.start = start;
    this.terminal = new Terminal(start);
    this.items = [];
    this.open = null; // the element of the line that hasn't ended yet
    this.list.replaceChildren();
  }

  get isEmpty() {
    return !this.items.length && !this.open;
  }

  get isFull() {
    return this.items.length > MOST;
  }

  append(piece) {
    let lines = this.terminal.feed(piece.text);
    placesCheck(this.terminal, piece, lines);
    this.open?.remove();
    this.open = null;
    const from = this.cutAt(lines);
    if (from > 0) {
      const terminal = this.terminal;
      lines = lines.slice(from);
      this.clear(lines[0].at);
      this.terminal = terminal;
    }
    this.items.push(...this.render(lines));
    const last = this.terminal.open();
    if (last.runs.length) this.list.append((this.open = lineElement(last)));
  }

  /** What is before `start`. The line at the top of the window stays where it is. */
  prepend(piece) {
    const terminal = new Terminal(piece.offset);
    let lines = terminal.feed(piece.text);
    placesCheck(terminal, piece, lines);
    if (terminal.cells.length) lines.push(terminal.open());
    const from = this.cutAt(lines);
    if (from > 0) lines = lines.slice(from);
    const anchor = this.list.firstElementChild, top = anchor?.offsetTop ?? 0;
    const made = this.render(lines);
    this.list.prepend(...made.map((line) => line.item));
    this.items.unshift(...made);
    this.start = made[0]?.at ?? piece.offset;
    if (anchor) this.list.scrollTop += anchor.offsetTop - top;
  }

  render(lines) {
    const fragment = document.createDocumentFragment();
    const made = lines.map((line) => ({ at: line.at, item: fragment.appendChild(lineElement(line)) }));
    this.list.append(fragment);
    return made;
  }

  /** From which line on to keep, if there are too many; only one whose place is known can be the first. */
  cutAt(lines) {
    return lines.length > MOST ? lines.findIndex((line, at) => at >= lines.length - KEEP && line.at !== null) : 0;
  }

  trimTop() {
    const from = this.cutAt(this.items);
    if (from <= 0) return;
    this.items.splice(0, from).forEach((line) => line.item.remove());
    this.start = this.items[0].at;
  }

  /** Line numbers are known once the begin of the log is here. */
  number() {
    const all = [...this.items.map((line) => line.item), ...(this.open ? [this.open] : [])];
    all.forEach((item, at) => {
      const text = this.start ? "" : String(at + 1);
      if (item.firstChild.textContent !== text) item.firstChild.textContent = text;
    });
  }
}
