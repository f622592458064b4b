// @ts-check
// Asks the API with the login cookie, and tells refusals as its own sentences.

const prefix = document.documentElement.dataset.prefix ?? "/";

/**
 * @param {string} method @param {string} path below the API's root @param {any} [body]
 * @returns {Promise<any>} what it answered, null for nothing
 */
export async function call(method, path, body) {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]+)/)?.[1] ?? "";
  const reply = await fetch(`${prefix}api/v1/${path}`, {
    method,
    credentials: "same-origin",
    headers: { "X-XSRFToken": xsrf, ...(body && { "Content-Type": "application/json" }) },
    body: body && JSON.stringify(body),
  });
  if (!reply.ok) {
    const problem = await reply.json().catch(() => ({}));
    throw new Error(`${problem.detail ?? "The service is away."} ${problem.hint ?? ""}`.trim());
  }
  const text = await reply.text();
  return text ? JSON.parse(text) : null;
}

/** @param {string} path below the API's root @returns {Promise<Response>} */
export const open = (path) => fetch(`${prefix}api/v1/${path}`, { credentials: "same-origin" });
