/* Keeps relative times true: <time datetime data-time="ago|elapsed" data-before="12:31, ">. Words come from <body data-units
   data-ago data-joint>, and data-now is the server's clock, so that a browser whose clock is wrong tells no wrong ages. */
const { units, ago, joint, now } = document.body.dataset;
const words = (units || "d,h,min,s").split(","), sizes = [86400, 3600, 60, 1];
const skew = now ? Date.now() / 1000 - Number(now) : 0;
let timer = 0;

export function duration(seconds) {
  let rest = Math.max(0, Math.floor(seconds));
  const parts = [];
  for (let i = 0; i < 4 && parts.length < 2; i++) {
    const amount = Math.floor(rest / sizes[i]);
    rest -= amount * sizes[i];
    if (amount || (i === 3 && !parts.length)) parts.push(`${amount}${joint}${words[i]}`);
    else if (parts.length) break;
  }
  return parts.join(" ");
}

function tick() {
  clearTimeout(timer);
  if (document.hidden) return;
  let wait = 15000;
  for (const element of document.querySelectorAll("time[data-time]")) {
    const age = Date.now() / 1000 - skew - Date.parse(element.dateTime) / 1000;
    const text = duration(age);
    const whole = element.dataset.time === "ago" ? ago.replace("%s", text) : text;
    const full = (element.dataset.before || "") + whole;
    if (element.textContent !== full) element.textContent = full;
    if (age < 3600) wait = 1000;
  }
  timer = setTimeout(tick, wait);
}

document.addEventListener("visibilitychange", tick);
document.body.addEventListener("htmx:afterSettle", tick);
tick();
