// Uses a server through a TypeScript SDK and prints what came back as JSON.
// Usage: node typescript_client.mjs PACKAGES SDK MODE TARGET [ARGUMENT...]
//   PACKAGES  the node_modules directory   SDK  "sdk" (version 1) or "client" (version 2)
//   MODE      "legacy" or a protocol version, for version 2
//   TARGET    a URL, of HTTP+SSE when it ends in /sse, or a command
import { pathToFileURL } from "node:url";
import { createRequire } from "node:module";

const [packages, sdk, mode, target, ...rest] = process.argv.slice(2);
const require = createRequire(pathToFileURL(packages + "/"));
const load = (name) => import(pathToFileURL(require.resolve(name)));
let Client, StdioClientTransport, StreamableHTTPClientTransport, SSEClientTransport, elicit, progressOf;
if (sdk === "sdk") {
    ({ Client } = await load("@modelcontextprotocol/sdk/client/index.js"));
    ({ StdioClientTransport } = await load("@modelcontextprotocol/sdk/client/stdio.js"));
    ({ StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js"));
    ({ SSEClientTransport } = await load("@modelcontextprotocol/sdk/client/sse.js"));
    elicit = (await load("@modelcontextprotocol/sdk/types.js")).ElicitRequestSchema;
} else {
    ({ Client, StreamableHTTPClientTransport } = await load("@modelcontextprotocol/client"));
    ({ StdioClientTransport } = await load("@modelcontextprotocol/client/stdio"));
    elicit = "elicitation/create";
}
const options = { capabilities: { elicitation: {} } };
if (sdk === "client")
    options.versionNegotiation = { mode: mode === "legacy" ? "legacy" : { pin: mode } };
const client = new Client({ name: "test", version: "1" }, options);
client.setRequestHandler(elicit, async () => ({ action: "accept", content: { username: "ann", email: "ann@example.org" } }));
await client.connect(
    target.endsWith("/sse")
        ? new SSEClientTransport(new URL(target))
        : target.startsWith("http")
        ? new StreamableHTTPClientTransport(new URL(target))
        : new StdioClientTransport({ command: target, args: rest }),
);
const call = (name, args, more) =>
    sdk === "sdk" ? client.callTool({ name, arguments: args ?? {} }, undefined, more)
                  : client.callTool({ name, arguments: args ?? {} }, more);
const reports = [];
const result = {};
result.tools = (await client.listTools()).tools.length;
result.text = (await call("test_simple_text")).content[0].text;
result.image = (await call("test_image_content")).content[0].mimeType;
result.structured = (await call("test_structured_content")).structuredContent;
result.failed = (await call("test_error_handling")).isError;
await call("test_tool_with_progress", {}, { onprogress: (report) => reports.push(report.progress) });
result.progress = reports;
result.elicited = (await call("test_elicitation", { message: "who?" })).content[0].text;
result.reconnected = mode === "legacy" ? (await call("test_reconnection")).content[0].text : null;
result.resource = (await client.readResource({ uri: "test://template/7/data" })).contents[0].text;
result.prompt = (await client.getPrompt({ name: "test_prompt_with_arguments", arguments: { arg1: "a", arg2: "b" } })).messages.length;
const many = await Promise.all(Array.from({ length: 20 }, (_, i) =>
    call("json_schema_2020_12_tool", { name: `n${i}`, email: "e" })));
result.many = many.every((answer, i) => JSON.parse(answer.content[0].text).name === `n${i}`);
const controller = new AbortController();
const cancelled = call("test_tool_with_progress", {}, { signal: controller.signal });
setTimeout(() => controller.abort("enough"), 30);
result.cancelled = await cancelled.then(() => false, () => true);
result.after = (await call("test_simple_text")).content[0].text === result.text;
await client.close();
console.log(JSON.stringify(result));
