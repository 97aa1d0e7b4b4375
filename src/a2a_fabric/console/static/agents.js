// All agents, as a list that stays quick with thousands.
import { admin, age, count, duration, go, html, Link, overview, part, plural, say, setQuery, text, useEffect, useLive, useMemo, useRef, useState } from "./lib.js";
import { Badge, Code, Command, Dialog, Dot, Empty, Fault, Fresh, Icon, Page, SearchBox, Select, Spark, Tabs, Tag, useRowKeys, useRole, VirtualRows } from "./parts.js";

const STATUSES = ["online", "degraded", "offline", "unknown", "off"];
let cache = { stamp: null, agents: [] };

/** All agents in short; asks the node only for what changed. */
export async function loadAgents(signal) {
  const reply = await admin("agents", { known: cache.stamp }, { signal });
  if (!reply.unchanged) cache = { stamp: reply.stamp, agents: reply.agents };
  return cache.agents;
}

const matches = (agent, words) => words.every((word) => `${agent.agent_id} ${agent.display_name} ${agent.description} ${agent.tags.join(" ")} ${agent.runtime}`.toLowerCase().includes(word));
const keyOf = (agent) => agent.agent_id;
const VISIBLE_DELAY = 150; // ms: while the list scrolls, no row is asked for

/** What was known of each agent, with the new of those that changed: rows that are the same object are not drawn again. */
function keepLive(kept, agents) {
  for (const [id, live] of Object.entries(agents)) {
    const shown = JSON.stringify([live.status, live.error, live.since, live.breaker, live.mean_ms, live.latency_ms, live.calls, live.errors, live.spark]);
    if (!kept[id] || kept[id].shown !== shown) kept[id] = { ...live, shown };
  }
}
const distinct = (values) => [...new Set(values.filter(Boolean))].sort();

