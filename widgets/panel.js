// @ts-check
/**
 * The widget: draw the model's state whenever it changes, and carry out clicks.
 *
 * Remembers only what clicks have begun. A click goes to the relay in the notebook server, because
 * messages to a kernel wait for the running cell; where there is no relay it goes to panel.py.
 */

import { watch } from "./liveness.js";
import { patch } from "./nodes.js";
import { askRelay, relayAddress } from "./relay.js";
import { BEGUN, identity, view } from "./views.js";

/**
 * @typedef {import("./views.js").Action} Action
 * @typedef {import("./views.js").Fact} Fact
 * @typedef {import("./views.js").State} State
 * @typedef {import("./views.js").Clicks} Clicks
 * @typedef {{get: (name: string) => any, on: Function, off: Function,
 *   send: (content: any) => void, widget_manager?: any}} Model
 */

const CONFIRM_MS = 10000, BEGUN_MS = 15000;
/** Facts of an opened workload are asked for again after a change, and so often for its measurements. */
const FACTS_MS = 10000;
/** A view that moves is removed and drawn again; one that is closed by then cannot send. */
const REMOVED_MS = 1000;

/** @param {{model: Model, el: any}} view_ @returns {() => void} */
function render({ model, el }) {
  /** @type {Clicks} */
  const clicks = { service: model.get("service"), confirming: "", busy: new Map(), errors: new Map(), opened: new Map(), said: "", wanted: "" };
  /** @type {Map<string, string>} */
  let states = new Map();
  /** @type {Map<string, string>} */
  const versions = new Map();
  /** @type {Set<ReturnType<typeof setTimeout>>} */
  const timers = new Set();

  /** @param {() => void} what @param {number} ms */
  function later(what, ms) {
    const timer = setTimeout(() => { timers.delete(timer); what(); draw(); }, ms);
    timers.add(timer);
  }

  function draw() {
    /** @type {State} */
    const state = model.get("state");
    for (const row of state.workloads) {
      // What was begun shows in the workload itself now.
      if (versions.has(row.id) && versions.get(row.id) !== row.version) finish(row.id);
    }
    for (const row of state.workloads) {
      const opened = clicks.opened.get(identity(row));
      const isDue = opened?.at && (opened.version !== row.version || Date.now() - opened.at > FACTS_MS);
      if (isDue && row.state !== "deleted" && isSeen()) describe(row);
    }
    const changed = state.workloads.filter((row) => states.has(row.id) && states.get(row.id) !== row.state);
    if (changed.length) clicks.said = changed.map((row) => `${row.name}: ${row.state}`).join(", ");
    states = new Map(state.workloads.map((row) => [row.id, row.state]));
    const since = state.lost || !way.isOpen() ? state.at : null;
    const news = { since, exported: way.isExported() };
    patch(el, view(state, clicks, act, (words) => { clicks.wanted = words; draw(); }, news));
  }

  /** @param {string} workload @param {string} [error] */
  function finish(workload, error = "") {
    versions.delete(workload);
    clicks.busy.delete(workload);
    if (error) clicks.errors.set(workload, error);
  }

  /** A view that nobody sees asks nothing: its notebook server would never be idle. */
  const isSeen = () => !globalThis.document?.hidden && !model.get("state").lost && way.isOpen() && el.offsetParent !== null;

  /** Ask for a workload's facts; what is shown stays until they are here. @param {import("./views.js").Row} row */
  async function describe(row) {
    const key = identity(row), { id, uid, version } = row;
    clicks.opened.set(key, { facts: clicks.opened.get(key)?.facts ?? [], version, at: 0 });
    await ask({ verb: "describe", workload: id, uid });
  }

  /** Ask the relay, or the kernel where there is none. @param {any} asked */
  async function ask(asked) {
    const relay = model.get("relay") ? relayAddress() : "";
    const answer = relay ? await askRelay(`${relay}act`, asked) : null;
    if (answer) hear(answer);
    else model.send(asked);
    return answer;
  }

  /** @param {Parameters<import("./views.js").Act>[0]} action @param {import("./views.js").Row} row */
  async function act(action, row) {
    if (action.verb === "describe") {
      if (!clicks.opened.delete(identity(row))) describe(row);
      draw();
      return;
    }
    const { verb, label, workers } = action;
    if (!(label in BEGUN)) {  // what the front end does itself, such as a tab with the output
      model.send({ verb, workload: row.id, uid: row.uid });
      return;
    }
    const stops = label === "Stop";
    const asked = identity(row);
    if (stops && clicks.confirming !== asked) {
      clicks.confirming = asked;
      later(() => { if (clicks.confirming === asked) clicks.confirming = ""; }, CONFIRM_MS);
      draw();
      return;
    }
    clicks.confirming = "";
    clicks.errors.delete(row.id);
    clicks.busy.set(row.id, BEGUN[label]);
    versions.set(row.id, row.version);
    later(() => { if (versions.get(row.id) === row.version) finish(row.id); }, BEGUN_MS);
    draw();
    const answer = await ask({ verb, workload: row.id, uid: row.uid, ...(workers && { workers }) });
    // A row that is kept looks the same, but for its text.
    if (answer && verb === "keep") { finish(row.id); draw(); }
  }

  /** @param {{workload?: string, uid?: string, error?: string, facts?: Fact[], asks?: string}} answer of the kernel or the relay */
  function hear(answer) {
    const { workload = "", uid = "" } = answer, key = identity({ id: workload, uid });
    const opened = clicks.opened.get(key);  // none: it was closed meanwhile
    if (answer.facts && opened) { clicks.opened.set(key, { ...opened, facts: answer.facts, at: Date.now() }); draw(); }
    if (answer.error && opened?.at === 0) {
      if (opened.facts.length) {  // they stay as they were; the next look asks again
        clicks.opened.set(key, { ...opened, at: Date.now() });
        return;
      }
      clicks.opened.delete(key);
    }
    if (answer.asks) model.send({ shown: true });
    if (answer.workload && answer.error) { finish(answer.workload, answer.error); draw(); }
  }

  const way = watch(model, draw);
  model.on("change:state", draw);
  model.on("msg:custom", hear);
  draw();
  model.send({ shown: true });
  return () => {
    way.leave();
    model.off("change:state", draw);
    model.off("msg:custom", hear);
    timers.forEach(clearTimeout);
    setTimeout(() => model.send({ shown: false }), REMOVED_MS);
  };
}

export default { render };
