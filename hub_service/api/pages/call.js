// @ts-check
// Asks the API with the login cookie, tells refusals as its own sentences, and reads streams.

const prefix = document.documentElement.dataset.prefix ?? "/";

/** Write a moment as the reader's clock does: the one format of the pages. @param {Date} at */
export const inWords = (at) => at.toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });

/** Write a moment to the minute; with its date if that is not today, or always. @param {Date} at @param {boolean} dated */
export function moment(at, dated) {
  const time = at.toLocaleTimeString([], { timeStyle: "short" });
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday && !dated ? time : `${at.toLocaleDateString([], { day: "numeric", month: "short" })}, ${time}`;
}

/**
 * @param {string} method @param {string} path below the API's root @param {any} [body]
 * @returns {Promise<any>} what it answered, null for nothing
 */
export async function call(method, path, body) {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]+)/)?.[1] ?? "";
  const ask = () =>
    fetch(address(path), {
      method,
      credentials: "same-origin",
      headers: { "X-XSRFToken": xsrf, ...(body && { "Content-Type": "application/json" }) },
      body: body && JSON.stringify(body),
    });
  let reply = await ask();
  if (await nothingWasDone(reply)) {
    // So it is asked again, when the service says so.
    const seconds = Number(reply.headers.get("Retry-After")) || 1;
    await new Promise((resume) => setTimeout(resume, 1000 * seconds));
    reply = await ask();
  }
  if (!reply.ok) {
    const problem = await reply.json().catch(() => ({}));
    throw new Error(`${problem.detail ?? "The service is away."} ${problem.hint ?? ""}`.trim());
  }
  const text = await reply.text();
  return text ? JSON.parse(text) : null;
}

/** Tells a refusal of what was not even read from any other. @param {Response} reply @returns {Promise<boolean>} */
async function nothingWasDone(reply) {
  if (reply.status !== 503) return reply.status === 429;
  const problem = await reply.clone().json().catch(() => ({}));
  return problem.code === "busy";
}

/** @param {string} path below the API's root */
export const address = (path) => `${prefix}api/v1/${path}`;

const LOOK_MS = 5_000;
/** A stream has a sign of life every 15 s: three missed ones mean a broken connection. */
const SILENT_MS = 45_000;

/** A refusal of the service, for good; a proxy's is none: the service may be away. */
export class Refused extends Error {}

/**
 * Yield the lines of a stream, signs of life included, until it ends; throw if it breaks or is silent.
 * @param {string} url @returns {AsyncGenerator<string, void>}
 */
export async function* lines(url) {
  const asking = new AbortController();
  const leave = () => asking.abort();
  let heard = Date.now();
  // By the clock, for timers stand still while a laptop is asleep.
  const timer = setInterval(() => { if (Date.now() - heard >= SILENT_MS) leave(); }, LOOK_MS);
  globalThis.addEventListener("offline", leave); // the connection itself would stay open, and silent
  try {
    const reply = await fetch(url, { credentials: "same-origin", signal: asking.signal });
    if (!reply.ok || !reply.body) {
      const isItsOwn = reply.headers.get("Content-Type")?.startsWith("application/problem+json");
      throw new (isItsOwn && [401, 403, 404].includes(reply.status) ? Refused : Error)(String(reply.status));
    }
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard = Date.now();
      const found = (rest + value).split("\n");
      rest = found.pop() ?? "";
      yield* found;
    }
  } finally {
    clearInterval(timer);
    globalThis.removeEventListener("offline", leave);
    leave();
  }
}
