// @ts-check
/** The status item: one line, a sign for its level, and a tooltip. */

import { h, patch } from "./nodes.js";

/** A sign beside the words, so that a level is told by shape as well as by colour. */
const SIGNS = /** @type {Record<string, string>} */ ({
  none: "○", waiting: "◷", ok: "●", idle: "◌", over: "▲", released: "↩", disconnected: "✕",
});

/**
 * Make the item; `update` draws a frame's status.
 * @param {() => void} open what a click does
 */
export function statusItem(open) {
  const el = document.createElement("div");
  el.className = "runai-lab-status";
  return {
    el,
    /** @param {{text: string, title: string, level: string}} status */
    update({ text, title, level }) {
      patch(el, [h("button", {
        type: "button", class: `runai-lab-line runai-lab-${level}`, title: title || text, onclick: open,
        "aria-label": `GPUs, ${level}: ${text}`,
      }, h("span", { "aria-hidden": "true" }, `${SIGNS[level] ?? "○"} `), text)]);
    },
  };
}
