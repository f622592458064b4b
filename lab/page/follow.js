// @ts-check
/** The executed copy of a notebook that runs as a job: opened read-only, without a kernel, live. */

const EVERY_MS = 2000, PAUSED_EVERY_MS = 15000;
const NO_KERNEL = { shouldStart: false, canStart: false };
/** @type {WeakSet<object>} Documents that are followed. */
const followed = new WeakSet();

/**
 * Open the copy, and read it again whenever it was written, until its run has ended.
 * @param {any} documents JupyterLab's document manager @param {string} path
 */
export async function follow(documents, path) {
  const isEdited = documents.findWidget(path, "Notebook")?.context.model.dirty;
  const opened = documents.openOrReveal(path, "Notebook", undefined, undefined, NO_KERNEL);
  if (!opened || followed.has(opened) || isEdited) return;  // what its reader typed is not lost
  followed.add(opened);
  const { context } = opened;
  // JupyterLab 4.2 has no such argument, and starts the kernel once the file is there.
  context.sessionContext.kernelPreference = { ...context.sessionContext.kernelPreference, ...NO_KERNEL };
  await context.ready;
  let written = context.contentsModel?.last_modified;
  const state = () => opened.content.model?.getMetadata?.("runai")?.state;
  function lock() {
    for (const cell of opened.content.widgets) cell.readOnly = true;
    context.model.dirty = false;  // reading changed it; it must not be saved over the run's
  }

  async function look() {
    if (opened.isDisposed) return;
    try {
      if (!document.hidden) {  // a hidden window asks nothing, so that its server can be culled
        const now = (await documents.services.contents.get(path, { content: false })).last_modified;
        if (now !== written) {
          written = now;
          await context.revert();
          lock();
        }
      }
    } catch { /* the next look finds it, or the tab is closed */ }
    later();
  }
  function later() {
    const waits = { running: EVERY_MS, paused: PAUSED_EVERY_MS }[/** @type {string} */ (state())];
    if (waits && !opened.isDisposed) setTimeout(look, waits);
    else followed.delete(opened);
  }
  lock();
  later();
}
