// The official OpenAI client for Node, as its users write it. Prints one JSON object of what came back.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.GRIX_URL}/v1`, apiKey: process.env.GRIX_KEY, maxRetries: 0 });
const question = process.env.GRIX_QUESTION;
const ask = { model: "auto", temperature: 0, messages: [{ role: "user", content: question }] };
const parameters = {
  type: "object",
  properties: { order_id: { enum: ["A1024", "B2048"] } },
  required: ["order_id"],
  additionalProperties: false,
};
const told = {};

told.models = [];
for await (const model of client.models.list()) told.models.push(model.id);

const whole = await client.chat.completions.create(ask);
told.content = whole.choices[0].message.content;
told.finish = whole.choices[0].finish_reason;

told.streamed = "";
told.usages = 0;
const stream = await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  told.streamed += chunk.choices[0]?.delta?.content ?? "";
  told.usages += chunk.usage ? 1 : 0;
}

// The helper that gathers a stream into one answer.
told.gathered = await client.chat.completions.stream(ask).finalContent();

const called = await client.chat.completions.create({
  ...ask,
  max_tokens: 128,
  tools: [{ type: "function", function: { name: "order_status", parameters } }],
  tool_choice: { type: "function", function: { name: "order_status" } },
});
told.call = called.choices[0].message.tool_calls[0].function;

const formatted = await client.chat.completions.create({
  ...ask,
  max_tokens: 128,
  response_format: { type: "json_schema", json_schema: { name: "order", strict: true, schema: parameters } },
});
told.formatted = formatted.choices[0].message.content;

told.errors = {};
for (const [name, change] of [["BadRequestError", { temperature: 9 }], ["NotFoundError", { model: "grix-4" }]]) {
  try {
    await client.chat.completions.create({ ...ask, ...change });
  } catch (error) {
    told.errors[name] = { right: error instanceof OpenAI[name], param: error.param, code: error.code };
  }
}

// Leaving a stream early is not an error, neither here nor there.
const left = await client.chat.completions.create({ ...ask, stream: true });
for await (const _ of left) break;

console.log(JSON.stringify(told));
