#!/usr/bin/env node
// A JSON-lines agent without any library: one request a line on stdin, events and replies on stdout.
import { createInterface } from "node:readline";

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const running = new Map();

const manifest = {
  description: "Counts down.",
  capabilities: [{
    name: "count_down",
    streaming: true,
    input_schema: { type: "object", properties: { from: { type: "integer" } }, required: ["from"] },
  }],
};

async function countDown(id, from) {
  for (let n = from; n > 0 && running.get(id); n--) {
    say({ id, event: "token", data: { text: `${n} ` } });
    await new Promise((next) => setTimeout(next, 10));
  }
  if (running.delete(id)) say({ id, ok: true, result: { answer: "Lift-off!" } });
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, name, arguments: given, cancel } = JSON.parse(line);
  if (cancel) running.delete(id);
  else if (name === "fabric.describe") say({ id, ok: true, result: manifest });
  else if (name === "count_down") { running.set(id, true); countDown(id, given.from); }
  else say({ id, ok: false, error: { code: "CAPABILITY_NOT_FOUND", message: `I cannot ${name}` } });
}
