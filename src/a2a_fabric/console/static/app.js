// The frame around all views: login, bar, navigation, palette, keys.
import { render } from "./preact.js";
import { admin, ApiError, BASE, connection, getSession, getToken, go, html, Link, moment, overview, part, route, say, setToken, signedOut, text, toast, useEffect, useLayoutEffect, useLive, useMemo, useRef, useState } from "./lib.js";
import { Age, Dialog, Dot, Fault, Icon, isTyping, useNow } from "./parts.js";
import { Home } from "./home.js";
import { Agents, loadAgents } from "./agents.js";
import { Agent } from "./agent.js";
import { Calls, Trace } from "./calls.js";
import { Job, Jobs } from "./jobs.js";
import { Messages } from "./messages.js";
import { Route } from "./routing.js";
import { Keys } from "./keys.js";
import { Log, Settings } from "./settings.js";
import { endSession, findIssuer, SignedIn, SignInButton } from "./sign_in.js";

const PAGES = [
  { id: "home", path: "/", label: "Home", key: "h" },
  { id: "agents", path: "/agents", label: "Agents", key: "a" },
  { id: "calls", path: "/calls", label: "Calls", key: "c" },
  { id: "jobs", path: "/jobs", label: "Jobs", key: "j" },
  { id: "messages", path: "/messages", label: "Messages", key: "m" },
  { id: "route", path: "/route", label: "Route", key: "r" },
  { id: "keys", path: "/keys", label: "Keys", key: "k" },
  { id: "settings", path: "/settings", label: "Settings", key: "s" },
  { id: "log", path: "/log", label: "Log", key: "l" },
];
const ON_PHONE = ["home", "agents", "calls", "jobs"];

function View({ path, query }) {
  const [, page, ...rest] = path.split("/");
  const name = rest.map((each) => { try { return decodeURIComponent(each); } catch { return each; } }).join("/");
  if (!page) return html`<${Home} />`;
  if (page === "agents") return name ? html`<${Agent} key=${name} id=${name} query=${query} />` : html`<${Agents} query=${query} />`;
  if (page === "calls") return name ? html`<${Trace} key=${name} id=${name} query=${query} />` : html`<${Calls} query=${query} />`;
  if (page === "jobs") return name ? html`<${Job} key=${name} id=${name} />` : html`<${Jobs} query=${query} />`;
  if (page === "messages") return html`<${Messages} id=${name} query=${query} />`;
  if (page === "route") return html`<${Route} query=${query} />`;
  if (page === "keys") return html`<${Keys} />`;
  if (page === "settings") return html`<${Settings} query=${query} />`;
  if (page === "log") return html`<${Log} query=${query} />`;
  return html`<div class="page"><h1>Nothing at this address</h1><p class="lead">There is no view <code>${path}</code>. <${Link} to="/">Go home<//></p></div>`;
}

/* ---------------------------------------------------------------- theme */

const systemIsDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
export const isDark = () => (document.documentElement.dataset.theme || (systemIsDark() ? "dark" : "light")) === "dark";
function toggleTheme() {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("fabric.theme", next); } catch { /* for this visit */ }
}

/* ---------------------------------------------------------------- login */

function Login({ error, onDone }) {
  const [value, setValue] = useState("");
  const [session] = useState(getSession);
  const [problem, setProblem] = useState(error && getToken() ? (session ? new ApiError("Your session has ended. Sign in again.", error.code, error.traceId, 401) : error) : null);
  const [busy, setBusy] = useState(false);
  const [issuer, setIssuer] = useState(undefined); // until the node has said
  useEffect(() => { document.title = "Sign in · Fabric"; findIssuer().then(setIssuer); }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setToken(value.trim());
    try {
      const node = await admin("overview");
      signedOut.set(null);
      overview.set(node);
      onDone();
    } catch (failure) {
      setProblem(failure);
      setToken("");
    } finally {
      setBusy(false);
    }
  };
  return html`<main class="login"><form onSubmit=${submit}>
    <${Logo} size=${36} />
    <h1>Sign in to this node</h1>
    ${error && error.issuerUrl ? html`<p class="hint">You signed out here. The issuer may still know you: <a href=${error.issuerUrl} rel="noreferrer">sign out there, too</a>.</p>` : null}
    ${issuer ? html`<${SignInButton} label=${`Sign in with ${issuer}`} /><p class="or"><span>or with a key</span></p>` : null}
    <label for="token">Key or token</label>
    <input id="token" type="password" autocomplete="current-password" autofocus required value=${value} onInput=${(event) => setValue(event.target.value)} />
    <button class="button ${issuer ? "" : "primary"}" disabled=${busy || !value.trim()}>${busy ? "Signing in…" : "Sign in"}</button>
    ${problem ? html`<${Fault} error=${problem} />` : null}
    <p class="hint">The node's own key opens everything: <code>FABRIC_PSK</code>, or the one that <code>a2a-fabric up</code> saved. A key with the scope <code>console:view</code> may look. The key stays in this tab.</p>
  </form></main>`;
}

