// What a person can do here: sign in, approve and decline studies. Each decision is asked for, and says what it means.

import { h } from "./dom.js";
import { act, token } from "./api.js";
import { toast } from "./dialog.js";
import { askForToken, confirmSigned } from "./sign_in.js";
import { invalidate, store } from "./store.js";

/** Asks for the token of the page unless there is one. True when there is one afterwards. */
export async function signedIn({ again = false } = {}) {
  if (token() && !again) return true;
  const done = await askForToken("Token of this page", [
    h("p", null, "Deciding needs a token, and so does what may name files of this site. On the silo's machine, under the silo's account, this prints it:"),
    h("pre", { class: "commands" }, h("code", null, store.here?.token_command ?? "silo page --token")),
  ]);
  if (done) invalidate();
  return done;
}

/** A card is decided on as it was shown: where another one has come meanwhile, the silo says so. */
async function decide(action, card, question) {
  const body = { study: card.study, digest: card.digest };
  const done = await confirmSigned(signedIn, { ...question, submit: () => act(action, body) });
  if (done !== null) {
    toast(action === "approve" ? `${card.study} is approved: the silo signs its card with its next task.` : `${card.study} is declined: its tasks are refused.`);
    invalidate();
  }
}

export function approve(card) {
  return decide("approve", card, {
    title: `Approve ${card.study}?`,
    action: "Approve the study",
    says: [
      `This silo signs the card ${card.digest.slice(0, 16)}… and takes the study's tasks, as far as silo.toml permits.`,
      card.secure_aggregation ? "Its updates leave behind masks: nobody sees them singly." : "Its updates leave in the clear: the coordinator sees them singly.",
      card.dp_unit ? `The study has differential privacy of ${card.dp_unit}s.` : "The study has no differential privacy.",
      card.changed ? `It has changed since it was signed before: ${card.changed}.` : "A task that says something else than the card is refused.",
      store.here?.agent.running ? "A running silo join continues automatically." : "silo join does not run here: the card is signed once it does.",
    ],
  });
}

export function decline(card) {
  return decide("decline", card, {
    title: `Decline ${card.study}?`,
    action: "Decline the study",
    tone: "danger",
    says: ["Its tasks are refused, and the coordinator hears that this site has declined it.", "What has left before stays where it is.", `You can change your mind: silo approve ${card.study}, or here.`],
  });
}
