// @ts-check
/** The executed copy of a notebook that runs as a job: opened read-only, without a kernel, live. */

const EVERY_MS = 2000, PAUSED_EVERY_MS = 15000;
/** @type {WeakSet<object>} Documents that are followed. */
const followed = new WeakSet();

/**
 * Open the copy, and read it again whenever it was written, until its run has ended.
 * @param {any} documents JupyterLab's document manager @param {string} path
 */
export async function follow(documents, path) {
  const opened = documents.openOrReveal(path, "Notebook", undefined, undefined, { shouldStart: false, canStart: false });
  if (!opened || followed.has(opened)) return;
  followed.add(opened);
  const { context } = opened;
  await context.ready;
  let written = context.contentsModel?.last_modified;
  const state = () => opened.content.model?.getMetadata?.("runai")?.state;
  const lock = () => { for (const cell of opened.content.widgets) cell.readOnly = true; };

  async function look() {
    if (opened.isDisposed) return;
    try {
      // What was typed before is not lost; a hidden window asks nothing, so that its server can be culled.
      if (!document.hidden && !context.model.dirty) {
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
  if (!context.model.dirty) lock();
  later();
}
