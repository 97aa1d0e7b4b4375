// What all views share: the API, data that stays fresh, the address bar, and words for times and numbers.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./preact.js";

export { html, useEffect, useLayoutEffect, useMemo, useRef, useState };

/* ---------------------------------------------------------------- credentials */

const TOKEN_KEY = "fabric.token", SESSION_KEY = "fabric.session";
const keep = (name, value) => { try { value ? sessionStorage.setItem(name, value) : sessionStorage.removeItem(name); } catch { /* in memory only */ } };
const kept = (name) => { try { return sessionStorage.getItem(name) || ""; } catch { return ""; } };
let token = kept(TOKEN_KEY), session = null;
try { session = JSON.parse(kept(SESSION_KEY) || "null"); } catch { /* none */ }
export const getToken = () => token;
/** Of a person who signed in at an issuer: name, role, until when. Null for a key or a token. */
export const getSession = () => session;
export function setToken(value, opened = null) {
  token = value;
  session = opened;
  keep(TOKEN_KEY, value);
  keep(SESSION_KEY, opened ? JSON.stringify(opened) : "");
}
export const keepInTab = keep, keptInTab = kept;

/* ---------------------------------------------------------------- a tiny store: values that views listen to */

export function makeSignal(value) {
  const listeners = new Set();
  return {
    get: () => value,
    set(next) { if (next !== value) { value = next; listeners.forEach((listen) => listen(value)); } },
    use() {
      const [current, show] = useState(value);
      useEffect(() => { show(() => value); listeners.add(show); return () => listeners.delete(show); }, []);
      return current;
    },
  };
}

export const connection = makeSignal({ state: "connecting", at: 0 });
export const signedOut = makeSignal(null); // an error, if the node wants credentials
export const overview = makeSignal(null);
export const toast = makeSignal(null);

/* ---------------------------------------------------------------- the API */

export class ApiError extends Error {
  constructor(message, code, traceId, status) {
    super(message);
    Object.assign(this, { code, traceId, status });
  }
}

const headers = (more) => ({ "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}), ...more });

async function send(path, body, options = {}) {
  const sent = token;
  let reply;
  try {
    reply = await fetch(path, { method: "POST", headers: headers(options.headers), body: JSON.stringify(body), signal: options.signal, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    connection.set({ state: "lost", at: Date.now() });
    throw new ApiError("The node does not answer. It may be stopping, or the network is away.", "UNREACHABLE", null, 0);
  }
  if (connection.get().state !== "live") connection.set({ state: "live", at: Date.now() });
  // Another worker may hear of a new session a moment later than the one that opened it.
  if (reply.status === 401 && session && Date.now() - session.opened < 10000 && !options.signal?.aborted) {
    await new Promise((done) => setTimeout(done, 400));
    return send(path, body, options);
  }
  reply.sentToken = sent;
  return reply;
}

function errorFrom(reply, body) {
  const raw = body && body.error;
  const message = typeof raw === "string" ? raw : (raw && raw.message) || `The node answered ${reply.status} ${reply.statusText}`;
  const code = (body && body.error_code) || (raw && raw.code) || String(reply.status);
  const error = new ApiError(message, code, (body && body.trace && body.trace.trace_id) || reply.headers.get("x-trace-id"), reply.status);
  if (reply.status === 401 && reply.sentToken === token) signedOut.set(error); // not if somebody signed in meanwhile
  return error;
}

async function read(reply) {
  let body = null;
  try { body = await reply.json(); } catch { /* not JSON: the status says it */ }
  if (!reply.ok || !body || body.ok === false) throw errorFrom(reply, body);
  return body;
}

/** An operation for operators, such as `keys`. */
export const admin = async (name, body = {}, options) => (await read(await send(`/admin/v1/${name}`, body, options))).result;

/** Any other operation, such as `fabric.route`. */
export const call = async (name, body = {}, options) => (await read(await send("/mcp/call", { name, arguments: body }, options))).result;

/** A call whose events are shown as they come; returns the data of `final`. */
export async function stream(name, body, onEvent, signal) {
  const reply = await send("/mcp/call", { name, arguments: { ...body, stream: true } }, { signal, headers: { Accept: "text/event-stream, application/json" } });
  if (!(reply.headers.get("content-type") || "").startsWith("text/event-stream")) {
    const whole = await read(reply);
    return { ok: true, result: whole.result, trace: whole.trace, parts: whole.parts, fallback: whole.fallback, job_id: whole.job_id };
  }
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError("The stream ended before the result came.", "INTERRUPTED", reply.headers.get("x-trace-id"), 0);
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const data = rest.slice(0, end).split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      rest = rest.slice(end + 2);
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.event !== "final") { onEvent(event); continue; }
      const final = event.data;
      if (final.ok === false) throw new ApiError(final.error.message, final.error.code, final.trace.trace_id, 200);
      return final;
    }
  }
}

/* ---------------------------------------------------------------- data that stays fresh */

/**
 * Loads now and then again every `interval` ms; at once when the page is seen again or the network is back.
 * What was loaded stays while loading fails: `error` says why, and `at` how old it is.
 */
export function useLive(load, keys, interval = 0) {
  const [state, setState] = useState({ data: null, error: null, at: 0 });
  const again = useRef(() => {});
  useEffect(() => {
    let stopped = false, timer = 0, failures = 0, running = false, abort = null;
    setState((before) => (before.data === null && !before.error ? before : { data: null, error: null, at: 0 }));
    const run = async () => {
      if (running || stopped) return;
      running = true;
      clearTimeout(timer);
      abort = new AbortController();
      const late = setTimeout(() => abort.abort(), 30000);
      try {
        const data = await load(abort.signal);
        failures = 0;
        if (!stopped) setState((before) => ({ data: data === undefined ? before.data : data, error: null, at: Date.now() }));
      } catch (error) {
        failures += 1;
        const shown = error.name === "AbortError" ? new ApiError("The node did not answer within 30 s.", "TIMEOUT", null, 0) : error;
        if (!stopped) setState((before) => ({ ...before, error: shown }));
      } finally {
        clearTimeout(late);
        running = false;
      }
      if (!stopped && (interval || failures)) {
        const pause = failures ? Math.min(15000, 1000 * 2 ** Math.min(failures - 1, 4)) : interval;
        timer = setTimeout(() => (document.hidden ? null : run()), pause);
      }
    };
    const wake = () => { if (!document.hidden) run(); };
    again.current = run;
    document.addEventListener("visibilitychange", wake);
    window.addEventListener("online", wake);
    run();
    return () => {
      stopped = true;
      clearTimeout(timer);
      if (abort) abort.abort();
      document.removeEventListener("visibilitychange", wake);
      window.removeEventListener("online", wake);
    };
  }, keys);
  return { ...state, reload: () => again.current() };
}

/* ---------------------------------------------------------------- the address bar */

export const BASE = "/console";
const readLocation = () => ({ path: location.pathname.slice(BASE.length) || "/", query: Object.fromEntries(new URLSearchParams(location.search)) });
export const route = makeSignal(readLocation());
window.addEventListener("popstate", () => route.set(readLocation()));

export function go(path, { replace = false } = {}) {
  const url = BASE + (path === "/" ? "" : path);
  if (url === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", url);
  route.set(readLocation());
  if (!replace) window.scrollTo(0, 0);
}

/** Change parts of the query; an empty value takes one away. */
export function setQuery(changes, options = { replace: true }) {
  const { path, query } = route.get();
  const next = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...query, ...changes })) if (value !== "" && value !== null && value !== undefined) next.set(name, value);
  go(path + (next.size ? `?${next}` : ""), options);
}

