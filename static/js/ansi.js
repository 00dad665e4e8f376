/* Terminal output → lines of styled runs. Pure: no DOM. What is not understood is dropped, and nothing is ever markup.
   Understood: colours and weights (SGR), carriage returns and backspaces (progress bars), erase in line, cursor columns. */

const HUES = "krgybmcw"; // classes a-k … a-w: the terminal's eight colours, readable in both themes
const LONGEST = 8192; // a longer line is continued in the next one
const UNCLOSED = 4096; // an escape sequence that doesn't end within so many characters was none

export function utf8Length(text) {
  let bytes = 0;
  for (const char of text) bytes += size(char.codePointAt(0));
  return bytes;
}

const size = (code) => (code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4);

/** Where the escape sequence that begins at `from` ends; -1 = not within this text. */
function sequenceEnd(text, from) {
  const kind = text[from + 1];
  if (kind === undefined) return -1;
  if (kind === "[") {
    let at = from + 2;
    while (at < text.length && text[at] >= " " && text[at] <= "?") at += 1;
    return at < text.length ? at + (text[at] >= "@" && text[at] <= "~" ? 1 : 0) : -1;
  }
  if ("]PX^_".includes(kind)) {
    for (let at = from + 2; at < text.length; at += 1) {
      if (text[at] === "\u0007") return at + 1;
      // Another sequence ends this one: else text that begins them again and again would be read to its end for each.
      if (text[at] === "\u001b") return at + 1 < text.length ? at + (text[at + 1] === "\\" ? 2 : 0) : -1;
    }
    return -1;
  }
  if (kind >= " " && kind <= "/") return from + 2 < text.length ? from + 3 : -1;
  return from + 2;
}

/** The nearest of the eight hues; null = the text's own colour (a light grey). */
function hue(red, green, blue) {
  const most = Math.max(red, green, blue), least = Math.min(red, green, blue);
  if (most - least < 40) return most < 190 ? "w" : null;
  const middle = (most + least) / 2;
  return HUES[(red > middle) + 2 * (green > middle) + 4 * (blue > middle)];
}

function hueOf256(number) {
  if (number < 16) return HUES[number % 8];
  if (number > 231) return number < 247 ? "w" : null;
  const cube = number - 16;
  return hue(51 * Math.floor(cube / 36), 51 * (Math.floor(cube / 6) % 6), 51 * (cube % 6));
}

export class Terminal {
  /** `position`: the byte offset of what is fed next. */
  constructor(position = 0) {
    this.position = this.lineAt = position;
    this.rest = ""; // an escape sequence that the last text cut
    this.fore = this.back = null;
    this.marks = new Set();
    this.className = "";
    this.clear();
  }

  clear() {
    this.cells = [];
    this.styles = [];
    this.at = 0;
  }

  /** The lines that this text finishes, each {at: byte offset, runs: [[text, class], …]}; the rest is `open()`. */
  feed(text) {
    const source = this.rest + text, lines = [];
    this.rest = "";
    for (let i = 0; i < source.length; ) {
      const code = source.codePointAt(i);
      if (code === 0x1b) {
        const end = sequenceEnd(source, i);
        if (end < 0 && source.length - i <= UNCLOSED) {
          this.rest = source.slice(i);
          break;
        }
        const sequence = source.slice(i, end < 0 ? i + 1 : end);
        this.obey(sequence);
        this.position += utf8Length(sequence);
        i += sequence.length;
        continue;
      }
      this.position += size(code);
      i += code > 0xffff ? 2 : 1;
      if (code === 10) lines.push(this.cut());
      else if (code === 13) this.at = 0;
      else if (code === 8) this.at = Math.max(0, this.at - 1);
      else if (code === 9 || (code >= 32 && !(code >= 0x7f && code < 0xa0))) {
        this.put(String.fromCodePoint(code));
        if (this.at >= LONGEST) lines.push(this.cut());
      }
    }
    return lines;
  }

  put(char) {
    while (this.cells.length < this.at) {
      this.cells.push(" ");
      this.styles.push("");
    }
    this.cells[this.at] = char;
    this.styles[this.at] = this.className;
    this.at += 1;
  }

  /** The line so far. */
  open() {
    const runs = [];
    for (let i = 0; i < this.cells.length; ) {
      const style = this.styles[i], from = i;
      while (i < this.cells.length && this.styles[i] === style) i += 1;
      runs.push([this.cells.slice(from, i).join(""), style]);
    }
    return { at: this.lineAt, runs };
  }

  cut() {
    const line = this.open();
    this.clear();
    this.lineAt = this.position;
    return line;
  }

  obey(sequence) {
    if (sequence[1] !== "[") return;
    const kind = sequence.at(-1), parts = sequence.slice(2, -1), number = Number.parseInt(parts, 10);
    const step = Number.isNaN(number) ? 1 : number;
    if (kind === "m") this.restyle(parts.split(";"));
    else if (kind === "G") this.at = Math.min(Math.max(0, step - 1), LONGEST - 1);
    else if (kind === "C") this.at = Math.min(this.at + step, LONGEST - 1);
    else if (kind === "D") this.at = Math.max(0, this.at - step);
    else if (kind === "K") {
      if (number === 1 || number === 2) this.cells.fill(" ", 0, number === 2 ? this.cells.length : this.at + 1);
      else this.cells.length = this.styles.length = Math.min(this.cells.length, this.at);
    }
  }

  restyle(parts) {
    for (let i = 0; i < parts.length; i += 1) {
      const code = parts[i] === "" ? 0 : Number.parseInt(parts[i], 10);
      if (code === 0) {
        this.fore = this.back = null;
        this.marks.clear();
      } else if ([1, 2, 3, 4, 7, 9].includes(code)) this.marks.add(code);
      else if (code === 22) [1, 2].forEach((mark) => this.marks.delete(mark));
      else if (code === 21 || (code > 22 && code < 30)) this.marks.delete(code - 20);
      else if ((code >= 30 && code < 38) || (code >= 90 && code < 98)) this.fore = HUES[code % 10];
      else if ((code >= 40 && code < 48) || (code >= 100 && code < 108)) this.back = HUES[code % 10];
      else if (code === 39) this.fore = null;
      else if (code === 49) this.back = null;
      else if (code === 38 || code === 48) {
        let more = parts[i].split(":").slice(1);
        if (!more.length) {
          more = parts.slice(i + 1, i + 1 + (parts[i + 1] === "5" ? 2 : 4));
          i += more.length;
        }
        const numbers = more.map(Number), found = numbers[0] === 5 ? hueOf256(numbers.at(-1) || 0) : hue(...numbers.slice(-3));
        if (code === 38) this.fore = found;
        else this.back = found;
      }
    }
    this.className = [this.fore && `a-${this.fore}`, this.back && `b-${this.back}`, ...[...this.marks].map((mark) => `a-${mark}`)]
      .filter(Boolean)
      .join(" ");
  }
}
