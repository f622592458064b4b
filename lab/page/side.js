// @ts-check
/** The side panel: whose GPUs, what is free, a banner, and the widget's own panel. */

import { h, patch } from "./nodes.js";
import panel from "./panel.js";

/**
 * @typedef {{output: (asked: {workload: string, uid: string}) => void, folder: (asked: {workload: string, uid: string}) => void}} Doing
 */

/** Make the panel; `update` draws a frame. @param {Doing} doing */
export function sidePanel(doing) {
  const el = document.createElement("div"), head = document.createElement("div"), body = document.createElement("div");
  el.className = "runai-lab-side";
  el.append(head, body);
  /** @type {Map<string, Function[]>} */
  const listeners = new Map();
  /** @type {any} */
  let state = { view: "panel", at: 0, lost: "", simulated: false, projects: [], workloads: [], chart: null, notes: [], told: [] };
  let remove = () => {};

  /** The model of four functions that the widget's script draws. */
  const model = {
    /** @param {string} name */
    get: (name) => ({ state, relay: true })[name] ?? "",
    on: (/** @type {string} */ event, /** @type {Function} */ listener) => listeners.set(event, [...(listeners.get(event) ?? []), listener]),
    off: (/** @type {string} */ event, /** @type {Function} */ listener) => listeners.set(event, (listeners.get(event) ?? []).filter((each) => each !== listener)),
    /** @param {any} content */
    send(content) {
      if (content.verb === "output") doing.output(content);
      else if (content.verb === "folder") doing.folder(content);
      else if (content.verb) emit("msg:custom", { ...content, error: "The notebook server does not answer." });
    },
  };
  /** @param {string} event @param {...any} values */
  function emit(event, ...values) {
    for (const listener of listeners.get(event) ?? []) listener(...values);
  }

  return {
    el,
    /** @param {any} frame */
    update(frame) {
      state = frame.state ? { ...frame.state, at: Date.now() / 1000 } : { ...state, lost: frame.lost ?? "" };
      if (frame.state) {
        for (const row of state.workloads) if (row.kind === "job" && !row.array) row.actions = [...OWN, ...row.actions];
        patch(head, [
          h("h2", { key: "title" }, `GPUs, as ${frame.user}`),
          frame.banner && h("p", { key: "banner", class: "runai-lab-banner", role: "status" }, frame.banner),
          h("p", { key: "free", class: "runai-lab-free" }, frame.free),
        ].filter(Boolean));
      }
      if (!listeners.size) remove = panel.render({ model, el: body });
      emit("change:state");
    },
    remove: () => remove(),
  };
}

/** What JupyterLab does with a job, beside what the service does. */
const OWN = [{ verb: "output", label: "Output" }, { verb: "folder", label: "Checkpoints" }];
