// The operator's dialogs: signing in, and an invitation's line.

import { h } from "./dom.js";
import { isLetIn, token } from "./api.js";
import { open } from "./dialog.js";
import { askForToken } from "./sign_in.js";

/** Asks for the operator's token unless there is one. True when there is one afterwards. */
export async function signedIn({ again = false } = {}) {
  if ((token() || await isLetIn()) && !again) return true;
  return askForToken("Operator's token", [
    h("p", null, "Viewing needs no token; actions do. At the hub, in the federation folder, this prints it:"),
    h("pre", { class: "commands" }, h("code", null, "coordinator page --token")),
    h("p", null, "A personal token is better, since the audit trail then names you:"),
    h("pre", { class: "commands" }, h("code", null, "coordinator operator add NAME")),
  ]);
}

/** Shows an invitation's line, once. */
export function showLine(silo, line, life) {
  return open({
    title: `Invitation for ${silo}`,
    action: "Done, I have sent it",
    tone: "quiet",
    cancel: null,
    wide: true,
    body: (state, draw) => [
      h("p", null, "Send this line to the hospital over a channel that you trust. It works once, ", life, "It is not shown again."),
      h("textarea", { class: "invitation", readonly: true, rows: "6", "aria-label": "Invitation line", spellcheck: "false", prop: { value: line }, on: { focus: (event) => event.target.select() } }),
      h("p", { class: "copy-row" }, h("button", { type: "button", class: "button main", "data-first": true, on: { click: async (event) => {
        state.copied = await copy(line, event.target.closest("dialog").querySelector("textarea"));
        draw();
      } } }, "Copy the line"), h("span", { role: "status", class: "note" }, state.copied === undefined ? "" : state.copied ? "Copied." : "Copying is not allowed here: press Ctrl+C.")),
      h("p", null, "There they run:"),
      h("pre", { class: "commands" }, h("code", null, "silo enroll LINE\nsilo check\nsilo join --data /scans")),
    ],
    submit: async () => true,
  });
}

async function copy(text, area) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    area.focus();
    area.select();
    return false;
  }
}
