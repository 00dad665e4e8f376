/* The log's buttons and words: what is pressed, how much there is, what is wrong. */

export function bar(root, acts) {
  for (const [name, act] of Object.entries(acts)) root.querySelector(`[data-${name}]`)?.addEventListener("click", act);
  return {
    press(name, on) {
      const button = root.querySelector(`[data-${name}]`), word = button?.querySelector("[data-on]");
      button?.setAttribute("aria-pressed", String(on));
      if (word) word.textContent = on ? word.dataset.on : word.dataset.off;
    },
    size(bytes) {
      let amount = bytes, at = 0;
      while (amount >= 1024 && at < 4) { amount /= 1024; at += 1; }
      const text = amount.toLocaleString("en", { maximumFractionDigits: 1 });
      root.querySelector("[data-size]").textContent = `${text}\u00a0${["B", "KiB", "MiB", "GiB", "TiB"][at]}`;
    },
    trouble(text) {
      root.querySelector("[data-trouble]").textContent = text;
    },
  };
}
