// Dialogs: native <dialog>, so that focus stays inside, Escape closes, and focus goes back to where it was. And lines
// that go by themselves.

import { h, render } from "./dom.js";
import { ApiError } from "./api.js";
import { glyph } from "./parts.js";

let number = 0;

/**
 * Opens a dialog. `body(state, draw)` returns its content; `submit(state)` may throw an ApiError, which is shown, and
 * its result is what the promise gives; null when the dialog was cancelled.
 */
export function open({ title, body, submit, action, tone = "main", wide = false, cancel = "Cancel", ready = () => true }) {
  number += 1;
  const id = `dialog-${number}`;
  const before = document.activeElement;
  const dialog = document.createElement("dialog");
  dialog.className = wide ? "dialog wide" : "dialog";
  dialog.setAttribute("aria-labelledby", id);
  document.body.append(dialog);
  const state = { error: null, busy: false };
  return new Promise((resolve) => {
    let result = null;
    const draw = () => render(dialog, h("form", { method: "dialog", novalidate: true, on: { submit: send } },
      h("h2", { id }, title),
      h("div", { class: "dialog-body" }, body(state, draw)),
      state.error ? h("div", { class: "dialog-error", role: "alert" }, glyph("bad"), h("p", null, state.error.text,
        state.error.remedy ? [" ", h("span", { class: "remedy" }, state.error.remedy)] : null)) : null,
      h("div", { class: "dialog-actions" },
        cancel ? h("button", { type: "button", class: "button quiet", key: "cancel", on: { click: () => dialog.close() } }, cancel) : null,
        h("button", { type: "submit", class: `button ${tone}`, key: "do", disabled: state.busy || !ready(state) }, state.busy ? "One moment …" : action))));
    const send = async (event) => {
      event.preventDefault();
      if (state.busy || !ready(state)) return;
      state.busy = true;
      state.error = null;
      draw();
      try {
        result = await submit(state);
        state.busy = false;
        dialog.close();
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        state.busy = false;
        state.error = error;
        draw();
        if (error.status === 401) dialog.querySelector("input[type=password]")?.select();
      }
    };
    dialog.addEventListener("cancel", (event) => { if (state.busy) event.preventDefault(); });
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      resolve(result);
    });
    draw();
    dialog.showModal();
    (dialog.querySelector("[data-first]") ?? dialog.querySelector("button"))?.focus();
    dialog.querySelector("textarea")?.setSelectionRange(0, 0);
    dialog.querySelector("textarea")?.scrollTo(0, 0);
  });
}

/**
 * Says what will happen and asks. `typed`: what has to be typed before the button works. `fields(state, draw)`: further
 * questions. Gives what `submit` gave, or null.
 */
export function confirm({ title, says, action, tone = "main", typed = null, fields = null, submit, ready = () => true, initial = {} }) {
  return open({
    title,
    action,
    tone,
    ready: (state) => ready(state) && (typed === null || state.typed === typed),
    body: (state, draw) => {
      for (const [name, value] of Object.entries(initial)) if (!(name in state)) state[name] = value;
      return [
        h("ul", { class: "says" }, says.map((line) => h("li", null, line))),
        fields ? fields(state, draw) : null,
        typed === null ? null : h("label", { class: "field" }, h("span", null, "Type ", h("strong", null, typed), " to confirm"),
          h("input", { type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false", "data-first": true,
            on: { input: (event) => { state.typed = event.target.value.trim(); draw(); } } })),
      ];
    },
    submit,
  });
}

/** A line that goes by itself, and that a screen reader says. */
export function toast(text, tone = "good") {
  const element = document.createElement("div");
  element.className = `toast ${tone}`;
  element.setAttribute("role", tone === "bad" ? "alert" : "status");
  document.getElementById("toasts").append(element);
  render(element, glyph(tone), h("p", null, text), h("button", { type: "button", class: "button bare", "aria-label": "Close the message", on: { click: () => element.remove() } }, "×"));
  setTimeout(() => element.remove(), 8_000);
}

