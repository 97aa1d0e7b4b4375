// A form from a JSON Schema: what is required first, enums as buttons, objects folded, raw JSON one press away.
import { html, text, useEffect, useRef, useState } from "./lib.js";
import { Icon } from "./parts.js";

const MAX_DEPTH = 4;

function resolve(schema, root) {
  let current = schema || {};
  for (let steps = 0; current.$ref && steps < 8; steps += 1) {
    const path = String(current.$ref).replace(/^#\//, "").split("/");
    current = path.reduce((at, name) => (at && Object.hasOwn(at, name) ? at[name] : undefined), root) || {};
  }
  const choices = current.anyOf || current.oneOf;
  if (Array.isArray(choices)) {
    const real = choices.filter((each) => each && each.type !== "null");
    if (real.length === 1) return { ...resolve(real[0], root), ...Object.fromEntries(["description", "title", "default"].filter((key) => key in current).map((key) => [key, current[key]])) };
  }
  return current;
}

const kindOf = (schema) => {
  if (Array.isArray(schema.enum)) return "enum";
  const type = Array.isArray(schema.type) ? schema.type.find((each) => each !== "null") : schema.type;
  if (type === "object" && schema.properties) return "object";
  if (type === "array") { const items = schema.items || {}; return items.type === "string" && !items.enum ? "lines" : "json"; }
  if (["string", "integer", "number", "boolean"].includes(type)) return type;
  return "json";
};

/** What a form starts with: the defaults. */
export function initialValue(schema) {
  const value = {};
  for (const [name, raw] of Object.entries((schema && schema.properties) || {})) {
    const field = resolve(raw, schema);
    if ("default" in field && field.default !== null) value[name] = field.default;
  }
  return value;
}

/** The names of required fields that are empty. */
export const missing = (schema, value) => ((schema && schema.required) || []).filter((name) => value[name] === undefined || value[name] === "");

export function SchemaForm({ schema, value, onChange, idPrefix = "f" }) {
  const [raw, setRaw] = useState(null);
  const [bad, setBad] = useState("");
  const showRaw = raw !== null;
  const edit = (source) => {
    setRaw(source);
    try {
      const parsed = source.trim() ? JSON.parse(source) : {};
      if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed)) throw new Error("the arguments are an object");
      setBad("");
      onChange(parsed);
    } catch (error) { setBad(error.message); }
  };
  return html`<div class="schema-form">
    ${showRaw ? html`<textarea class="mono" aria-label="Arguments as JSON" rows=${Math.min(16, Math.max(5, raw.split("\n").length + 1))} spellcheck=${false} value=${raw} onInput=${(event) => edit(event.target.value)}></textarea>${bad ? html`<p class="field-error">${bad}</p>` : null}` : html`<${Fields} schema=${schema} root=${schema} value=${value} onChange=${onChange} prefix=${idPrefix} depth=${0} />`}
    <button type="button" class="link small" onClick=${() => { setRaw(showRaw ? null : JSON.stringify(value, null, 2)); setBad(""); }}>${showRaw ? "As a form" : "As JSON"}</button>
  </div>`;
}

function Fields({ schema, root, value, onChange, prefix, depth }) {
  const required = new Set(schema.required || []);
  const names = Object.keys(schema.properties || {}).sort((a, b) => required.has(b) - required.has(a));
  if (!names.length) return html`<p class="hint">It takes no arguments.</p>`;
  const change = (name, next) => {
    const copied = { ...value };
    if (next === undefined) delete copied[name]; else copied[name] = next;
    onChange(copied);
  };
  return names.map((name) => html`<${Field} key=${name} name=${name} schema=${resolve(schema.properties[name], root)} root=${root} required=${required.has(name)} value=${value[name]} onChange=${(next) => change(name, next)} id=${`${prefix}-${name}`} depth=${depth} />`);
}

function Field({ name, schema, root, required, value, onChange, id, depth }) {
  const kind = depth >= MAX_DEPTH ? "json" : kindOf(schema);
  const about = text(schema.description);
  if (kind === "object") return html`<details class="field folded" open=${required}><summary><${Icon} name="chevron" size=${12} />${name}${required ? html`<i class="required" title="required">required</i>` : null}<small>${about}</small></summary><${Fields} schema=${schema} root=${root} value=${value && typeof value === "object" ? value : {}} onChange=${onChange} prefix=${id} depth=${depth + 1} /></details>`;
  return html`<div class="field"><label for=${id}>${name}${required ? html`<i class="required">required</i>` : null}<span class="field-kind">${kind === "lines" ? "one a line" : kind === "json" ? "JSON" : kind === "enum" || kind === "string" ? "" : kind}</span></label>
    <${Input} kind=${kind} schema=${schema} value=${value} onChange=${onChange} id=${id} name=${name} />
    ${about ? html`<p class="field-about">${about}</p>` : null}</div>`;
}

const LONG = /text|task|content|body|message|prompt|question|query|code|html|markdown|description|input/i;

