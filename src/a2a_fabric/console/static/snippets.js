// How to reach a capability from elsewhere. Each snippet runs as it is, with the key in the variable FABRIC_TOKEN.
import { part } from "./lib.js";

const quoted = (source) => `'${source.replaceAll("'", `'\\''`)}'`;

export const hasForm = (schema) => Boolean(schema && schema.properties && Object.keys(schema.properties).length);

function exampleValue(field) {
  if ("default" in field) return field.default;
  if ("const" in field) return field.const;
  if (Array.isArray(field.enum)) return field.enum[0];
  const type = Array.isArray(field.type) ? field.type[0] : field.type;
  return { integer: 1, number: 1, boolean: true, array: [], object: {} }[type] ?? "…";
}

export function exampleOf(capability) {
  const schema = (capability && capability.input_schema) || {};
  const properties = schema.properties || {};
  const required = schema.required || [];
  const names = required.length ? required : Object.keys(properties).slice(0, 1);
  return Object.fromEntries(names.map((name) => [name, exampleValue(properties[name] || {})]));
}

/** A JSON value as Python writes it; strings have the same form in both. */
function toPython(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(toPython).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${toPython(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

/** `token` is a key to put in; without one, each client reads it from the variable in its own way. */
export function snippets(origin, agentId, capability, token = "") {
  const name = capability ? capability.name : "…";
  const example = exampleOf(capability);
  const isWords = !capability || !hasForm(capability.input_schema) || Object.keys(example).join() === "task";
  const body = isWords ? { task: "…" } : { task: "", context: example };
  const request = JSON.stringify({ name: "fabric.call", arguments: { agent_id: agentId, capability: name, ...body } }, null, 2);
  const mcp = `${origin}/agents/${part(agentId)}/mcp`;
  const label = agentId.replace(/[^A-Za-z0-9_-]+/g, "-");
  const message = { messageId: "m-1", role: "ROLE_USER", parts: isWords ? [{ text: "…" }] : [{ data: { skill: name, arguments: example } }], ...(isWords ? { metadata: { skill: name } } : {}) };
  const shell = token || "$FABRIC_TOKEN";
  return {
    curl: `curl -s ${origin}/mcp/call \\\n  -H "Authorization: Bearer ${shell}" \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(request)}`,
    Python: `${token ? "" : "import os\n\n"}from a2a_fabric import SyncFabricClient\n\ntoken = ${token ? JSON.stringify(token) : 'os.environ["FABRIC_TOKEN"]'}\nwith SyncFabricClient("${origin}", token=token) as fabric:\n    result = fabric.call(${JSON.stringify(agentId)}, ${JSON.stringify(name)}, ${isWords ? '"…"' : `"", context=${toPython(example)}`})\n    print(result.data)`,
    TypeScript: `const reply = await fetch("${origin}/mcp/call", {\n  method: "POST",\n  headers: {\n    "Authorization": ${token ? JSON.stringify(`Bearer ${token}`) : "`Bearer ${process.env.FABRIC_TOKEN}`"},\n    "Content-Type": "application/json",\n  },\n  body: JSON.stringify(${request.replaceAll("\n", "\n  ")}),\n});\nconst { ok, result, error, trace } = await reply.json();\nif (!ok) throw new Error(\`\${error} (trace \${trace.trace_id})\`);\nconsole.log(result);`,
    Claude: `claude mcp add --transport http ${label} ${mcp} \\\n  --header "Authorization: Bearer ${shell}"`,
    Cursor: JSON.stringify({ mcpServers: { [label]: { url: mcp, headers: { Authorization: `Bearer ${token || "${env:FABRIC_TOKEN}"}` } } } }, null, 2),
    A2A: `# card: ${origin}/agents/${part(agentId)}/.well-known/agent-card.json\ncurl -s ${origin}/agents/${part(agentId)}/message:send \\\n  -H "Authorization: Bearer ${shell}" -H 'A2A-Version: 1.0' \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify({ message }, null, 2))}`,
  };
}

export const NOTES = { Claude: "Then its tools are in Claude Code.", Cursor: "In .cursor/mcp.json, or ~/.cursor/mcp.json for all projects.", A2A: "Any A2A client can start from the card.", Python: "pip install a2a-fabric", TypeScript: "Runs as it is in Node 18 and newer, Deno and Bun." };
