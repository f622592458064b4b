// @ts-check
// Follows the output of a workload, pauses and restarts included.

import { address, lines } from "./call.js";

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
  let isFirst = true;
  for await (const line of lines(address(`${logs.dataset.path}?follow=true&tail=${TAIL}`))) {
    if (isFirst) logs.replaceChildren();
    isFirst = false;
    show(line);
  }
}

/** Its end is that of the workload; anything else is tried again. */
function keepFollowing() {
  follow().catch(() => window.setTimeout(keepFollowing, AGAIN_MS));
}
keepFollowing();
