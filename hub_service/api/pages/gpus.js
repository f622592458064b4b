// @ts-check
// The page "GPUs": draws each overview of the event stream; buttons call the API with the login cookie.
// Everything that users have typed becomes text nodes, never markup.

const root = document.documentElement;
const prefix = root.dataset.prefix ?? "/";
const user = root.dataset.user ?? "";

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/**
 * @param {string} tag
 * @param {string} [className]
 * @param {...(Node | string)} children
 */
function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

/** @param {number | null | undefined} amount */
const gpus = (amount) => (amount == null ? "∞" : String(Math.round(amount * 100) / 100));

/** @param {number | null | undefined} amount */
const measured = (amount) => (amount == null ? "–" : amount.toFixed(2));

/** @param {HTMLElement} bar @param {string} kind @param {number} part */
function fill(bar, kind, part) {
  const piece = make("span", kind);
  piece.style.width = `${Math.max(0, Math.min(1, part)) * 100}%`;
  bar.append(piece);
}

/** @param {any} project @param {number} capacity */
function drawProject(project, capacity) {
  const scale = Math.max(capacity, project.quota ?? 0, project.allocated, 0.001);
  const quota = project.quota ?? capacity;
  const over = Math.max(0, project.allocated - quota);
  const train = project.allocated - project.build_allocated - over;
  const bar = make("div", "bar");
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", `${gpus(project.allocated)} of ${gpus(project.quota)} GPUs`);
  fill(bar, "build", project.build_allocated / scale);
  fill(bar, "train", train / scale);
  fill(bar, "over", over / scale);
  const mark = make("span", "quota");
  mark.style.left = `calc(${Math.min(1, quota / scale) * 100}% - 2px)`;
  bar.append(mark);
  const waiting = project.waiting ? ` · ${project.waiting} waiting` : "";
  const utilized = project.utilized == null ? "" : ` · ${measured(project.utilized)} utilized`;
  return make(
    "div", "project",
    make("span", "name", project.name),
    bar,
    make("span", "figures", `${gpus(project.allocated)} of ${gpus(project.quota)}${utilized}${waiting}`),
  );
}

/** @param {any} workload */
function drawWorkload(workload) {
  const row = make("tr", workload.user === user ? "" : "others");
  const name = make("td", "", make("span", "project-of", `${workload.project}/`), workload.name);
  const why = make("td", "why", workload.reason?.text ?? "");
  if (workload.progress) why.append(make("p", "elastic", workload.progress.text));
  if (workload.elastic) {
    if (!workload.finished) why.append(make("p", "elastic", `Trains on ${workload.elastic.text}`));
    if (workload.elastic.speed) why.append(make("p", "elastic", workload.elastic.speed));
  }
  if (workload.idle) why.append(make("p", "idle", workload.idle.text));
  if (workload.notice) why.append(make("p", "notice", `${workload.name} ${workload.notice}`));
  const state = make("span", `state state-${workload.state}`, workload.state);
  row.append(
    name,
    make("td", "", workload.user),
    make("td", "", state),
    make("td", "number", `${gpus(workload.allocated)} of ${gpus(workload.gpus)}`, ...limit(workload)),
    make("td", "number", measured(workload.utilized), ...average(workload)),
    why,
    make("td", "actions", ...actions(workload)),
  );
  return row;
}

/** @param {any} workload */
function limit(workload) {
  if (!workload.limit) return [];
  const badge = make("span", "limit", workload.limit.badge);
  badge.title = `${(workload.limit.memory_mib / 1024).toFixed(1)} GiB: ${workload.limit.why}`;
  return [badge];
}

/** @param {any} workload */
function average(workload) {
  if (workload.utilized_average == null) return [];
  return [make("span", "on-average", `${measured(workload.utilized_average)} on average`)];
}

