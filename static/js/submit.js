/* The submit form: which fields the person has been in (their errors are told at once), aria-invalid to match the messages
   that the server sends, quick choices, Ctrl Enter. The checking itself is the server's. */
const form = document.querySelector("[data-submit]");
const touched = form.querySelector("[name=touched]");
const names = new Set(touched.value.split(",").filter(Boolean));

function touch(name) {
  names.add(name);
  touched.value = [...names].join(",");
}

function marks() {
  for (const slot of form.querySelectorAll("[data-error-of]")) {
    const name = slot.dataset.errorOf, isWrong = slot.textContent.trim() !== "";
    for (const field of form.querySelectorAll(`[name="${CSS.escape(name)}"]:not([type=radio], [type=hidden])`)) {
      if (isWrong) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
  }
}

form.addEventListener("change", (event) => event.target.name && touch(event.target.name));
form.addEventListener("input", (event) => {
  // While one types a field for the first time, it is not called wrong yet; once it was, it is judged with each key.
  if (event.target.getAttribute("aria-invalid")) touch(event.target.name);
});
form.addEventListener("submit", () => form.setAttribute("aria-busy", "true"));
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    form.requestSubmit();
  }
});
document.addEventListener("click", (event) => {
  const choice = event.target.closest("[data-set]");
  if (choice) {
    const values = new URLSearchParams(choice.dataset.set);
    let last = null;
    for (const [name, value] of values) {
      const field = form.elements[name];
      if (!field) continue;
      last = field instanceof RadioNodeList ? field[0] : field;
      if (last.type === "checkbox") {
        const chosen = value.split("|"); // boxes of one name: alternatives
        for (const box of form.querySelectorAll(`[name="${CSS.escape(name)}"]`)) box.checked = chosen.includes(box.value);
      } else field.value = value; // a group of radio buttons takes it as well
      touch(name);
    }
    last?.dispatchEvent(new Event("change", { bubbles: true }));
  }
});
document.body.addEventListener("htmx:afterSettle", marks);
form.querySelectorAll("[data-script-only]").forEach((element) => { element.hidden = false; });
form.querySelector("[aria-invalid=true]")?.focus();
addEventListener("pageshow", () => form.removeAttribute("aria-busy"));
