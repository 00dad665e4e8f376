/* Light or dark: the reader's choice on this device, else the system's. Loaded in the head, so that no page flashes. */
(function () {
  "use strict";
  var root = document.documentElement;
  var stored = null;
  try {
    stored = localStorage.getItem("theme");
  } catch (error) {
    /* storage is off: the choice lasts for this page */
  }
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  addEventListener("click", function (event) {
    if (!event.target.closest("[data-theme-toggle]")) return;
    var now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch (error) {
      /* as above */
    }
  });
})();