export function Agents({ query }) {
  const live = useLive(loadAgents, [], 2500);
  const [visible, setVisible] = useState([]);
  const later = useRef(0);
  const showSoon = useMemo(() => (agents) => { clearTimeout(later.current); later.current = setTimeout(setVisible, VISIBLE_DELAY, agents); }, []);
  useEffect(() => () => clearTimeout(later.current), []);
  const ids = visible.filter((agent) => agent.status !== "off").map(keyOf).join("\n");
  const rows = useLive((signal) => (ids ? admin("agents.live", { agent_ids: ids.split("\n").slice(0, 200) }, { signal }) : Promise.resolve({ agents: {} })), [ids], 2500);
  const kept = useRef({});
  if (rows.data) keepLive(kept.current, rows.data.agents);
  const node = overview.use();
  const role = useRole();
  const all = live.data || [];
  const words = (query.q || "").toLowerCase().split(/\s+/).filter(Boolean);
  const filtered = useMemo(() => all.filter((agent) => (!words.length || matches(agent, words)) && (!query.runtime || agent.runtime === query.runtime) && (!query.tag || agent.tags.includes(query.tag)) && (!query.tier || agent.trust_tier === query.tier)), [all, query.q, query.runtime, query.tag, query.tier]);
  const counts = useMemo(() => { const found = {}; for (const agent of filtered) found[agent.status] = (found[agent.status] || 0) + 1; return found; }, [filtered]);
  const shown = useMemo(() => (query.status ? filtered.filter((agent) => agent.status === query.status) : filtered), [filtered, query.status]);
  const choices = useMemo(() => ({ runtimes: distinct(all.map((agent) => agent.runtime)), tags: distinct(all.flatMap((agent) => agent.tags)), tiers: distinct(all.map((agent) => agent.trust_tier)) }), [all]);
  const open = (agent) => go(`/agents/${part(agent.agent_id)}`);
  const selected = useRowKeys(shown, open, keyOf);
  const tabs = [{ id: "", label: "All", count: filtered.length }, ...STATUSES.filter((status) => counts[status] || query.status === status || status === "online").map((status) => ({ id: status, label: { online: "Online", degraded: "Degraded", offline: "Offline", unknown: "Not seen", off: "Off" }[status], count: counts[status] || 0, dot: status }))];
  const canAdd = node && node.can_add && role === "operator";
  return html`<${Page} title="Agents" aside=${html`<button type="button" class="button primary" disabled=${role !== "operator"} title=${role && role !== "operator" ? "Viewers may not add agents" : ""} onClick=${() => setQuery({ add: "1" })}><${Icon} name="plus" size=${14} />Add agent</button>`}>
    <div class="toolbar">
      <${SearchBox} value=${query.q || ""} placeholder="Search agents" onInput=${(value) => setQuery({ q: value })} />
      <${Select} label="Runtime" value=${query.runtime || ""} options=${choices.runtimes} onChange=${(value) => setQuery({ runtime: value })} />
      <${Select} label="Tag" value=${query.tag || ""} options=${choices.tags} onChange=${(value) => setQuery({ tag: value })} />
      <${Select} label="Tier" value=${query.tier || ""} options=${choices.tiers} onChange=${(value) => setQuery({ tier: value })} />
    </div>
    <${Tabs} label="Status" items=${tabs} value=${query.status || ""} onChange=${(value) => setQuery({ status: value })} />
    <${Fresh} live=${live} empty=${html`<div class="rows-skeleton" aria-hidden="true"></div>`}>
      ${all.length === 0 ? html`<${FirstAgent} canAdd=${canAdd} />` : shown.length === 0 ? html`<${Empty} title="No agent matches"><p><button type="button" class="link" onClick=${() => go("/agents")}>Show all ${all.length}</button></p><//>` : html`
      <div class="list-head agents-grid" aria-hidden="true"><span></span><span>Agent</span><span>Runtime</span><span>Offers</span><span>Latency</span><span class="num">Mean</span><span class="num">Failed</span></div>
      <${VirtualRows} rows=${shown} height=${56} selected=${selected} keyOf=${keyOf} label="Agents" onVisible=${showSoon} recycle render=${(agent, isSelected) => html`<${AgentRow} agent=${agent} live=${kept.current[agent.agent_id]} selected=${isSelected} />`} />`}
    <//>
    ${query.add && node && !node.can_add ? html`<${Dialog} title="Add an agent" onClose=${() => setQuery({ add: "" })}><p>This node was started without an <code>agents.yaml</code>, so there is no file to add to. Start it with one:</p><${Command}>a2a-fabric up --agents agents.yaml<//><p class="hint">Agents can also register themselves while the node runs: <code>fabric.agent.register</code>.</p><//>` : null}
    ${query.add && node && node.can_add ? html`<${AddAgent} onClose=${() => setQuery({ add: "" })} programs=${node && node.can_add_programs} />` : null}
  <//>`;
}

