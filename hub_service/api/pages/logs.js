// @ts-check
// Follows the output of a workload, pauses and restarts included.

import { open } from "./call.js";

const MOST_LINES = 2000, MOST_LETTERS = 5000, TAIL = 500, AGAIN_MS = 3000;
const logs = /** @type {HTMLElement} */ (document.getElementById("logs"));

/** @type {Set<number>} */
const workers = new Set();
let attempt = 0;

/** @param {string} line a JSON object */
function show(line) {
  if (!line) return; // a sign of life
  const { worker, attempt: of, text: whole } = JSON.parse(line);
  const text = whole.length > MOST_LETTERS ? `${whole.slice(0, MOST_LETTERS)} …` : whole;
  const atEnd = logs.scrollHeight - logs.scrollTop - logs.clientHeight < 30;
  workers.add(worker);
  if (of > attempt && attempt) logs.append(`— started again (${of}) —\n`);
  attempt = Math.max(attempt, of);
  logs.append(workers.size > 1 ? `[${worker}] ${text}\n` : `${text}\n`);
  while (logs.childNodes.length > MOST_LINES) logs.firstChild?.remove();
  if (atEnd) logs.scrollTop = logs.scrollHeight;
}

async function follow() {
  const reply = await open(`${logs.dataset.path}?follow=true&tail=${TAIL}`);
  if (!reply.ok || !reply.body) throw new Error(String(reply.status));
  logs.replaceChildren();
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    lines.forEach(show);
  }
}

/** Its end is that of the workload; anything else is tried again. */
function keepFollowing() {
  follow().catch(() => window.setTimeout(keepFollowing, AGAIN_MS));
}
keepFollowing();
