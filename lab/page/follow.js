// @ts-check
/** The executed copy of a notebook that runs as a job: opened read-only, without a kernel, live. */

const EVERY_MS = 2000;

/**
 * Open the copy, and read it again whenever it was written, until its run has ended.
 * @param {any} documents JupyterLab's document manager @param {string} path
 */
export async function follow(documents, path) {
  const opened = documents.openOrReveal(path, "Notebook", undefined, undefined, { shouldStart: false, canStart: false });
  if (!opened) return;
  const { context } = opened;
  await context.ready;
  let written = context.contentsModel?.last_modified;
  const isRunning = () => opened.content.model?.getMetadata?.("runai")?.state === "running";
  const lock = () => { for (const cell of opened.content.widgets) cell.readOnly = true; };

  async function look() {
    if (opened.isDisposed) return;
    try {
      const now = (await documents.services.contents.get(path, { content: false })).last_modified;
      if (now !== written && !document.hidden) {
        written = now;
        await context.revert();
        lock();
      }
    } catch { /* the next look finds it, or the tab is closed */ }
    if (!opened.isDisposed && isRunning()) setTimeout(look, EVERY_MS);
  }
  lock();
  if (isRunning()) setTimeout(look, EVERY_MS);
}
