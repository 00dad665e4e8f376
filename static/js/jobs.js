/* The job list: which rows are chosen. A row that is fetched again stays chosen; the bar below says how many are. */
const chosen = new Set();

function show() {
  const form = document.querySelector("[data-choose]");
  if (!form) return;
  const boxes = [...form.querySelectorAll("tbody input[type=checkbox]")];
  for (const box of boxes) if (!box.checked && chosen.has(box.value)) box.checked = true;
  const count = boxes.filter((box) => box.checked).length, all = form.querySelector("[data-all]"), bar = form.querySelector("[data-chosen]");
  if (all) {
    all.checked = count > 0 && count === boxes.length;
    all.indeterminate = count > 0 && count < boxes.length;
  }
  bar.dataset.count = count || "";
  bar.querySelector("[data-number]").textContent = count;
}

document.addEventListener("change", (event) => {
  const form = event.target.closest("[data-choose]");
  if (!form || event.target.type !== "checkbox") return;
  const boxes = event.target.matches("[data-all]") ? form.querySelectorAll("tbody input[type=checkbox]") : [event.target];
  for (const box of boxes) {
    box.checked = event.target.checked;
    if (box.checked) chosen.add(box.value);
    else chosen.delete(box.value);
  }
  show();
});
document.body.addEventListener("htmx:afterSettle", show);
document.querySelector("[data-chosen-clear]")?.addEventListener("click", () => {
  chosen.clear();
  document.querySelectorAll("[data-choose] input[type=checkbox]").forEach((box) => { box.checked = false; });
  show();
});
show();
