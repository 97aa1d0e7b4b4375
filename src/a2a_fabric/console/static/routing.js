// Type words, see which agent would answer, and why.
import { call, html, Link, part, setQuery, text, useEffect, useLive, useState } from "./lib.js";
import { Fault, Icon, Page } from "./parts.js";
import { Growing } from "./form.js";

const EXAMPLES = ["count the words of this sentence", "what is 12 * 7 + 16", "convert 3 miles to km"];

export function Route({ query }) {
  const [words, setWords] = useState(query.text || "");
  useEffect(() => { const timer = setTimeout(() => { if (words !== (query.text || "")) setQuery({ text: words }); }, 250); return () => clearTimeout(timer); }, [words]);
  useEffect(() => { if ((query.text || "") !== words) setWords(query.text || ""); }, [query.text]);
  const asked = (query.text || "").trim();
  const live = useLive((signal) => (asked ? call("fabric.route", { text: asked }, { signal }) : Promise.resolve(null)), [asked]);
  const route = asked ? live.data : null;
  const most = route ? Math.max(1, ...route.candidates.map((each) => each.score || 0)) : 1;
  return html`<${Page} title="Route" lead="Which agent answers a request in plain words. Nothing is called.">
    <label class="ask"><span class="offscreen">Request in words</span><${Growing} id="route-text" value=${words} onChange=${setWords} placeholder="Write a request as a person would" rows=${2} /></label>
    ${asked ? null : html`<p class="hint examples">Try ${EXAMPLES.map((each) => html`<button type="button" class="link" onClick=${() => setWords(each)}>${each}</button>`)}</p>`}
    ${live.error && asked ? html`<${Fault} error=${live.error} />` : null}
    ${route ? html`<section class="verdict ${route.agent_id ? "" : "none"}">${route.agent_id ? html`<p><${Icon} name="route" /><${Link} to=${`/agents/${part(route.agent_id)}${route.capability ? `?do=${part(route.capability)}` : ""}`}><b>${text(route.agent_id)}</b>${route.capability ? html`.${text(route.capability)}` : null}<//></p>` : html`<p><${Icon} name="warn" />No agent fits</p>`}<p class="muted">${text(route.reason)}</p></section>
      ${route.candidates.length ? html`<ol class="candidates">${route.candidates.map((each, place) => html`<li key=${each.agent_id} class=${each.agent_id === route.agent_id ? "first" : ""}><span class="rank">${place + 1}</span><span class="row-main"><${Link} to=${`/agents/${part(each.agent_id)}`}><b>${text(each.agent_id)}</b>${each.capability ? html`.${text(each.capability)}` : null}<//><small>${(each.why || []).map(text).join(" · ")}</small></span><span class="score"><i style=${{ width: `${(100 * (each.score || 0)) / most}%` }}></i></span><span class="num">${each.score ?? "–"}</span></li>`)}</ol>` : html`<p class="hint">No candidates.</p>`}` : null}
  <//>`;
}
