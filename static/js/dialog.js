/* Questions: an element with hx-get and hx-target="#dialog" brings a <dialog>, which opens here. [data-close], Esc, a click
   beside it and the event dialog:close end it. Without scripts the same address is a page of its own. */
const host = document.getElementById("dialog");
let opener = null;

function close() {
  host.querySelector("dialog[open]")?.close();
}

host?.addEventListener("htmx:afterSwap", () => {
  const dialog = host.querySelector("dialog");
  if (!dialog || dialog.open) return;
  dialog.addEventListener("close", () => {
    host.replaceChildren();
    opener?.isConnected && opener.focus();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) {
      event.preventDefault();
      close();
    }
  });
  dialog.showModal();
});
document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (event.target.getAttribute("hx-target") === "#dialog") opener = event.target;
});
document.body.addEventListener("dialog:close", close);
