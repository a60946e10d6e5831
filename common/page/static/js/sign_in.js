// Signing in with a token, and asking again where one was refused meanwhile.

import { h } from "./dom.js";
import { signIn } from "./api.js";
import { confirm, open } from "./dialog.js";

/** Asks for a token. `title` names it; `says` are the lines above the field. True once it is a right one. */
export async function askForToken(title, says) {
  const done = await open({
    title,
    action: "Sign in",
    ready: (state) => Boolean(state.token),
    body: (state, draw) => [
      says,
      h("label", { class: "field" }, h("span", null, "Token"),
        h("input", { type: "password", autocomplete: "current-password", spellcheck: "false", "data-first": true, "aria-invalid": state.error ? "true" : null,
          on: { input: (event) => { state.token = event.target.value.trim(); draw(); } } })),
      h("p", { class: "note" }, "It is kept in this tab until you close it or sign out."),
    ],
    submit: async (state) => {
      await signIn(state.token);
      return true;
    },
  });
  return done === true;
}

/** Signs in if need be, then asks; a token that was refused meanwhile is asked for again. Gives what `confirm` gives. */
export async function confirmSigned(signedIn, question) {
  if (!await signedIn()) return null;
  return confirm({ ...question, submit: async (state) => {
    try {
      return await question.submit(state);
    } catch (error) {
      if (error.status !== 401 || !await signedIn({ again: true })) throw error;
      return question.submit(state);
    }
  } });
}
