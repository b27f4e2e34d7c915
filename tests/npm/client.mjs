// Asks a server (its address is the first argument) as a program in JavaScript does, and prints what it got as JSON.
import OpenAI, { BadRequestError, NotFoundError } from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0, timeout: 60000 });
const messages = [{ role: "user", content: "Add 1?" }];
const parameters = { type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false };
const result = {};

async function stream() {
  const parts = { reasoning: "", content: "", finish: null, usage: null };
  const chunks = await client.chat.completions.create({
    model: "qwen3", messages, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of chunks) {
    const choice = chunk.choices[0];
    parts.reasoning += choice?.delta.reasoning_content ?? "";
    parts.content += choice?.delta.content ?? "";
    parts.finish ??= choice?.finish_reason;
    parts.usage = chunk.usage;
  }
  return parts;
}

async function call(model) {
  const tool = { type: "function", function: { name: "mul", parameters } };
  const whole = await client.chat.completions.stream({
    model, messages, tools: [tool], tool_choice: { type: "function", function: { name: "mul" } } }).finalChatCompletion();
  const { name, arguments: text } = whole.choices[0].message.tool_calls[0].function;
  return { name, arguments: JSON.parse(text), finish: whole.choices[0].finish_reason };
}

// The whole way: the model calls, the function runs here, its result goes back, the model answers.
async function agent() {
  const given = [];
  const add = ({ a }) => { given.push(a); return String(a + 1); };
  const runner = client.chat.completions.runTools({
    model: "mistral", messages, tools: [{ type: "function", function: { name: "add", parameters, function: add, parse: JSON.parse } }] });
  return { content: await runner.finalContent(), given, roles: runner.messages.map((m) => m.role) };
}

async function refused(ask, kind) {
  try {
    await ask();
  } catch (e) {
    return { isKind: e instanceof kind, status: e.status, param: e.param, code: e.code, type: e.type, id: typeof e.requestID };
  }
}

async function leave() {
  const chunks = await client.completions.create({ model: "open", prompt: "\n", max_tokens: 400, stream: true });
  for await (const chunk of chunks) return chunk.object; // closes the stream
}

result.stream = await stream();
result.calls = {};
for (const model of ["qwen3", "llama", "mistral"]) result.calls[model] = await call(model);
result.agent = await agent();
result.embeddings = (await client.embeddings.create({ model: "qwen3", input: ["x", "yz"] })).data.map((d) => d.embedding);
result.floats = (await client.embeddings.create({ model: "qwen3", input: ["x", "yz"], encoding_format: "float" }))
  .data.map((d) => d.embedding);
result.models = [];
for await (const m of client.models.list()) result.models.push(m.id);
result.several = (await client.completions.create({ model: "llama", prompt: ["The", "The answer"], n: 2, max_tokens: 3 }))
  .choices.map((c) => c.index);
result.bad = await refused(() => client.chat.completions.create({ model: "qwen3", messages, temperature: -1 }), BadRequestError);
result.unknown = await refused(() => client.chat.completions.create({ model: "gpt-4", messages }), NotFoundError);
result.left = await leave();
console.log(JSON.stringify(result));
