// The page of a workload follows its output: `node --test tests/widgets`, no packages.
import assert from "node:assert/strict";
import { test } from "node:test";

/** A text node or an element, as far as the log needs one. */
class Node {
  constructor(data = "") { this.data = data; this.childNodes = []; this.dataset = { path: "workloads/vision/a/logs" }; }
  get firstChild() { return this.childNodes[0]; }
  append(child) {
    const node = typeof child === "string" ? new Node(child) : child;
    node.parentNode = this;
    this.childNodes.push(node);
  }
  remove() { this.parentNode.childNodes.splice(this.parentNode.childNodes.indexOf(this), 1); this.parentNode = null; }
  replaceChildren() { this.childNodes = []; }
}

const logs = new Node();
globalThis.document = {
  documentElement: { dataset: {} },
  getElementById: () => logs,
  createTextNode: (data) => new Node(data),
};
globalThis.addEventListener = globalThis.removeEventListener = () => {};
let importNumber = 0;

/** Return the rows after one stream, or after several connections with a break between them. */
async function rows(...streams) {
  const requests = [];
  const encode = (items) => new TextEncoder().encode(items.map((item) => `${JSON.stringify(item)}\n`).join(""));
  await new Promise((done) => {
    globalThis.fetch = async (url) => {
      requests.push(url);
      if (!streams.length) { done(); return new Response(""); }
      const items = streams.shift();
      const isLast = streams.length === 0;
      let isSent = false;
      const body = new ReadableStream({
        pull(stream) {
          if (!isSent) stream.enqueue(encode(items));
          else if (!isLast) stream.error(new Error("broken"));
          else { stream.close(); setTimeout(done, 20); }
          isSent = true;
        },
      });
      return new Response(body);
    };
    globalThis.window = { setTimeout: (again) => setTimeout(again, 0) };
    importNumber += 1;
    import(`../../hub_service/api/pages/logs.js?${importNumber}`);
  });
  assert.match(requests[0], /follow=true&parts=true&tail=500$/);
  return logs.childNodes.map((node) => node.data);
}
const part = (text, worker = 0, attempt = 1) => ({ worker, attempt, text, part: true });
const end = (text, worker = 0, attempt = 1) => ({ worker, attempt, text });

test("unfinished line is displayed, and its last state replaces the earlier states", async () => {
  assert.deepEqual(await rows([end("a"), part("\r 1 %\r"), part(" 2 %")]), ["a\n", " 2 %\n"]);
  assert.deepEqual(await rows([part("1 %\r"), part("2 %\r"), end("3 %"), end("b\r"), end("c")]), ["3 %\n", "b\n", "c\n"]);
});

test("unfinished line of each worker has a row with the prefix of the worker", async () => {
  const displayed = await rows([end("begun", 0), end("begun", 1), part("1 %\r", 0), part("load", 1), part("2 %\r", 0), part("ing", 1)]);
  assert.deepEqual(displayed, ["begun\n", "[1] begun\n", "[0] 2 %\n", "[1] loading\n"]);
});

test("new attempt and missing output end an unfinished line", async () => {
  assert.deepEqual(await rows([part("half"), end("b", 0, 2)]), ["half\n", "— started again (2) —\n", "b\n"]);
  assert.deepEqual(await rows([part("half"), { ...end("… gone …"), missing: {} }, end("b")]), ["half\n", "… gone …\n", "b\n"]);
});

test("part of a line is displayed once after a broken connection", async () => {
  assert.deepEqual(await rows([end("a"), part("1 %")], [end("a"), part("1 %\r2"), end(" %")]), ["a\n", "2 %\n"]);
});

test("length of a row and number of rows are bounded", async () => {
  const longRow = await rows([part("x".repeat(9000)), part("y"), part("\r")]);
  assert.deepEqual(longRow, [`${"x".repeat(5000)} …\n`]);
  const lastRows = await rows([part("1 %\r"), ...Array.from({ length: 3000 }, (_, n) => end(String(n), 1)), part("2 %", 0)]);
  assert.deepEqual([lastRows.length, lastRows.at(-1)], [2000, "[0] 2 %\n"]);
});

test("line of a million carriage returns is displayed at once", async () => {
  assert.deepEqual(await rows([end(`${"\r".repeat(1_000_000)}x${"\r".repeat(1_000_000)}`)]), ["x\n"]);
});
