"""Screenshots of every page: 1440 light and dark, 390 px light; English and Chinese. For the README and for eyes.

  make demo                                   in another shell, until the lab is busy
  python docs/screenshots/shoot.py            signs in as the demo's researcher and writes docs/screenshots/*.png
  … shoot.py --as lead --only overview,node   as somebody else, some pages only

Tells what looks wrong: a page wider than its window, text that spills, a message on the console, a request to another host.
Pictures are written with 256 colours: a third of the size, and nobody sees the difference.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shutil
import struct
import sys
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page, sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]
#: name → (width, height, colour scheme)
VARIANTS = {"1440-light": (1440, 900, "light"), "1440-dark": (1440, 900, "dark"), "390-light": (390, 844, "light")}
LANGUAGES = {"en": "", "zh-hans": "-zh"}
#: Pages that only staff have.
STAFF = ("drain", "node-add")
#: Beyond so many pixels a page is cut: what is below repeats what is above.
TALLEST = 2400
WIDE = """() => { const w = document.documentElement.clientWidth, out = [];
  if (document.documentElement.scrollWidth > w) out.push('page ' + document.documentElement.scrollWidth + ' > ' + w);
  for (const e of document.querySelectorAll('body *')) {
    const r = e.getBoundingClientRect(), s = getComputedStyle(e);
    if (!r.width || e.closest('.scroll,.seg,.tabs,.sr,svg,[popover],.log,pre,thead,.lanes')) continue;
    if (r.right > w + 1 && s.position != 'fixed') out.push('out ' + e.tagName + '.' + e.className + ' ' + Math.round(r.right));
    if (e.scrollWidth > e.clientWidth + 1 && s.overflowX == 'visible' && s.display != 'inline' && e.clientWidth)
      out.push('spill ' + e.tagName + '.' + e.className + ' ' + e.textContent.trim().slice(0, 30)); }
  return out.slice(0, 8) }"""
#: PNG (base64) → {width, height, palette: [0xRRGGBB], pixels (base64, one byte each)}: others go to the nearest colour.
QUANTIZE = """async (png) => {
  const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + png)).blob());
  const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const data = context.getImageData(0, 0, image.width, image.height).data, n = image.width * image.height;
  const counts = new Map(), colours = new Uint32Array(n);
  for (let i = 0; i < n; i++) {
    const c = (data[4 * i] << 16) | (data[4 * i + 1] << 8) | data[4 * i + 2];
    colours[i] = c; counts.set(c, (counts.get(c) ?? 0) + 1);
  }
  // Half of the palette are the most frequent colours; the rest are those that would be missed most: frequent and far from all others.
  const all = [...counts].sort((a, b) => b[1] - a[1]), palette = all.slice(0, 128).map(([c]) => c);
  const far = (a, b) => ((a >> 16) - (b >> 16)) ** 2 + (((a >> 8) & 255) - ((b >> 8) & 255)) ** 2 + ((a & 255) - (b & 255)) ** 2;
  const rest = all.slice(128).map(([c, k]) => ({ c, k: Math.sqrt(k), d: Math.min(...palette.map((p) => far(c, p))) }));
  while (palette.length < 256 && rest.length) {
    let at = 0;
    rest.forEach((one, i) => { if (one.k * one.d > rest[at].k * rest[at].d) at = i; });
    const [{ c }] = rest.splice(at, 1);
    palette.push(c);
    for (const one of rest) one.d = Math.min(one.d, far(one.c, c));
  }
  const index = new Map(palette.map((c, i) => [c, i]));
  const nearest = (c) => {
    let best = 0, least = Infinity;
    palette.forEach((p, i) => { const d = far(p, c); if (d < least) { least = d; best = i; } });
    return best;
  };
  const pixels = new Uint8Array(n);
  for (let i = 0; i < n; i++) {
    let at = index.get(colours[i]);
    if (at === undefined) { at = nearest(colours[i]); index.set(colours[i], at); }
    pixels[i] = at;
  }
  let text = '';
  for (let i = 0; i < n; i += 32768) text += String.fromCharCode(...pixels.subarray(i, i + 32768));
  return { width: image.width, height: image.height, palette, pixels: btoa(text) };
}"""


def png_small(png: bytes, tool: Page) -> bytes:
    """The same picture with at most 256 colours."""
    found = tool.evaluate(QUANTIZE, base64.b64encode(png).decode())
    width, height, pixels = found["width"], found["height"], base64.b64decode(found["pixels"])
    rows = b"".join(b"\0" + pixels[y * width : (y + 1) * width] for y in range(height))
    palette = b"".join(struct.pack(">I", colour)[1:] for colour in found["palette"])

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"PLTE", palette)
        + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )


def pages_find(url: str, token: str) -> dict[str, str]:
    """Name → path of what there is to show: a job in each interesting state, a busy node, a card."""

    def get(path: str) -> Any:
        request = urllib.request.Request(url + "/api/v1" + path, headers={"Authorization": f"Bearer {token}"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return json.load(answer)

    pages = {"overview": "/", "overview-table": "/?cards=table", "jobs": "/jobs/", "submit": "/jobs/new/", "nodes": "/nodes/"}
    for name, state in (("job", "RUNNING"), ("job-waiting", "WAITING"), ("job-failed", "FAILED")):
        rows = get(f"/jobs/?owner=all&state={state}&page_size=50")["results"]
        rows.sort(key=lambda row: (row["held"], -row["gpu_count"], row["id"]))
        if rows:
            pages[name] = f"/jobs/{rows[0]['id']}/"
    nodes = sorted(get("/nodes/?page_size=50")["results"], key=lambda node: -sum(gpu["live_slices"] for gpu in node["gpus"]))
    if nodes:
        busiest = max(nodes[0]["gpus"], key=lambda gpu: gpu["live_slices"], default=None)
        pages["node"] = f"/nodes/{nodes[0]['name']}/"
        pages["drain"] = f"/nodes/{nodes[0]['name']}/drain/"
        pages["node-add"] = "/nodes/add/new/"
        if busiest:
            pages["card"] = f"/nodes/{nodes[0]['name']}/gpu{busiest['index']}/"
    return pages


def shoot(context: BrowserContext, url: str, path: str, tool: Page) -> tuple[bytes, list[str]]:
    page, odd = context.new_page(), []
    page.on("console", lambda message: odd.append(f"console: {message.text}") if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: odd.append(f"script: {error}"))
    page.on("request", lambda request: None if request.url.startswith((url, "data:")) else odd.append(f"other host: {request.url}"))
    answer = page.goto(url + path)
    page.wait_for_timeout(1500)  # the first frame of live figures, fonts
    if answer is None or answer.status >= 400:
        odd.append(f"status {answer.status if answer else '?'}")
    odd += page.evaluate(WIDE)
    height = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
    size = page.viewport_size or {"width": 1440, "height": 900}
    page.set_viewport_size({"width": size["width"], "height": max(size["height"], height)})
    png = page.screenshot()
    page.close()
    return png_small(png, tool), odd


def contexts(browser: Any, url: str, state: Any) -> Iterator[tuple[str, BrowserContext]]:
    for language, suffix in LANGUAGES.items():
        for variant, (width, height, scheme) in VARIANTS.items():
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", storage_state=state
            )
            context.add_cookies([{"name": "django_language", "value": language, "url": url}])
            yield f"{suffix}-{variant}", context
            context.close()


def sign_in(browser: Any, url: str, email: str, password_file: Path) -> Any:
    """What the browser keeps of a sign-in."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(url + "/accounts/login/")
    page.fill("#id_login", email)
    page.fill("#id_password", password_file.read_text().split()[-1])
    page.click("form.stack button.primary")
    page.wait_for_url(re.compile(re.escape(url) + "/$"))
    state = context.storage_state()
    context.close()
    return state


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("NEBULA_DATA", ROOT / "var-demo"))
    parser.add_argument("--url", default=f"http://127.0.0.1:{os.environ.get('NEBULA_PORT', '8000')}")
    parser.add_argument("--data", type=Path, default=data, help="the demo's data folder: its passwords and profiles are there")
    parser.add_argument("--as", dest="who", default="researcher", help="who looks: researcher, lead, student, or admin")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--only", default="", help="names of pages, with commas")
    options = parser.parse_args()
    url, demo = options.url.rstrip("/"), options.data / "demo"
    admin = ("admin@localhost", options.data / "admin-password")
    person = admin if options.who == "admin" else (f"{options.who}@lab.example", demo / f"{options.who}.password")
    profile = options.data / "cli.json" if options.who == "admin" else demo / f"{options.who}.json"
    pages = pages_find(url, json.loads(profile.read_text())["token"])
    wanted = set(options.only.split(",")) if options.only else {*pages, *STAFF, "signin"}
    staff = {name: path for name, path in pages.items() if name in STAFF}
    shown = [({n: p for n, p in pages.items() if n not in STAFF}, person), (staff, admin), ({"signin": "/accounts/login/"}, None)]
    program = os.environ.get("NEBULA_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    problems = total = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGS)
        tool = browser.new_page()
        for paths, account in shown:
            chosen = {name: path for name, path in paths.items() if name in wanted}
            if not chosen:
                continue
            for suffix, context in contexts(browser, url, sign_in(browser, url, *account) if account else None):
                for name, path in chosen.items():
                    png, odd = shoot(context, url, path, tool)
                    (options.out / f"{name}{suffix}.png").write_bytes(png)
                    total += len(png)
                    problems += len(odd)
                    print(f"{name}{suffix}.png  {len(png) // 1024} kB", *odd, sep="\n    ")  # noqa: T201
        browser.close()
    print(f"{total / 1e6:.1f} MB, {problems} problems")  # noqa: T201
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
