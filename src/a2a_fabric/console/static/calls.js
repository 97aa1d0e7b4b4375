// Every call as it happens; one call as a tree over attempts, nodes, protocols and jobs.
import { admin, clock, duration, go, html, Link, overview, part, plural, setQuery, short, text, useEffect, useLive, useMemo, useState } from "./lib.js";
import { Code, Command, CopyButton, Empty, Fault, Fresh, Icon, Json, Page, SearchBox, Select, Tabs, Tag, Time, TraceId, useRowKeys, VirtualRows } from "./parts.js";
import { snippets } from "./snippets.js";

const MOST_ROWS = 2000;
const HOLD_BELOW = 160; // pixels

export const listCalls = (query, signal) => admin("calls", query, { signal });

const keyOf = (row) => `${row.trace_id} ${row.span_id}`;
const isOk = (row) => row.status === "ok" || row.status === "completed";
const door = (row) => text(row.protocol || row.door || "");

export function CallLine({ row, selected = false, mini = false }) {
  return html`<${Link} to=${`/calls/${part(row.trace_id)}`} class="row calls-grid ${mini ? "mini" : ""} ${isOk(row) ? "" : "failed"} ${selected ? "selected" : ""}">
    <span class="call-state" title=${row.status}><${Icon} name=${isOk(row) ? "check" : row.status === "running" ? "more" : "cross"} size=${14} /></span>
    <span class="mono muted call-time">${clock(row.started_at, !mini)}</span>
    <span class="row-main"><b>${text(row.agent_id)}</b><span class="faint">.</span>${text(row.capability)}${row.error_code ? html` <small class="bad-text">${text(row.error_code)}</small>` : null}${row.used && row.used !== row.agent_id ? html` <${Tag}>by ${text(row.used)}<//>` : null}${row.attempts > 1 ? html` <${Tag}>${row.attempts} attempts<//>` : null}</span>
    ${mini ? null : html`<span class="muted cut">${text(row.on_behalf_of || row.principal || "anonymous")}</span><span class="muted cut call-way">${door(row)} → ${text(row.runtime || "?")}</span>`}
    <span class="num">${row.status === "running" ? "…" : duration(row.duration_ms)}</span>
    ${mini ? null : html`<span class="mono faint call-id">${short(row.trace_id)}</span>`}
  <//>`;
}

