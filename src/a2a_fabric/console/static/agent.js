// One agent: what it is, what it offers with a form to try it, and how to reach it from elsewhere.
import { admin, call, duration, getToken, html, Link, overview, part, plural, say, setQuery, span, stream, text, useEffect, useLive, useRef, useState } from "./lib.js";
import { Age, Badge, Code, Command, ConfirmButton, Dot, Fault, Fresh, HealthStrip, Icon, Json, Spark, Tabs, Tag, Time, TraceId, useRole } from "./parts.js";
import { hasForm, NOTES, snippets } from "./snippets.js";
import { initialValue, missing, Questions, SchemaForm } from "./form.js";

export function Agent({ id, query }) {
  const live = useLive((signal) => admin("agent", { agent_id: id }, { signal }), [id], 4000);
  const role = useRole();
  const data = live.data;
  useEffect(() => { document.title = `${id} · Fabric`; }, [id]);
  if (!data) return html`<div class="page"><nav class="crumbs"><${Link} to="/agents">Agents<//></nav><h1>${id}</h1>${live.error ? html`<${Fault} error=${live.error} retry=${live.error.code === "AGENT_NOT_FOUND" ? null : live.reload} />` : html`<div class="rows-skeleton" aria-hidden="true"></div>`}</div>`;
  const agent = data.agent;
  const canSwitch = role === "operator" && data.editable;
  const why = role !== "operator" ? "Viewers may not switch agents" : data.editable ? "" : data.trouble || "It is in no agents.yaml of this node";
  const flip = async (on, tool) => {
    try { await admin("agent.switch", { agent_id: id, on, ...(tool ? { tool } : {}) }); say(`${tool || id} is ${on ? "on" : "off"}`); live.reload(); } catch (error) { say(error.message, "bad"); }
  };
  const probe = async () => { try { await admin("agent.probe", { agent_id: id }); say("Asking it now"); setTimeout(live.reload, 1200); } catch (error) { say(error.message, "bad"); } };
  const off = agent.status === "off";
  return html`<div class="page agent-page"><nav class="crumbs"><${Link} to="/agents">Agents<//></nav>
    <header class="page-head"><div><h1><${Dot} status=${agent.status} />${agent.agent_id}</h1><p class="lead">${text(agent.description) || "No description"}</p></div>
      <div class="page-aside">${off ? null : html`<button type="button" class="button small" disabled=${role !== "operator"} onClick=${probe}><${Icon} name="retry" size=${14} />Check now</button>`}
      ${off ? html`<button type="button" class="button small primary" disabled=${!canSwitch} title=${why} onClick=${() => flip(true)}>Switch on</button>` : html`<${ConfirmButton} danger disabled=${!canSwitch} title=${why} confirm="Really switch off?" onConfirm=${() => flip(false)}>Switch off<//>`}</div></header>
    ${agent.error ? html`<div class="fault" role="status"><${Icon} name="warn" /><div class="fault-text"><p>${text(agent.error)}</p><p class="fault-facts">${data.live && data.live.since ? html`<span>for <${Age} at=${data.live.since} /></span>` : null} ${data.live && data.live.breaker !== "closed" ? html`<${Badge} state=${data.live.breaker}>breaker ${data.live.breaker}<//>` : null}</p>${agent.status === "offline" ? html`<${WhatToTry} agent=${agent} path=${data.path} />` : null}</div></div>` : null}
    <${Fresh} live=${live}>
    ${off ? html`<p class="lead">It is switched off in its file: neither listed nor called nor probed.</p>` : html`<div class="agent-columns">
      <aside class="facts"><${Facts} data=${data} /></aside>
      <section class="capabilities"><h2 class="offscreen">What it offers</h2>${agent.capabilities.length ? agent.capabilities.map((capability) => html`<${Capability} key=${capability.name} agent=${agent} capability=${capability} open=${query.do === capability.name || (!query.do && agent.capabilities.length === 1)} canSwitch=${canSwitch && agent.capabilities.length > 0} onSwitch=${() => flip(false, capability.name)} prefill=${query.do === capability.name ? query.with : undefined} />`) : html`<p class="hint">It has not said yet what it offers. The node asks it again with every check.</p>`}
        ${data.excluded.length ? html`<div class="excluded"><h3>Switched off</h3>${data.excluded.map((tool) => html`<div><code>${tool}</code><button type="button" class="link" disabled=${!canSwitch} onClick=${() => flip(true, tool)}>Switch on</button></div>`)}</div>` : null}
        ${data.marks.map((mark) => html`<p class="hint">${text(mark)}</p>`)}
      </section>
      <aside class="reach"><${Reach} agent=${agent} capability=${agent.capabilities.find((each) => each.name === query.do) || agent.capabilities[0]} tab=${query.reach || "curl"} /></aside>
    </div>`}<//></div>`;
}

function WhatToTry({ agent, path }) {
  const address = agent.endpoint.uri;
  if (address) return html`<p class="hint">Is it running, and is this its address? Ask it from the node's machine:</p><${Command}>a2a-fabric probe ${address}<//>`;
  return html`<p class="hint">Its program ended or could not be started. The manifest below has the command; try it by hand, then${path ? html` correct <code>${path.split("/").pop()}</code>:` : ":"}</p><${Command}>a2a-fabric check<//>`;
}

function Facts({ data }) {
  const { agent, live, uptime, checks } = data;
  const rows = [
    ["Status", html`<${Dot} status=${agent.status} label />`],
    ["Answers in", live.latency_ms === null ? null : html`${duration(live.latency_ms)} <${Spark} values=${live.spark} width=${72} height=${16} />`],
    ["Calls", live.calls_total ? html`${live.calls_total}${live.errors ? html` <span class="bad-text">${live.errors} failed</span>` : null}` : null],
    ["Now", live.in_flight ? plural(live.in_flight, "call") : null],
    ["Breaker", live.breaker === "closed" ? null : html`<${Badge} state=${live.breaker} />`],
    ["Seen", live.seen_at ? html`<${Age} at=${live.seen_at} /> ago` : null],
    ["Runtime", html`<${Tag}>${agent.runtime}<//>`],
    ["Address", agent.endpoint.uri ? html`<code class="wrap">${agent.endpoint.uri}</code>` : agent.endpoint.transport],
    ["Version", agent.version === "0.0.0" ? null : agent.version],
    ["Tier", agent.trust_tier], ["Audience", agent.audience], ["Pool", agent.pool],
    ["Falls back to", agent.fallbacks.length ? agent.fallbacks.map((each) => html`<${Link} to=${`/agents/${part(each)}`}>${each}<//> `) : null],
    ["Tags", agent.tags.length ? agent.tags.map((tag) => html`<${Link} to=${`/agents?tag=${part(tag)}`} class="tag">${tag}<//> `) : null],
    ["Owner", agent.registration ? agent.registration.owner : null],
    ["Commit", agent.origin && agent.origin.commit ? html`<code>${agent.origin.commit.slice(0, 10)}</code>` : null],
    ["File", data.path ? html`<code class="wrap">${data.path.split("/").pop()}</code>` : null],
  ];
  const failures = checks.filter((check) => check.error).filter((check, place, all) => !place || all[place - 1].error !== check.error).slice(0, 4);
  return html`<div class="day"><div class="day-head"><h3>Last day</h3><span>${uptime.ratio === null ? "" : `${(uptime.ratio * 100).toFixed(uptime.ratio === 1 || uptime.ratio === 0 ? 0 : 2)} % up`}</span></div><${HealthStrip} checks=${checks} cells=${40} /></div>
    <dl>${rows.filter(([, value]) => value).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${failures.length ? html`<h3>Last errors</h3><ul class="last-errors">${failures.map((check) => html`<li><${Time} at=${check.checked_at} /><p>${text(check.error)}</p></li>`)}</ul>` : null}
    ${data.manifest ? html`<details class="folded"><summary><${Icon} name="chevron" size=${12} />Manifest</summary><${Json} value=${data.manifest} /></details>` : null}
    <${Card} id=${agent.agent_id} />`;
}

function Card({ id }) {
  const [card, setCard] = useState(null);
  const load = async (event) => {
    if (!event.target.open || card) return;
    try {
      const reply = await fetch(`/agents/${part(id)}/.well-known/agent-card.json`, { headers: getToken() ? { Authorization: `Bearer ${getToken()}` } : {} });
      setCard(await reply.json());
    } catch { setCard({ error: "The card could not be read" }); }
  };
  return html`<details class="folded" onToggle=${load}><summary><${Icon} name="chevron" size=${12} />A2A card</summary>${card ? html`<${Json} value=${card} max />` : null}</details>`;
}

function Capability({ agent, capability, open, canSwitch, onSwitch, prefill }) {
  const toggle = () => setQuery({ do: open ? "" : capability.name, with: "" });
  return html`<article class="capability ${open ? "open" : ""}">
    <button type="button" class="capability-head" aria-expanded=${open ? "true" : "false"} onClick=${toggle}><${Icon} name="chevron" size=${14} /><b>${capability.name}</b><span class="capability-about">${text(capability.description)}</span>
      <span class="capability-tags">${capability.streaming ? html`<${Tag}>streams<//>` : null}${capability.side_effects && capability.side_effects !== "none" ? html`<${Tag}>${capability.side_effects}<//>` : null}${capability.changed_since_approval ? html`<${Badge} state="degraded">changed<//>` : null}</span></button>
    ${open ? html`<div class="capability-body"><p>${text(capability.description)}</p><${Playground} agent=${agent} capability=${capability} prefill=${prefill} />
      <details class="folded"><summary><${Icon} name="chevron" size=${12} />Schemas</summary><div class="schemas"><h4>Input</h4><${Json} value=${capability.input_schema} max />${Object.keys(capability.output_schema).length ? html`<h4>Output</h4><${Json} value=${capability.output_schema} max />` : null}</div></details>
      ${canSwitch ? html`<${ConfirmButton} danger onConfirm=${onSwitch} confirm="Really switch off?">Switch this tool off<//>` : null}</div>` : null}
  </article>`;
}

/* ---------------------------------------------------------------- playground */

const NO_SCHEMA = { type: "object", properties: { task: { type: "string", description: "What is to be done, in words." } }, required: ["task"] };

function parsePrefill(source) { try { const value = JSON.parse(source); return value && typeof value === "object" && !Array.isArray(value) ? value : null; } catch { return null; } }

export function Playground({ agent, capability, prefill }) {
  const isWords = !hasForm(capability.input_schema);
  const schema = isWords ? NO_SCHEMA : capability.input_schema;
  const [value, setValue] = useState(() => parsePrefill(prefill) || initialValue(schema));
  const [run, setRun] = useState(null);
  const abort = useRef(null);
  useEffect(() => () => abort.current && abort.current.abort(), []);
  const start = async (extra = {}) => {
    const under = new AbortController();
    abort.current = under;
    const began = performance.now();
    let state = { state: "running", events: [], output: "", began };
    setRun(state);
    let queued = 0;
    const show = () => { if (!queued) queued = requestAnimationFrame(() => { queued = 0; setRun({ ...state }); }); };
    const body = isWords ? { task: value.task || "", context: {} } : { task: "", context: value };
    try {
      const final = await stream("fabric.call", { agent_id: agent.agent_id, capability: capability.name, ...body, ...extra }, (event) => {
        state.trace = event.trace && event.trace.trace_id;
        if (event.event === "token") state.output += text(event.data.text);
        else state.events = [...state.events.slice(-199), { ...event, ms: performance.now() - began }];
        show();
      }, under.signal);
      const asked = final.result && final.result.input_required;
      state = { ...state, state: asked ? "asked" : "done", final, asked, trace: final.trace.trace_id, ms: performance.now() - began };
    } catch (error) {
      state = { ...state, state: under.signal.aborted ? "stopped" : "failed", error: under.signal.aborted ? null : error, trace: error.traceId || state.trace, ms: performance.now() - began };
    }
    cancelAnimationFrame(queued);
    setRun(state);
  };
  const lacking = missing(schema, value);
  const busy = run && run.state === "running";
  const submit = (event) => { event.preventDefault(); if (!busy && !lacking.length) start(); };
  return html`<div class="playground"><form onSubmit=${submit} onKeyDown=${(event) => { if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) submit(event); }}>
    <${SchemaForm} schema=${schema} value=${value} onChange=${setValue} idPrefix=${`in-${capability.name}`} />
    <div class="actions"><button class="button primary" disabled=${busy || lacking.length > 0} title=${lacking.length ? `Fill in ${lacking.join(", ")}` : "Ctrl or ⌘ and enter"}><${Icon} name="play" size=${12} />${busy ? "Running…" : "Run"}</button>
    ${busy ? html`<button type="button" class="button" onClick=${() => abort.current.abort()}><${Icon} name="stop" size=${12} />Stop</button>` : null}
    ${run && run.ms ? html`<span class="run-facts">${run.state === "done" ? html`<${Badge} state="ok">ok<//>` : run.state === "failed" ? html`<${Badge} state="failed" />` : run.state === "stopped" ? html`<${Badge} state="cancelled">stopped<//>` : html`<${Badge} state="input_required">asks<//>`} ${duration(run.ms)} ${run.trace ? html`<${Link} to=${`/calls/${part(run.trace)}`}>trace<//> <${TraceId} id=${run.trace} />` : null}</span>` : null}</div></form>
    ${run ? html`<${Output} run=${run} onAnswer=${(answers) => start({ continuation: run.asked.continuation, answers })} />` : null}</div>`;
}

function Output({ run, onAnswer }) {
  const progress = run.events.filter((event) => event.event === "progress").at(-1);
  const steps = run.events.filter((event) => event.event !== "progress" && !(event.event === "status" && event.data.status === "running"));
  const result = run.final && !run.asked ? run.final.result : null;
  const answer = result && typeof result.answer === "string" ? result.answer : null;
  const { answer: shown, ...others } = result || {};
  const rest = answer === null ? result : others;
  return html`<div class="output" aria-live="polite">
    ${progress && run.state === "running" ? html`<div class="progress"><i style=${{ width: `${Math.min(100, Math.max(0, Number(progress.data.percent) || 0))}%` }}></i></div><p class="hint">${text(progress.data.message)}</p>` : null}
    ${steps.length ? html`<ol class="steps">${steps.slice(-30).map((event) => html`<li><span class="mono faint">+${duration(event.ms)}</span><b>${event.event}</b><span>${describeEvent(event)}</span></li>`)}</ol>` : null}
    ${run.output && answer === null ? html`<pre class="stream">${run.output}${run.state === "running" ? html`<i class="caret"></i>` : null}</pre>` : null}
    ${answer !== null ? html`<pre class="stream">${answer}</pre>` : null}
    ${run.error ? html`<${Fault} error=${run.error} />` : null}
    ${run.asked ? html`<${Questions} questions=${run.asked.questions} onAnswer=${onAnswer} />` : null}
    ${run.final && run.final.fallback ? html`<p class="hint">Answered by ${text(run.final.fallback.used || run.final.fallback.agent_id)} instead: ${text(run.final.fallback.reason)}</p>` : null}
    ${run.final && run.final.parts ? run.final.parts.filter((each) => each.kind === "text" || each.text).map((each) => html`<pre class="stream">${text(each.text)}</pre>`) : null}
    ${rest && Object.keys(rest).length ? html`<${Json} value=${rest} max />` : null}
  </div>`;
}

export function describeEvent(event) {
  const { trace, ...data } = event.data || {};
  if (event.event === "status") return `${text(data.status)}${data.message ? `: ${text(data.message)}` : ""}`;
  if (event.event === "progress") return `${data.percent === undefined || data.percent === null ? "" : `${Math.round(data.percent)} % `}${text(data.message)}`;
  if (event.event === "tool_call") return `${text(data.name || data.tool)} ${data.arguments ? JSON.stringify(data.arguments).slice(0, 200) : ""}`;
  if (event.event === "token") return text(data.text);
  return JSON.stringify(data).slice(0, 300);
}

/* ---------------------------------------------------------------- how to reach it */

function Reach({ agent, capability, tab }) {
  const node = overview.use();
  const [withKey, setWithKey] = useState(false);
  const origin = (node && node.public_url) || location.origin;
  const all = snippets(origin.replace(/\/$/, ""), agent.agent_id, capability, withKey ? getToken() : "");
  const chosen = all[tab] ? tab : "curl";
  return html`<h2>Reach it</h2>
    <${Tabs} label="Client" items=${Object.keys(all).map((id) => ({ id, label: id }))} value=${chosen} onChange=${(value) => setQuery({ reach: value === "curl" ? "" : value })} />
    <${Code}>${all[chosen]}<//>
    <p class="hint">${NOTES[chosen] || null}</p>
    ${getToken() ? html`<label class="check"><input type="checkbox" checked=${withKey} onChange=${(event) => setWithKey(event.target.checked)} /> Put my key in, instead of the variable <code>FABRIC_TOKEN</code></label>` : null}`;
}
