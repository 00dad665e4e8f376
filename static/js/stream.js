/* <section data-stream="/jobs/42/sooner/"> is filled as its answer comes: JSON lines {"into": name, "html": …}, each into the
   section's own [data-into=name], after what is there if that has data-append. In a form the form's values are sent along.
   A section that is replaced gives its stream up. Nothing is asked for while the tab is hidden. */
const running = new Map(), begun = new WeakSet();
const SETTLE_MS = 600;   // one who still types gets one stream, not one a key

function put(section, { into, html }) {
  const slot = section.querySelector(`[data-into="${CSS.escape(into)}"]`);
  if (!slot) return;
  if ("append" in slot.dataset) slot.insertAdjacentHTML("beforeend", html);
  else slot.innerHTML = html;
}

async function fill(section) {
  const giveUp = new AbortController(), form = section.closest("form");
  running.set(section, giveUp);
  try {
    const answer = await fetch(section.dataset.stream, {
      method: form ? "POST" : "GET", body: form ? new FormData(form) : null, headers: { "X-Stream": "1" }, signal: giveUp.signal,
    });
    if (!answer.ok || answer.status === 204) return put(section, { into: "pending", html: "" });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.filter(Boolean).forEach((line) => put(section, JSON.parse(line)));
    }
  } catch {
    put(section, { into: "pending", html: "" });   // given up, or the connection broke
  } finally {
    running.delete(section);
  }
}

function look() {
  for (const [section, giveUp] of running) if (!section.isConnected) giveUp.abort();
  if (document.hidden) return;
  for (const section of document.querySelectorAll("[data-stream]")) {
    if (begun.has(section)) continue;
    begun.add(section);
    setTimeout(() => { if (section.isConnected) fill(section); }, section.closest("form") ? SETTLE_MS : 0);
  }
}

document.addEventListener("visibilitychange", look);
document.body.addEventListener("htmx:afterSettle", look);
addEventListener("pagehide", () => running.forEach((giveUp) => giveUp.abort()));
look();
