// The node at a glance: what it does now, and what needs somebody.
import { bytes, count, duration, html, Link, overview, part, plural, span, text, useLive } from "./lib.js";
import { AreaChart, Command, Dot, Empty, Icon, Page } from "./parts.js";
import { CallLine, listCalls } from "./calls.js";

const ORDER = ["online", "degraded", "offline", "unknown", "off"];
const WORDS = { online: "online", degraded: "degraded", offline: "offline", unknown: "not seen yet", off: "off" };

export function Home() {
  const node = overview.use();
  const calls = useLive((signal) => listCalls({ limit: 8 }, signal), [], 2000);
  if (!node) return html`<${Page} title="Home"><div class="home-skeleton" aria-hidden="true"></div><//>`;
  const { activity, agents, store } = node;
  const rate = activity.calls_per_second.at(-1) || 0, failing = activity.errors_per_second.at(-1) || 0, mean = activity.mean_ms.at(-1);
  const share = activity.calls_total ? (100 * activity.errors_total) / activity.calls_total : 0;
  const troubles = Object.entries(node.failing).map(([agent, reason]) => ({ agent, reason }));
  const failingAgents = troubles.length + (node.more_failing || 0), attention = failingAgents + node.problems.length;
  return html`<${Page} title=${node.node_id === "local" ? "This node" : node.node_id} lead=${html`Up for ${span(node.now - node.started_at)} at <code>${node.public_url || location.origin}</code>${node.processes.length + node.missing_processes.length > 1 ? html` · ${plural(node.processes.length + node.missing_processes.length, "process", "processes")} as one` : null}${node.mesh ? html` · one of ${plural(new Set(node.mesh_nodes.map((each) => each.node)).size, "node")} of a mesh` : null}`}>
    <section class="stats">
      <div class="stat"><h2>Calls</h2><p><b>${rate.toFixed(rate && rate < 10 ? 1 : 0)}</b> <span>a second</span></p><small>${count(activity.calls_total)} since the start</small></div>
      <div class="stat"><h2>Failed</h2><p class=${failing ? "bad-text" : ""}><b>${share ? share.toFixed(share < 1 ? 2 : 1) : 0}</b> <span>%</span></p><small>${count(activity.errors_total)} since the start</small></div>
      <div class="stat"><h2>Mean time</h2><p><b>${mean === null || mean === undefined ? "–" : duration(mean).split(" ")[0]}</b> <span>${mean === null || mean === undefined ? "" : duration(mean).split(" ")[1]}</span></p><small>of the last 5 seconds</small></div>
      <div class="stat"><h2>Store</h2><p class=${store.state === "ok" ? "" : "bad-text"}><b>${store.state === "ok" ? store.kind : "down"}</b></p><small>${store.state === "ok" ? html`${duration(store.latency_ms)}${store.bytes ? html` · ${bytes(store.bytes)}` : null}` : text(store.error)}</small></div>
    </section>
    ${node.missing_processes.length ? html`<p class="partial" role="status"><${Icon} name="warn" size=${14} /> ${plural(node.missing_processes.length, "process does", "processes do")} not answer (${node.missing_processes.join(", ")}), so the figures are too low.</p>` : null}
    <${AreaChart} values=${activity.calls_per_second} errors=${activity.errors_per_second} at=${activity.at} height=${148} />
    <section class="block"><header><h2>Agents</h2><${Link} to="/agents">All ${agents.total}<//></header>
      ${agents.total + agents.off === 0 ? html`<${Empty} title="No agents yet"><p>Give the node an address, a program or another client's file:</p><${Command}>a2a-fabric probe http://127.0.0.1:9001 --add<//><p>or <${Link} to="/agents?add=1">drop an mcp.json<//>.</p><//>` : html`
      <div class="health-bar" role="img" aria-label="Agents by status">${ORDER.filter((status) => agents[status]).map((status) => html`<i class=${status} style=${{ flexGrow: agents[status] }}></i>`)}</div>
      <ul class="legend">${ORDER.filter((status) => agents[status] || status === "online").map((status) => html`<li><${Link} to=${`/agents?status=${status}`}><${Dot} status=${status} /><b>${agents[status]}</b> ${WORDS[status]}<//></li>`)}${node.nodes.length > 1 ? html`<li class="push">on ${plural(node.nodes.length, "node")}</li>` : null}</ul>`}
    </section>
    ${node.mesh_nodes.length ? html`<${MeshNodes} nodes=${node.mesh_nodes} own=${node.node_id} now=${node.now} />` : null}
    <div class="two">
      <section class="block"><header><h2>Latest calls</h2><${Link} to="/calls">All calls<//></header>
        ${calls.data && calls.data.calls.length ? html`<div class="mini-calls">${calls.data.calls.map((row) => html`<${CallLine} row=${row} key=${row.trace_id + row.span_id} mini />`)}</div>` : html`<${Empty} title="No calls yet"><p>Ask an agent something, here or from your own client:</p><${Command}>${"a2a-fabric ask 'what is 2 + 3 * 4'"}<//><//>`}
      </section>
      <section class="block"><header><h2>Needs attention</h2>${attention ? html`<span class="faint">${count(attention)}</span>` : null}</header>
        ${attention === 0 ? html`<p class="calm"><${Icon} name="check" /> Nothing. All agents answer, and the settings agree with each other.</p>` : html`<ul class="troubles">
          ${troubles.slice(0, 6).map((each) => html`<li><${Link} to=${`/agents/${part(each.agent)}`}><b>${each.agent}</b><//><p>${text(each.reason)}</p></li>`)}
          ${failingAgents > 6 ? html`<li><${Link} to="/agents?status=offline">and ${plural(failingAgents - 6, "more agent")}<//></li>` : null}
          ${node.problems.map((each) => html`<li><b>${text(each.where)}</b><p>${text(each.text)}</p></li>`)}</ul>`}
      </section>
    </div>
    ${node.processes.length > 1 ? html`<${Processes} rows=${node.processes} now=${node.now} />` : null}
  <//>`;
}

/** The nodes of the mesh, as this one hears of them; a node with workers is one row. */
function MeshNodes({ nodes, own, now }) {
  const groups = new Map();
  for (const each of nodes) groups.set(each.node, [...(groups.get(each.node) || []), each]);
  return html`<section class="block"><header><h2>Nodes of the mesh</h2><span class="faint">${groups.size}</span></header><div class="table-wrap"><table class="compact"><thead><tr><th>Node</th><th>Site</th><th>State</th><th class="num">Agents</th><th class="num">Calls now</th><th>Up for</th><th>Heard</th><th>Version</th></tr></thead><tbody>${[...groups].map(([name, members]) => html`<tr key=${name}>
    <td><b>${text(name)}</b>${name === own ? html` <span class="faint">this node</span>` : null}${members.length > 1 ? html` <span class="faint">${plural(members.length, "process", "processes")}</span>` : null}</td><td class="muted">${text(members[0].site)}</td>
    <td>${members.every((each) => each.state === members[0].state) ? text(members[0].state) : members.map((each) => `${text(each.member)}: ${text(each.state)}`).join(", ")}${members.some((each) => each.problem) ? html`<small class="bad-text">${text(members.find((each) => each.problem).problem)}</small>` : null}</td>
    <td class="num">${Math.max(...members.map((each) => each.agents))}</td><td class="num">${members.reduce((sum, each) => sum + each.calls, 0)}</td><td class="muted">${span(now - Math.min(...members.map((each) => each.started_at)))}</td><td class="muted">${name === own ? "–" : `${Math.min(...members.map((each) => each.heard_seconds)).toFixed(1)} s ago`}</td><td class="muted">${text(members[0].version)}</td></tr>`)}</tbody></table></div></section>`;
}

function Processes({ rows, now }) {
  return html`<section class="block"><header><h2>Processes</h2><span class="faint">The figures above are their sum</span></header><div class="table-wrap"><table class="compact"><thead><tr><th>Process</th><th>Up for</th><th class="num">Calls a second</th><th class="num">Calls</th><th class="num">Failed</th></tr></thead><tbody>${rows.map((row) => html`<tr key=${row.name}><td><b>${text(row.name)}</b></td><td class="muted">${span(now - row.started_at)}</td><td class="num">${row.calls_per_second.toFixed(1)}</td><td class="num">${count(row.calls_total)}</td><td class="num">${count(row.errors_total)}</td></tr>`)}</tbody></table></div></section>`;
}
