// @ts-check
/**
 * The widget: draw the model's state whenever it changes, and carry out clicks.
 *
 * Remembers only what clicks have begun. A click goes to the service from here, because messages to a
 * kernel wait for the running cell; where that is impossible it goes to panel.py.
 */

import { watch } from "./liveness.js";
import { patch } from "./nodes.js";
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
      if (opened && opened.at && row.state !== "deleted" && (opened.version !== row.version || Date.now() - opened.at > FACTS_MS)) describe(row);
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

  /** Ask for a workload's facts; what is shown stays until they are here. @param {import("./views.js").Row} row */
  async function describe(row) {
    const key = identity(row), { id, uid, version } = row;
    clicks.opened.set(key, { facts: clicks.opened.get(key)?.facts ?? [], version, at: 0 });
    const service = model.get("service");
    const facts = service ? await factsOf(service, row, fetch) : null;
    if (facts) show(key, facts, version);
    else model.send({ verb: "describe", workload: id, uid });
  }

  /** Show facts, unless they were closed meanwhile. @param {string} key @param {Fact[]} facts @param {string} [version] */
  function show(key, facts, version) {
    const opened = clicks.opened.get(key);
    if (!opened) return;
    clicks.opened.set(key, { facts, version: version ?? opened.version, at: Date.now() });
    draw();
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
    const service = model.get("service");
    const body = workers ? { workers } : null;
    const error = service ? await request(service, verb, row, fetch, body) : null;
    if (error === null) model.send({ verb, workload: row.id, uid: row.uid, ...body });
    // A row that is kept looks the same, but for its text.
    else if (error || verb === "keep") { finish(row.id, error); draw(); }
  }

  /** @param {{workload?: string, uid?: string, error?: string, facts?: Fact[], asks?: string}} answer of panel.py */
  function hear(answer) {
    const { workload = "", uid = "" } = answer, key = identity({ id: workload, uid });
    if (answer.facts) show(key, answer.facts);
    if (answer.error && clicks.opened.get(key)?.at === 0) clicks.opened.delete(key);
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

/**
 * Ask the service for a change with the browser's login; sign in first where that has not happened.
 * Gives an error's sentence, "" when it is done, or null when the service cannot be reached from here.
 * Another workload that has the row's name by now is left alone.
 * @param {string} service path of the service @param {Action["verb"]} verb
 * @param {{id: string, uid: string}} row
 * @param {typeof fetch} net @param {object | null} [body] @returns {Promise<string | null>}
 */
export async function request(service, verb, row, net, body = null) {
  try {
    const reply = await send(service, row, net, verb === "delete" ? "" : `/${verb}`, {
      method: verb === "delete" ? "DELETE" : "POST",
      ...(body && { body: JSON.stringify(body) }),
    });
    if (reply === null) return null;
    if (reply.ok) return "";
    const problem = await reply.json();
    return typeof problem.detail === "string" ? `${problem.detail} ${problem.hint ?? ""}`.trim() : null;
  } catch {
    return null;
  }
}

/**
 * Ask the service for a workload's facts; null when it cannot be reached from here, or refuses.
 * @param {string} service @param {{id: string, uid: string}} row @param {typeof fetch} net @returns {Promise<Fact[] | null>}
 */
export async function factsOf(service, row, net) {
  try {
    const reply = await send(service, row, net, "", { method: "GET" });
    return reply?.ok ? (await reply.json()).facts : null;
  } catch {
    return null;
  }
}

/**
 * Send a request about a workload; sign in first where that has not happened. Null: that was refused.
 * @param {string} service @param {{id: string, uid: string}} row @param {typeof fetch} net
 * @param {string} path below the workload's @param {{method: string, body?: string}} options @returns {Promise<Response | null>}
 */
async function send(service, { id, uid }, net, path, options) {
  const workload = `${service}api/v1/workloads/${id.split("/").map(encodeURIComponent).join("/")}`;
  const ask = () => net(`${workload}${path}?uid=${encodeURIComponent(uid)}`, {
    credentials: "same-origin",
    headers: { "X-XSRFToken": tokens.get(service) ?? "", ...(options.body && { "Content-Type": "application/json" }) },
    ...options,
  });
  const reply = tokens.has(service) ? await ask() : null;
  if (reply !== null && reply.status !== 401 && reply.status !== 403) return reply;
  // Being logged in at the hub is enough: the service's page logs in by itself, without a question.
  await net(service, { credentials: "same-origin" });
  const who = await net(`${service}api/v1/whoami`, { credentials: "same-origin" });
  const token = who.headers.get("X-XSRFToken");
  if (!who.ok || !token) return null;
  tokens.set(service, token);
  return ask();
}

/** @type {Map<string, string>} What each service wants to see beside its login cookie. */
const tokens = new Map();

export default { render };
