// Whose page this is, for scripts that both sides share.

export const WHO = "The coordinator";
/** What starts it. */
export const COMMAND = "coordinator serve";
export const WHOSE_TOKEN = "the operator's token";
/** Where the token lies in sessionStorage. */
export const TOKEN = "semisilo-operator-token";
