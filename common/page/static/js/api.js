// The HTTP interface of the side whose page it is. The token is kept in sessionStorage only: it ends with the tab.

import { COMMAND, TOKEN, WHO, WHOSE_TOKEN } from "./place.js";

const PATIENCE = 15_000;
const IS_IT_THERE = `Is \`${COMMAND}\` running?`;

/** What was answered instead of what was asked for. */
export class ApiError extends Error {
  constructor(status, code, text, remedy) {
    super(text);
    this.status = status;
    this.code = code;
    this.text = text;
    this.remedy = remedy;
  }
}

async function call(path, { patience = PATIENCE, ...options }) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin", redirect: "error",
      signal: AbortSignal.timeout(patience) });
  } catch (cause) {
    throw new ApiError(0, "UNREACHABLE", cause?.name === "TimeoutError" ? `${WHO} did not answer in time.`
      : `${WHO} cannot be reached.`, IS_IT_THERE);
  }
  let body = null;
  try {
    body = await response.json();
  } catch {
    // An error page of something in between; the status says enough.
  }
  if (!response.ok || body === null) {
    const said = body?.error ?? {};
    throw new ApiError(response.status, said.code ?? "FAILED",
      said.text ?? `${WHO} answered with status ${response.status}.`, said.remedy ?? "");
  }
  return body;
}

/** Facts; `signed` where more is told to who has the token. */
export function get(path, { signed = false } = {}) {
  const key = signed ? token() : "";
  return call(path, { headers: { Accept: "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) } });
}

function post(path, body, key, patience = PATIENCE) {
  return call(path, { patience, method: "POST", body: JSON.stringify(body), headers: {
    Accept: "application/json", "Content-Type": "application/json", Authorization: `Bearer ${key}` } });
}

/** What only an operator may read. Throws ApiError. */
export async function getAsOperator(path) {
  try {
    return await call(path, { headers: { Accept: "application/json", Authorization: `Bearer ${token()}` } });
  } catch (error) {
    if (error.status === 401) keep("");
    throw error;
  }
}

export function token() {
  try {
    return sessionStorage.getItem(TOKEN) ?? "";
  } catch {
    return held;
  }
}

let held = ""; // where storage is blocked, for as long as the page stays

function keep(value) {
  held = value;
  try {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
  } catch {
    // kept in `held`
  }
}

/** Checks a token and keeps it. Throws ApiError when it is wrong. */
export async function signIn(value) {
  // A header can carry no other characters; a token has none of them.
  if (!/^[\x21-\x7e]+$/.test(value)) {
    throw new ApiError(401, "UNAUTHORISED", `That is not ${WHOSE_TOKEN}.`, "");
  }
  await post("/api/session", { token: value }, value);
  keep(value);
}

/** Whether the word of a proxy is taken for who this is, so that no token is needed. */
export async function isLetIn() {
  try {
    return (await post("/api/session", { token: "" }, "")).valid === true;
  } catch {
    return false;
  }
}

export function signOut() {
  keep("");
}

/** A file behind the token, as a Blob. Throws ApiError. */
export async function fetchFile(path) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", redirect: "error", headers: { Authorization: `Bearer ${token()}` } });
  } catch {
    throw new ApiError(0, "UNREACHABLE", `${WHO} cannot be reached.`, IS_IT_THERE);
  }
  if (!response.ok) {
    if (response.status === 401) keep("");
    const said = (await response.json().catch(() => null))?.error ?? {};
    throw new ApiError(response.status, said.code ?? "FAILED", said.text ?? `${WHO} answered with status ${response.status}.`, said.remedy ?? "");
  }
  return response.blob();
}

/** An action, by its name in the address. */
export async function act(action, body, patience = PATIENCE) {
  try {
    return await post(`/api/actions/${action}`, body, token(), patience);
  } catch (error) {
    if (error.status === 401) keep("");
    throw error;
  }
}