export function Calls({ query }) {
  const [rows, setRows] = useState([]);
  const [paused, setPaused] = useState(false);
  const [cursor, setCursor] = useState(null);
  const filters = { ...(query.agent ? { agent: query.agent } : {}), ...(query.status ? { failed: query.status === "failed" } : {}), ...(query.principal ? { principal: query.principal } : {}) };
  const filterKey = JSON.stringify(filters);
  const [state] = useState({ follow: null, key: null, held: [] });
  const [held, setHeld] = useState(0);
  const live = useLive(async (signal) => {
    const isFirst = state.follow === null || state.key !== filterKey;
    const page = await listCalls(isFirst ? { ...filters, limit: 200 } : { ...filters, follow: state.follow, wait_ms: 8000 }, signal);
    state.key = filterKey;
    state.follow = page.follow;
    if (isFirst) { setRows(page.calls); setCursor(page.next_cursor || null); state.held = []; setHeld(0); }
    else if (window.scrollY > HOLD_BELOW && page.calls.length) { state.held = [...page.calls, ...state.held].slice(0, MOST_ROWS); setHeld(state.held.length); }
    else release(page.calls);
    return true;
  }, [filterKey, paused], paused ? 0 : 400);
  // A reader who has scrolled down is not moved: what is new waits until asked for.
  const release = (more = []) => {
    const fresh = [...more, ...state.held];
    state.held = [];
    setHeld(0);
    if (fresh.length) setRows((before) => merge(before, fresh));
  };
  const older = async () => {
    const page = await listCalls({ ...filters, limit: 200, cursor });
    setRows((before) => merge(before, page.calls));
    setCursor(page.next_cursor || null);
  };
  const words = (query.q || "").toLowerCase().split(/\s+/).filter(Boolean);
  const shown = useMemo(() => (words.length ? rows.filter((row) => words.every((word) => `${row.agent_id}.${row.capability} ${row.principal} ${row.on_behalf_of || ""} ${row.trace_id} ${row.error_code || ""} ${row.door} ${row.runtime}`.toLowerCase().includes(word))) : rows), [rows, query.q]);
  const selected = useRowKeys(shown, (row) => go(`/calls/${part(row.trace_id)}`), keyOf);
  if (live.error && live.error.code === "BAD_INPUT" && !rows.length) return html`<${Page} title="Calls"><${Empty} title="This node keeps no history of calls"><p>${text(live.error.message)}</p><//><//>`;
  return html`<${Page} title="Calls" aside=${html`<button type="button" class="button small" aria-pressed=${paused ? "true" : "false"} onClick=${() => setPaused(!paused)}><${Icon} name=${paused ? "play" : "pause"} size=${12} />${paused ? "Go on" : "Pause"}</button>`}>
    <div class="toolbar"><${SearchBox} value=${query.q || ""} placeholder="Search agent, caller, trace id, error" onInput=${(value) => setQuery({ q: value })} />
      <${Select} label="Agent" value=${query.agent || ""} options=${[...new Set([...(query.agent ? [query.agent] : []), ...rows.map((row) => row.agent_id)])].sort()} onChange=${(value) => setQuery({ agent: value })} />
      <${Select} label="Caller" value=${query.principal || ""} options=${[...new Set([...(query.principal ? [query.principal] : []), ...rows.map((row) => row.principal).filter(Boolean)])].sort()} onChange=${(value) => setQuery({ principal: value })} /></div>
    <${Tabs} label="Outcome" items=${[{ id: "", label: "All" }, { id: "ok", label: "Succeeded", dot: "online" }, { id: "failed", label: "Failed", dot: "offline" }]} value=${query.status || ""} onChange=${(value) => setQuery({ status: value })} />
    <${Fresh} live=${live} empty=${html`<div class="rows-skeleton" aria-hidden="true"></div>`}>
      ${shown.length === 0 ? html`<${Empty} title=${rows.length ? "No call matches" : "No calls yet"}><p>${rows.length ? "" : "Every call to an agent shows up here within a second, whichever protocol it came by."}</p>${rows.length ? null : html`<${Command}>${"a2a-fabric ask 'what is 2 + 3 * 4'"}<//>`}<//>` : html`
      ${held ? html`<button type="button" class="new-rows" onClick=${() => { window.scrollTo(0, 0); release(); }}>${plural(held, "new call")}</button>` : null}
      <div class="list-head calls-grid" aria-hidden="true"><span></span><span>Time</span><span>Call</span><span>Caller</span><span>Way</span><span class="num">Took</span><span>Trace</span></div>
      <${VirtualRows} rows=${shown} height=${36} selected=${selected} keyOf=${keyOf} label="Calls" recycle render=${(row, isSelected) => html`<${CallLine} row=${row} selected=${isSelected} />`} />
      ${cursor ? html`<p class="more"><button type="button" class="button small" onClick=${older}>Older calls</button></p>` : null}`}
    <//><//>`;
}

const startedAt = (row) => (typeof row.started_at === "number" ? row.started_at : Date.parse(row.started_at) / 1000);
const newestFirst = (a, b) => startedAt(b) - startedAt(a);

/** Newest first, each once, at most as many as a page can hold well. */
export function merge(before, page) {
  const known = new Set(before.map(keyOf));
  const fresh = page.filter((row) => !known.has(keyOf(row))).sort(newestFirst);
  if (!fresh.length) return before;
  const all = [...fresh, ...before];
  if (before.length && startedAt(fresh.at(-1)) < startedAt(before[0])) all.sort(newestFirst);
  return all.slice(0, MOST_ROWS);
}

/* ---------------------------------------------------------------- one call */

const toMs = (at) => (typeof at === "number" ? at * 1000 : Date.parse(at));

/** The spans in the order of the tree, each with its depth. */
export function buildTree(spans) {
  const byId = new Map(spans.map((span) => [span.span_id, { ...span, children: [] }]));
  const roots = [];
  for (const span of byId.values()) {
    const parent = span.parent_span_id && byId.get(span.parent_span_id);
    (parent && parent !== span ? parent.children : roots).push(span);
  }
  const rows = [], seen = new Set();
  const visit = (span, depth) => {
    if (seen.has(span.span_id)) return;
    seen.add(span.span_id);
    rows.push({ ...span, depth });
    span.children.sort((a, b) => toMs(a.started_at) - toMs(b.started_at)).forEach((child) => visit(child, depth + 1));
  };
  roots.sort((a, b) => toMs(a.started_at) - toMs(b.started_at)).forEach((root) => visit(root, 0));
  for (const span of byId.values()) visit(span, 0); // a ring of parents: still shown
  return rows;
}

