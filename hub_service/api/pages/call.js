// @ts-check
// Asks the API with the login cookie, and tells refusals as its own sentences.

const prefix = document.documentElement.dataset.prefix ?? "/";

/** Write a moment as the reader's clock does: the one format of the pages. @param {Date} at */
export const inWords = (at) => at.toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });

/**
 * @param {string} method @param {string} path below the API's root @param {any} [body]
 * @returns {Promise<any>} what it answered, null for nothing
 */
export async function call(method, path, body) {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]+)/)?.[1] ?? "";
  const ask = () =>
    fetch(`${prefix}api/v1/${path}`, {
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

/** @param {string} path below the API's root @returns {Promise<Response>} */
export const open = (path) => fetch(`${prefix}api/v1/${path}`, { credentials: "same-origin" });
