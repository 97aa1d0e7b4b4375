// Keys of callers, and the views to which they can be bound.
import { admin, copy, html, overview, plural, say, text, useLive, useState } from "./lib.js";
import { Badge, Code, Command, ConfirmButton, Dialog, Empty, Fault, Fresh, Icon, Page, Tag, Time, useRole } from "./parts.js";

export function Keys() {
  const keys = useLive((signal) => admin("keys", {}, { signal }), [], 5000);
  const views = useLive((signal) => admin("views", {}, { signal }), [], 0);
  const role = useRole();
  const [open, setOpen] = useState(false);
  const revoke = async (key) => { try { await admin("key.revoke", { name: key.key_id }); say(`Revoked ${key.key_id}`); keys.reload(); } catch (error) { say(error.message, "bad"); } };
  const data = keys.data;
  const node = overview.use();
  // A person who signed in at an issuer has a key with the name `issuer:person`, which ends by itself.
  const isSession = (key) => Boolean(node && key.key_id && node.issuers.some((issuer) => key.name.startsWith(`${issuer}:`)));
  const rows = data ? [...data.configured, ...data.keys.filter((key) => !isSession(key))] : [];
  const sessions = data ? data.keys.filter((key) => isSession(key) && (key.state === "active" || key.state === "ending")) : [];
  return html`<${Page} title="Keys" lead="Who may call, and what each key may do. The store keeps hashes only." aside=${html`<button type="button" class="button primary" disabled=${role !== "operator"} title=${role === "operator" ? "" : "Viewers may not create keys"} onClick=${() => setOpen(true)}><${Icon} name="plus" size=${14} />Create key</button>`}>
    <${Fresh} live=${keys} empty=${html`<div class="rows-skeleton" aria-hidden="true"></div>`}>${rows.length ? html`<div class="table-wrap"><table><thead><tr><th>Name</th><th>State</th><th>May</th><th>Tier</th><th>View</th><th>Expires</th><th>Last used</th><th></th></tr></thead><tbody>${rows.map((key) => html`<tr key=${key.key_id || key.name}><td><b>${text(key.name)}</b>${key.key_id ? html`<small class="mono faint">${key.key_id}</small>` : html`<small class="faint">fabric.yaml</small>`}</td><td><${Badge} state=${key.state} /></td><td class="scopes">${key.scopes === null ? html`<span class="muted">everything</span>` : key.scopes.map((scope) => html`<${Tag}>${scope}<//> `)}</td><td class="muted">${key.trust}</td><td class="muted">${key.view || "–"}</td><td class="muted"><${Time} at=${key.expires_at} /></td><td class="muted">${key.last_used_at ? html`<${Time} at=${key.last_used_at} />` : key.key_id ? "never" : "–"}</td><td class="end">${key.key_id && (key.state === "active" || key.state === "ending") ? html`<${ConfirmButton} danger disabled=${role !== "operator"} confirm="Really revoke?" onConfirm=${() => revoke(key)}>Revoke<//>` : null}</td></tr>`)}</tbody></table></div>` : html`<${Empty} title="No keys besides the node's own"><p>Give each caller a key of its own: it can be limited, and revoked without disturbing the others.</p><${Command}>a2a-fabric keys create reader --scope agent:percy --for 90d<//><//>`}<//>
    ${sessions.length ? html`<section class="block"><header><h2>Signed in</h2><span class="faint">${sessions.length}</span></header><ul class="lines">${sessions.map((key) => html`<li key=${key.key_id}><div><b>${text(key.name)}</b><${Tag}>${key.scopes.includes("console:operate") ? "operator" : "viewer"}<//><span class="grow"></span><span class="faint wide-only">until <${Time} at=${key.expires_at} /></span><${ConfirmButton} danger disabled=${role !== "operator"} confirm="Really sign out?" onConfirm=${() => revoke(key)}>Sign out<//></div></li>`)}</ul></section>` : null}
    <section class="block"><header><h2>Views</h2></header><${Fresh} live=${views}>${views.data && views.data.views.length ? html`<ul class="view-list">${views.data.views.map((view) => html`<li><b>${text(view.name)}</b><span class="muted">${plural(view.agent_count, "agent")}, ${plural(view.tool_count, "tool")}</span><code>/views/${text(view.name)}/mcp</code><p>${Object.entries(view.rules).map(([name, value]) => html`<${Tag}>${name}: ${[value].flat().map(text).join(", ")}<//> `)}</p></li>`)}</ul>` : html`<p class="hint">A view is a named set of agents and tools with an address of its own. Declare one under <code>views</code> in fabric.yaml, then bind keys to it.</p>`}<//></section>
    ${open ? html`<${CreateKey} views=${views.data ? views.data.views.map((view) => view.name) : []} onClose=${() => { setOpen(false); keys.reload(); }} />` : null}
  <//>`;
}

const COMMON = ["*", "agent:", "capability:", "metrics", "register", "console:view", "console:operate"];

function CreateKey({ onClose, views }) {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState("");
  const [days, setDays] = useState("90");
  const [trust, setTrust] = useState("local");
  const [view, setView] = useState("");
  const [made, setMade] = useState(null);
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setError(null);
    try {
      setMade(await admin("key.create", { name: name.trim(), scopes: scopes.split(/[\s,]+/).filter(Boolean), trust, ...(view ? { view } : {}), ...(days ? { days: Number(days) } : {}) }));
    } catch (failure) { setError(failure); }
  };
  if (made) return html`<${Dialog} title="The key of ${made.name}" onClose=${onClose}><p>It is shown only now. Save it where the caller can read it.</p><${Code}>${made.key}<//><div class="actions"><button type="button" class="button primary" onClick=${() => copy(made.key, "Key copied")}>Copy the key</button><button type="button" class="button" onClick=${onClose}>Done</button></div><//>`;
  return html`<${Dialog} title="Create a key" onClose=${onClose}><form class="stack" onSubmit=${submit}>
    <div class="field"><label for="key-name">Name of the caller</label><input id="key-name" autofocus required maxlength="64" value=${name} onInput=${(event) => setName(event.target.value)} /></div>
    <div class="field"><label for="key-scopes">May <i class="required">required</i></label><input id="key-scopes" class="mono" required value=${scopes} placeholder="agent:percy capability:summarize" onInput=${(event) => setScopes(event.target.value)} /><p class="field-about">${COMMON.map((scope) => html`<button type="button" class="tag" onClick=${() => setScopes(`${scopes} ${scope}`.trim())}>${scope}</button> `)}</p></div>
    <div class="pair"><div class="field"><label for="key-days">Valid for days</label><input id="key-days" type="number" min="1" max="36500" value=${days} placeholder="until revoked" onInput=${(event) => setDays(event.target.value)} /></div>
    <div class="field"><label for="key-trust">Trust tier</label><select id="key-trust" value=${trust} onChange=${(event) => setTrust(event.target.value)}>${["local", "org", "public"].map((tier) => html`<option value=${tier}>${tier}</option>`)}</select></div></div>
    ${views.length ? html`<div class="field"><label for="key-view">View</label><select id="key-view" value=${view} onChange=${(event) => setView(event.target.value)}><option value="">none</option>${views.map((each) => html`<option value=${each}>${each}</option>`)}</select></div>` : null}
    ${error ? html`<${Fault} error=${error} />` : null}
    <div class="actions"><button class="button primary" disabled=${!name.trim() || !scopes.trim()}>Create</button><button type="button" class="button" onClick=${onClose}>Cancel</button></div></form><//>`;
}
