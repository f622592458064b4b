// @ts-check
// Follows the output of a workload, pauses and restarts included.

import { address, lines } from "./call.js";

const MOST_LINES = 2000, MOST_LETTERS = 5000, TAIL = 500, AGAIN_MS = 3000;
const logs = /** @type {HTMLElement} */ (document.getElementById("logs"));

/** @type {Set<number>} */
const workers = new Set();
let attempt = 0;

/** @type {Map<string, { row: Text, text: string }>} Unfinished lines by worker and attempt. */
const open = new Map();

/** Return a line after its last `\r`, but one at its end, which waits for more. @param {string} text */
function lastState(text) {
  let end = text.length;
  while (text[end - 1] === "\r") end -= 1;
  const shown = text.slice(text.lastIndexOf("\r", end - 1) + 1, end);
  const kept = shown.length > MOST_LETTERS ? `${shown.slice(0, MOST_LETTERS)} …` : shown;
  return end < text.length ? `${kept}\r` : kept;
}

/** @param {string} line a JSON object */
function show(line) {
  if (!line) return; // a sign of life
  const { worker, attempt: of, text: more, part, missing } = JSON.parse(line);
  const atEnd = logs.scrollHeight - logs.scrollTop - logs.clientHeight < 30;
  workers.add(worker);
  if (of > attempt && attempt) logs.append(`— started again (${of}) —\n`);
  attempt = Math.max(attempt, of);
  const key = `${worker}/${of}`;
  if (missing) open.delete(key); // the end of the line before is missing too
  const before = open.get(key);
  const row = before?.row.parentNode ? before.row : document.createTextNode("");
  const text = lastState((before?.text ?? "") + more);
  const shown = text.replace(/\r$/, "");
  row.data = workers.size > 1 ? `[${worker}] ${shown}\n` : `${shown}\n`;
  if (!row.parentNode) logs.append(row);
  if (part) open.set(key, { row, text });
  else open.delete(key);
  while (logs.childNodes.length > MOST_LINES) logs.firstChild?.remove();
  if (atEnd) logs.scrollTop = logs.scrollHeight;
}

async function follow() {
  let isFirst = true;
  for await (const line of lines(address(`${logs.dataset.path}?follow=true&parts=true&tail=${TAIL}`))) {
    if (isFirst) {
      logs.replaceChildren();
      open.clear(); // each connection begins with whole lines
    }
    isFirst = false;
    show(line);
  }
}

/** Its end is that of the workload; anything else is tried again. */
function keepFollowing() {
  follow().catch(() => window.setTimeout(keepFollowing, AGAIN_MS));
}
keepFollowing();
