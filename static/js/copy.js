/* A button [data-copy="#id"] copies that element's text; its [data-done] part says so for a moment. Hidden buttons appear with the script. */
const SHOWN_MS = 2000;

for (const button of document.querySelectorAll("[data-copy][hidden]")) button.hidden = false;

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.querySelector(button.dataset.copy), word = button.querySelector("[data-done]"), before = word.textContent;
  try {
    await navigator.clipboard.writeText(source.textContent.trim());
    word.textContent = word.dataset.done;
    setTimeout(() => { word.textContent = before; }, SHOWN_MS);
  } catch {
    getSelection().selectAllChildren(source); // no permission: it is chosen, Ctrl C copies
  }
});
