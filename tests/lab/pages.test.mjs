// What the extension's pages do, by node alone. The tests are run on a copy where the widget's scripts
// lie beside the extension's, as the notebook server serves them.
import assert from "node:assert/strict";
import { test } from "node:test";

import { listen } from "../../lab/page/live.js";
import { sidePanel } from "../../lab/page/side.js";
import { statusItem } from "../../lab/page/status.js";
import { install } from "../widgets/dom.mjs";

/** Sockets that were opened, each closed by its test. */
class Socket {
  static opened = [];
  constructor(url) { this.url = url; this.isClosed = false; Socket.opened.push(this); }
  close() { if (!this.isClosed) { this.isClosed = true; this.onclose?.(); } }
}

/** A page that is visible or hidden; timers run by hand. */
function page(t) {
  const listeners = new Map();
  const document = Object.assign(install(), {
    hidden: false,
    addEventListener: (name, listener) => listeners.set(name, listener),
    removeEventListener: (name) => listeners.delete(name),
  });
  Socket.opened = [];
  globalThis.WebSocket = Socket;
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const turn = (hidden) => { document.hidden = hidden; listeners.get("visibilitychange")(); };
  return { turn, tick: (ms) => t.mock.timers.tick(ms), open: () => Socket.opened.filter((each) => !each.isClosed).length };
}

test("hidden window has no socket after a second, a visible one opens it again", (t) => {
  const { turn, tick, open } = page(t);
  const end = listen("http://hub/live", () => {}, () => {});
  assert.deepEqual([open(), Socket.opened[0].url], [1, "ws://hub/live"]);
  turn(true);
  turn(false);
  tick(5000);
  assert.equal(open(), 1);
  turn(true);
  tick(1000);
  assert.equal(open(), 0);
  turn(false);
  assert.equal(open(), 1);
  end();
  assert.equal(open(), 0);
});

test("window whose server is gone says so, and asks again more and more rarely", (t) => {
  const { tick } = page(t);
  let lost = 0;
  const end = listen("http://hub/live", () => {}, () => lost++);
  Socket.opened.at(-1).close();
  assert.deepEqual([lost, Socket.opened.length], [1, 1]);
  tick(2000);
  Socket.opened.at(-1).close();
  tick(2000);
  assert.deepEqual([lost, Socket.opened.length], [2, 2]);
  tick(2000);
  assert.equal(Socket.opened.length, 3);
  end();
  tick(60_000);
  assert.equal(Socket.opened.length, 3);
});

test("frame of a socket that was replaced is not shown", (t) => {
  const { turn, tick } = page(t);
  const shown = [];
  const end = listen("http://hub/live", (frame) => shown.push(frame), () => {});
  Socket.opened[0].onmessage({ data: '{"user": "bob"}' });
  turn(true);
  tick(1000);
  assert.deepEqual(shown, [{ user: "bob" }]);
  end();
});

for (const [level, sign] of [["ok", "●"], ["idle", "◌"], ["disconnected", "✕"], ["unheard-of", "○"]]) {
  test(`status item tells level ${level} by sign, class and words`, () => {
    install();
    const item = statusItem(() => {});
    item.update({ text: "½ GPU", title: "vision/lab", level });
    const [line] = item.el.childNodes;
    assert.equal(line.textContent, `${sign} ½ GPU`);
    assert.equal(line.getAttribute("aria-label"), `GPUs, ${level}: ½ GPU`);
    assert.match(line.getAttribute("class"), new RegExp(`runai-lab-${level}$`));
  });
}

const row = (fields = {}) => ({
  id: "vision/a", uid: "u1", name: "a", project: "vision", kind: "job", state: "running", gpus: 1, allocated: 1,
  utilized: 0.5, average: 0.25, reason: "", pauses: 0, array: false, exit_code: null, limit: "", limit_why: "", idle: "", beside: "",
  elastic: "", progress: "", notice: "", simulated: false, recent: [], version: "1", actions: [], ...fields,
});
const frame = (workloads) => ({
  user: "bob", free: "1 of 2 GPUs free", banner: "",
  state: { view: "panel", at: 0, lost: "", simulated: false, projects: [], workloads, chart: null, notes: [], told: [] },
});

test("job has its output and its checkpoints beside its buttons, an array and a session do not", () => {
  const document = install();
  document.createElement = ((create) => (tag) => Object.assign(create(tag), {
    append(...nodes) { nodes.forEach((node) => this.insertBefore(node, null)); },
  }))(document.createElement);
  const done = [];
  const panel = sidePanel({ output: (asked) => done.push(asked), folder: () => {} });
  panel.update(frame([row(), row({ id: "vision/s", name: "s", array: true }), row({ id: "vision/l", name: "l", kind: "session" })]));
  const labels = panel.el.all().map((each) => each.getAttribute?.("aria-label")).filter((label) => /^(Output|Checkpoints)/.test(label ?? ""));
  assert.deepEqual(labels, ["Output a", "Checkpoints a"]);
  panel.el.all().find((each) => each.getAttribute?.("aria-label") === "Output a").onclick();
  assert.deepEqual(done, [{ verb: "output", workload: "vision/a", uid: "u1" }]);
  assert.match(panel.el.textContent, /^GPUs, as bob1 of 2 GPUs free/);
  panel.remove();
});
