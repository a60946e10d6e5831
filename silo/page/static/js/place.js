// Whose page this is, for scripts that both sides share.

export const WHO = "The silo's page";
/** What starts it. */
export const COMMAND = "silo page";
export const WHOSE_TOKEN = "the token of this page";
/** Where the token lies in sessionStorage. */
export const TOKEN = "semisilo-silo-token";
