// @ts-check
/** A tab with the output of a workload, which follows it across pauses. */

import { listen } from "./live.js";
import { h, patch } from "./nodes.js";

const MOST_LINES = 5000;

/** @param {string} url @param {{workload: string, uid: string}} which */
export function outputTab(url, { workload, uid }) {
  const el = document.createElement("div");
  el.className = "runai-lab-log";
  el.tabIndex = 0;
  const note = document.createElement("p"), text = document.createElement("pre"), open = document.createElement("pre");
  note.setAttribute("role", "status");
  note.textContent = `Output of ${workload} …`;
  el.append(text, open, note);
  let count = 0;

  /** @param {any} frame */
  function show({ lines, open: states, first, ended, error }) {
    const isAtEnd = el.scrollHeight - el.scrollTop - el.clientHeight < 40;
    if (first) {  // the last lines once more, after a pause of the connection
      text.replaceChildren();
      count = 0;
    }
    text.append(...lines.map((/** @type {string} */ line) => `${line}\n`));
    count += lines.length;
    for (; count > MOST_LINES; count--) text.firstChild?.remove();
    if (!ended && !error) patch(open, states.map((/** @type {string} */ line, /** @type {number} */ index) => h("span", { key: index }, `${line}\n`)));
    note.textContent = error ?? (ended ? `${workload} ${ended}.` : count || states.length ? "" : `Output of ${workload} …`);
    if (isAtEnd) el.scrollTop = el.scrollHeight;
    if (ended || error) end();
  }
  const lost = () => { note.textContent = "The notebook server does not answer; it is asked again."; };
  const end = listen(`${url}?${new URLSearchParams({ workload, uid })}`, show, lost);
  return { el, close: end };
}
