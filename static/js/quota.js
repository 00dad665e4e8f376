/* "Ask for more": the amount that is missing follows the chosen limit, as long as nobody typed another one. */
const amount = document.querySelector("[data-missing-of]");
const what = amount && document.getElementById(amount.dataset.missingOf);

if (what) {
  let filled = amount.value;
  what.addEventListener("change", () => {
    if (amount.value !== filled) return;
    amount.value = filled = what.selectedOptions[0]?.dataset.missing ?? "";
  });
}
