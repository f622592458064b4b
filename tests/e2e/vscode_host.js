// The notebook's side of VS Code, as far as widgets see it: the widget manager of its Jupyter extension
// (@vscode/jupyter-ipywidgets8), given a kernel whose messages go through the test, and requirejs.

const WIDGETS = "jupyter.widget";
let opened = null;
const comms = new Map();
let counted = 0;

/** A comm as @jupyterlab/services has them. */
function comm(commId) {
  const made = {
    commId, targetName: WIDGETS, onMsg: () => {}, onClose: () => {},
    open: (data) => sent("comm_open", { comm_id: commId, target_name: WIDGETS, data }),
    send: (data) => sent("comm_msg", { comm_id: commId, data }),
    close: (data) => sent("comm_close", { comm_id: commId, data }),
  };
  comms.set(commId, made);
  return made;
}

function sent(type, content) {
  const id = `from-page-${++counted}`;
  window.toKernel({ id, type, content });
  return { msg: { header: { msg_id: id } } };
}

const quiet = { connect: () => true, disconnect: () => true };
const kernel = {
  statusChanged: quiet, connectionStatusChanged: quiet, iopubMessage: quiet, unhandledMessage: quiet,
  anyMessage: quiet, disposed: quiet, pendingInput: quiet,
  status: "idle", connectionStatus: "connected",
  id: "kernel", username: "", clientId: "page", handleComms: true,
  registerCommTarget: (_name, open) => { opened ??= open; },
  removeCommTarget: () => {},
  createComm: (_target, id) => comm(id),
  requestCommInfo: async () => ({ content: { status: "ok", comms: {} } }),
};

// Where VS Code finds the scripts of other widgets: the folder `nbextensions` of the kernel's Python.
const scripts = {
  widgetsRegisteredInRequireJs: new Set(),
  loadWidgetScript: async (module) => {
    window.requirejs.config({ paths: { [module]: `/nbextensions/${module}/index` } });
    scripts.widgetsRegisteredInRequireJs.add(module);
  },
  successHandler: () => {},
  errorHandler: (_class, module, _version, error) => console.error(`${module}: ${error}`),
};

const { activate } = await import("/ipywidgets.js");
activate();
window.vscIPyWidgets8.load();
const manager = new window.vscIPyWidgets.WidgetManager(
  kernel, document.getElementById("output"), scripts, () => {}, undefined,
);

/** Take a message of the kernel; the test calls it in their order. */
window.fromKernel = async ({ type, content, metadata, parent }) => {
  const message = { header: { msg_type: type }, parent_header: { msg_id: parent }, content, metadata, buffers: [] };
  if (type === "comm_open") await opened(comm(content.comm_id), message);
  if (type === "comm_msg") await comms.get(content.comm_id)?.onMsg(message);
  const shown = content.data?.["application/vnd.jupyter.widget-view+json"];
  if (shown) {
    const view = await manager.create_view(await manager.get_model(shown.model_id));
    await manager.display_view(undefined, view, { node: document.getElementById("output") });
  }
};
document.body.dataset.ready = "yes";
