// The pieces that views are made of.
import { age, clock, connection, copy, html, isoTime, moment, overview, short, text, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./lib.js";

const PATHS = {
  home: "M3 9.5 10 4l7 5.500M5 8.500V16h10V8.500",
  agents: "M4 5h12v4H4zM4 12h12v4H4zM7 7h.01M7 14h.01",
  calls: "M4 6h8M4 10h12M4 14h6",
  jobs: "M10 4a6 6 0 1 0 6 6M10 7v3l2 2M13 4l3 0 0 3",
  messages: "M4 5h12v8H9l-3 3v-3H4z",
  route: "M5 16V9a3 3 0 0 1 3-3h6M11 3l3 3-3 3M5 12h4a3 3 0 0 1 3 3v1",
  keys: "M12.500 7.500a3 3 0 1 0-2.600 3l-5.400 5.500H7v-2h2v-2l1.500-1.600",
  settings: "M4 6h7M15 6h1M4 14h1M9 14h7M13 4v4M7 12v4",
  log: "M5 4h10v12H5zM8 8h4M8 11h4",
  search: "M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4M13 13l3.500 3.500",
  plus: "M10 4v12M4 10h12",
  copy: "M7 7V4h9v9h-3M4 7h9v9H4z",
  check: "M4 10.500 8 14l8-8.500",
  cross: "M5 5l10 10M15 5 5 15",
  chevron: "M8 5l5 5-5 5",
  down: "M5 8l5 5 5-5",
  moon: "M15.500 12A6.500 6.500 0 0 1 8 4.500 6.500 6.500 0 1 0 15.500 12",
  sun: "M10 7a3 3 0 1 0 0 6 3 3 0 0 0 0-6M10 2v2M10 16v2M2 10h2M16 10h2M4.500 4.500l1.400 1.400M14.100 14.100l1.400 1.400M15.500 4.500l-1.400 1.400M5.900 14.100l-1.400 1.400",
  play: "M6 4.500v11l9-5.500z",
  stop: "M6 6h8v8H6z",
  pause: "M7 5v10M13 5v10",
  retry: "M15 6v3h-3M15 9a5.500 5.500 0 1 0 .5 3.500",
  warn: "M10 4 17 16H3zM10 9v3M10 14h.01",
  out: "M8 4H4v12h4M12 7l3 3-3 3M7 10h8",
  more: "M5 10h.01M10 10h.01M15 10h.01",
  bolt: "M11 3 5 11h4l-1 6 6-8h-4z",
};

export const Icon = ({ name, size = 16 }) => html`<svg class="icon" width=${size} height=${size} viewBox="0 0 20 20" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

const STATUS_WORDS = { online: "Online", degraded: "Degraded", offline: "Offline", unknown: "Not seen yet", off: "Switched off" };
/** Shape and colour: the status is not told by colour alone. */
export function Dot({ status, label = false }) {
  return html`<span class="status ${status}" title=${STATUS_WORDS[status] || status}><i class="dot ${status}" role="img" aria-label=${label ? "" : STATUS_WORDS[status] || status}></i>${label ? STATUS_WORDS[status] || status : null}</span>`;
}

const GOOD = new Set(["ok", "completed", "succeeded", "online", "active", "configured"]);
const BAD = new Set(["failed", "error", "timeout", "rejected", "offline", "revoked", "down", "open"]);
const BUSY = new Set(["running", "queued", "trial"]);
const WAITING = new Set(["input_required", "degraded", "ending", "cancelled", "expired"]);
export function Badge({ state, children }) {
  const kind = GOOD.has(state) ? "good" : BAD.has(state) ? "bad" : WAITING.has(state) ? "warn" : BUSY.has(state) ? "busy" : "";
  return html`<span class="badge ${kind}">${children || text(state).replace("_", " ")}</span>`;
}

export const Tag = ({ children, title }) => html`<span class="tag" title=${title}>${children}</span>`;

export const Time = ({ at, clockOnly = false }) => (at ? html`<time datetime=${isoTime(at)} title=${isoTime(at)}>${clockOnly ? clock(at, true) : moment(at)}</time>` : html`<span class="faint">–</span>`);

export function useNow(interval = 1000) {
  const [now, tick] = useState(Date.now());
  useEffect(() => { const timer = setInterval(() => !document.hidden && tick(Date.now()), interval); return () => clearInterval(timer); }, [interval]);
  return now;
}

export function Age({ at }) {
  useNow(1000);
  return at ? html`<span title=${isoTime(at)}>${age(at)}</span>` : html`<span class="faint">–</span>`;
}

export function CopyButton({ value, label = "Copy", what = "Copied", quiet = false }) {
  return html`<button type="button" class=${quiet ? "icon-button" : "button small"} title=${label} aria-label=${label} onClick=${(event) => { event.preventDefault(); event.stopPropagation(); copy(typeof value === "function" ? value() : value, what); }}><${Icon} name="copy" size=${14} />${quiet ? null : label}</button>`;
}

export const TraceId = ({ id, full = false }) => (id ? html`<button type="button" class="trace mono" title="Copy trace ${id}" onClick=${(event) => { event.preventDefault(); event.stopPropagation(); copy(id, "Trace id copied"); }}>${full ? id : short(id)}<${Icon} name="copy" size=${12} /></button>` : null);

/** An error as the node told it: what, why, and under which trace. */
export function Fault({ error, retry, compact = false }) {
  if (!error) return null;
  return html`<div class="fault ${compact ? "compact" : ""}" role="alert">
    <${Icon} name="warn" />
    <div class="fault-text"><p>${text(error.message)}</p>
      <p class="fault-facts">${error.code ? html`<code>${text(error.code)}</code>` : null}${error.traceId ? html`<span>trace <${TraceId} id=${error.traceId} /></span>` : null}</p></div>
    ${retry ? html`<button type="button" class="button small" onClick=${retry}>Try again</button>` : null}
  </div>`;
}

/** Wraps what was loaded: greyed with its age while it cannot be loaded again. */
export function Fresh({ live, children, empty = null }) {
  if (live.data === null) return live.error ? html`<${Fault} error=${live.error} retry=${live.reload} />` : empty;
  if (!live.error) return children;
  return html`<div class="stale"><p class="stale-note"><${Icon} name="warn" size=${14} /> Shown as of <${Age} at=${live.at / 1000} /> ago. ${text(live.error.message)} ${live.error.traceId ? html`<${TraceId} id=${live.error.traceId} />` : null}</p><div class="stale-body">${children}</div></div>`;
}

export const Empty = ({ title, children }) => html`<div class="empty"><h3>${title}</h3><div>${children}</div></div>`;

export const Command = ({ children }) => html`<div class="command"><code>${children}</code><${CopyButton} value=${[children].flat().map(text).join("")} quiet label="Copy command" /></div>`;

/** A line for a row: gaps where nothing was measured. */
export function Spark({ values, width = 96, height = 20 }) {
  const points = values || [];
  const known = points.filter((value) => value !== null);
  if (known.length === 0) return html`<svg class="spark none" width=${width} height=${height} aria-hidden="true"><line x1="0" x2=${width} y1=${height - 1.5} y2=${height - 1.5} /></svg>`;
  const most = Math.max(...known), step = width / Math.max(points.length - 1, 1);
  const y = (value) => (height - 2 - (most ? value / most : 0) * (height - 4)).toFixed(1);
  let path = "", open = false;
  points.forEach((value, place) => {
    if (value === null) { open = false; return; }
    const lone = !open && (place === points.length - 1 || points[place + 1] === null);
    path += `${open ? "L" : "M"}${(place * step).toFixed(1)} ${y(value)}${lone ? "h1.500" : ""}`;
    open = true;
  });
  return html`<svg class="spark" width=${width} height=${height} role="img" aria-label="Mean latency, last minutes"><path d=${path} /></svg>`;
}

/** Calls a second over time, with errors in front. */
const CHART_SECONDS = 300;

export function AreaChart({ values, errors, at, interval = 5, height = 120, unit = "/s" }) {
  const box = useRef(null);
  const [width, setWidth] = useState(600);
  const [hover, setHover] = useState(null);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.max(120, Math.round(entry.contentRect.width))));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const most = niceCeiling(Math.max(...values, 1));
  // Placed by time: a node that has just started, or was away, has nothing to show for the time before.
  const inner = height - 20, end = at.at(-1) || 0;
  const x = (place) => width * (1 - (end - at[place]) / CHART_SECONDS), y = (value) => inner - (value / most) * (inner - 8);
  const runs = [];
  at.forEach((time, place) => { if (place && time - at[place - 1] < 2.5 * interval) runs.at(-1).push(place); else runs.push([place]); });
  const drawn = (run) => (run.length > 1 ? run.map((place) => [x(place), place]) : [[x(run[0]) - 3, run[0]], [x(run[0]), run[0]]]);
  const line = (series) => runs.map((run) => drawn(run).map(([left, place], first) => `${first ? "L" : "M"}${left.toFixed(1)} ${y(series[place]).toFixed(1)}`).join("")).join("");
  const area = (series) => runs.map((run) => { const points = drawn(run); return `M${points[0][0].toFixed(1)} ${inner}${points.map(([left, place]) => `L${left.toFixed(1)} ${y(series[place]).toFixed(1)}`).join("")}L${points.at(-1)[0].toFixed(1)} ${inner}Z`; }).join("");
  const move = (event) => {
    const time = end - (1 - (event.clientX - box.current.getBoundingClientRect().left) / width) * CHART_SECONDS;
    const nearest = at.findIndex((each) => Math.abs(each - time) <= interval / 2);
    setHover(nearest < 0 ? null : nearest);
  };
  return html`<div class="chart" ref=${box} onMouseMove=${move} onMouseLeave=${() => setHover(null)}>
    <svg width=${width} height=${height} role="img" aria-label="Calls a second over the last five minutes">
      ${[0.5, 1].map((share) => html`<line class="grid" x1="0" x2=${width} y1=${y(most * share)} y2=${y(most * share)} />`)}
      <line class="axis" x1="0" x2=${width} y1=${inner} y2=${inner} />
      <path class="area" d=${area(values)} /><path class="line" d=${line(values)} />
      <path class="area bad" d=${area(errors)} /><path class="line bad" d=${errors.some(Boolean) ? line(errors) : ""} />
      ${hover === null ? null : html`<line class="cursor" x1=${x(hover)} x2=${x(hover)} y1="0" y2=${inner} /><circle class="mark" cx=${x(hover)} cy=${y(values[hover])} r="3" />`}
      <text class="label" x="0" y=${y(most) - 3}>${most} ${unit}</text>
      <text class="label" x="0" y=${height - 4}>5 min ago</text><text class="label end" x=${width} y=${height - 4}>now</text>
    </svg>
    ${hover === null ? null : html`<div class="chart-tip ${x(hover) > width / 2 ? "left" : ""}" style=${{ left: `${x(hover)}px` }}><b>${values[hover]} ${unit}</b>${errors[hover] ? html`<b class="bad-text">${errors[hover]} failed</b>` : null}<span>${clock(at[hover])}</span></div>`}
  </div>`;
}

function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return +([1, 2, 5, 10].find((each) => each * power >= value) * power).toPrecision(2);
}

/** Health of the last day as a strip of cells: the worst state of each. */
const WORST = ["off", "unknown", "online", "degraded", "offline"];
export function HealthStrip({ checks, hours = 24, cells = 48 }) {
  const cellsOf = useMemo(() => {
    const now = Date.now() / 1000, length = (hours * 3600) / cells, start = now - hours * 3600;
    const states = new Array(cells).fill(null), latest = [...checks].sort((a, b) => a.checked_at - b.checked_at);
    for (const check of latest) {
      const place = Math.min(cells - 1, Math.max(0, Math.floor((check.checked_at - start) / length)));
      if (states[place] === null || WORST.indexOf(check.status) > WORST.indexOf(states[place].status)) states[place] = check;
    }
    return states.map((check, place) => ({ check, from: start + place * length }));
  }, [checks, hours, cells]);
  return html`<div class="strip" role="img" aria-label="Health over the last ${hours} hours">${cellsOf.map(({ check, from }) => html`<i class=${check ? check.status : "none"} title="${moment(from)}: ${check ? check.status : "not observed"}${check && check.error ? ` – ${text(check.error).slice(0, 200)}` : ""}"></i>`)}</div>`;
}

/** Only the rows on the screen exist, however many there are. With `recycle`, a place keeps its elements when rows move. */
export function VirtualRows({ rows, height, render, selected = -1, onVisible, label, keyOf, recycle = false }) {
  const box = useRef(null);
  const [range, setRange] = useState([0, 40]);
  const measure = () => {
    if (!box.current) return;
    const top = -box.current.getBoundingClientRect().top, seen = window.innerHeight;
    const first = Math.max(0, Math.floor(top / height) - 8), last = Math.min(rows.length, Math.ceil((top + seen) / height) + 8);
    setRange((before) => (before[0] === first && before[1] === last ? before : [first, Math.max(first, last)]));
  };
  useLayoutEffect(measure, [rows.length, height]);
  useEffect(() => {
    let queued = 0;
    const onScroll = () => { if (!queued) queued = requestAnimationFrame(() => { queued = 0; measure(); }); };
    window.addEventListener("scroll", onScroll, { passive: true });
    window.addEventListener("resize", onScroll);
    return () => { window.removeEventListener("scroll", onScroll); window.removeEventListener("resize", onScroll); cancelAnimationFrame(queued); };
  }, [rows.length, height]);
  useEffect(() => {
    if (selected < 0 || !box.current) return;
    const top = box.current.getBoundingClientRect().top + selected * height;
    const above = 112, below = window.innerHeight - height - 72;
    if (top < above) window.scrollBy(0, top - above);
    else if (top > below) window.scrollBy(0, top - below);
  }, [selected]);
  const [first, last] = range;
  const shown = rows.slice(first, last);
  const ids = shown.map((row) => keyOf(row)).join("\n");
  useEffect(() => { if (onVisible) onVisible(shown); }, [ids]);
  return html`<div class="rows" ref=${box} role="list" aria-label=${label} style=${{ height: `${rows.length * height}px` }}>
    ${shown.map((row, place) => html`<div class="slot" role="listitem" key=${recycle ? (first + place) % 128 : keyOf(row)} style=${{ height: `${height}px`, transform: `translateY(${(first + place) * height}px)` }}>${render(row, first + place === selected)}</div>`)}
  </div>`;
}

/** `j` and `k`, or the arrows, move; enter opens. */
export function useRowKeys(rows, open, keyOf) {
  const [chosen, choose] = useState(null);
  const place = chosen === null ? -1 : rows.findIndex((row) => keyOf(row) === chosen);
  const state = useRef({});
  state.current = { rows, place, open };
  useEffect(() => {
    const onKey = (event) => {
      if (isTyping(event) || event.metaKey || event.ctrlKey || event.altKey || document.querySelector(".overlay")) return;
      const { rows, place, open } = state.current;
      const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
      if (step && rows.length) {
        event.preventDefault();
        choose(keyOf(rows[Math.min(rows.length - 1, Math.max(0, place + step))]));
      } else if (event.key === "Enter" && place >= 0 && !(event.target instanceof HTMLButtonElement || event.target instanceof HTMLAnchorElement)) {
        event.preventDefault();
        open(rows[place]);
      } else if (event.key === "Escape" && place >= 0) choose(null);
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
  return place;
}

export const isTyping = (event) => event.target instanceof HTMLElement && (event.target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName));

export function SearchBox({ value, onInput, placeholder }) {
  return html`<label class="searchbox"><${Icon} name="search" size=${14} /><input type="search" data-search value=${value} placeholder=${placeholder} aria-label=${placeholder} autocomplete="off" spellcheck=${false}
    onInput=${(event) => onInput(event.target.value)} onKeyDown=${(event) => { if (event.key === "Escape") { event.target.blur(); if (value) onInput(""); } if (event.key === "Enter" || event.key === "ArrowDown") event.target.blur(); }} /><kbd>/</kbd></label>`;
}

export function Tabs({ items, value, onChange, label }) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const place = items.findIndex((item) => item.id === value);
    const next = items[(place + step + items.length) % items.length];
    onChange(next.id);
    requestAnimationFrame(() => { const tab = event.currentTarget && event.currentTarget.querySelector?.('[aria-selected="true"]'); if (tab) tab.focus(); });
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>${items.map((item) => html`<button type="button" role="tab" aria-selected=${item.id === value ? "true" : "false"} tabindex=${item.id === value ? 0 : -1} class=${item.id === value ? "on" : ""} onClick=${() => onChange(item.id)}>${item.dot ? html`<i class="dot ${item.dot}"></i>` : null}${item.label}${item.count === undefined ? null : html`<span class="tab-count">${item.count}</span>`}</button>`)}</div>`;
}

