// @ts-check
/** Ask the service for what a button means, from the page itself: a busy kernel cannot. */

/**
 * Ask the service for a change with the browser's login; sign in first where that has not happened.
 * Gives an error's sentence, "" when it is done, or null when the service cannot be reached from here.
 * @param {string} service path of the service @param {import("./views.js").Action["verb"]} verb @param {string} workload
 * @param {typeof fetch} net @param {object | null} [body] @returns {Promise<string | null>}
 */
export async function request(service, verb, workload, net, body = null) {
  const path = `${service}api/v1/workloads/${workload.split("/").map(encodeURIComponent).join("/")}`;
  const ask = () => net(verb === "delete" ? path : `${path}/${verb}`, {
    method: verb === "delete" ? "DELETE" : "POST",
    credentials: "same-origin",
    headers: { "X-XSRFToken": tokens.get(service) ?? "", ...(body && { "Content-Type": "application/json" }) },
    ...(body && { body: JSON.stringify(body) }),
  });
  try {
    let reply = tokens.has(service) ? await ask() : null;
    if (reply === null || reply.status === 401 || reply.status === 403) {
      // Being logged in at the hub is enough: the service's page logs in by itself, without a question.
      await net(service, { credentials: "same-origin" });
      const who = await net(`${service}api/v1/whoami`, { credentials: "same-origin" });
      const token = who.headers.get("X-XSRFToken");
      if (!who.ok || !token) return null;
      tokens.set(service, token);
      reply = await ask();
    }
    if (reply.ok) return "";
    const problem = await reply.json();
    return typeof problem.detail === "string" ? `${problem.detail} ${problem.hint ?? ""}`.trim() : null;
  } catch {
    return null;
  }
}

/** @type {Map<string, string>} What each service wants to see beside its login cookie. */
const tokens = new Map();
