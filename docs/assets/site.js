// The theme gives every block of code a navigation landmark without a name; each gets one of its own.
const name = () => document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((nav, index) => nav.setAttribute("aria-label", `Code ${index + 1} on this page`));
new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
name();