export function Select({ value, options, onChange, label }) {
  return html`<label class="select"><span class="offscreen">${label}</span><select value=${value} class=${value ? "on" : ""} onChange=${(event) => onChange(event.target.value)}><option value="">${label}</option>${options.map((option) => html`<option value=${option} selected=${option === value}>${option}</option>`)}</select><${Icon} name="down" size=${12} /></label>`;
}

/** Two presses instead of a dialog: the second one within four seconds does it. */
export function ConfirmButton({ onConfirm, children, confirm = "Sure?", danger = false, disabled = false, title }) {
  const [armed, arm] = useState(false);
  useEffect(() => { if (!armed) return undefined; const timer = setTimeout(() => arm(false), 4000); return () => clearTimeout(timer); }, [armed]);
  return html`<button type="button" class="button small ${danger ? "danger" : ""} ${armed ? "armed" : ""}" disabled=${disabled} title=${title} onClick=${() => { if (armed) { arm(false); onConfirm(); } else arm(true); }}>${armed ? confirm : children}</button>`;
}

export function Dialog({ title, onClose, children, wide = false }) {
  const box = useRef(null);
  useLayoutEffect(() => { // before the next key
    const before = document.activeElement;
    const target = box.current.querySelector("[autofocus], input, textarea, select") || box.current.querySelector("button");
    if (target) target.focus();
    const onKey = (event) => {
      if (event.key === "Escape") { event.stopPropagation(); onClose(); }
      if (event.key === "Tab") keepInside(event, box.current);
    };
    window.addEventListener("keydown", onKey, true);
    return () => { window.removeEventListener("keydown", onKey, true); if (before && before.focus) before.focus(); };
  }, []);
  return html`<div class="overlay" onMouseDown=${(event) => event.target === event.currentTarget && onClose()}><section class="dialog ${wide ? "wide" : ""}" role="dialog" aria-modal="true" aria-label=${title} ref=${box}>
    <header><h2>${title}</h2><button type="button" class="icon-button" aria-label="Close" onClick=${onClose}><${Icon} name="cross" /></button></header>${children}</section></div>`;
}

