/** Vercel's AI SDK: an answer, a stream, an object, and a tool that the SDK calls. */

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const server = createOpenAICompatible({
  name: "ortolan",
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = server(process.argv[2]);
const city = z.enum(["Oslo", "Paris", "Rome"]);
const common = { model, maxOutputTokens: 256 };

const { text, usage } = await generateText({ ...common, prompt: "Name a color." });
console.log(`answer: ${text} (${usage.outputTokens} tokens)`);

let streamed = "";
for await (const part of streamText({ ...common, prompt: "Name a city." }).textStream) streamed += part;
console.log(`streamed: ${streamed}`);

const schema = z.object({ city, isWarm: z.boolean() });
const { output } = await generateText({ ...common, output: Output.object({ schema }), prompt: "Is it warm in Rome?" });
console.log(`object: ${JSON.stringify(output)}`);

const weather = tool({ inputSchema: z.object({ city }), execute: async ({ city }) => `sunny in ${city}` });
const { steps } = await generateText({
  ...common,
  tools: { weather },
  providerOptions: { ortolan: { parallel_tool_calls: false } },
  toolChoice: "required",
  stopWhen: stepCountIs(2),
  prompt: "Is it warm in Paris?",
});
const results = steps.flatMap(({ toolResults }) => toolResults.map((result) => result.output));
console.log(`tools: ${results.join(", ")}`);
console.log(`ids: ${new Set(steps.flatMap(({ toolCalls }) => toolCalls.map((call) => call.toolCallId))).size === results.length}`);