const Logo = ({ size = 22 }) => html`<svg class="logo" width=${size} height=${size} viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" /><path d="M8 11h4.500M19.500 11H24M8 21h16M11 8v4.500M11 19.500V24M21 8v16" /><path class="under" d="M12.500 11h7M11 12.500v7" /></svg>`;

/* ---------------------------------------------------------------- palette */

const TRACE_ID = /^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$/i;
const JOB_ID = /^job_[0-9a-z_-]+$/i;

function score(words, target) {
  const lower = target.toLowerCase();
  let total = 0;
  for (const word of words) {
    const at = lower.indexOf(word);
    if (at < 0) return 0;
    total += at === 0 ? 3 : /[\s/_.:-]/.test(lower[at - 1]) ? 2 : 1;
  }
  return total;
}

function findItems(query, agents, actions) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const typed = query.trim();
  const found = [];
  if (TRACE_ID.test(typed)) found.push({ kind: "Call", label: typed, icon: "calls", run: () => go(`/calls/${part(typed)}`), rank: 99 });
  if (JOB_ID.test(typed)) found.push({ kind: "Job", label: typed, icon: "jobs", run: () => go(`/jobs/${part(typed)}`), rank: 99 });
  for (const page of PAGES) found.push({ kind: "Page", label: page.label, icon: page.id, hint: `g ${page.key}`, run: () => go(page.path), rank: words.length ? 1.2 * score(words, page.label) : 1 });
  for (const action of actions) found.push({ kind: "Action", ...action, rank: words.length ? score(words, action.label) : 0.5 });
  for (const agent of agents) {
    const rank = words.length ? score(words, `${agent.agent_id} ${agent.display_name}`) : 0;
    if (rank) found.push({ kind: "Agent", label: agent.agent_id, about: agent.description, dot: agent.status, run: () => go(`/agents/${part(agent.agent_id)}`), rank });
  }
  if (typed && !TRACE_ID.test(typed) && !JOB_ID.test(typed)) found.push({ kind: "Route", label: `Which agent answers “${typed.slice(0, 60)}”?`, icon: "route", run: () => go(`/route?text=${part(typed)}`), rank: 0.2 });
  return found.filter((item) => item.rank > 0).sort((a, b) => b.rank - a.rank).slice(0, 40);
}

