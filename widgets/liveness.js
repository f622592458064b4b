// @ts-check
/**
 * Whether news can reach a view, by what the front end shows of kernel and connection: no traffic,
 * because each message of a kernel counts as activity, and its server would never be culled.
 */

/**
 * @typedef {{connect: (slot: () => void) => void, disconnect: (slot: () => void) => void}} Signal
 * @typedef {{id?: string, status?: string, connectionStatus?: string, statusChanged?: Signal,
 *   connectionStatusChanged?: Signal}} Kernel
 * @typedef {{since: number | null, exported: boolean}} News
 *   null: live; else the time of the newest state in Unix seconds. Exported: a page without a kernel.
 */

/** A kernel that was in one of these has lost its views, also when it runs again. */
const ENDED = ["dead", "terminating", "restarting", "autorestarting"];
const LOCAL = ["localhost", "127.0.0.1", "[::1]"];
const EVERY_MS = 5000;

/**
 * Watch the way from the kernel to a view; `changed` is called when it may have opened or closed.
 * JupyterLab and Notebook 7 show the kernel; of other front ends only the network is known.
 * @param {{get: Function, on: Function, off: Function, widget_manager?: any}} model @param {() => void} changed
 * @returns {{isOpen: () => boolean, isExported: () => boolean, leave: () => void}}
 */
export function watch(model, changed) {
  const manager = model.widget_manager ?? {};
  /** @type {Kernel | null | undefined} A view that is drawn before its kernel is there takes the first. */
  let kernel = null;
  // A view that comes from a file has no comm. Its own is not shown here, but that of its layout is.
  let isCut = model.get("layout")?.comm_live === false;

  function cut() {
    isCut = true;
    changed();
  }
  function meet() {
    if (kernel || !manager.kernel) return;
    kernel = /** @type {Kernel} */ (manager.kernel);
    kernel.statusChanged?.connect(look);
    kernel.connectionStatusChanged?.connect(look);
  }
  function look() {
    meet();
    if (kernel && ENDED.includes(kernel.status ?? "")) isCut = true;
    changed();
  }
  const timer = setInterval(look, EVERY_MS);
  model.on("comm_live_update", cut);
  meet();

  return {
    isOpen() {
      if (isCut || isOffline()) return false;
      if (!("kernel" in manager)) return !isExported();
      const { kernel: now } = manager;
      return Boolean(now) && now.id === kernel?.id && (now.connectionStatus ?? "connected") === "connected";
    },
    isExported: () => !("kernel" in manager) && isExported(),
    leave() {
      clearInterval(timer);
      model.off("comm_live_update", cut);
      kernel?.statusChanged?.disconnect(look);
      kernel?.connectionStatusChanged?.disconnect(look);
    },
  };
}

/** A hub on this machine is there without a network. */
function isOffline() {
  return globalThis.navigator?.onLine === false && !LOCAL.includes(globalThis.location?.hostname);
}

/** nbconvert, nbviewer and Sphinx put the saved state into the page itself. */
function isExported() {
  return Boolean(globalThis.document?.querySelector?.('script[type="application/vnd.jupyter.widget-state+json"]'));
}
