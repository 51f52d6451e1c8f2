// Drives a server through the TypeScript SDK: client.mjs ERA PROJECT SERVER [ARGUMENT ...]. The first SDK knows one era,
// `legacy`; with `auto` it is the second, a package of its own, that asks the server for the newer one.
// The lines on stdout are what scripts/peers makes its table of; see steps.md beside this file.

import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [era, project, server, ...serverArguments] = process.argv.slice(2);
const second = era === "auto";
const sdk = second ? "@modelcontextprotocol/client" : "@modelcontextprotocol/sdk";

// The SDKs lie in the cache and not beside this file, where an import by name would look for them.
const packages = process.env.BERTH_NODE_PACKAGES;
const inCache = createRequire(join(packages, "package.json"));
const load = (name) => import(pathToFileURL(inCache.resolve(name)));
const { Client } = await load(second ? sdk : `${sdk}/client/index.js`);
const { StdioClientTransport } = await load(second ? `${sdk}/stdio` : `${sdk}/client/stdio.js`);
const { version } = JSON.parse(readFileSync(join(packages, "node_modules", sdk, "package.json"), "utf8"));

const tools = ["bash", "edit", "glob", "grep", "ls", "read", "write"];

function want(condition, seen) {
  if (!condition) throw new Error(`saw ${JSON.stringify(seen)}`);
}

const call = (client, name, args, options) => {
  const request = { name, arguments: args };
  return second ? client.callTool(request, options) : client.callTool(request, undefined, options);
};

const textOf = (result) => result.content.map((part) => part.text ?? "").join("");

/** Waits until `fact()` is true and says for how many milliseconds it did; undefined when it never was. */
async function until(fact, seconds) {
  const start = performance.now();
  while (!fact()) {
    if (performance.now() - start > seconds * 1000) return undefined;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  return Math.round(performance.now() - start);
}

/** Whether no process of that id runs. One that waits for init to collect it runs no more. */
function gone(pid) {
  try {
    return readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").pop().startsWith("Z");
  } catch {
    return true;
  }
}

const steps = {
  async list_tools(client) {
    const names = (await client.listTools()).tools.map((tool) => tool.name);
    want(names.join() === tools.join(), names);
  },

  async read(client) {
    const text = textOf(await call(client, "read", { path: "notes.txt" }));
    want(text.includes("     2\tbeta\n"), text);
  },

  async edit(client) {
    const edit = { path: "notes.txt", old_string: "beta", new_string: "delta" };
    const result = await call(client, "edit", edit);
    want(!result.isError, result);
    const file = readFileSync(join(project, "notes.txt"), "utf8");
    want(file === "alpha\ndelta\ngamma\n", file);
  },

  async grep(client) {
    const text = textOf(await call(client, "grep", { pattern: "needle", path: "src" }));
    want(text.includes("src/lib.rs:2:"), text);
  },

  async failing(client) {
    const text = textOf(await call(client, "bash", { command: "echo before; exit 3" }));
    want(text.trimEnd() === "before\n[exit 3]", text);
  },

  async cancel(client) {
    const abort = new AbortController();
    const command = "sleep 1000 & echo $! >pid; wait";
    const hanging = call(client, "bash", { command }, { signal: abort.signal });
    const ended = hanging.then(() => "an answer", () => "aborted");
    const pidFile = join(project, "pid");
    const started = await until(() => existsSync(pidFile) && readFileSync(pidFile, "utf8").endsWith("\n"), 10);
    want(started !== undefined, "the command never started");
    const pid = Number(readFileSync(pidFile, "utf8"));
    abort.abort();
    want((await ended) === "aborted", "the call was answered");
    const waited = await until(() => gone(pid), 5);
    want(waited !== undefined, `process ${pid} outlives the cancel`);
    const text = textOf(await call(client, "read", { path: "notes.txt" }, { timeout: 5000 }));
    want(text.includes("alpha"), text);
    return `gone after ${waited} ms`;
  },

  async progress(client) {
    const seen = [];
    const command = "for i in 1 2 3 4; do echo line $i; sleep 0.3; done";
    const options = { onprogress: (report) => seen.push(report) };
    const text = textOf(await call(client, "bash", { command }, options));
    want(text.includes("line 4\n[exit 0]"), text);
    want(seen.length >= 2, seen);
    want(seen.every((report, i) => i === 0 || report.progress > seen[i - 1].progress), seen);
    want((seen[0].message ?? "").includes("line 1"), seen);
    return `${seen.length} reports`;
  },
};

const transport = new StdioClientTransport({ command: server, args: serverArguments, cwd: project });
// The first SDK's client keeps the negotiated version to itself, and gives it to its transport alone.
let spoken = "?";
transport.setProtocolVersion = (negotiated) => (spoken = negotiated);
const client = new Client({ name: "peers", version: "1" }, second ? { versionNegotiation: { mode: "auto" } } : {});
await client.connect(transport);
console.log(["client", "TypeScript SDK", version, second ? client.getNegotiatedProtocolVersion() : spoken].join("\t"));
for (const [name, step] of Object.entries(steps)) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error("no end after 20 s")), 20000)));
  try {
    const detail = await Promise.race([step(client), late]);
    console.log(["step", name, "ok", detail ?? ""].join("\t"));
  } catch (error) {
    console.log(["step", name, "FAIL", String(error).replace(/\s+/g, " ")].join("\t"));
  }
  clearTimeout(timer);
}
const start = performance.now();
await client.close();
const closing = Math.round(performance.now() - start);
console.log(["step", "close", closing < 1000 ? "ok" : "FAIL", `${closing} ms`].join("\t"));
