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
  return html`<${Page} title=${node.node_id === "local" ? "This node" : node.node_id} lead=${html`Up for ${span(node.now - node.started_at)} at <code>${node.public_url || location.origin}</code>${node.mesh ? html` · one of ${plural(node.mesh.nodes, "node")}; the figures are of this one` : null}${node.worker ? html` · answered by the process <code>${text(node.worker)}</code>, one of several; the figures are its own` : null}`}>
    <section class="stats">
      <div class="stat"><h2>Calls</h2><p><b>${rate.toFixed(rate && rate < 10 ? 1 : 0)}</b> <span>a second</span></p><small>${count(activity.calls_total)} since the start</small></div>
      <div class="stat"><h2>Failed</h2><p class=${failing ? "bad-text" : ""}><b>${share ? share.toFixed(share < 1 ? 2 : 1) : 0}</b> <span>%</span></p><small>${count(activity.errors_total)} since the start</small></div>
      <div class="stat"><h2>Mean time</h2><p><b>${mean === null || mean === undefined ? "–" : duration(mean).split(" ")[0]}</b> <span>${mean === null || mean === undefined ? "" : duration(mean).split(" ")[1]}</span></p><small>of the last 5 seconds</small></div>
      <div class="stat"><h2>Store</h2><p class=${store.state === "ok" ? "" : "bad-text"}><b>${store.state === "ok" ? store.kind : "down"}</b></p><small>${store.state === "ok" ? html`${duration(store.latency_ms)}${store.bytes ? html` · ${bytes(store.bytes)}` : null}` : text(store.error)}</small></div>
    </section>
    <${AreaChart} values=${activity.calls_per_second} errors=${activity.errors_per_second} at=${activity.at} height=${148} />
    <section class="block"><header><h2>Agents</h2><${Link} to="/agents">All ${agents.total}<//></header>
      ${agents.total + agents.off === 0 ? html`<${Empty} title="No agents yet"><p>Give the node an address, a program or another client's file:</p><${Command}>a2a-fabric probe http://127.0.0.1:9001 --add<//><p>or <${Link} to="/agents?add=1">drop an mcp.json<//>.</p><//>` : html`
      <div class="health-bar" role="img" aria-label="Agents by status">${ORDER.filter((status) => agents[status]).map((status) => html`<i class=${status} style=${{ flexGrow: agents[status] }}></i>`)}</div>
      <ul class="legend">${ORDER.filter((status) => agents[status] || status === "online").map((status) => html`<li><${Link} to=${`/agents?status=${status}`}><${Dot} status=${status} /><b>${agents[status]}</b> ${WORDS[status]}<//></li>`)}${node.nodes.length > 1 ? html`<li class="push">on ${plural(node.nodes.length, "node")}</li>` : null}</ul>`}
    </section>
    <div class="two">
      <section class="block"><header><h2>Latest calls</h2><${Link} to="/calls">All calls<//></header>
        ${calls.data && calls.data.calls.length ? html`<div class="mini-calls">${calls.data.calls.map((row) => html`<${CallLine} row=${row} key=${row.trace_id + row.span_id} mini />`)}</div>` : html`<${Empty} title="No calls yet"><p>Ask an agent something, here or from your own client:</p><${Command}>${"a2a-fabric ask 'what is 2 + 3 * 4'"}<//><//>`}
      </section>
      <section class="block"><header><h2>Needs attention</h2>${troubles.length + node.problems.length ? html`<span class="faint">${troubles.length + node.problems.length}</span>` : null}</header>
        ${troubles.length + node.problems.length === 0 ? html`<p class="calm"><${Icon} name="check" /> Nothing. All agents answer, and the settings agree with each other.</p>` : html`<ul class="troubles">
          ${troubles.slice(0, 6).map((each) => html`<li><${Link} to=${`/agents/${part(each.agent)}`}><b>${each.agent}</b><//><p>${text(each.reason)}</p></li>`)}
          ${troubles.length > 6 ? html`<li><${Link} to="/agents?status=offline">and ${troubles.length - 6} more agents<//></li>` : null}
          ${node.problems.map((each) => html`<li><b>${text(each.where)}</b><p>${text(each.text)}</p></li>`)}</ul>`}
      </section>
    </div>
  <//>`;
}
