// @ts-check
/** Frames of the notebook server, over a websocket while the window is visible. */

const HIDDEN_MS = 1000, AGAIN_MS = 2000, AGAIN_MOST_MS = 15000;

/**
 * Call `show` with each frame while the window is visible. A hidden one has no connection, so that its
 * server can be culled.
 * @param {string} url @param {(frame: any) => void} show @param {() => void} lost the server is gone
 * @returns {() => void} ends it
 */
export function listen(url, show, lost) {
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
      lost();
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
