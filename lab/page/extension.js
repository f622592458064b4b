// @ts-check
/**
 * The plugin of JupyterLab 4 and Notebook 7: status item, side panel, commands. It adds nothing until
 * the notebook server says that there is a platform.
 */

import { follow } from "./follow.js";
import { listen } from "./live.js";
import { outputTab } from "./log.js";
import { askRelay } from "./relay.js";
import { runForm } from "./run_form.js";
import { sidePanel } from "./side.js";
import { statusItem } from "./status.js";

const PANEL = "runai-lab-panel";
const OPEN = "runai:open", RUN = "runai:run-file";
/** Files of the browser that run as jobs. */
const RUNNABLE = ["notebook", "python"].map((type) => `.jp-DirListing-item[data-file-type="${type}"]`);

const ICON = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 16 16"><g class="jp-icon3" fill="#616161">
  <path fill-rule="evenodd" d="M3 3h10v10H3zm1.4 1.4v7.2h7.2V4.4zM6 6h4v4H6zM5.5 0H7v2.4H5.5zM9 0h1.5v2.4H9zM5.5 13.6H7V16H5.5zm3.5 0h1.5V16H9zM0 5.5h2.4V7H0zM0 9h2.4v1.5H0zm13.6-3.5H16V7h-2.4zm0 3.5H16v1.5h-2.4z"/></g></svg>`;

/**
 * Give JupyterLab its plugins. A module that a front end lacks leaves out one feature.
 * @param {(name: string) => Promise<any>} host gives a module of the page @param {string} baseUrl
 */
export async function plugins(host, baseUrl) {
  const names = ["apputils", "ui-components", "statusbar", "launcher", "filebrowser", "notebook", "docmanager"];
  const [lumino, apputils, components, ...rest] = await Promise.all([host("@lumino/widgets"), ...names.map((name) => host(`@jupyterlab/${name}`))]);
  const [statusbar, launcher, filebrowser, notebook, docmanager] = rest;
  const tokens = Object.entries({
    palette: apputils.ICommandPalette, statusBar: statusbar.IStatusBar, launcher: launcher.ILauncher,
    browser: filebrowser.IDefaultFileBrowser, notebooks: notebook.INotebookTracker, documents: docmanager.IDocumentManager,
  }).filter(([, token]) => token);
  return [{
    id: "@jupyter-runai/lab:plugin",
    autoStart: true,
    optional: tokens.map(([, token]) => token),
    activate(/** @type {any} */ app, /** @type {any[]} */ ...given) {
      const services = Object.fromEntries(tokens.map(([name], index) => [name, given[index]]));
      start(app, services, { Widget: lumino.Widget, LabIcon: components.LabIcon, ...apputils }, baseUrl);
    },
  }];
}

/** @param {any} app @param {any} services @param {any} parts @param {string} baseUrl */
function start(app, services, parts, baseUrl) {
  const base = new URL(`${baseUrl}runai/lab/`, location.href).href;
  /** @type {((frame: any) => void) | null} */
  let update = null;
  function draw(/** @type {any} */ frame) {
    if (frame.absent && !update) return;
    update ??= show(app, services, parts, base);
    update(frame.absent ? lostFrame("Not logged in to a GPU platform any more.") : frame);
  }
  listen(`${base}live`, draw, () => update?.(lostFrame("The notebook server does not answer.")));
}

/** @param {string} why */
const lostFrame = (why) => ({ lost: why, status: { text: "disconnected", title: why, level: "disconnected" } });

/** Add everything to the front end; return what draws a frame. @param {any} app @param {any} services @param {any} parts @param {string} base */
function show(app, services, { Widget, LabIcon, Dialog, MainAreaWidget, Notification, ToolbarButton }, base) {
  style(base);
  const { palette, statusBar, launcher, browser, notebooks, documents } = services;
  const ask = async (/** @type {string} */ what, /** @type {any} */ asked) =>
    await askRelay(`${base}${what}`, asked) ?? { error: "The notebook server does not answer." };
  /** A notification has 140 characters; what is longer, or wrong, waits to be read. */
  const tell = (/** @type {string} */ text, kind = "info") => text.length > 140 || !Notification?.[kind]
    ? new Dialog({ title: "GPUs", body: text, buttons: [Dialog.okButton()] }).launch()
    : Notification[kind](text, { autoClose: kind === "error" ? false : 5000 });
  /** @type {Map<string, any>} Tabs with output, by workload. */
  const tabs = new Map();

  const icon = LabIcon && new LabIcon({ name: "runai:gpu", svgstr: ICON });
  const item = widget(Widget, "runai-lab-status-item");
  const status = statusItem(() => app.commands.execute(OPEN));
  item.node.append(status.el);
  if (statusBar) statusBar.registerStatusItem("@jupyter-runai/lab:status", { item, align: "left", rank: 4 });
  else app.shell.add(item, "menu", { rank: 900 });  // Notebook 7 has no status bar

  const side = widget(Widget, PANEL);
  const panel = sidePanel({
    async output({ workload, uid }) {
      const { copy } = await ask("act", { verb: "paths", workload, uid });
      if (copy && documents) return follow(documents, copy);
      const key = `${workload} ${uid}`, known = tabs.get(key);
      if (known && !known.isDisposed) return app.shell.activateById(known.id);
      const tab = outputTab(`${base}log`, { workload, uid });
      const content = widget(Widget, `runai-lab-log-${Date.now()}`);
      content.node.append(tab.el);
      const main = MainAreaWidget ? new MainAreaWidget({ content }) : content;
      main.title.label = workload;
      main.title.closable = true;
      main.disposed.connect(tab.close);
      tabs.set(key, main);
      app.shell.add(main, "main");
      app.shell.activateById(main.id);
    },
    async folder({ workload, uid }) {
      const { error, checkpoints, folder } = await ask("act", { verb: "paths", workload, uid });
      if (error) tell(error, "error");
      else if (folder && browser) {
        await browser.model.cd(`/${folder}`);
        app.shell.activateById(browser.id);
      } else if (checkpoints) {
        const isCopied = await navigator.clipboard?.writeText(checkpoints).then(() => true, () => false);
        tell(`${checkpoints} (${isCopied ? "copied; it lies" : "it lies"} outside of this file browser)`);
      } else tell("It has no checkpoint folder.");
    },
  });
  side.node.append(panel.el);
  side.title.icon = icon;
  side.title.caption = "GPUs";
  app.shell.add(side, "left", { rank: 650 });

  app.commands.addCommand(OPEN, {
    label: "GPUs", caption: "Show my GPUs and jobs", icon,
    execute() {
      app.shell.expandLeft?.(PANEL);
      app.shell.activateById(PANEL);
    },
  });
  const current = () => documentPath(app) ?? notebooks?.currentWidget?.context.path;
  const chosen = () => [...(browser?.selectedItems() ?? [])][0]?.path;
  app.commands.addCommand(RUN, {
    label: "Run as a GPU Job…", icon,
    execute: async (/** @type {any} */ args) => {
      const path = args?.path ?? (args?.fromBrowser ? chosen() : current());
      if (!path) return tell("Open a notebook or a script, or choose one in the file browser.", "error");
      const context = [...app.shell.widgets("main")].map((each) => each.context).find((each) => each?.path === path);
      if (context?.model.dirty) await context.save();
      const local = documents?.services.contents.localPath(path) ?? path;
      const form = await ask("run", { path: local, form: true });
      if (form.error) return tell(form.error, "error");
      const body = widget(Widget, "runai-lab-run");
      const dialog = new Dialog({ title: `Run ${local.split("/").pop()} as a GPU job`, body, buttons: [Dialog.cancelButton()], focusNodeSelector: ".runai-lab-form input" });
      // Enter in a field submits: the dialog itself would take it for its only button, Cancel.
      dialog.node.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
        const form_ = event.target instanceof HTMLElement && event.target.closest("form");
        if (event.key !== "Enter" || !form_ || event.target instanceof HTMLButtonElement) return;
        event.preventDefault();
        event.stopImmediatePropagation();
        form_.requestSubmit();
      }, true);
      body.node.append(runForm(form, (values) => ask("run", { ...values, path: local }), (answer) => {
        dialog.dispose();
        tell(answer.lines.join(" "), "success");
        app.commands.execute(OPEN);
      }));
      await dialog.launch().catch(() => {});  // it was closed by the submission
    },
  });
  palette?.addItem({ command: OPEN, category: "GPUs" });
  palette?.addItem({ command: RUN, category: "GPUs" });
  launcher?.add({ command: OPEN, category: "Other" });
  for (const selector of RUNNABLE) app.contextMenu.addItem({ command: RUN, selector, args: { fromBrowser: true }, rank: 10 });
  if (notebooks && ToolbarButton) {
    const add = (/** @type {any} */ notebook) => {
      const execute = () => app.commands.execute(RUN, { path: notebook.context.path });
      notebook.toolbar.insertBefore("kernelName", "runai-run", new ToolbarButton({ label: "Run as GPU Job", tooltip: "Run this notebook as a GPU job", onClick: execute }));
    };
    notebooks.forEach(add);
    notebooks.widgetAdded.connect((/** @type {any} */ _, /** @type {any} */ notebook) => add(notebook));
  }
  return (/** @type {any} */ frame) => {
    status.update(frame.status);
    panel.update(frame);
  };
}

/** Give the path of the document that is in front. @param {any} app */
const documentPath = (app) => app.shell.currentWidget?.context?.path;

/** @param {any} Widget @param {string} id */
function widget(Widget, id) {
  const made = new Widget();
  made.id = id;
  return made;
}

/** @param {string} base */
function style(base) {
  for (const name of ["panel.css", "extension.css"]) {
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: base + name }));
  }
}