function AgentRow({ agent, live, selected }) {
  const status = (live && live.status) || agent.status;
  const error = status !== "online" && status !== "off" ? (live && live.error) || agent.error : null;
  const since = (live && live.since) || agent.since;
  const failed = live && live.calls ? (100 * live.errors) / live.calls : null;
  const downFor = error && since ? age(since) : "";
  // The same element as before is not compared again.
  return useMemo(() => html`<${Link} to=${`/agents/${part(agent.agent_id)}`} class="row agents-grid ${status} ${selected ? "selected" : ""}">
    <${Dot} status=${status} />
    <span class="row-main"><b>${agent.agent_id}</b>${agent.display_name !== agent.agent_id ? html`<span class="faint"> ${text(agent.display_name)}</span>` : null}${live && live.breaker !== "closed" ? html` <${Badge} state=${live.breaker}>breaker ${live.breaker}<//>` : null}
      <small class=${error ? "bad-text" : ""}>${error ? html`${text(error)}${downFor ? html` · for ${downFor}` : null}` : text(agent.description) || html`<span class="faint">No description</span>`}</small></span>
    <span>${agent.runtime ? html`<${Tag}>${agent.runtime}<//>` : html`<span class="faint" title="Found out when it answers">–</span>`}</span>
    <span class="muted num-left">${agent.status === "off" ? "–" : plural(agent.tools, "tool")}</span>
    <${Spark} values=${live ? live.spark : []} />
    <span class="num">${live && live.mean_ms !== null ? duration(live.mean_ms) : live && live.latency_ms !== null ? html`<span class="faint">${duration(live.latency_ms)}</span>` : html`<span class="faint">–</span>`}</span>
    <span class="num ${failed ? "bad-text" : ""}">${failed === null ? html`<span class="faint">–</span>` : `${failed.toFixed(failed && failed < 10 ? 1 : 0)} %`}</span>
  <//>`, [agent, live, selected, downFor]);
}

function FirstAgent({ canAdd }) {
  return html`<${Empty} title="No agents yet"><p>An agent is anything that answers: an MCP server, an A2A agent, an HTTP endpoint, a program.</p>
    <${Command}>a2a-fabric probe http://127.0.0.1:9001 --add<//>
    ${canAdd ? html`<p><button type="button" class="button primary" onClick=${() => setQuery({ add: "1" })}>Add one here</button></p>` : null}<//>`;
}

function AddAgent({ onClose, programs }) {
  const [source, setSource] = useState("");
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState("");
  const [over, setOver] = useState(false);
  const look = async (value) => {
    setError(null);
    setPlan(null);
    setBusy("Looking…");
    try { setPlan(await admin("agent.plan", { source: value })); } catch (failure) { setError(failure); } finally { setBusy(""); }
  };
  const add = async () => {
    setBusy("Adding…");
    try {
      const added = await admin("agent.add", { entries: plan.entries });
      say(`Added ${added.agent_ids.join(", ")}`);
      go(added.agent_ids.length === 1 ? `/agents/${part(added.agent_ids[0])}` : "/agents");
    } catch (failure) { setError(failure); setBusy(""); }
  };
  const drop = async (event) => {
    event.preventDefault();
    setOver(false);
    const file = event.dataTransfer.files[0];
    if (!file) return;
    if (file.size > 1048576) { say("The file is larger than 1 MB", "bad"); return; }
    const value = await file.text();
    setSource(value);
    look(value);
  };
  return html`<${Dialog} title="Add an agent" onClose=${onClose} wide>
    <form class="add" onSubmit=${(event) => { event.preventDefault(); look(source); }} onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
      <label for="add-source">An address${programs ? ", a command," : ""} or an <code>mcp.json</code></label>
      <textarea id="add-source" class=${over ? "over" : ""} rows=${source.includes("\n") ? 8 : 3} spellcheck=${false} value=${source} placeholder=${programs ? "http://127.0.0.1:9001\nnpx -y @modelcontextprotocol/server-everything\nor drop an mcp.json here" : "http://127.0.0.1:9001\nor drop an mcp.json here"} onInput=${(event) => setSource(event.target.value)}></textarea>
      ${programs ? null : html`<p class="hint">Programs cannot be added here, because other machines reach this node. <code>console.programs: true</code> permits it.</p>`}
      <div class="actions"><button class="button ${plan && plan.entries.length ? "" : "primary"}" disabled=${!source.trim() || busy}>${busy === "Looking…" ? busy : "Look"}</button></div>
    </form>
    ${error ? html`<${Fault} error=${error} />` : null}
    ${plan ? html`<div class="plan">
      ${plan.attempts.length ? html`<ul class="attempts">${plan.attempts.map((each) => html`<li class=${each.found ? "found" : ""}><${Icon} name=${each.found ? "check" : "cross"} size=${14} /><b>${each.protocol}</b> <span>${text(each.outcome)}</span></li>`)}</ul>` : null}
      ${plan.remarks.map((remark) => html`<p class="hint">${text(remark)}</p>`)}
      ${plan.entries.length ? html`<p>Found <b>${plan.entries.map((entry) => entry.agent_id).join(", ")}</b>${plan.capabilities.length ? html` with ${plural(plan.capabilities.length, "tool")}` : null}. This goes into <code>${plan.path.split("/").pop()}</code>:</p><${Code}>${plan.diff.split("\n").filter((line) => line.startsWith("+") && !line.startsWith("+++")).map((line) => line.slice(1)).join("\n")}<//>` : html`<p>Nothing to add.</p>`}
      ${plan.variables.length ? html`<p class="hint">Set where the node runs; secrets are not copied: ${plan.variables.map((each) => html`<code>${each.name}</code> `)}</p>` : null}
      ${plan.entries.length ? html`<div class="actions"><button type="button" class="button primary" disabled=${Boolean(busy)} onClick=${add}>${busy || `Add ${plural(plan.entries.length, "agent")}`}</button></div>` : null}
    </div>` : null}
  <//>`;
}