export function Trace({ id, query }) {
  const live = useLive((signal) => admin("trace", { trace_id: id }, { signal }), [id], 3000);
  useEffect(() => { document.title = `Call ${short(id)} · Fabric`; }, [id]);
  const trace = live.data;
  const rows = useMemo(() => (trace ? buildTree(trace.spans || []) : []), [trace]);
  if (!trace) return html`<div class="page"><nav class="crumbs"><${Link} to="/calls">Calls<//></nav><h1>Call</h1><p class="lead">trace <${TraceId} id=${id} full /></p>${live.error ? html`<${Fault} error=${live.error} retry=${live.reload} />` : html`<div class="rows-skeleton" aria-hidden="true"></div>`}</div>`;
  const root = rows[0];
  const start = Math.min(...rows.map((span) => toMs(span.started_at)));
  const end = Math.max(...rows.map((span) => toMs(span.started_at) + (span.duration_ms || 0)), start + 0.01);
  const total = end - start;
  const attributes = root ? root.attributes || {} : {};
  const agent = attributes["fabric.agent_id"] || attributes.agent_id || (trace.calls && trace.calls[0] && trace.calls[0].agent_id);
  const capability = attributes["fabric.capability"] || attributes.capability || (trace.calls && trace.calls[0] && trace.calls[0].capability);
  const isGood = !rows.length || isSpanOk(root);
  const failure = rows.map((span) => (span.attributes || {})["exception.message"] || (span.attributes || {})["error.message"]).find(Boolean);
  const door = rows.find((span) => span.kind === "door"), runtimes = [...new Set(rows.map((span) => (span.attributes || {})["fabric.runtime"]).filter(Boolean))];
  const way = [door && (door.attributes || {})["enduser.id"], door && (door.attributes || {})["fabric.door"], ...runtimes].filter(Boolean).map(text).join(" → ");
  const jobId = rows.map((span) => (span.attributes || {}).job_id || (span.attributes || {})["fabric.job_id"]).find(Boolean);
  return html`<div class="page"><nav class="crumbs"><${Link} to="/calls">Calls<//></nav>
    <header class="page-head"><div><h1>${root ? html`<span class="call-state ${isGood ? "" : "bad-text"}"><${Icon} name=${isGood ? "check" : "cross"} size=${20} /></span>` : null}${agent ? html`<${Link} to=${`/agents/${part(agent)}`}>${text(agent)}<//>${capability ? html`<span class="faint">.</span>${text(capability)}` : null}` : root ? text(root.name) : "Call"}</h1>
      <p class="lead">${root ? html`<${Time} at=${root.started_at} /> · ${duration(total)} · ${plural(rows.length, "span")} on ${plural(new Set(rows.map((span) => span.node)).size, "node")}` : null}${way ? html` · ${way}` : null}<br />trace <${TraceId} id=${id} full /></p></div>
      <div class="page-aside">${jobId ? html`<${Link} class="button small" to=${`/jobs/${part(jobId)}`}>Job<//>` : null}${agent && capability ? html`<${Link} class="button small" to=${`/agents/${part(agent)}?do=${part(capability)}`}><${Icon} name="retry" size=${14} />Run again<//>` : null}${root ? html`<${CopyButton} label="Copy as JSON" value=${() => JSON.stringify(trace, null, 2)} />` : null}</div></header>
    ${failure && !isGood ? html`<${Fault} error=${{ message: failure, code: rows.map((span) => (span.attributes || {})["error.type"]).find(Boolean), traceId: id }} />` : null}
    <${Fresh} live=${live}><${Waterfall} rows=${rows} start=${start} total=${total} chosen=${query.span} /><//>
    ${agent && capability ? html`<${Repeat} agent=${text(agent)} capability=${text(capability)} attributes=${attributes} tab=${query.as || "curl"} />` : null}</div>`;
}

const parse = (source) => { try { return JSON.parse(source); } catch { return source; } };

/** What went in and came out, if the node keeps that, and the same call from elsewhere. */
function Repeat({ agent, capability, attributes, tab }) {
  const known = useLive((signal) => admin("agent", { agent_id: agent }, { signal }), [agent]);
  const node = overview.use();
  const offered = known.data && known.data.agent.capabilities.find((each) => each.name === capability);
  const all = snippets(((node && node.public_url) || location.origin).replace(/\/$/, ""), agent, offered || { name: capability });
  const input = attributes["fabric.input"], output = attributes["fabric.output"];
  return html`<div class="two repeat"><section class="block"><header><h2>${output ? "Result" : "Payload"}</h2></header>${input ? html`<h3>Input</h3><${Json} value=${parse(input)} max />` : null}${output ? html`<h3>Result</h3><${Json} value=${parse(output)} max />` : null}${input || output ? null : html`<p class="hint">This node keeps no payloads. <code>history.payloads: true</code> keeps what goes in and comes out, redacted.</p>`}</section>
    <section class="block reach"><header><h2>Call it again</h2></header><${Tabs} label="Client" items=${Object.keys(all).map((id) => ({ id, label: id }))} value=${all[tab] ? tab : "curl"} onChange=${(value) => setQuery({ as: value === "curl" ? "" : value })} /><${Code}>${all[tab] || all.curl}<//></section></div>`;
}