export const part = encodeURIComponent;

export function Link({ to, children, ...more }) {
  const follow = (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(to);
  };
  return html`<a href=${BASE + (to === "/" ? "" : to)} onClick=${follow} ...${more}>${children}</a>`;
}

/* ---------------------------------------------------------------- words */

/** Whatever an agent sent, as text. Never markup: it goes into text nodes only. */
export const text = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2));

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms === 0) return "0 ms";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  return span(ms / 1000);
}

export function span(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

const toDate = (at) => new Date(typeof at === "number" ? at * 1000 : at);
export const age = (at) => span((Date.now() - toDate(at)) / 1000);
const two = (number) => String(number).padStart(2, "0");
export function clock(at, millis = false) {
  const date = toDate(at);
  const base = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return millis ? `${base}.${String(date.getMilliseconds()).padStart(3, "0")}` : base;
}
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
export function moment(at) {
  if (!at) return "–";
  const date = toDate(at), today = new Date();
  if (date.toDateString() === today.toDateString()) return clock(at);
  return `${date.getDate()} ${MONTHS[date.getMonth()]} ${two(date.getHours())}:${two(date.getMinutes())}`;
}
export const isoTime = (at) => (at ? toDate(at).toISOString() : "");

export function count(number) {
  if (number === null || number === undefined) return "–";
  if (Math.abs(number) < 10000) return String(number).replace(/\B(?=(\d{3})+(?!\d))/g, " ");
  return number < 1e6 ? `${(number / 1000).toFixed(number < 1e5 ? 1 : 0)} k` : `${(number / 1e6).toFixed(1)} M`;
}
export const bytes = (number) => (number === null || number === undefined ? "–" : number < 1024 ? `${number} B` : number < 1048576 ? `${(number / 1024).toFixed(1)} kB` : `${(number / 1048576).toFixed(1)} MB`);
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
export const short = (id) => { const shown = text(id); return /^[a-z]+_/.test(shown) ? shown.slice(-8) : shown.slice(0, 8); };

export async function copy(value, what = "Copied") {
  try {
    await navigator.clipboard.writeText(value);
  } catch { // without permission, or over plain HTTP
    const box = document.createElement("textarea");
    box.value = value;
    box.className = "offscreen";
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  say(what);
}

let toastTimer = 0;
export function say(message, kind = "good") {
  toast.set({ message, kind, at: Date.now() });
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => toast.set(null), 2600);
}
