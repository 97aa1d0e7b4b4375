// Jobs of all callers: how far each is, its events as they come, and what an operator can do about it.
import { admin, duration, go, html, Link, part, say, setQuery, short, text, useEffect, useLive, useMemo, useState } from "./lib.js";
import { Badge, Command, ConfirmButton, Empty, Fault, Fresh, Icon, Json, Page, Tabs, Time, TraceId, useRole, useRowKeys, VirtualRows } from "./parts.js";
import { Questions } from "./form.js";
import { describeEvent } from "./agent.js";

const GROUPS = [
  { id: "", label: "All", states: [] },
  { id: "running", label: "Running", states: ["running", "queued"] },
  { id: "asks", label: "Asks", states: ["input_required"] },
  { id: "failed", label: "Failed", states: ["failed", "timeout", "rejected"] },
  { id: "done", label: "Completed", states: ["completed"] },
  { id: "cancelled", label: "Cancelled", states: ["cancelled"] },
];
const keyOf = (job) => job.job_id;
const ENDED = new Set(["completed", "failed", "cancelled", "timeout", "rejected"]);

export function Jobs({ query }) {
  const group = GROUPS.find((each) => each.id === (query.state || "")) || GROUPS[0];
  const [more, setMore] = useState([]);
  const live = useLive((signal) => admin("jobs", { states: group.states, limit: 100, ...(query.agent ? { agent_id: query.agent } : {}) }, { signal }), [group.id, query.agent], 2000);
  useEffect(() => setMore([]), [group.id, query.agent]);
  const data = live.data;
  const jobs = useMemo(() => { const first = data ? data.jobs : []; const ids = new Set(first.map(keyOf)); return [...first, ...more.flatMap((page) => page.jobs).filter((job) => !ids.has(job.job_id))].filter((job) => !job.internal || query.internal); }, [data, more, query.internal]);
  const cursor = more.length ? more.at(-1).cursor : data && data.cursor;
  const selected = useRowKeys(jobs, (job) => go(`/jobs/${part(job.job_id)}`), keyOf);
  const counts = data ? data.counts : {};
  const total = (states) => (states.length ? states : Object.keys(counts)).reduce((sum, state) => sum + (counts[state] || 0), 0);
  return html`<${Page} title="Jobs">
    <${Tabs} label="State" items=${GROUPS.map((each) => ({ id: each.id, label: each.label, count: data ? total(each.states) : undefined }))} value=${group.id} onChange=${(value) => setQuery({ state: value })} />
    ${query.agent ? html`<p class="hint">Only jobs of <b>${query.agent}</b> · <button type="button" class="link" onClick=${() => setQuery({ agent: "" })}>all</button></p>` : null}
    <${Fresh} live=${live} empty=${html`<div class="rows-skeleton" aria-hidden="true"></div>`}>
      ${jobs.length === 0 ? html`<${Empty} title=${group.id ? "No job in this state" : "No jobs yet"}><p>A job is a call that is written down: it outlives connections and restarts.</p>${group.id ? null : html`<${Command}>a2a-fabric call percy reason 'what is 2 + 3 * 4' --async<//>`}<//>` : html`
      <div class="list-head jobs-grid" aria-hidden="true"><span>State</span><span>Job</span><span>Caller</span><span>Began</span><span class="num">Took</span><span class="num">Attempts</span></div>
      <${VirtualRows} rows=${jobs} height=${44} selected=${selected} keyOf=${keyOf} label="Jobs" render=${(job, isSelected) => html`<${JobRow} job=${job} selected=${isSelected} />`} />
      ${cursor ? html`<p class="more"><button type="button" class="button small" onClick=${async () => setMore([...more, await admin("jobs", { states: group.states, limit: 100, cursor })])}>Older jobs</button></p>` : null}`}
    <//><//>`;
}

const took = (job) => (job.started_at ? ((job.ended_at || Date.now() / 1000) - job.started_at) * 1000 : null);

function JobRow({ job, selected }) {
  return html`<${Link} to=${`/jobs/${part(job.job_id)}`} class="row jobs-grid ${selected ? "selected" : ""}">
    <span><${Badge} state=${job.state} /></span>
    <span class="row-main"><b>${text(job.agent_id)}</b><span class="faint">.</span>${text(job.capability)} <small class="mono faint">${short(job.job_id)}</small>${job.error ? html` <small class="bad-text">${text(job.error.code)}</small>` : null}</span>
    <span class="muted cut">${text(job.owner)}</span><span class="muted"><${Time} at=${job.created_at} /></span>
    <span class="num">${duration(took(job))}</span><span class="num muted">${job.attempt}</span><//>`;
}