/** The name without its kind, which stands before it. */
function spanName(span) {
  const name = text(span.name), runtime = (span.attributes || {})["fabric.runtime"];
  const bare = name.startsWith(`${span.kind} `) ? name.slice(span.kind.length + 1) : name;
  return runtime && bare.startsWith("unknown ") ? `${runtime} ${bare.slice(8)}` : bare;
}

/** What a reader wants to know of a span before opening it. */
function spanNote(span) {
  const facts = span.attributes || {};
  if (!isSpanOk(span) && facts["error.message"]) return text(facts["error.message"]);
  if (span.kind === "door") return [facts["enduser.id"], facts["fabric.on_behalf_of"] && `for ${facts["fabric.on_behalf_of"]}`, facts["fabric.view"] && `view ${facts["fabric.view"]}`, facts["fabric.rule"] && `rule ${facts["fabric.rule"]}`].filter(Boolean).map(text).join(", ");
  if (span.kind === "attempt") return [facts["fabric.reason"], facts["fabric.pool"] && `pool ${facts["fabric.pool"]}`].filter(Boolean).map(text).join(", ");
  return "";
}

const isSpanOk = (span) => !span || span.status === "ok" || span.status === "unset" || !span.status || span.status === "completed";

function Waterfall({ rows, start, total, chosen }) {
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  if (!rows.length) return html`<${Empty} title="Nothing of this call is kept"><p>Its history may have been removed, or it ran on a node whose history is off.</p><//>`;
  const nodes = new Set(rows.map((span) => span.node)).size;
  return html`<div class="waterfall" role="tree" aria-label="Spans of this call">
    <div class="fall-head"><span></span><div class="fall-ticks">${ticks.map((tick) => html`<i style=${{ left: `${tick * 100}%` }}>${duration(total * tick)}</i>`)}</div></div>
    ${rows.map((span) => {
      const from = toMs(span.started_at) - start;
      const left = Math.min(99.6, (from / total) * 100), width = Math.max(0.4, Math.min(100 - left, ((span.duration_ms || 0) / total) * 100));
      const open = chosen === span.span_id;
      const bad = !isSpanOk(span);
      return html`<div role="treeitem" aria-expanded=${open ? "true" : "false"} class="fall-item ${open ? "open" : ""}" key=${span.span_id}>
        <button type="button" class="fall-row ${bad ? "bad" : ""}" onClick=${() => setQuery({ span: open ? "" : span.span_id })}>
          <span class="fall-name" style=${{ paddingLeft: `${span.depth * 16}px` }}>${span.depth ? html`<i class="branch"></i>` : null}<span class="fall-kind">${text(span.kind || "span")}</span><b>${spanName(span)}</b>${nodes > 1 ? html`<${Tag}>${text(span.node)}<//>` : null}<small class=${bad ? "bad-text" : "faint"}>${spanNote(span)}</small></span>
          <span class="fall-track"><i class="fall-bar ${span.kind || ""} ${bad ? "bad" : ""}" style=${{ left: `${left}%`, width: `${width}%` }}></i>${(span.events || []).slice(0, 40).map((event) => html`<i class="fall-event" title=${`${text(event.name)} +${duration(event.at_ms)}`} style=${{ left: `${Math.min(99.6, ((from + (event.at_ms || 0)) / total) * 100)}%` }}></i>`)}<em class=${left > 60 ? "before" : ""} style=${left > 60 ? { right: `${100 - left}%` } : { left: `${left + width}%` }}>${duration(span.duration_ms)}</em></span></button>
        ${open ? html`<div class="fall-more">${bad && span.error ? html`<p class="bad-text">${text(span.error)}</p>` : null}<dl>${Object.entries({ node: span.node, started: clock(span.started_at, true), status: span.status, ...span.attributes }).filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => html`<div><dt>${name}</dt><dd>${text(value)}</dd></div>`)}</dl>
          ${(span.events || []).length ? html`<ol class="steps">${span.events.map((event) => html`<li><span class="mono faint">+${duration(event.at_ms)}</span><b>${text(event.name)}</b><span>${Object.entries(event.attributes || {}).map(([name, value]) => `${name} ${text(value)}`).join(" · ")}</span></li>`)}</ol>` : null}</div>` : null}</div>`;
    })}</div>`;
}
