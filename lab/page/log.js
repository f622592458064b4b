// @ts-check
/** A tab with the output of a workload, which follows it across pauses. */

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
  const socket = new WebSocket(`${url.replace(/^http/, "ws")}?${new URLSearchParams({ workload, uid })}`);
  socket.onmessage = ({ data }) => {
    const { lines, open: states, ended, error } = JSON.parse(data);
    const isAtEnd = el.scrollHeight - el.scrollTop - el.clientHeight < 40;
    for (const line of lines) text.append(document.createTextNode(`${line}\n`));
    count += lines.length;
    for (; count > MOST_LINES; count--) text.firstChild?.remove();
    patch(open, states.map((/** @type {string} */ line, /** @type {number} */ index) => h("span", { key: index }, `${line}\n`)));
    note.textContent = error ?? (ended ? `${workload} ${ended}.` : count || states.length ? "" : `Output of ${workload} …`);
    if (isAtEnd) el.scrollTop = el.scrollHeight;
  };
  socket.onclose = () => { if (!note.textContent) note.textContent = "Not followed any more: open it again."; };
  return { el, close: () => socket.close() };
}