function Palette({ onClose, actions }) {
  const [query, setQuery] = useState("");
  const [place, setPlace] = useState(0);
  const [agents, setAgents] = useState([]);
  const list = useRef(null);
  useEffect(() => { loadAgents().then(setAgents, () => {}); }, []);
  const items = useMemo(() => findItems(query, agents, actions), [query, agents]);
  const chosen = Math.min(place, Math.max(items.length - 1, 0));
  const run = (item) => { onClose(); item.run(); };
  // What was typed a moment ago counts, even if it is not on the screen yet.
  const choose = async (typed) => {
    if (typed === query && agents.length) { if (items[chosen]) run(items[chosen]); return; }
    const all = agents.length ? agents : await loadAgents().catch(() => []);
    const [first] = findItems(typed, all, actions);
    if (first) run(first);
  };
  const onKey = (event) => {
    const step = event.key === "ArrowDown" || (event.ctrlKey && event.key === "n") ? 1 : event.key === "ArrowUp" || (event.ctrlKey && event.key === "p") ? -1 : 0;
    if (step) { event.preventDefault(); setPlace((chosen + step + items.length) % Math.max(items.length, 1)); }
    if (event.key === "Enter") { event.preventDefault(); choose(event.target.value); }
  };
  useEffect(() => { const row = list.current && list.current.children[chosen]; if (row) row.scrollIntoView({ block: "nearest" }); }, [chosen]);
  useEffect(() => {
    const close = (event) => { if (event.key === "Escape") { event.stopPropagation(); onClose(); } };
    window.addEventListener("keydown", close, true);
    return () => window.removeEventListener("keydown", close, true);
  }, []);
  const input = useRef(null);
  useLayoutEffect(() => { const before = document.activeElement; input.current.focus(); return () => before && before.focus && before.focus(); }, []);
  return html`<div class="overlay top" onMouseDown=${(event) => event.target === event.currentTarget && onClose()}><div class="palette" role="dialog" aria-modal="true" aria-label="Command palette">
    <label class="palette-input"><${Icon} name="search" /><input ref=${input} value=${query} placeholder="Agents, trace and job ids, pages, actions…" aria-label="Search everything" role="combobox" aria-expanded="true" aria-controls="palette-list" autocomplete="off" spellcheck=${false} onInput=${(event) => { setQuery(event.target.value); setPlace(0); }} onKeyDown=${onKey} /></label>
    <ul id="palette-list" role="listbox" ref=${list}>${items.map((item, at) => html`<li role="option" aria-selected=${at === chosen ? "true" : "false"} class=${at === chosen ? "on" : ""} onMouseMove=${() => at !== chosen && setPlace(at)} onClick=${() => run(item)}>${item.dot ? html`<${Dot} status=${item.dot} />` : html`<${Icon} name=${item.icon || "bolt"} />`}<span class="palette-label">${item.label}</span>${item.about ? html`<span class="palette-about">${text(item.about)}</span>` : null}<span class="palette-kind">${item.hint ? html`<kbd>${item.hint}</kbd>` : item.kind}</span></li>`)}</ul>
  </div></div>`;
}

const KEYS = [
  ["⌘ K", "Palette: agents, calls, jobs, pages, actions"], ["/", "Search this list"], ["j  k", "Next, previous row"], ["enter", "Open the row"],
  ["esc", "Close, or leave the field"], ["g h", "Home"], ["g a", "Agents"], ["g c", "Calls"], ["g j", "Jobs"], ["t", "Light or dark"], ["?", "These keys"],
];

function Help({ onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose}><dl class="keys">${KEYS.map(([keys, what]) => html`<div><dt>${keys.split("  ").map((key) => html`<kbd>${key}</kbd>`)}</dt><dd>${what}</dd></div>`)}</dl><//>`;
}

/* ---------------------------------------------------------------- frame */

function Connection() {
  const { state, at } = connection.use();
  useNow(1000);
  if (state === "live") return html`<span class="live" title="The node answers"><i class="pulse"></i>live</span>`;
  if (state === "lost") return html`<span class="live lost" role="status"><i></i>lost <${Age} at=${at / 1000} /></span>`;
  return html`<span class="live waiting"><i></i>connecting</span>`;
}

