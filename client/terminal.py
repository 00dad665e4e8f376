"""A job's output on a terminal: colours (SGR) pass, every other control sequence is dropped, across chunk borders too."""

from __future__ import annotations

import re

#: Anything that needs a look. \n, \r, \t pass; ESC and the 8-bit C1 signs start sequences; the rest of C0, and DEL, go.
_SPECIAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_CSI = re.compile("(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]")
_SGR = re.compile("(?:\x1b\\[|\x9b)[0-9;:]*m")
#: OSC, DCS, SOS, PM, APC: a text up to BEL or ST. Ends at a line break too (an unfinished one must not swallow the log), and at
#: the next introducer: without that, a megabyte of introducers would be quadratic work.
_STRING = re.compile("(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\n\r\x80-\x9f]*(?:\x07|\x1b\\\\|\x9c|(?=[\n\r\x1b\x80-\x9f]))")
#: A CSI that something interrupted.
_BROKEN = re.compile("(?:\x1b\\[|\x9b)[0-?]*[ -/]*")
_SHORT = re.compile("\x1b[ -/]*[0-~]")
#: The beginnings of the three above, at the end of a chunk: the rest may follow.
_OPEN = re.compile("(?:(?:\x1b\\[|\x9b)[0-?]*[ -/]*|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\n\r\x80-\x9f]*\x1b?|\x1b[ -/]*)\\Z")
#: A sequence that is still open after this many signs is not one.
_LONGEST = 4096

RESET = "\x1b[0m"


class TerminalFilter:
    """Feed it text, print what it gives back; ``end()`` gives the reset that leaves the user's terminal as it was."""

    def __init__(self) -> None:
        self._held = ""
        self._is_coloured = False

    def feed(self, text: str) -> str:
        text, self._held = self._held + text, ""
        if _SPECIAL.search(text) is None:
            return text
        out: list[str] = []
        position = 0
        while (found := _SPECIAL.search(text, position)) is not None:
            start = found.start()
            out.append(text[position:start])
            sequence = _CSI.match(text, start) or _STRING.match(text, start)
            if sequence is None:
                still_open = _OPEN.match(text, start)
                if still_open is not None and len(text) - start <= _LONGEST:
                    self._held = text[start:]
                    return "".join(out)
                sequence = _BROKEN.match(text, start) or _SHORT.match(text, start)
            if sequence is not None and _SGR.fullmatch(sequence.group()):
                self._is_coloured = True
                out.append("\x1b[" + sequence.group().removeprefix("\x1b[").removeprefix("\x9b"))
            position = start + 1 if sequence is None or not sequence.group() else sequence.end()
        out.append(text[position:])
        return "".join(out)

    def end(self) -> str:
        """An unfinished sequence is dropped."""
        self._held = ""
        return RESET if self._is_coloured else ""
