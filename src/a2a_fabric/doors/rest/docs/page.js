"use strict";
// Shows openapi.json as a page, with a form for each operation. It asks nobody but this node.

const at = (id) => document.getElementById(id);

function make(tag, about, ...children) {
  const { text, ...more } = about || {};
  const made = Object.assign(document.createElement(tag), more);
  if (text !== undefined) made.textContent = text;
  made.append(...children.filter((child) => child));
  return made;
}

const pretty = (value) => JSON.stringify(value, null, 2);

// Words with `code` in them.
const words = (text) => text.split("`").map((piece, odd) => (odd % 2 ? make("code", { text: piece }) : piece));

// A schema in a few words; a shape with a name is a link to it.
function kind(schema) {
  if (!schema || schema === true) return ["anything"];
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return [make("a", { text: name, href: `#shape-${name}` })];
  }
  const choices = (schema.anyOf || schema.oneOf || []).filter((each) => each.type !== "null");
  if (choices.length) return choices.flatMap((each, place) => (place ? [" or ", ...kind(each)] : kind(each)));
  if (schema.enum) return [schema.enum.filter((each) => each !== null).join(" | ")];
  if ("const" in schema) return [JSON.stringify(schema.const)];
  if (schema.type === "array") return ["list of ", ...kind(schema.items)];
  const least = schema.minimum ?? schema.exclusiveMinimum;
  const given = schema.maximum ?? schema.exclusiveMaximum;
  const most = given > 1e6 ? undefined : given; // that is only there so that it can be written down
  const range = most === undefined ? "" : `, ${least ?? ""}…${most}`;
  return [`${schema.type || "anything"}${range}`];
}

const row = (...cells) => make("tr", {}, ...cells.map((cell, place) =>
  make("td", { className: place + 1 < cells.length && String(cell).length < 30 ? "short" : "" }, ...[cell].flat())));
const table = (...rows) => make("div", { className: "wide" }, make("table", {}, ...rows));

function answers(operation) {
  const told = ([status, about]) => {
    const [media, content] = Object.entries(about.content || {})[0] || [];
    const shape = content ? (media === "application/json" ? kind(content.schema) : [media]) : [""];
    return row(status, shape, about.description);
  };
  const all = Object.entries(operation.responses);
  const errors = all.filter(([status]) => status >= 400);
  return make("section", {}, make("h3", { text: "Answers" }),
    table(...all.filter(([status]) => status < 400).map(told)),
    make("details", { className: "errors" }, make("summary", { text: `${errors.length} kinds of errors` }), table(...errors.map(told))));
}

function parameters(operation) {
  const rows = operation.parameters.map((each) =>
    row(each.name, each.in, kind(each.schema), words(each.description || "")));
  const body = operation.requestBody && row("body", "JSON", kind(operation.requestBody.content["application/json"].schema), "");
  if (!rows.length && !body) return null;
  return make("section", {}, make("h3", { text: "Takes" }), table(...rows, ...(body ? [body] : [])));
}

// What is in the form, as a request.
function request(base, path, verb, boxes, body, accept) {
  const query = new URLSearchParams();
  const headers = accept ? { Accept: accept } : {};
  let url = base + path;
  for (const [each, box] of boxes) {
    if (each.in === "path") url = url.replace(`{${each.name}}`, encodeURIComponent(box.value));
    else if (box.value && each.in === "query") query.set(each.name, box.value);
    else if (box.value) headers[each.name] = box.value;
  }
  if (body) headers["Content-Type"] = "application/json";
  return { url: url + (query.size ? `?${query}` : ""), verb, headers, body: body ? body.value : undefined };
}

function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function curl(asked) {
  const lines = [`curl -s${asked.verb === "GET" || asked.verb === "POST" ? "" : ` -X ${asked.verb}`} "${location.origin}${asked.url}"`,
    `-H "Authorization: Bearer $TOKEN"`];
  for (const [name, value] of Object.entries(asked.headers)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (asked.body !== undefined) lines.push(`-d ${quoted(asked.body)}`);
  return lines.join(" \\\n    ");
}

async function ask(asked, signal) {
  const token = at("token").value;
  const headers = token ? { ...asked.headers, Authorization: `Bearer ${token}` } : asked.headers;
  return fetch(asked.url, { method: asked.verb, headers, body: asked.body, signal });
}

const MOST_SHOWN = 200000;

// Events are shown as they come; anything else when it is there.
async function show(reply, result) {
  result.className = reply.ok ? "good" : "bad";
  result.textContent = `${reply.status} ${reply.statusText}\n`;
  if ((reply.headers.get("content-type") || "").startsWith("text/event-stream")) {
    const pieces = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let piece = await pieces.read(); !piece.done; piece = await pieces.read()) {
      result.textContent = (result.textContent + piece.value).slice(-MOST_SHOWN);
      result.scrollTop = result.scrollHeight;
    }
    return;
  }
  const text = await reply.text();
  let told = text;
  try { told = pretty(JSON.parse(text)); } catch { /* as it is, then */ }
  result.textContent += told.slice(0, MOST_SHOWN);
}

function field(name, box, tall) {
  return make("label", { className: tall ? "tall" : "" }, make("span", { className: "mono", text: name }), box);
}