function keepInside(event, box) {
  const all = [...box.querySelectorAll("a[href], button:not([disabled]), input, textarea, select, [tabindex='0']")].filter((each) => each.offsetParent !== null);
  if (!all.length) return;
  const first = all[0], last = all[all.length - 1];
  if (event.shiftKey && document.activeElement === first) { event.preventDefault(); last.focus(); }
  else if (!event.shiftKey && document.activeElement === last) { event.preventDefault(); first.focus(); }
}

const TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/g;
const MOST_COLOURED = 60000, MOST_SHOWN = 400000;
/** JSON with colours, as text nodes. */
export function Json({ value, max }) {
  const shown = useMemo(() => {
    let source = "";
    try { source = typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? ""; } catch (error) { source = text(error.message); }
    if (source.length > MOST_COLOURED) return [source.slice(0, MOST_SHOWN) + (source.length > MOST_SHOWN ? "\n… cut here" : "")];
    const pieces = [];
    let from = 0;
    for (const match of source.matchAll(TOKEN)) {
      if (match.index > from) pieces.push(source.slice(from, match.index));
      const kind = match[1] ? (match[2] ? "k" : "s") : match[3] ? "w" : "n";
      pieces.push(html`<span class=${kind}>${match[1] || match[0]}</span>`);
      if (match[2]) pieces.push(match[2]);
      from = match.index + match[0].length;
    }
    pieces.push(source.slice(from));
    return pieces;
  }, [value]);
  return html`<div class="code-box"><pre class="json ${max ? "limited" : ""}" tabindex="0">${shown}</pre><${CopyButton} quiet value=${() => text(value)} label="Copy JSON" /></div>`;
}

export const Code = ({ children }) => html`<div class="code-box"><pre tabindex="0">${text(children)}</pre><${CopyButton} quiet value=${text(children)} label="Copy" /></div>`;

export function useRole() {
  const node = overview.use();
  return node ? node.role : null;
}

export function useOnline() { return connection.use().state; }

export const Page = ({ title, aside, lead, children }) => {
  useEffect(() => { document.title = `${text(title)} · Fabric`; }, [title]);
  return html`<div class="page"><header class="page-head"><div><h1>${title}</h1>${lead ? html`<p class="lead">${lead}</p>` : null}</div>${aside ? html`<div class="page-aside">${aside}</div>` : null}</header>${children}</div>`;
};
