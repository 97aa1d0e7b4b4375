// A client made with @a2a-js/sdk: does one thing after the other and prints what it got, as one JSON object.
//     node a2a_client.mjs FOLDER URL KEY BINDING      (FOLDER is where the package is installed)
import { randomUUID } from 'node:crypto';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, url, key, binding] = process.argv.slice(2);
const found = createRequire(`${folder}/`);
const { ClientFactory, JsonRpcTransportFactory, RestTransportFactory, DefaultAgentCardResolver } = await import(
  pathToFileURL(found.resolve('@a2a-js/sdk/client'))
);
const { Role } = await import(pathToFileURL(found.resolve('@a2a-js/sdk')));

const fetchImpl = (input, init = {}) => {
  const headers = new Headers(init.headers);
  headers.set('Authorization', `Bearer ${key}`);
  return fetch(input, { ...init, headers });
};

const transport = binding === 'JSONRPC' ? new JsonRpcTransportFactory({ fetchImpl }) : new RestTransportFactory({ fetchImpl });
const factory = new ClientFactory({ transports: [transport], cardResolver: new DefaultAgentCardResolver({ fetchImpl }) });
const client = await factory.createFromUrl(`${url}/`, '.well-known/agent-card.json');

const message = (content, skill, taskId = '') => ({
  tenant: '',
  message: {
    messageId: randomUUID(),
    role: Role.ROLE_USER,
    parts: [{ content, metadata: undefined, filename: '', mediaType: '' }],
    contextId: '',
    taskId,
    extensions: [],
    referenceTaskIds: [],
    metadata: skill ? { skill } : undefined,
  },
  configuration: undefined,
  metadata: undefined,
});
const text = (value) => ({ $case: 'text', value });

const out = {};
out.sent = await client.sendMessage(message({ $case: 'data', value: { text: 'hello', times: 3 } }, 'shout'));
out.got = await client.getTask({ tenant: '', id: out.sent.id, historyLength: undefined });
out.streamed = [];
for await (const event of client.sendMessageStream(message(text('one two three'), 'talk'))) out.streamed.push(event);
out.asked = await client.sendMessage(message(text('a door'), 'paint'));
out.answered = await client.sendMessage(message(text('red'), '', out.asked.id));
out.cancelled = await client.cancelTask({ tenant: '', id: out.asked.id, metadata: undefined });
try {
  await client.getTask({ tenant: '', id: 'nobody-has-this', historyLength: undefined });
} catch (error) {
  out.missing = `${error.name}: ${error.message}`;
}
console.log(JSON.stringify(out));
