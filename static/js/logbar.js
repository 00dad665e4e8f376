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
      const digits = bytes < 1e6 ? 1 : 0;
      const text = bytes < 1024 ? `${bytes} B` : `${(bytes / 1024).toLocaleString("en", { maximumFractionDigits: digits })} KiB`;
      root.querySelector("[data-size]").textContent = text;
    },
    trouble(text) {
      root.querySelector("[data-trouble]").textContent = text;
    },
  };
}
