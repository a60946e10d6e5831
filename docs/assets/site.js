// The theme gives every block of code a navigation landmark without a name; each gets one of its own.
// A table that is wider than the page scrolls within itself, also with the keyboard.
const name = () => {
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((nav, index) => nav.setAttribute("aria-label", `Code ${index + 1} on this page`));
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((wrap) => { if (wrap.scrollWidth > wrap.clientWidth) wrap.tabIndex = 0; });
};
new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
name();
