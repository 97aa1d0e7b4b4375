// The settings as loaded, with secrets masked, and the newest lines of the log.
import { admin, clock, html, Link, part, setQuery, text, useLive, useMemo, useState } from "./lib.js";
import { Empty, Fresh, Icon, Page, SearchBox, Tabs, Tag, VirtualRows } from "./parts.js";

export function Settings({ query }) {
  const live = useLive((signal) => admin("settings", {}, { signal }), []);
  const rows = live.data ? live.data.settings : [];
  const words = (query.q || "").toLowerCase();
  const shown = useMemo(() => rows.filter((row) => (query.changed ? !row.is_default : true) && (!words || row.name.toLowerCase().includes(words) || text(row.value).toLowerCase().includes(words))), [rows, query.q, query.changed]);
  const groups = useMemo(() => { const found = new Map(); for (const row of shown) { const group = row.name.includes(".") ? row.name.split(".")[0] : "node"; found.set(group, [...(found.get(group) || []), row]); } return [...found]; }, [shown]);
  return html`<${Page} title="Settings" lead="As this node loaded them. Secrets are masked.">
    <div class="toolbar"><${SearchBox} value=${query.q || ""} placeholder="Search settings" onInput=${(value) => setQuery({ q: value })} /></div>
    <${Tabs} label="Which" items=${[{ id: "", label: "All", count: rows.length || undefined }, { id: "1", label: "Changed", count: rows.filter((row) => !row.is_default).length }]} value=${query.changed || ""} onChange=${(value) => setQuery({ changed: value })} />
    <${Fresh} live=${live} empty=${html`<div class="rows-skeleton" aria-hidden="true"></div>`}>${groups.length ? groups.map(([group, items]) => html`<section class="block settings-block"><header><h2>${group}</h2></header><dl class="settings">${items.map((row) => html`<div class=${row.is_default ? "default" : ""}><dt>${group === "node" ? row.name : row.name.slice(group.length + 1)}</dt><dd class="mono">${row.is_masked ? html`<span class="masked" title="masked">${text(row.value)}</span>` : row.value === null ? html`<span class="faint">unset</span>` : Array.isArray(row.value) ? (row.value.length ? row.value.map(text).join(", ") : html`<span class="faint">none</span>`) : row.value === "" ? html`<span class="faint">empty</span>` : text(row.value)}</dd>${row.is_default || query.changed ? null : html`<${Tag}>changed<//>`}</div>`)}</dl></section>`) : html`<${Empty} title="No setting matches"><p></p><//>`}<//>
  <//>`;
}

const LEVELS = ["info", "warning", "error"];
const MOST = 2000;

export function Log({ query }) {
  const [lines, setLines] = useState([]);
  const [state] = useState({ next: null, node: null, number: 0 });
  const [paused, setPaused] = useState(false);
  const live = useLive(async (signal) => {
    const reply = await admin("log", state.next === null ? { last: 300 } : { after: state.next, wait_ms: 8000, last: 2000 }, { signal });
    const restarted = state.node !== null && state.node !== reply.node;
    state.next = reply.next;
    state.node = reply.node;
    if (reply.lines.length || restarted) setLines((before) => [...(restarted ? [] : before), ...reply.lines.map((line) => ({ ...line, id: (state.number += 1) }))].slice(-MOST));
    return true;
  }, [paused], paused ? 0 : 300);
  const words = (query.q || "").toLowerCase();
  const shown = useMemo(() => lines.filter((line) => (!query.level || LEVELS.indexOf(line.level) >= LEVELS.indexOf(query.level)) && (!words || JSON.stringify(line).toLowerCase().includes(words))).reverse(), [lines, query.q, query.level]);
  return html`<${Page} title="Log" lead="The newest lines first, as they come." aside=${html`<button type="button" class="button small" aria-pressed=${paused ? "true" : "false"} onClick=${() => setPaused(!paused)}><${Icon} name=${paused ? "play" : "pause"} size=${12} />${paused ? "Go on" : "Pause"}</button>`}>
    <div class="toolbar"><${SearchBox} value=${query.q || ""} placeholder="Search lines" onInput=${(value) => setQuery({ q: value })} /></div>
    <${Tabs} label="Level" items=${[{ id: "", label: "All" }, { id: "warning", label: "Warnings" }, { id: "error", label: "Errors" }]} value=${query.level || ""} onChange=${(value) => setQuery({ level: value })} />
    <${Fresh} live=${live} empty=${html`<div class="rows-skeleton" aria-hidden="true"></div>`}>${shown.length ? html`<${VirtualRows} rows=${shown} height=${28} keyOf=${(line) => line.id} label="Lines" recycle render=${(line) => html`<${Line} line=${line} />`} />` : html`<${Empty} title="No lines"><p>${lines.length ? "No line matches." : "This node has written no lines yet. The setting log.level says which lines it writes."}</p><//>`}<//>
  <//>`;
}

function Line({ line }) {
  const summary = line.message || [line.operation || (line.target ? `${line.target}.${line.capability || ""}` : line.agent_id), line.status, line.duration_ms === undefined ? "" : `${line.duration_ms} ms`, line.error].filter(Boolean).map(text).join(" · ");
  return html`<div class="log-line ${line.level}"><span class="mono faint">${clock(line.time, true)}</span><span class="log-level">${line.level}</span><b>${text(line.event)}</b><span class="cut">${summary}${line.process ? html` <span class="faint">· ${text(line.process)}</span>` : null}</span>${line.principal ? html`<span class="faint cut log-who">${text(line.principal)}</span>` : html`<span></span>`}${line.trace_id ? html`<${Link} class="mono faint" to=${`/calls/${part(line.trace_id)}`}>${text(line.trace_id).slice(0, 8)}<//>` : html`<span></span>`}</div>`;
}