function form(base, path, verb, operation) {
  const boxes = operation.parameters.map((each) =>
    [each, make("input", { name: each.name, value: each.example ?? "", required: each.required, autocomplete: "off", placeholder: each.in })]);
  const accept = Object.values(operation.responses).some((each) => each.content?.["text/event-stream"]) && "text/event-stream";
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  const text = content && pretty(content.example || {});
  const body = content && make("textarea", { name: "body", value: text, rows: Math.min(14, text.split("\n").length + 1), spellcheck: false });
  const result = make("pre", { hidden: true });
  result.setAttribute("aria-live", "polite");
  const stop = make("button", { type: "button", className: "quiet", text: "Stop", hidden: true });
  const line = make("pre", { hidden: true });
  const copy = make("button", { type: "button", className: "quiet", text: "curl" });
  const made = make("form", {}, make("h3", { text: "Try it" }), ...boxes.map(([each, box]) => field(each.name, box)),
    body && field("body", body, true),
    make("div", { className: "send" }, make("button", { text: "Send" }), copy, stop), line, result);
  copy.addEventListener("click", () => {
    line.hidden = !line.hidden;
    line.textContent = curl(request(base, path, verb, boxes, body, accept));
  });
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    const under = new AbortController();
    stop.onclick = () => under.abort();
    stop.hidden = result.hidden = false;
    try {
      await show(await ask(request(base, path, verb, boxes, body, accept), under.signal), result);
    } catch (error) {
      if (under.signal.aborted) return;
      result.className = "bad";
      result.textContent = `The node did not answer: ${error.message}`;
    } finally {
      stop.hidden = true;
    }
  });
  return made;
}

function entry(base, path, verb, operation) {
  const made = make("details", { className: "entry", id: operation.operationId },
    make("summary", {}, make("span", { className: `verb ${verb}`, text: verb }), make("code", { className: "path", text: path }),
      make("span", { className: "what" }, ...words(operation.summary))));
  made.dataset.words = `${verb} ${path} ${operation.summary}`.toLowerCase();
  const fill = () => {
    const socket = operation.responses["101"] && make("p", { className: "note", text: "A page cannot try this: it is a WebSocket." });
    const left = make("div", {}, socket || form(base, path, verb, operation));
    const right = make("div", {}, parameters(operation), answers(operation));
    made.append(make("div", { className: "inside halves" }, left, right));
  };
  made.addEventListener("toggle", fill, { once: true });
  return made;
}

function shape(name, schema) {
  const needed = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([key, about]) =>
    row(needed.has(key) ? key : `${key}?`, kind(about), words(about.description || "")));
  const made = make("details", { className: "entry shape", id: `shape-${name}` },
    make("summary", {}, make("code", { className: "path", text: name })),
    make("div", { className: "inside" }, make("p", { className: "note" }, ...words(schema.description || "")),
      rows.length ? table(...rows) : make("pre", { text: pretty(schema) })));
  made.dataset.words = name.toLowerCase();
  return made;
}

function section(name, entries, group, about) {
  const title = group ? `${group}: ${name}` : name;
  at("contents").append(make("a", { text: title, href: `#part-${name}` }));
  at("list").append(make("section", { id: `part-${name}` }, make("h2", { text: title }),
    about && make("p", { className: "note" }, ...words(about)), ...entries));
}

function draw(api) {
  document.title = api.info.title;
  at("title").textContent = api.info.title;
  at("version").textContent = api.info.version;
  at("about").append(...words(`${api.info.summary} ${api.info.description} `), make("a", { text: "openapi.json", href: "openapi.json" }));
  at("list").replaceChildren();
  drawSections(api, "shapes");
}

function drawSections(api, shapes, group) {
  const base = new URL(api.servers[0].url).pathname.replace(/\/$/, "");
  const all = Object.entries(api.paths).flatMap(([path, verbs]) =>
    Object.entries(verbs).map(([verb, operation]) => [path, verb.toUpperCase(), operation]));
  for (const tag of api.tags)
    section(tag.name, all.filter(([, , each]) => each.tags.includes(tag.name)).map((each) => entry(base, ...each)), group, tag.description);
  section(shapes, Object.entries(api.components.schemas).filter(([name]) => !at(`shape-${name}`)).map((each) => shape(...each)), group);
  find(); // the reader may have typed before this part arrived
}

// A link to an entry opens it.
function open() {
  const wanted = location.hash.length > 1 && at(decodeURIComponent(location.hash.slice(1)));
  if (wanted && wanted.tagName === "DETAILS") wanted.open = true;
  if (wanted) wanted.scrollIntoView();
}

function find() {
  const wanted = at("find").value.trim().toLowerCase().split(/\s+/);
  for (const part of document.querySelectorAll("#list > section")) {
    const entries = [...part.querySelectorAll(".entry")];
    for (const each of entries) each.hidden = !wanted.every((word) => each.dataset.words.includes(word));
    part.hidden = entries.every((each) => each.hidden);
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = (name) => { document.documentElement.dataset.theme = name; };
theme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
at("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
at("find").addEventListener("input", find);
addEventListener("hashchange", open);
// The operations for operators and the other doors stand below; a node without them has no such document.
const failed = (error) => make("p", { className: "about", role: "alert", text: `The description could not be read: ${error.message}. Load the page again.` });
const drawMore = (url, shapes, group) => fetch(url).then((reply) => (reply.ok ? reply.json() : null))
  .then((api) => api && drawSections(api, shapes, group)).catch((error) => at("list").append(failed(error)));
fetch("openapi.json").then((reply) => reply.json()).then(draw).then(() => drawMore("/admin/openapi.json", "arguments", "admin"))
  .then(() => drawMore("/doors/openapi.json", "bodies", "doors")).then(open).catch((error) => at("list").replaceChildren(failed(error)));
