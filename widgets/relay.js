// @ts-check
/**
 * Requests to the relay in the notebook server (`runai.lab`), of JupyterLab's and Notebook 7's pages.
 * They need no login of their own, and work while a cell runs.
 */

/** Give the relay's address; "" on a page that is none of a notebook server's. */
export function relayAddress() {
  const config = globalThis.document?.getElementById?.("jupyter-config-data");
  return config ? new URL(`${JSON.parse(config.textContent ?? "{}").baseUrl}runai/lab/`, location.href).href : "";
}

/** @param {string} name */
const cookie = (name) => document.cookie.split("; ").find((each) => each.startsWith(`${name}=`))?.slice(name.length + 1) ?? "";

/**
 * Ask the relay; errors of the platform are sentences in the answer. Null: there is no relay, or it
 * does not answer.
 * @param {string} url @param {object} asked @param {typeof fetch} [net] @returns {Promise<any>}
 */
export async function askRelay(url, asked, net = fetch) {
  try {
    const reply = await net(url, {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-XSRFToken": cookie("_xsrf") },
      body: JSON.stringify(asked),
    });
    return reply.ok ? await reply.json() : null;
  } catch {
    return null;
  }
}