/** @param {any} workload */
function actions(workload) {
  if (!workload.mine) return [];
  const finished = ["succeeded", "failed", "ended"].includes(workload.state);
  const buttons = [];
  if (workload.kind === "job" && !finished) {
    const verb = workload.state === "suspended" ? "resume" : "suspend";
    buttons.push(button(verb === "resume" ? "Resume" : "Pause", "POST", `${workload.id}/${verb}`));
  }
  if (workload.idle?.keeps_left) buttons.push(button("Keep 30 more minutes", "POST", `${workload.id}/keep`));
  if (workload.idle && workload.kind === "session" && !workload.idle.releasing) {
    buttons.push(button("Give GPU back", "POST", `${workload.id}/release`));
  }
  if (workload.released && workload.state === "running") buttons.push(button("Get GPU back", "POST", `${workload.id}/regain`));
  buttons.push(button(finished ? "Delete" : "Stop", "DELETE", workload.id));
  return buttons;
}

/** @param {string} label @param {string} method @param {string} path */
function button(label, method, path) {
  const element = /** @type {HTMLButtonElement} */ (make("button", "", label));
  element.type = "button";
  element.addEventListener("click", async () => {
    element.disabled = true;
    try {
      await call(method, path);
    } catch (error) {
      say(error instanceof Error ? error.message : String(error));
      element.disabled = false;
    }
  });
  return element;
}

/** @param {string} method @param {string} path */
async function call(method, path) {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]+)/)?.[1] ?? "";
  const reply = await fetch(`${prefix}api/v1/workloads/${path}`, {
    method, credentials: "same-origin", headers: { "X-XSRFToken": xsrf },
  });
  if (reply.ok) return;
  const problem = await reply.json().catch(() => ({}));
  throw new Error(`${problem.detail ?? "The service is away."} ${problem.hint ?? ""}`);
}

let hiding = 0;
/** @param {string} text */
function say(text) {
  const message = byId("message");
  message.textContent = text;
  message.hidden = false;
  clearTimeout(hiding);
  hiding = window.setTimeout(() => { message.hidden = true; }, 8000);
}

/** @param {any} device */
function drawDevice(device) {
  const bar = make("div", "bar");
  fill(bar, "train", device.allocated);
  const users = device.allocations.map((/** @type {any} */ a) =>
    `${a.user || "another project"} ${gpus(a.gpus)}`);
  for (const other of device.others) {
    const whose = other.account ? ` of ${other.account}` : "";
    users.push(`other processes${whose} ${((other.memory_mib ?? 0) / 1024).toFixed(1)} GiB`);
  }
  const memory = device.memory_used_mib == null ? "" :
    ` · ${(device.memory_used_mib / 1024).toFixed(1)} of ${Math.round(device.memory_mib / 1024)} GiB`;
  const utilized = device.utilized == null ? "not measured" : `${Math.round(device.utilized * 100)} % utilized`;
  return make(
    "div", "device",
    make("p", "title", `GPU ${device.device}${device.simulated ? " (simulated)" : ""}`),
    bar,
    make("p", "", `${gpus(device.allocated)} allocated · ${utilized}${memory}`),
    make("p", "", users.join(", ") || (device.healthy ? "free" : "")),
    make("p", "fault", device.healthy ? "" : `Taken out: ${device.fault}`),
  );
}

/** @param {any} overview */
function draw(overview) {
  const devices = overview.nodes.flatMap((/** @type {any} */ node) => node.devices);
  const allocated = devices.reduce((/** @type {number} */ s, /** @type {any} */ d) => s + d.allocated, 0);
  const simulated = devices.some((/** @type {any} */ d) => d.simulated) ? " simulated" : "";
  byId("summary").textContent = `${gpus(allocated)} of ${devices.length}${simulated} GPUs allocated`;
  byId("notes").replaceChildren(...overview.notes.map((/** @type {string} */ n) => make("li", "", n)));
  byId("notes").hidden = overview.notes.length === 0;
  const reclaimed = overview.idle_gpu_hours_reclaimed;
  byId("reclaimed").textContent = `${gpuHours(reclaimed)} GPU-hours would have been idle, had they not been given to others`;
  byId("reclaimed").hidden = reclaimed < 0.05;
  byId("projects").replaceChildren(
    ...overview.projects.map((/** @type {any} */ p) => drawProject(p, devices.length)));
  const own = (/** @type {any} */ w) => (w.user === user ? 0 : 1);
  const sorted = [...overview.workloads].sort((a, b) => own(a) - own(b));
  byId("workloads").replaceChildren(...sorted.map(drawWorkload));
  byId("nothing").hidden = sorted.length > 0;
  byId("devices").replaceChildren(...devices.map(drawDevice));
}

