/* Light or dark: [data-theme-toggle] switches. Kept in a cookie, so that the server writes <html data-theme> and no page
   flashes. The browser's time zone goes the same way, for readers who have set none. */
const root = document.documentElement;
const keep = (name, value) => {
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `${name}=${encodeURIComponent(value)}; Path=/; Max-Age=31536000; SameSite=Lax${secure}`;
};

export function themeToggle() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
  keep("theme", root.dataset.theme);
  document.body.dispatchEvent(new CustomEvent("theme:changed"));
}

addEventListener("click", (event) => {
  if (event.target.closest("[data-theme-toggle]")) themeToggle();
});

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone) keep("zone", zone);
