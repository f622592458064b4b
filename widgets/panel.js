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
 * @typedef {import("./views.js").State} State
 * @typedef {import("./views.js").Clicks} Clicks
 * @typedef {{get: (name: string) => any, on: Function, off: Function,
 *   send: (content: any) => void, widget_manager?: any}} Model
 */

const CONFIRM_MS = 10000, BEGUN_MS = 15000;
/** A view that moves is removed and drawn again; one that is closed by then cannot send. */
const REMOVED_MS = 1000;

/** @param {{model: Model, el: any}} view_ @returns {() => void} */
function render({ model, el }) {
  /** @type {Clicks} */
  const clicks = { service: model.get("service"), confirming: "", busy: new Map(), errors: new Map(), said: "", wanted: "" };
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

  /** @param {Action} action @param {import("./views.js").Row} row */
  async function act({ verb, label, workers }, row) {
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

  /** @param {{workload?: string, error?: string, asks?: string}} answer of panel.py */
  function hear(answer) {
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
export async function request(service, verb, { id, uid }, net, body = null) {
  const path = `${service}api/v1/workloads/${id.split("/").map(encodeURIComponent).join("/")}`;
  const ask = () => net(`${path}${verb === "delete" ? "" : `/${verb}`}?uid=${encodeURIComponent(uid)}`, {
    method: verb === "delete" ? "DELETE" : "POST",
    credentials: "same-origin",
    headers: { "X-XSRFToken": tokens.get(service) ?? "", ...(body && { "Content-Type": "application/json" }) },
    ...(body && { body: JSON.stringify(body) }),
  });
  try {
    let reply = tokens.has(service) ? await ask() : null;
    if (reply === null || reply.status === 401 || reply.status === 403) {
      // Being logged in at the hub is enough: the service's page logs in by itself, without a question.
      await net(service, { credentials: "same-origin" });
      const who = await net(`${service}api/v1/whoami`, { credentials: "same-origin" });
      const token = who.headers.get("X-XSRFToken");
      if (!who.ok || !token) return null;
      tokens.set(service, token);
      reply = await ask();
    }
    if (reply.ok) return "";
    const problem = await reply.json();
    return typeof problem.detail === "string" ? `${problem.detail} ${problem.hint ?? ""}`.trim() : null;
  } catch {
    return null;
  }
}

/** @type {Map<string, string>} What each service wants to see beside its login cookie. */
const tokens = new Map();

export default { render };
