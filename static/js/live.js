/* Live updates: one WebSocket a page, which says what changed; pieces then fetch themselves again.

   <body data-live="/ws/live">            the socket's address; without it this module does nothing
   <section data-topic="job.42 pool">     topics that a page or a piece wants, anywhere, also in pieces that come later
   hx-trigger="job:42 from:body"          what a message becomes: an event on body, with the message in event.detail
       {"topic":"job.42"}           → job:42            {"topic":"node.3"}         → node:3
       {"topic":"pool","jobs":5}    → pool:jobs         {"topic":"pool","node":3}  → pool:nodes
       {"topic":"pool","cells":…}   → pool:cells        {"topic":"user.1"}         → user:1
       {"topic":"pool","alerts":2}  → pool:alerts
       {"topic":"pool","incident":7} → pool:incidents
       {"topic":"job.42","log":9}   → job:42:log        (output has arrived; the job itself is as it was)
       {"topic":"job.42","estimate":1} → job:42:estimate (so is it here: another estimate of its start)
   The same event comes at most once in 1.5 s: at once, and the last one again at the end (pool:cells: always).
   After a gap (a lost connection, a hidden tab) every topic's events come once, with detail {gap:true}: what was missed is
   fetched. A message that comes while a piece is being fetched reaches the old piece alone, so the new one fetches itself
   once more. The state is told by "live:on" and "live:off" events on body, <html data-live="on|off"> and .live[data-live-dot]. */

const body = document.body, root = document.documentElement, dot = document.querySelector("[data-live-dot]");
const GAP_MS = 1500, ASK_MS = 15000, ANSWER_MS = 6000, POOL = ["jobs", "nodes", "cells", "incidents"];
let socket = null, tries = 0, timer = 0, asker = 0, answerBy = 0, lostAt = 0, ticker = 0, wasOn = false, asked = new Set();
const last = new Map(), later = new Map(), emitted = new Map();

const wanted = () => new Set([...document.querySelectorAll("[data-topic]")].flatMap((e) => e.dataset.topic.split(" ")).filter(Boolean));

function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function subscribe() {
  const now = wanted();
  const more = [...now].filter((t) => !asked.has(t)), less = [...asked].filter((t) => !now.has(t));
  asked = now;
  if (more.length || less.length) send({ subscribe: more, unsubscribe: less });
}

function emit(name, detail) {
  emitted.set(name, performance.now());
  body.dispatchEvent(new CustomEvent(name, { detail }));
}

function soon(name, detail) {
  if (name === "pool:cells") return emit(name, detail);
  const now = performance.now(), wait = (last.get(name) ?? -GAP_MS) + GAP_MS - now;
  if (wait <= 0) {
    last.set(name, now);
    return emit(name, detail);
  }
  clearTimeout(later.get(name));
  later.set(name, setTimeout(() => { last.set(name, performance.now()); emit(name, detail); }, wait));
}

function names(message) {
  const [kind, id] = message.topic.split(".");
  if (kind !== "pool") return [`${kind}:${id}${"log" in message ? ":log" : "estimate" in message ? ":estimate" : ""}`];
  return [["jobs", "jobs"], ["node", "nodes"], ["cells", "cells"], ["incident", "incidents"]].filter(([key]) => key in message).map(([, name]) => `pool:${name}`);
}

function receive(event) {
  answerBy = 0;
  const message = JSON.parse(event.data);
  if (message.topic) for (const name of names(message)) soon(name, message);
  else if (message.topics && !wasOn) turnOn();
}

function turnOn() {
  wasOn = true; tries = 0; clearInterval(ticker);
  root.dataset.live = "on";
  if (dot) { delete dot.dataset.tone; dot.textContent = dot.dataset.on; }
  emit("live:on", {});
  if (!lostAt) return;
  lostAt = 0;
  for (const topic of asked) {
    const [kind, id] = topic.split(".");
    for (const name of kind === "pool" ? POOL.map((p) => `pool:${p}`) : [`${kind}:${id}`]) emit(name, { topic, gap: true });
  }
}

/* What was said between the sending of a request and the swap of its answer: the answer may be older than it. */
function fetchMissed({ detail: { elt, xhr } }) {
  if (!xhr?.sentAt || !elt.isConnected) return;
  for (const piece of [elt, ...elt.querySelectorAll("[hx-get]")]) {
    const names = [...(piece.getAttribute("hx-trigger") ?? "").matchAll(/([\w:.-]+) from:body/g)].map((found) => found[1]);
    if (names.some((name) => emitted.get(name) > xhr.sentAt)) window.htmx.ajax("GET", piece.getAttribute("hx-get"), { source: piece });
  }
}

function tell() {
  if (!dot || document.hidden) return;
  dot.dataset.tone = "warn";
  dot.textContent = dot.dataset.off.replace("%s", Math.max(1, Math.round((Date.now() - lostAt) / 1000)));
}

function turnOff() {
  wasOn = false;
  if (!lostAt) lostAt = Date.now();
  root.dataset.live = "off";
  emit("live:off", {});
  clearInterval(ticker);
  ticker = setInterval(tell, 1000);
  if (tries > 1) tell();   // the first loss is mended within a second: no flicker
}

function close() {
  clearTimeout(timer); clearInterval(asker);
  const old = socket;
  socket = null;
  if (!old) return;
  old.onclose = old.onmessage = old.onopen = null;
  // Closing one that is still connecting makes the browser complain: it is closed as soon as it is open.
  if (old.readyState === WebSocket.CONNECTING) old.onopen = () => old.close(); else old.close();
}

function lost() {
  close();
  turnOff();
  const wait = Math.min(15000, 500 * 2 ** tries++) * (0.6 + Math.random() * 0.4);
  if (!document.hidden) timer = setTimeout(connect, wait);
}

function connect() {
  close();
  socket = new WebSocket(new URL(body.dataset.live, location.href.replace(/^http/, "ws")));
  socket.onmessage = receive;
  socket.onclose = lost;
  socket.onopen = () => { asked = new Set(); subscribe(); if (!asked.size) send({ subscribe: [] }); };
  // A connection may die without a word: ask now and then, and expect an answer.
  asker = setInterval(() => {
    if (answerBy && Date.now() > answerBy) return lost();
    answerBy ||= Date.now() + ANSWER_MS;
    send({ subscribe: [] });
  }, ASK_MS);
}

if (body.dataset.live) {
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {          // rest: no socket, no timer
      close(); clearInterval(ticker);
      lostAt ||= Date.now(); wasOn = false;
    } else { tries = 0; connect(); }
  });
  addEventListener("online", () => { if (!wasOn) connect(); });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) { lostAt ||= Date.now(); wasOn = false; connect(); } });
  body.addEventListener("htmx:beforeSend", ({ detail: { xhr } }) => { xhr.sentAt = performance.now(); });
  body.addEventListener("htmx:afterSettle", (event) => { subscribe(); fetchMissed(event); });
  if (!document.hidden) connect();
}
