// @ts-check
// Keeps a page as it is now: brings each part that the stream sends into it, and carries out its buttons.
// The server words the parts; here elements only become like the new ones.

import { Refused, call, inWords, lines, moment } from "./call.js";

const body = document.body;

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/**
 * Make an element like another one and keep it, so that focus and half-made clicks survive.
 * @param {Element} old @param {Element} fresh
 */
export function become(old, fresh) {
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((child, index) => {
    const here = before[index];
    if (!here) old.append(child);
    else if (!alike(here, child)) here.replaceWith(child);
    else if (here instanceof Element) become(here, /** @type {Element} */ (child));
    else if (here.nodeValue !== child.nodeValue) here.nodeValue = child.nodeValue;
  });
  before.slice(after.length).forEach((child) => child.remove());
}

/** @param {Node} one @param {Node} other */
function alike(one, other) {
  return one.nodeName === other.nodeName
    && (!(one instanceof Element) || one.id === /** @type {Element} */ (other).id);
}

/** @param {string} html @returns {Element} */
function parsed(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return /** @type {Element} */ (template.content.firstElementChild);
}

/** The state of each workload that the reader owns, by the name that it is told by. @returns {Map<string, string>} */
function states() {
  const rows = [...document.querySelectorAll("#workloads tr:not(.others)")]
    .map((row) => /** @type {[string, string]} */ ([textOf(row, "a"), textOf(row, ".state")]));
  const title = byId("what-title");
  return new Map(title ? [...rows, [textOf(title, null), textOf(title, ".state")]] : rows);
}

/** @param {Element} of @param {string | null} what null: its own first words */
const textOf = (of, what) => ((what ? of.querySelector(what)?.textContent : of.firstChild?.nodeValue) ?? "").trim();

/** Let a screen reader say what has changed; for the eye it stands in the page. @param {Map<string, string>} before */
function tell(before) {
  const changed = [...states()].filter(([name, state]) => before.has(name) && before.get(name) !== state);
  if (changed.length) byId("said").textContent = changed.map(([name, state]) => `${name}: ${state}`).join(", ");
}

/** @param {{parts: Record<string, string>, rows?: string[]}} news */
function take({ parts, rows }) {
  const before = states();
  const list = byId("workloads"), stood = document.activeElement?.closest(".actions")?.closest("tr, section")?.id;
  for (const [id, html] of Object.entries(parts)) {
    const fresh = parsed(html), old = document.getElementById(id);
    if (old) become(old, fresh);
    else if (id.startsWith("w:")) list.append(fresh);
  }
  if (rows && list) {
    const wanted = new Set(rows);
    for (const row of [...list.children]) if (!wanted.has(row.id)) row.remove();
    rows.forEach((id, index) => {
      const row = document.getElementById(id);
      if (row && list.children[index] !== row) list.insertBefore(row, list.children[index] ?? null);
    });
  }
  // Whose button was pressed by keyboard is left on the one that took its place.
  if (stood && document.activeElement === body) {
    /** @type {HTMLElement | null | undefined} */ (document.getElementById(stood)?.querySelector(".actions button"))?.focus();
  }
  askStill();
  localTimes();
  tell(before);
}

/** Show times as the reader's clock does. */
function localTimes() {
  for (const time of document.querySelectorAll("time")) {
    const words = inWords(new Date(time.dateTime));
    if (time.textContent !== words) time.textContent = words;
  }
}

let hiding = 0;
/** @param {string} text */
function say(text) {
  const message = byId("message");
  message.textContent = text;
  message.hidden = false;
  clearTimeout(hiding);
  hiding = window.setTimeout(() => { message.hidden = true; }, 8000);
}

const ASK_MS = 10000; // slow pointing and a screen reader need some of them
/** @type {{id: string, path: string | undefined, words: string} | null} what is asked about before it is done */
let asked = null;
let withdraw = () => {};

/** @param {HTMLButtonElement} button @param {string} words */
function ask(button, words) {
  withdraw(); // what was asked about another one
  const { id, dataset: { path } } = button, before = button.firstChild?.nodeValue ?? "";
  asked = { id, path, words };
  askStill();
  const timer = window.setTimeout(() => withdraw(), ASK_MS);
  withdraw = () => {
    clearTimeout(timer);
    if (asked?.id === id) asked = null;
    const label = document.getElementById(id)?.firstChild;
    if (label?.nodeValue === words) label.nodeValue = before;
  };
}

/** An update brings the button as it is before it asks: what is asked stays until it is answered. */
function askStill() {
  const still = asked && document.getElementById(asked.id);
  if (asked && still && still.dataset.path !== asked.path) withdraw(); // another workload of that name
  const label = still?.firstChild;
  if (asked && label) label.nodeValue = asked.words;
}

/** @param {HTMLButtonElement} button */
async function act(button) {
  if (button.hasAttribute("aria-disabled")) return;
  const words = button.dataset.asks;
  if (words && (asked?.id !== button.id || asked.path !== button.dataset.path)) {
    ask(button, words);
    return;
  }
  asked = null;
  button.setAttribute("aria-disabled", "true"); // not `disabled`, which would take the focus away
  try {
    const { method = "POST", path = "", body: sent } = button.dataset;
    await call(method, path, sent && JSON.parse(sent));
    if (button.dataset.method === "DELETE" && body.dataset.live?.includes("/live/workloads/")) {
      location.assign(document.documentElement.dataset.prefix ?? "/");
    }
  } catch (error) {
    say(error instanceof Error ? error.message : String(error));
    button.removeAttribute("aria-disabled");
  }
}

document.addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("button[data-path]") : null;
  if (button instanceof HTMLButtonElement) act(button);
});

const AGAIN_MS = 3000;
let newest = Date.now(); // the time of the state on the page
/** @type {Element | null} the element with the focus when the buttons were hidden */
let focused = null;

/** Show a page that is live, or says since when it is not: grey, without buttons. @param {number | null} since */
function showNews(since) {
  const away = byId("away"), isBack = since === null && !away.hidden;
  const words = since === null ? "" : `not live since ${moment(new Date(since), false)}`;
  if (since !== null && away.hidden) focused = document.activeElement;
  if (away.textContent !== words) away.textContent = words;
  away.hidden = since === null;
  body.classList.toggle("stale", since !== null);
  byId("main").dataset.asOf = `as of ${moment(new Date(newest), true)}`;
  if (isBack && document.activeElement === body && focused instanceof HTMLElement) focused.focus();
}

/** @param {string} url */
async function follow(url) {
  let hasNews = false;
  for await (const line of lines(url)) {
    const isNews = line.startsWith("data: ");
    hasNews ||= isNews; // a sign of life alone does not renew an older state
    if (hasNews) newest = Date.now();
    if (hasNews) showNews(null);
    if (isNews) take(JSON.parse(line.slice("data: ".length)));
  }
}

/** @param {string} url */
async function keepFollowing(url) {
  const error = await follow(url).catch((reason) => reason);
  showNews(newest);
  // The login has ended, or the workload is gone: the page itself says so.
  window.setTimeout(() => { if (error instanceof Refused) location.reload(); else keepFollowing(url); }, AGAIN_MS);
}

localTimes();
showNews(null);
if (body.dataset.live) keepFollowing(body.dataset.live);
