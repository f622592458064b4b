// Module Federation's container, by hand: JupyterLab calls `init` with its modules, then `get`. The
// scripts themselves come from the notebook server, so that they are of one version with it.
(() => {
  let shared = {};
  /** Give a module of the page; {} where this front end has none. */
  async function host(name) {
    const versions = Object.values(shared[name] ?? {});
    const version = versions.find((each) => each.loaded) ?? versions[0];
    return version ? (await version.get())() : {};
  }
  (window._JUPYTERLAB ??= {})["@jupyter-runai/lab"] = {
    init(scope) { shared = scope; },
    async get() {
      try {
        const { baseUrl } = JSON.parse(document.getElementById("jupyter-config-data").textContent);
        const { plugins } = await import(`${baseUrl}runai/lab/extension.js`);
        const found = await plugins(host, baseUrl);
        return () => ({ __esModule: true, default: found });
      } catch (error) {
        console.debug("The GPU extension is not there.", error);
        return () => ({ __esModule: true, default: [] });
      }
    },
  };
})();