const HOUR = 3600e3;
/** @type {[string, number][]} */
const RANGES = [["last hour", HOUR], ["last 24 hours", 24 * HOUR], ["last 7 days", 7 * 24 * HOUR]];

/** @param {number} amount */
const gpuHours = (amount) => amount.toFixed(amount < 10 ? 1 : 0);

/** @param {string} name @param {any} usage */
function drawAverage(name, usage) {
  const percent = (/** @type {number | null} */ average) =>
    (average == null || !usage.capacity ? "–" : `${Math.round((100 * average) / usage.capacity)} %`);
  const spent = usage.allocated_gpu_hours;
  const idle = spent ? `${gpuHours(spent)} GPU-hours allocated, ${gpuHours(usage.idle_gpu_hours)} of them idle` : "";
  return make(
    "div", "average",
    make("p", "percent", percent(usage.utilized_average)),
    make("p", "", `${name} · ${percent(usage.allocated_average)} allocated`),
    make("p", "", idle),
  );
}

/** The headline figure: how busy the GPUs were, not just whose. */
async function drawAverages() {
  const tiles = await Promise.all(RANGES.map(async ([name, length]) => {
    const since = new Date(Date.now() - length).toISOString();
    const reply = await fetch(`${prefix}api/v1/usage?since=${since}`, { credentials: "same-origin" });
    return reply.ok ? drawAverage(name, await reply.json()) : "";
  }));
  byId("averages").replaceChildren(...tiles);
}

/** @param {string} title @param {any[]} found */
function drawSums(title, found) {
  const percent = (/** @type {any} */ u) =>
    (u.allocated_gpu_hours ? `${Math.round((100 * u.used_gpu_hours) / u.allocated_gpu_hours)} %` : "–");
  const rows = [...found].sort((a, b) => b.allocated_gpu_hours - a.allocated_gpu_hours).map((u) =>
    make("tr", "", make("td", "", u.name), make("td", "number", measured(u.allocated_average)),
      make("td", "number", percent(u)), make("td", "number", u.idle_gpu_hours.toFixed(2))));
  const heads = [title, "GPUs held", "Utilized", "Idle hours"].map((text, n) => {
    const head = make("th", n ? "number" : "", text);
    head.setAttribute("scope", "col");
    return head;
  });
  return rows.length
    ? make("table", "sums", make("thead", "", make("tr", "", ...heads)), make("tbody", "", ...rows))
    : "";
}

const KINDS = [["project", "Project"], ["user", "User"], ["node", "Node"]];

/** Whose the averages of the last day are. */
async function drawAllSums() {
  const since = new Date(Date.now() - 24 * HOUR).toISOString();
  const tables = await Promise.all(KINDS.map(async ([kind, title]) => {
    const reply = await fetch(`${prefix}api/v1/usage/by/${kind}?since=${since}`, { credentials: "same-origin" });
    return reply.ok ? drawSums(title, await reply.json()) : "";
  }));
  byId("sums").replaceChildren(...tables.filter((table) => table !== ""));
  byId("sums-legend").hidden = !byId("sums").hasChildNodes();
}

/** Once a minute, and the service may be away: its stream says so. */
const keepAverages = () => Promise.all([drawAverages(), drawAllSums()]).catch(() => {});
keepAverages();
window.setInterval(keepAverages, 60e3);

const events = new EventSource(`${prefix}api/v1/events`);
events.addEventListener("overview", (event) => draw(JSON.parse(event.data)));
events.addEventListener("error", () => {
  byId("summary").textContent = "The service is away, trying again …";
  // A refused stream is not tried again by the browser: the login has ended, or a proxy answered.
  if (events.readyState === EventSource.CLOSED) window.setTimeout(() => location.reload(), 3000);
});
