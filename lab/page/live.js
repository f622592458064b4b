// @ts-check
/** The way to the notebook server: frames over a websocket while the window is visible, and requests. */

const HIDDEN_MS = 1000, AGAIN_MS = 2000, AGAIN_MOST_MS = 15000;

/**
 * Call `show` with each frame while the window is visible. A hidden one has no connection, so that its
 * server can be culled.
 * @param {string} url @param {(frame: any) => void} show @returns {() => void} ends it
 */
export function listen(url, show) {
  /** @type {WebSocket | null} */
  let socket = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let again = AGAIN_MS, isOver = false;

  function open() {
    clearTimeout(timer);
    if (socket || isOver || document.hidden) return;
    const opened = socket = new WebSocket(url.replace(/^http/, "ws"));
    opened.onmessage = ({ data }) => { again = AGAIN_MS; show(JSON.parse(data)); };
    opened.onclose = () => {
      if (socket !== opened) return;
      socket = null;
      if (isOver || document.hidden) return;
      show({ lost: "The notebook server does not answer.", status: { text: "disconnected", title: "The notebook server does not answer.", level: "disconnected" } });
      timer = setTimeout(open, again);
      again = Math.min(2 * again, AGAIN_MOST_MS);
    };
  }
  function close() {
    const closed = socket;
    socket = null;
    closed?.close();
  }
  function look() {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(close, HIDDEN_MS);
    else open();
  }
  document.addEventListener("visibilitychange", look);
  open();
  return () => {
    isOver = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
    close();
  };
}

/** @param {string} name */
const cookie = (name) => document.cookie.split("; ").find((each) => each.startsWith(`${name}=`))?.slice(name.length + 1) ?? "";

/**
 * Ask the notebook server; errors are sentences in the answer.
 * @param {string} url @param {object} asked @returns {Promise<any>}
 */
export async function ask(url, asked) {
  try {
    const reply = await fetch(url, {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-XSRFToken": cookie("_xsrf") },
      body: JSON.stringify(asked),
    });
    const answer = await reply.json();
    return reply.ok ? answer : { error: answer.message ?? `The notebook server answers ${reply.status}.` };
  } catch {
    return { error: "The notebook server does not answer." };
  }
}