export function Job({ id }) {
  const [events, setEvents] = useState([]);
  const [busy, setBusy] = useState(false);
  const role = useRole();
  const [upto] = useState({ value: 0 });
  const live = useLive(async (signal) => {
    const page = await admin("job", { job_id: id, after: upto.value, wait_ms: upto.value ? 10000 : 0 }, { signal });
    if (page.events.length) { upto.value = page.upto; setEvents((before) => [...before, ...page.events.filter((event) => !before.length || event.number > before.at(-1).number)].slice(-2000)); }
    return page;
  }, [id], 400);
  useEffect(() => { document.title = `Job ${short(id)} · Fabric`; }, [id]);
  if (!live.data) return html`<div class="page"><nav class="crumbs"><${Link} to="/jobs">Jobs<//></nav><h1>Job</h1>${live.error ? html`<${Fault} error=${live.error} retry=${live.reload} />` : html`<div class="rows-skeleton" aria-hidden="true"></div>`}</div>`;
  const job = live.data.job;
  const act = async (name, body = {}) => {
    setBusy(true);
    try { const reply = await admin(name, { job_id: id, ...body }); live.reload(); return reply; } catch (error) { say(error.message, "bad"); return null; } finally { setBusy(false); }
  };
  const output = events.filter((event) => event.event === "token").map((event) => text(event.data.text)).join("");
  const progress = events.filter((event) => event.event === "progress").at(-1);
  const steps = events.filter((event) => event.event !== "token" && event.event !== "progress");
  const questions = job.state === "input_required" && job.input_required && job.input_required.questions;
  const isOperator = role === "operator";
  return html`<div class="page"><nav class="crumbs"><${Link} to="/jobs">Jobs<//></nav>
    <header class="page-head"><div><h1><${Link} to=${`/agents/${part(job.agent_id)}`}>${text(job.agent_id)}<//><span class="faint">.</span>${text(job.capability)} <${Badge} state=${job.state} /></h1>
      <p class="lead"><span class="mono">${id}</span> · ${text(job.owner)} · <${Time} at=${job.created_at} />${took(job) === null ? null : html` · ${duration(took(job))}`}${job.trace_id ? html` · <${Link} to=${`/calls/${part(job.trace_id)}`}>trace<//> <${TraceId} id=${job.trace_id} />` : null}</p></div>
      <div class="page-aside">${ENDED.has(job.state) ? html`<button type="button" class="button small" disabled=${!isOperator || busy} onClick=${async () => { const next = await act("job.retry"); if (next) go(`/jobs/${part(next.job_id)}`); }}><${Icon} name="retry" size=${14} />Run again</button>` : html`<${ConfirmButton} danger disabled=${!isOperator || busy || job.cancel_requested} confirm="Really cancel?" onConfirm=${async () => { if (await act("job.cancel")) say("Cancelled"); }}>${job.cancel_requested ? "Cancelling…" : "Cancel"}<//>`}</div></header>
    <${Fresh} live=${live}>
      ${progress && !ENDED.has(job.state) ? html`<div class="progress tall"><i style=${{ width: `${Math.min(100, Math.max(0, Number(progress.data.percent) || 0))}%` }}></i></div><p class="hint">${text(progress.data.message)}</p>` : null}
      ${job.error ? html`<${Fault} error=${{ message: job.error.message, code: job.error.code, traceId: job.trace_id }} />` : null}
      ${questions ? (isOperator ? html`<${Questions} questions=${questions} busy=${busy} onAnswer=${async (answers) => { if (await act("job.answer", { answers })) say("Answered"); }} />` : null) : null}
      ${job.state === "input_required" && !questions ? html`<p class="hint">It waits for an answer, which only operators can give.</p>` : null}
      <div class="two job-two"><section class="block"><header><h2>Events</h2><span class="faint">${events.length}</span></header>
        ${steps.length ? html`<ol class="steps">${steps.slice(-200).map((event) => html`<li key=${event.number}><span class="mono faint">${event.number}</span><${Time} at=${event.at} clockOnly /><b>${event.event}</b><span>${describeEvent(event)}</span></li>`)}</ol>` : html`<p class="hint">None yet.</p>`}
        ${output ? html`<pre class="stream">${output}</pre>` : null}</section>
      <section class="block"><header><h2>${job.result ? "Result" : "Request"}</h2></header>
        ${job.private ? html`<p class="hint">What the caller asked and the agent answered is for operators.</p>` : null}
        ${job.result ? html`<${Json} value=${job.result.data} max />` : null}
        ${job.task ? html`<h3>Task</h3><pre class="stream">${text(job.task)}</pre>` : null}${job.context ? html`<h3>Arguments</h3><${Json} value=${job.context} max />` : null}
        <dl class="plain"><div><dt>Priority</dt><dd>${job.priority}</dd></div><div><dt>Attempts</dt><dd>${job.attempt}</dd></div>${job.expires_at ? html`<div><dt>Expires</dt><dd><${Time} at=${job.expires_at} /></dd></div>` : null}${job.idempotency_key ? html`<div><dt>Key</dt><dd><code>${text(job.idempotency_key)}</code></dd></div>` : null}</dl></section></div>
    <//></div>`;
}
