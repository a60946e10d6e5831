// Runs before anything is painted, so that a chosen theme does not flash. Not a module for that reason.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("semisilo-theme");
  } catch {
    // Storage is blocked: the system's choice holds.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