function Frame() {
  const { path, query } = route.use();
  const error = signedOut.use();
  const node = overview.use();
  const note = toast.use();
  const [layer, setLayer] = useState(null);
  const [, redraw] = useState(0);
  const live = useLive(async (signal) => { const data = await admin("overview", {}, { signal }); overview.set(data); return data; }, [], 3000);
  const current = path.split("/")[1] || "home";
  const view = useMemo(() => html`<${View} path=${path} query=${query} />`, [path, query]); // which draws itself anew

  const theme = () => { toggleTheme(); redraw((n) => n + 1); };
  const leave = async () => {
    const issuerUrl = await endSession();
    setToken("");
    overview.set(null);
    signedOut.set(Object.assign(new ApiError("You signed out.", "SIGNED_OUT", null, 401), { issuerUrl }));
  };
  const actions = [
    { label: "Add an agent", icon: "plus", run: () => go("/agents?add=1") },
    { label: "Create a key", icon: "keys", run: () => go("/keys") },
    { label: "Light or dark", icon: "moon", hint: "t", run: theme },
    { label: "Show all keys", icon: "bolt", hint: "?", run: () => setLayer("help") },
    ...(getToken() ? [{ label: "Sign out", icon: "out", run: leave }] : []),
  ];
  useEffect(() => {
    let lead = 0;
    const onKey = (event) => {
      if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") { event.preventDefault(); setLayer((before) => (before === "palette" ? null : "palette")); return; }
      if (isTyping(event) || event.metaKey || event.ctrlKey || event.altKey || document.querySelector(".overlay")) return;
      if (event.key === "/") { const box = document.querySelector("[data-search]"); event.preventDefault(); if (box) { box.focus(); box.select(); } else setLayer("palette"); }
      else if (event.key === "?") { event.preventDefault(); setLayer("help"); }
      else if (event.key === "t") theme();
      else if (event.key === "g") { lead = Date.now(); return; }
      else if (Date.now() - lead < 1200) { const page = PAGES.find((each) => each.key === event.key); if (page) { event.preventDefault(); event.stopImmediatePropagation(); go(page.path); } }
      lead = 0;
    };
    window.addEventListener("keydown", onKey, true);
    return () => window.removeEventListener("keydown", onKey, true);
  }, []);

  if (path === "/signed-in") return html`<${SignedIn} query=${query} onDone=${() => { signedOut.set(null); live.reload(); }} />`;
  if (error) return html`<${Login} error=${error} onDone=${() => live.reload()} />`;
  if (live.error && !node && (live.error.status === 403)) return html`<${Login} error=${live.error} onDone=${() => live.reload()} />`;
  const counts = node ? { agents: node.agents.total } : {};
  const jobs = node && node.store.jobs ? (node.store.jobs.running || 0) + (node.store.jobs.queued || 0) + (node.store.jobs.input_required || 0) : 0;
  return html`<div class="frame">
    <a class="skip" href="#main">Skip to the content</a>
    <header class="bar">
      <${Link} to="/" class="brand" aria-label="Fabric, home"><${Logo} /><b>fabric</b><//>
      <span class="node-name" title=${node ? `Version ${node.version}` : ""}>${node ? node.node_id : ""}</span>
      <button type="button" class="omni" onClick=${() => setLayer("palette")}><${Icon} name="search" size=${14} /><span>Search agents, calls, jobs…</span><kbd>⌘K</kbd></button>
      <${Connection} />
      <button type="button" class="icon-button" aria-label=${isDark() ? "Use the light theme" : "Use the dark theme"} title="Light or dark (t)" onClick=${theme}><${Icon} name=${isDark() ? "sun" : "moon"} /></button>
      ${getToken() ? html`<button type="button" class="icon-button wide-only" aria-label="Sign out" title="Sign out" onClick=${leave}><${Icon} name="out" /></button>` : null}
    </header>
    <nav class="side" aria-label="Views">${PAGES.map((page) => html`<${Link} to=${page.path} class=${page.id === current ? "on" : ""} aria-current=${page.id === current ? "page" : undefined}><${Icon} name=${page.id} /><span>${page.label}</span>${page.id === "agents" && counts.agents ? html`<em>${counts.agents}</em>` : null}${page.id === "jobs" && jobs ? html`<em>${jobs}</em>` : null}<//>`)}
      <p class="side-foot"><a href="/docs" target="_blank" rel="noreferrer">API reference</a>${node ? html`<span title=${getSession() ? `Signed in until ${moment(getSession().until)}` : ""}>${getSession() ? html`${text(getSession().name)}<br />` : null}${node.version} · ${node.role}</span>` : null}</p>
    </nav>
    <main id="main" tabindex="-1">${view}</main>
    <nav class="bottom" aria-label="Views">${PAGES.filter((page) => ON_PHONE.includes(page.id)).map((page) => html`<${Link} to=${page.path} class=${page.id === current ? "on" : ""}><${Icon} name=${page.id} size=${20} /><span>${page.label}</span><//>`)}<button type="button" onClick=${() => setLayer("palette")}><${Icon} name="more" size=${20} /><span>More</span></button></nav>
    ${layer === "palette" ? html`<${Palette} actions=${actions} onClose=${() => setLayer(null)} />` : null}
    ${layer === "help" ? html`<${Help} onClose=${() => setLayer(null)} />` : null}
    <div class="toast-place" aria-live="polite">${note ? html`<div class="toast ${note.kind}" key=${note.at}><${Icon} name=${note.kind === "bad" ? "warn" : "check"} size=${14} />${text(note.message)}</div>` : null}</div>
  </div>`;
}

window.addEventListener("unhandledrejection", (event) => { if (event.reason instanceof ApiError) { event.preventDefault(); say(event.reason.message, "bad"); } });
if (!location.pathname.startsWith(BASE)) location.replace(BASE);
render(html`<${Frame} />`, document.getElementById("app"));
