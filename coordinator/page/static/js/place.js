// Whose page this is, for scripts that both sides share.

export const WHO = "The coordinator";
export const IS_IT_THERE = "Is `coordinator serve` running?";
export const WHOSE_TOKEN = "the operator's token";
/** Where the token lies in sessionStorage. */
export const TOKEN = "semisilo-operator-token";