function Input({ kind, schema, value, onChange, id, name }) {
  if (kind === "enum" && schema.enum.length <= 7) return html`<div class="choices" role="radiogroup" id=${id}>${schema.enum.filter((each) => each !== null).map((each) => html`<button type="button" role="radio" aria-checked=${value === each ? "true" : "false"} class=${value === each ? "on" : ""} onClick=${() => onChange(value === each ? undefined : each)}>${text(each)}</button>`)}</div>`;
  if (kind === "enum") return html`<select id=${id} value=${value === undefined ? "" : JSON.stringify(value)} onChange=${(event) => onChange(event.target.value ? JSON.parse(event.target.value) : undefined)}><option value=""></option>${schema.enum.map((each) => html`<option value=${JSON.stringify(each)} selected=${value === each}>${text(each)}</option>`)}</select>`;
  if (kind === "boolean") return html`<div class="choices" role="radiogroup" id=${id}>${[true, false].map((each) => html`<button type="button" role="radio" aria-checked=${value === each ? "true" : "false"} class=${value === each ? "on" : ""} onClick=${() => onChange(value === each ? undefined : each)}>${each ? "Yes" : "No"}</button>`)}</div>`;
  if (kind === "integer" || kind === "number") return html`<input id=${id} type="number" step=${kind === "integer" ? 1 : "any"} min=${schema.minimum} max=${schema.maximum} value=${value === undefined ? "" : value} onInput=${(event) => onChange(event.target.value === "" ? undefined : Number(event.target.value))} />`;
  if (kind === "lines") return html`<textarea id=${id} rows="3" value=${Array.isArray(value) ? value.join("\n") : ""} onInput=${(event) => onChange(event.target.value ? event.target.value.split("\n") : undefined)}></textarea>`;
  if (kind === "json") return html`<${JsonInput} id=${id} value=${value} onChange=${onChange} />`;
  const isLong = !schema.format && (schema.maxLength === undefined || schema.maxLength > 200) && LONG.test(name);
  if (isLong) return html`<${Growing} id=${id} value=${value === undefined ? "" : text(value)} onChange=${(next) => onChange(next === "" ? undefined : next)} />`;
  return html`<input id=${id} type=${schema.format === "date" ? "date" : schema.format === "uri" ? "url" : schema.format === "email" ? "email" : "text"} autocomplete="off" value=${value === undefined ? "" : text(value)} onInput=${(event) => onChange(event.target.value === "" ? undefined : event.target.value)} />`;
}

export function Growing({ id, value, onChange, placeholder, rows = 2 }) {
  const box = useRef(null);
  useEffect(() => { const area = box.current; area.style.height = "auto"; area.style.height = `${Math.min(area.scrollHeight + 2, 320)}px`; }, [value]);
  return html`<textarea id=${id} ref=${box} rows=${rows} placeholder=${placeholder} value=${value} onInput=${(event) => onChange(event.target.value)}></textarea>`;
}

function JsonInput({ id, value, onChange }) {
  const [source, setSource] = useState(value === undefined ? "" : JSON.stringify(value, null, 2));
  const [bad, setBad] = useState("");
  const edit = (next) => {
    setSource(next);
    try { onChange(next.trim() ? JSON.parse(next) : undefined); setBad(""); } catch (error) { setBad(error.message); }
  };
  return html`<textarea id=${id} class="mono" rows="3" spellcheck=${false} value=${source} onInput=${(event) => edit(event.target.value)}></textarea>${bad ? html`<p class="field-error">${bad}</p>` : null}`;
}

/** The questions of an agent, each with its form; `onAnswer` gets all answers. */
export function Questions({ questions, onAnswer, busy }) {
  const keys = Object.keys(questions);
  const [values, setValues] = useState(() => Object.fromEntries(keys.map((key) => [key, initialValue(questions[key].schema)])));
  const [plain, setPlain] = useState({});
  const answer = (action) => onAnswer(Object.fromEntries(keys.map((key) => [key, action === "accept" ? { action, content: questions[key].schema ? values[key] : plain[key] ?? "" } : { action }])));
  const incomplete = keys.some((key) => questions[key].schema && missing(questions[key].schema, values[key]).length);
  return html`<form class="questions" onSubmit=${(event) => { event.preventDefault(); answer("accept"); }}>
    <h4><${Icon} name="messages" size=${14} /> The agent asks</h4>
    ${keys.map((key) => html`<fieldset key=${key}><legend>${text(questions[key].message) || key}</legend>
      ${questions[key].kind === "url" && questions[key].params && questions[key].params.url ? html`<p class="hint">Visit <code>${text(questions[key].params.url)}</code>, then go on.</p>` : questions[key].schema ? html`<${SchemaForm} schema=${questions[key].schema} value=${values[key]} onChange=${(next) => setValues({ ...values, [key]: next })} idPrefix=${`q-${key}`} />` : html`<${Growing} id=${`q-${key}`} value=${plain[key] || ""} onChange=${(next) => setPlain({ ...plain, [key]: next })} />`}</fieldset>`)}
    <div class="actions"><button class="button primary" disabled=${busy || incomplete}>Answer</button><button type="button" class="button" disabled=${busy} onClick=${() => answer("decline")}>Decline</button></div>
  </form>`;
}
