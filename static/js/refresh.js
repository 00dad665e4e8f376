/* <section data-refresh="5" hx-trigger="refresh">: fetched again every 5 seconds while somebody looks. */
setInterval(() => {
  if (document.hidden) return;
  const now = Date.now();
  for (const element of document.querySelectorAll("[data-refresh]")) {
    element.refreshedAt ??= now;
    if (now - element.refreshedAt < 1000 * Number(element.dataset.refresh)) continue;
    element.refreshedAt = now;
    element.dispatchEvent(new CustomEvent("refresh"));
  }
}, 1000);
