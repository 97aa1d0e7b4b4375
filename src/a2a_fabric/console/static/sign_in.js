// Signing in at the operator's issuer (OpenID Connect), and out again. The one secret of a sign-in, its verifier, stays in
// this tab: an answer of the issuer that began in another tab or browser is refused.
import { ApiError, BASE, getSession, getToken, go, html, keepInTab, keptInTab, setToken, text, useEffect, useState } from "./lib.js";
import { Fault } from "./parts.js";

const PATH = `${BASE}/sign-in`, KEY = "fabric.sign-in";

async function post(name, body, token = "") {
  let reply;
  try {
    reply = await fetch(`${PATH}/${name}`, { method: "POST", headers: { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) }, body: JSON.stringify(body), cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(30000) });
  } catch {
    throw new ApiError("The node does not answer. It may be stopping, or the network is away.", "UNREACHABLE", null, 0);
  }
  let told = null;
  try { told = await reply.json(); } catch { /* not JSON: the status says it */ }
  if (!reply.ok || !told) throw new ApiError((told && told.error) || `The node answered ${reply.status}.`, (told && told.error_code) || String(reply.status), told && told.trace && told.trace.trace_id, reply.status);
  return told;
}

function makeVerifier() {
  const random = crypto.getRandomValues(new Uint8Array(32));
  return btoa(String.fromCharCode(...random)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The name of the issuer; null if this node has no sign-in. */
export async function findIssuer() {
  try {
    const reply = await fetch(`${PATH}/about`, { cache: "no-store", credentials: "omit" });
    return reply.ok ? (await reply.json()).issuer : null;
  } catch { return null; }
}

/** Leaves the page. Afterwards the issuer sends the browser to `/signed-in`. */
export async function startSignIn() {
  const verifier = makeVerifier();
  const { url, redirect_uri: back } = await post("start", { verifier });
  const origin = new URL(back).origin;
  if (origin !== location.origin) { location.assign(origin + BASE); return; } // the public address; this tab's secrets stay here
  const from = location.pathname.startsWith(`${BASE}/signed-in`) ? BASE : location.pathname + location.search;
  keepInTab(KEY, JSON.stringify({ verifier, from, at: Date.now() }));
  location.assign(url);
}

/** Ends the session at the node; returns where the person can end the one at the issuer, too, or null. */
export async function endSession() {
  if (!getSession()) return null;
  try { return (await post("end", {}, getToken())).issuer_url; } catch { return null; } // it ends by itself
}

const DENIED = { access_denied: "You did not agree at the issuer, or it does not let you in.", login_required: "The issuer wants you to sign in there first.", temporarily_unavailable: "The issuer is not available just now.", server_error: "The issuer has a problem just now." };

/** Where the issuer sends the browser back to. */
export function SignedIn({ query, onDone }) {
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    document.title = "Sign in · Fabric";
    let begun = null;
    try { begun = JSON.parse(keptInTab(KEY) || "null"); } catch { /* none */ }
    keepInTab(KEY, "");
    history.replaceState(null, "", `${BASE}/signed-in`); // the code leaves the address bar and the history
    const fail = (message, code) => setProblem(new ApiError(message, code, null, 0));
    if (query.error) { fail(DENIED[query.error] || "The issuer refused to sign you in.", query.error.slice(0, 64)); return; }
    if (!begun || !query.code || !query.state) { fail("This tab did not begin a sign-in, or it was ended already. Begin again.", "NOT_BEGUN"); return; }
    post("finish", { code: query.code, state: query.state, verifier: begun.verifier, ...(query.iss ? { iss: query.iss } : {}) }).then((opened) => {
      setToken(opened.token, { name: opened.name, role: opened.role, until: opened.expires_at, opened: Date.now() });
      onDone();
      const from = begun.from.startsWith(BASE) ? begun.from.slice(BASE.length) : "";
      go(from || "/", { replace: true });
    }).catch(setProblem);
  }, []);
  return html`<main class="login"><div class="login-box" aria-live="polite">
    ${problem ? html`<h1>You are not signed in</h1><${Fault} error=${problem} /><${SignInButton} label="Try again" /><a class="button" href=${BASE}>Use a key instead</a>` : html`<h1>Signing in…</h1><p class="hint">The node checks what the issuer says.</p>`}
  </div></main>`;
}

export function SignInButton({ label }) {
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const start = async () => {
    setBusy(true);
    setProblem(null);
    try { await startSignIn(); } catch (failure) { setProblem(failure); setBusy(false); }
  };
  return html`<button type="button" class="button primary" disabled=${busy} onClick=${start}>${busy ? "Going to the issuer…" : text(label)}</button>${problem ? html`<${Fault} error=${problem} />` : null}`;
}
