/* Nothing moves under the hand: a piece with data-calm is not swapped while the pointer or the focus is in it. When they
   leave, what came last is swapped in. */
const waiting = new Map();

const isHeld = (element) => element.matches(":hover") && matchMedia("(hover: hover)").matches || element.contains(document.activeElement);

function fetchAgain(element) {
  if (!waiting.has(element.id) || isHeld(element)) return;
  const fragment = waiting.get(element.id);
  waiting.delete(element.id);
  element.replaceWith(fragment);
  window.htmx.process(fragment);
  document.body.dispatchEvent(new CustomEvent("htmx:afterSettle", { bubbles: true }));
}

document.body.addEventListener("htmx:oobBeforeSwap", (event) => {
  const { target, fragment } = event.detail;
  const fresh = fragment.querySelector?.(`#${CSS.escape(target.id)}`) ?? fragment.firstElementChild;
  if (!target.hasAttribute("data-calm") || !isHeld(target) || !fresh) return;
  event.detail.shouldSwap = false;
  waiting.set(target.id, fresh);
});

const left = (event) => {
  const element = event.target.closest?.("[data-calm]");
  if (element) setTimeout(() => fetchAgain(document.getElementById(element.id)), 150);
};
document.addEventListener("pointerout", left);
document.addEventListener("focusout", left);
