// Light, dark, or as the system has it; `theme.js` puts it in force before anything is painted.

export const theme = () => document.documentElement.dataset.theme ?? "auto";
export const themeWord = () => ({ auto: "as the system", light: "light", dark: "dark" })[theme()];

/** The next of the three, kept for later visits. */
export function chooseNext() {
  const next = { auto: "light", light: "dark", dark: "auto" }[theme()];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === "auto") localStorage.removeItem("semisilo-theme");
    else localStorage.setItem("semisilo-theme", next);
  } catch {
    // Not kept beyond this page.
  }
}
