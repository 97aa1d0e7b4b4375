// Conversations, inboxes and topics.
import { admin, go, html, Link, part, plural, text, useLive, useState } from "./lib.js";
import { Command, Empty, Fresh, Icon, Json, Page, Time } from "./parts.js";

export function Messages({ id }) {
  return id ? html`<${Conversation} key=${id} id=${id} />` : html`<${Inboxes} />`;
}

function Inboxes() {
  const live = useLive((signal) => admin("messages", {}, { signal }), [], 4000);
  const [wanted, setWanted] = useState("");
  const data = live.data;
  return html`<${Page} title="Messages">
    <form class="toolbar" onSubmit=${(event) => { event.preventDefault(); if (wanted.trim()) go(`/messages/${part(wanted.trim())}`); }}><label class="searchbox"><${Icon} name="search" size=${14} /><input data-search value=${wanted} placeholder="Open a conversation by its id" aria-label="Conversation id" onInput=${(event) => setWanted(event.target.value)} /><kbd>/</kbd></label></form>
    <${Fresh} live=${live} empty=${html`<div class="rows-skeleton" aria-hidden="true"></div>`}>${data ? html`
      <section class="block"><header><h2>Conversations</h2></header>${data.conversations.length ? html`<ul class="lines">${data.conversations.map((each) => html`<li key=${each.conversation_id}><${Link} to=${`/messages/${part(each.conversation_id)}`}><b>${text(each.agent_id)}</b><span class="muted cut grow">${text(each.text)}</span><span class="faint"><${Time} at=${each.at} /></span><//></li>`)}</ul>` : html`<${Empty} title="No conversations yet"><p>A message to an agent begins one. Each delivery is a job.</p><${Command}>a2a-fabric messages send percy 'what is 2 + 3 * 4'<//><//>`}</section>
      <div class="two"><section class="block"><header><h2>Inboxes with messages</h2></header>${data.inboxes.length ? html`<ul class="lines">${data.inboxes.map((each) => html`<li><div><b>${text(each.inbox)}</b><span class="grow"></span>${plural(each.waiting, "message")} waiting${each.held ? html`, ${each.held} held` : null}</div></li>`)}</ul>` : html`<p class="calm"><${Icon} name="check" /> All inboxes are empty.</p>`}</section>
      <section class="block"><header><h2>Topics</h2></header>${data.topics.length ? html`<ul class="lines">${data.topics.map((each) => html`<li><div><b>${text(each.topic)}</b><span class="grow"></span>${plural(each.subscribers, "subscriber")}</div></li>`)}</ul>` : html`<p class="hint">No inbox has subscribed to a topic.</p>`}</section></div>` : null}<//><//>`;
}

function Conversation({ id }) {
  const live = useLive((signal) => admin("messages", { conversation_id: id }, { signal }), [id], 2500);
  const all = live.data ? live.data.messages : [];
  return html`<div class="page"><nav class="crumbs"><${Link} to="/messages">Messages<//></nav><h1>Conversation</h1><p class="lead mono">${id}</p>
    <${Fresh} live=${live}>${all.length ? html`<ol class="talk">${all.map((message) => html`<li key=${message.message_id} class=${message.from === all[0].from ? "" : "other"}><header><b>${text(message.from)}</b>${message.to.length ? html` <span class="faint">to ${message.to.join(", ")}</span>` : null}<${Time} at=${message.sent_at} /></header>${message.parts.map((each) => (typeof each.text === "string" || typeof each.content === "string" ? html`<pre class="stream">${text(each.text ?? each.content)}</pre>` : html`<${Data} part=${each} />`))}</li>`)}</ol>` : html`<${Empty} title="No messages"><p>There is no conversation with this id, or its messages were removed.</p><//>`}<//></div>`;
}

/** What an agent answers is mostly a text with some facts beside it: the text is shown as one. */
function Data({ part: { kind, data, ...more } }) {
  if (data === null || typeof data !== "object" || Array.isArray(data)) return html`<${Json} value=${data === undefined ? { kind, ...more } : data} max />`;
  const { answer, ...rest } = data;
  const isText = typeof answer === "string" && answer;
  return html`${isText ? html`<pre class="stream">${answer}</pre>` : null}${!isText || Object.keys(rest).length ? html`<${Json} value=${isText ? rest : data} max />` : null}`;
}
