// What the page draws and what its buttons do: `node --test tests/widgets`, no packages.
import assert from "node:assert/strict";
import { test } from "node:test";

import { gpus, percent } from "../../widgets/amounts.js";
import { chartLegend, chartPicture, pieces, roundScale } from "../../widgets/chart.js";
import { patch } from "../../widgets/nodes.js";
import panel, { request } from "../../widgets/panel.js";
import { view } from "../../widgets/views.js";
import { install } from "./dom.mjs";

const SEEN = { id: "vision/a", uid: "u1" };
const row = (given = {}) => ({
  id: "vision/a", uid: "u1", name: "a", project: "vision", kind: "job", state: "running", gpus: 1, allocated: 1,
  utilized: 0.5, average: 0.25, reason: "", pauses: 0, exit_code: null, limit: "", limit_why: "", idle: "", beside: "", elastic: "", saves: "", progress: "", notice: "",
  simulated: true, recent: [], version: "1",
  actions: [{ verb: "suspend", label: "Suspend" }, { verb: "delete", label: "Stop" }], ...given,
});
const bar = (given = {}) => ({
  name: "vision", quota: 2.5, quota_parts: "", allocated: 3.5, sessions: 0.5, over_quota: 1, utilized: 2, waiting: 1, ...given,
});
const chart = (given = {}) => ({
  allocated: 4, utilized: 3, since: 0, until: 600, step_s: 4, points: [[2, 4, 1], [596, 4, 2], [602, 4, 3]], quota: 2.5, ...given,
});
const state = (given = {}) => ({
  view: "panel", at: 1000, lost: "", simulated: true, projects: [bar()], workloads: [row()], chart: chart(), notes: [], told: [], ...given,
});
const clicks = (given = {}) => ({ service: "", confirming: "", busy: new Map(), errors: new Map(), said: "", wanted: "", ...given });

/** All nodes below, in order. */
const all = (nodes) => nodes.flatMap((node) => (typeof node === "string" ? [] : [node, ...all(node.children)]));
const text = (node) => (typeof node === "string" ? node : node.children.map(text).join(" "));
const drawn = (given, clicked = clicks()) => all(view(state(given), clicked, () => {}));
const find = (nodes, role, value) => nodes.find((node) => node.props[role] === value);
const labels = (nodes) => nodes.filter((node) => node.tag === "button").map((node) => node.props["aria-label"]);

test("amounts read as in the sentences of the service", () => {
  assert.deepEqual([gpus(2), gpus(0.35), gpus(1 / 3), gpus(null)], ["2", "0.35", "0.333", "∞"]);
  assert.deepEqual([percent(0.25, 0.5), percent(null, 1), percent(0, 0)], ["50 %", "-", "-"]);
});

test("a quota bar tells its parts in words, for those who do not see them", () => {
  const track = find(drawn(), "role", "progressbar");
  assert.equal(track.props["aria-valuetext"], "3.5 of 2.5 GPUs allocated · 1 over quota · 57 % utilized · 1 waiting");
  assert.deepEqual([track.props["aria-valuenow"], track.props["aria-valuemax"]], [3.5, 3.5]);
});

test("the parts of all quota bars have one scale", () => {
  const tracks = drawn({ projects: [bar(), bar({ name: "nlp", allocated: 0, sessions: 0, over_quota: 0 })] })
    .filter((node) => node.props.role === "progressbar");
  const widths = tracks.map((track) => track.children.map((part) => part.props.style));
  assert.deepEqual(widths[1], ["width:0%", "width:0%", "width:0%", `width:${250 / 3.5}%`, `left:${250 / 3.5}%`]);
  assert.equal(widths[0][4], widths[1][4]);
});

test("an unlimited quota has no mark", () => {
  const nodes = drawn({ projects: [bar({ quota: null })] });
  assert.equal(find(nodes, "class", "runai-mark"), undefined);
  assert.match(text(find(nodes, "class", "runai-words")), /^3\.5 of ∞ GPUs/);
});

test("quotas by GPU type stand beside their sum", () => {
  const nodes = drawn({ projects: [bar({ quota: 6, quota_parts: "h100 2, * 4" })] });
  assert.match(text(find(nodes, "class", "runai-words")), /^3\.5 of 6 GPUs allocated · by type h100 2, \* 4/);
});

test("each button is labelled with what it does and to whom", () => {
  assert.deepEqual(labels(drawn()), ["Suspend a", "Stop a"]);
  assert.deepEqual(labels(drawn({}, clicks({ confirming: "vision/a u1" }))), ["Suspend a", "Really stop a"]);
});

test("many workloads are counted, and found by words of name, project, kind or state", () => {
  const many = Array.from({ length: 10 }, (_, n) => row({ id: `vision/exp-${n}`, name: `exp-${n}`, state: n < 2 ? "running" : "queued" }));
  const names = (wanted) => drawn({ workloads: many }, clicks({ wanted })).filter((node) => node.props.class === "runai-job").map(text);
  assert.equal(find(drawn(), "type", "search"), undefined);
  assert.equal(text(find(drawn({ workloads: many }), "class", "runai-counts")), "2 running · 8 queued");
  assert.deepEqual(names("Running exp-1"), ["exp-1"]);
  assert.equal(names(" ").length, 10);
  assert.match(text(drawn({ workloads: many }, clicks({ wanted: "nlp" }))[0]), /None of them matches/);
});

test("a workload's output and life are a page away, where there is a page", () => {
  const links = (clicked) => drawn({ workloads: [row({ id: "vision/a b" })] }, clicked).filter((node) => node.tag === "a");
  assert.deepEqual(links(clicks()), []);
  const [link] = links(clicks({ service: "/services/runai/" }));
  assert.deepEqual([link.props.href, link.props["aria-label"]], ["/services/runai/workloads/vision/a%20b", "Output and history of a"]);
});

test("a click that has begun stands where the buttons were, an error below", () => {
  const nodes = drawn({}, clicks({ busy: new Map([["vision/a", "Suspending…"]]), errors: new Map([["vision/a", "No."]]) }));
  assert.deepEqual(labels(nodes), [undefined]);
  assert.equal(text(find(nodes, "aria-disabled", "true")), "Suspending…");
  assert.equal(text(find(nodes, "role", "status")), "Suspending…");
  assert.equal(text(find(nodes, "role", "alert")), "No.");
});

for (const [name, given, words] of [
  ["a reason and pauses", { reason: "It waits.", pauses: 2 }, "It waits. · paused 2 times"],
  ["that a job saves its work", { saves: "saves its work when it is paused" }, "saves its work when it is paused"],
  ["the CPU that a job requests", { beside: "4 CPUs", reason: "It waits." }, "4 CPUs · It waits."],
  ["an elastic job's size", { elastic: "trains on 2 of 1 to 4 GPUs", reason: "It gives back." }, "trains on 2 of 1 to 4 GPUs · It gives back."],
  ["an exit code without a reason", { state: "failed", exit_code: 3 }, "exit code 3"],
  ["an exit code that the reason tells", { state: "failed", exit_code: 3, reason: "Exit code 3." }, "Exit code 3."],
]) {
  test(`below a workload stands ${name}`, () => {
    assert.equal(text(find(drawn({ workloads: [row(given)] }), "class", "runai-reason")), words);
  });
}

test("a share of a device tells how strictly its memory is kept, and what was done about it", () => {
  const nodes = drawn({ workloads: [row({ limit: "soft limit", limit_why: "8.0 GiB: PyTorch keeps it", notice: "a uses too much" })] });
  const badge = find(nodes, "class", "runai-limit");
  assert.deepEqual([text(badge), badge.props.title], ["soft limit", "8.0 GiB: PyTorch keeps it"]);
  assert.equal(text(find(nodes, "role", "alert")), "a uses too much");
  assert.equal(find(drawn(), "class", "runai-limit"), undefined);
});

test("an idle GPU is said below its workload, with the time that is left", () => {
  const nodes = drawn({ workloads: [row({ idle: "idle for 12 min" })] });
  assert.equal(text(find(nodes, "class", "runai-idle")), "idle for 12 min");
  assert.equal(find(drawn(), "class", "runai-idle"), undefined);
});

test("simulated devices are marked at the bars, in the picture and at the workloads", () => {
  const marks = (simulated) => drawn({ simulated }).filter((node) => text(node) === "simulated GPUs" && node.tag !== "p");
  assert.deepEqual(marks(true).map((node) => node.tag), ["span", "text", "span"]);
  assert.deepEqual(marks(false), []);
});

test("what happened lately is told with its time, in a list that is read out", () => {
  const log = find(drawn({ told: [{ at: 1e9, kind: "paused", text: "vision/a was paused" }] }), "role", "log");
  assert.match(text(log), /\d.* vision\/a was paused/);
  assert.deepEqual([log.tag, log.children[0].tag], ["div", "ul"], "a list with another role has no items");
  assert.equal(find(drawn(), "role", "log"), undefined);
});

test("how busy a workload was is a line with gaps where nobody knows", () => {
  const path = drawn({ workloads: [row({ recent: [0, 1, null, 0.5, 0.5] })] }).find((node) => node.props.class === "runai-spark").children[0];
  assert.equal(path.props.d, "M0.0 13.0L14.0 1.0M42.0 7.0L56.0 7.0");
});

test("a status is its one line", () => {
  const nodes = drawn({ view: "status", chart: null, notes: ["GPU 0 · 0.5 allocated"] });
  assert.deepEqual(nodes.map((node) => node.tag), ["div", "p"]);
});

test("a picture that is out of date says so", () => {
  const lost = all(view(state({ lost: "It is away." }), clicks(), () => {}, () => {}, { since: Date.now() / 1000, exported: false }));
  assert.match(text(find(lost, "class", "runai-lost")), /^not live since \S+( [AP]M)?: It is away\.$/);
  assert.doesNotMatch(lost.map(text).join() + find(lost, "class", "runai-chart").props["aria-label"], /\bnow\b/);
});

for (const [what, since] of [["live", null], ["not live", 1000]]) {
  test(`a view that is ${what} says on paper of when it is`, () => {
    const [page] = view(state(), clicks(), () => {}, () => {}, { since, exported: false });
    assert.match(page.props["data-as-of"], /^as of (1 Jan|Jan 1), /);
  });
}

test("nothing is drawn of what a view does not show", () => {
  const sections = (given) => drawn(given).filter((node) => node.tag === "section").map((node) => node.props["aria-label"]);
  assert.deepEqual(sections(), ["Quota", "Allocated and utilized", "Workloads"]);
  assert.deepEqual(sections({ view: "quota", chart: null }), ["Quota"]);
  assert.deepEqual(sections({ view: "jobs", chart: null }), ["Workloads"]);
});

for (const [highest, scale] of [[0.5, [0.5, 0.25]], [1, [1, 0.25]], [2.5, [2.5, 0.5]], [4.5, [5, 1]], [8, [8, 2]], [20, [20, 5]], [70, [80, 20]]]) {
  test(`an axis up to ${highest} ends at ${scale[0]} in steps of ${scale[1]}`, () => {
    assert.deepEqual(roundScale(highest), scale);
  });
}

test("a gap in knowledge is a gap in the picture", () => {
  const points = [[4, 1, 1], [8, 1, null], [12, null, null], [16, 1, 1]];
  assert.deepEqual(pieces(points, 1, 0).map((piece) => piece.length), [2, 1]);
  assert.deepEqual(pieces(points, 2, 0).map((piece) => piece.length), [1, 1]);
  assert.deepEqual(pieces(points, 1, 12), [[[16, 1, 1]]]);
});

test("the picture is told in words and stays within its frame", () => {
  const picture = chartPicture(chart(), true);
  assert.equal(picture.props["aria-label"], "My GPUs over the last 10 minutes: now 4 GPUs allocated, 75 % utilized (simulated)");
  for (const path of all([picture]).filter((node) => node.tag === "path")) {
    const numbers = path.props.d.match(/-?\d+(\.\d+)?/g).map(Number);
    assert.ok(numbers.every((number, index) => number >= 0 && number <= (index % 2 ? 150 : 720)), path.props.d);
  }
});

test("the legend tells allocated and utilized together, and the average of what was measured", () => {
  assert.equal(text(chartLegend(chart())).replace(/ +/g, " ").trim(), "4 allocated 75 % utilized average 50 % quota 2.5");
});

test("a chart without any point tells what is known now", () => {
  const picture = chartPicture(chart({ allocated: 1, utilized: null, points: [], quota: null }), false);
  assert.match(picture.props["aria-label"], /now 1 GPU allocated, nothing measured$/);
});

// -- into the page -----------------------------------------------------------------------------

const node = (tag, props = {}, ...children) => ({ tag, props, children });

test("elements go on existing while what they show changes", () => {
  const page = install();
  const el = page.createElement("div");
  patch(el, [node("p", { key: "a", class: "x" }, "one"), node("p", { key: "b" }, "two")]);
  const [a, b] = el.childNodes;
  patch(el, [node("p", { key: "b" }, "zwei"), node("p", { key: "c" }, "three"), node("p", { key: "a" }, "one")]);
  assert.equal(el.childNodes[0], b);
  assert.equal(el.childNodes[2], a);
  assert.equal(el.textContent, "zweithreeone");
  assert.equal(a.getAttribute("class"), null);
  patch(el, [node("p", { key: "a" })]);
  assert.deepEqual(el.childNodes, [a]);
  assert.equal(el.textContent, "");
});

test("text and elements may take each other's place", () => {
  const page = install();
  const el = page.createElement("div");
  patch(el, ["a", node("b"), "c"]);
  patch(el, [node("b"), "d"]);
  patch(el, ["e"]);
  assert.equal(el.textContent, "e");
});

test("a button does what the latest state says", () => {
  const page = install();
  const el = page.createElement("div");
  const done = [];
  patch(el, [node("button", { onclick: () => done.push(1) })]);
  patch(el, [node("button", { onclick: () => done.push(2) })]);
  el.childNodes[0].onclick();
  assert.deepEqual(done, [2]);
});

// -- the service -------------------------------------------------------------------------------

const reply = (status, body = {}, headers = {}) =>
  ({ ok: status < 400, status, json: async () => body, headers: new Headers(headers) });
const PAGE = reply(200), WHO = reply(200, {}, { "X-XSRFToken": "t0ken" });

/** A network of prepared answers that remembers what it was asked. */
function network(...answers) {
  const asked = [];
  const net = async (url, options) => {
    asked.push(`${options.method ?? "GET"} ${url} ${options.headers?.["X-XSRFToken"] ?? ""}`.trim());
    const answer = answers.shift();
    if (!answer) throw new TypeError("Failed to fetch");
    return answer;
  };
  return { net, asked };
}

test("the first click signs in at the service, later ones need not", async () => {
  const { net, asked } = network(PAGE, WHO, reply(200), reply(202));
  assert.equal(await request("/one/", "suspend", SEEN, net), "");
  assert.equal(await request("/one/", "delete", SEEN, net), "");
  assert.deepEqual(asked, [
    "GET /one/", "GET /one/api/v1/whoami",
    "POST /one/api/v1/workloads/vision/a/suspend?uid=u1 t0ken", "DELETE /one/api/v1/workloads/vision/a?uid=u1 t0ken",
  ]);
});

test("a click may say how many", async () => {
  const sent = [], answers = [PAGE, WHO, reply(200)];
  const net = async (url, options) => { sent.push(options); return answers.shift(); };
  assert.equal(await request("/four/", "scale", SEEN, net, { workers: 3 }), "");
  assert.deepEqual([sent[2].body, sent[2].headers["Content-Type"]], ['{"workers":3}', "application/json"]);
});

test("outside JupyterHub the kernel is told how many, too", async () => {
  const el = install().createElement("div");
  const actions = [{ verb: "scale", label: "Add a worker", workers: 3 }];
  const here = model({ state: state({ workloads: [row({ actions })] }), service: "" });
  const leave = panel.render({ model: here, el });
  button(el, "Add a worker a").onclick();
  await Promise.resolve();
  assert.deepEqual(here.sent, [{ verb: "scale", workload: "vision/a", uid: "u1", workers: 3 }]);
  leave();
});

test("a login that has ended is begun anew, once", async () => {
  const { net, asked } = network(PAGE, WHO, reply(200), reply(403), PAGE, WHO, reply(200));
  await request("/two/", "suspend", SEEN, net);
  assert.equal(await request("/two/", "resume", SEEN, net), "");
  assert.equal(asked.length, 7);
});

test("a refusal is told by the service's own sentence", async () => {
  const { net } = network(PAGE, WHO, reply(409, { detail: "It is finished.", hint: "Delete it." }));
  assert.equal(await request("/three/", "suspend", SEEN, net), "It is finished. Delete it.");
});

for (const [name, answers] of [
  ["nothing answers", []],
  ["nobody is logged in", [reply(200), reply(401)]],
  ["another site answers", [reply(200), reply(200)]],
  ["there is no such page", [reply(404), reply(404)]],
]) {
  test(`the kernel is asked instead where ${name}`, async () => {
    assert.equal(await request(`/${name}/`, "suspend", SEEN, network(...answers).net), null);
  });
}

// -- the widget --------------------------------------------------------------------------------

/** A model as anywidget gives it, and what was sent to the kernel. */
function model(values) {
  const listeners = new Map(), sent = [], reports = [];
  return {
    listeners, sent, reports, values,
    get: (name) => values[name],
    on: (event, listener) => listeners.set(event, [...(listeners.get(event) ?? []), listener]),
    off: (event, listener) => listeners.set(event, listeners.get(event).filter((each) => each !== listener)),
    send: (content) => ("shown" in content ? reports : sent).push(content),
    tell: (event, ...news) => listeners.get(event).forEach((listener) => listener(...news)),
  };
}

const button = (el, label) => el.all().find((each) => each.getAttribute?.("aria-label") === label);

test("outside JupyterHub a click goes to the kernel, and its answer is shown", () => {
  const el = install().createElement("div");
  const here = model({ state: state(), service: "" });
  const leave = panel.render({ model: here, el });
  button(el, "Suspend a").onclick();
  return Promise.resolve().then(() => {
    assert.deepEqual(here.sent, [{ verb: "suspend", workload: "vision/a", uid: "u1" }]);
    assert.match(el.textContent, /Suspending…/);
    here.tell("msg:custom", { workload: "vision/a", error: "It is finished." });
    assert.match(el.textContent, /It is finished\./);
    leave();
  });
});

test("the button that was pressed stays while its meaning changes, and so does the focus on it", () => {
  const el = install().createElement("div");
  const here = model({ state: state(), service: "" });
  const leave = panel.render({ model: here, el });
  const pressed = button(el, "Suspend a");
  pressed.onclick();
  here.values.state = state({ workloads: [row({ version: "2", state: "suspended", actions: [{ verb: "resume", label: "Resume" }] })] });
  here.tell("change:state");
  assert.equal(button(el, "Resume a"), pressed);
  leave();
});

test("what was begun is over when the workload has changed", () => {
  const el = install().createElement("div");
  const here = model({ state: state(), service: "" });
  const leave = panel.render({ model: here, el });
  button(el, "Suspend a").onclick();
  here.values.state = state({ workloads: [row({ version: "2", state: "stopping", actions: [] })] });
  here.tell("change:state");
  assert.doesNotMatch(el.textContent, /Suspending…/);
  leave();
});

test("stopping is asked twice", () => {
  const el = install().createElement("div");
  const here = model({ state: state(), service: "" });
  const leave = panel.render({ model: here, el });
  button(el, "Stop a").onclick();
  assert.deepEqual(here.sent, []);
  button(el, "Really stop a").onclick();
  return Promise.resolve().then(() => {
    assert.deepEqual(here.sent, [{ verb: "delete", workload: "vision/a", uid: "u1" }]);
    leave();
  });
});

test("a namesake that takes the row between the two clicks is asked about anew", () => {
  const el = install().createElement("div");
  const here = model({ state: state(), service: "" });
  const leave = panel.render({ model: here, el });
  button(el, "Stop a").onclick();
  here.values.state = state({ workloads: [row({ uid: "u2" })] });
  here.tell("change:state");
  button(el, "Stop a").onclick();
  assert.deepEqual(here.sent, []);
  assert.ok(button(el, "Really stop a"));
  leave();
});

test("the kernel is told while a view is on the page", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const el = install().createElement("div");
  const here = model({ state: state(), service: "" });
  const leave = panel.render({ model: here, el });
  const other = panel.render({ model: here, el: install().createElement("div") });
  assert.deepEqual(here.reports.splice(0), [{ shown: true }, { shown: true }]);
  leave();
  t.mock.timers.tick(5000);
  assert.deepEqual(here.reports.splice(0), [{ shown: false }]);
  here.tell("msg:custom", { asks: "shown" });
  assert.deepEqual(here.reports.splice(0), [{ shown: true }], "the other one is still there");
  other();
});

test("a view that is gone listens to nothing", () => {
  const el = install().createElement("div");
  const here = model({ state: state(), service: "" });
  panel.render({ model: here, el })();
  assert.deepEqual([...here.listeners.values()].flat(), []);
});

test("a state that has changed is said to who cannot see it, and only then", () => {
  const el = install().createElement("div");
  const here = model({ state: state(), service: "" });
  const leave = panel.render({ model: here, el });
  const said = () => el.all().find((each) => each.getAttribute?.("role") === "status" && each.tag === "p").textContent;
  assert.equal(said(), "");
  here.values.state = state({ workloads: [row({ version: "2", state: "paused" }), row({ id: "vision/b", name: "b", state: "queued" })] });
  here.tell("change:state");
  assert.equal(said(), "a: paused");
  here.tell("change:state");
  assert.equal(said(), "a: paused");
  leave();
});

// -- whether it is live ------------------------------------------------------------------------

/** A kernel as JupyterLab shows it to its widgets. */
function kernel(given = {}) {
  const signal = () => { const slots = new Set(); return { slots, connect: (slot) => slots.add(slot), disconnect: (slot) => slots.delete(slot), emit: () => slots.forEach((slot) => slot()) }; };
  return { id: "k1", status: "busy", connectionStatus: "connected", statusChanged: signal(), connectionStatusChanged: signal(), ...given };
}
const isStale = (el) => /not live since 1 Jan|not live since Jan 1/.test(el.textContent) && !button(el, "Stop a") && !button(el, "Suspend a");
const isLive = (el) => !/not live/.test(el.textContent) && Boolean(button(el, "Stop a"));

for (const [name, happens, comesBack] of [
  ["its kernel is shut down", ({ manager }) => { manager.kernel = null; }, false],
  ["its kernel has died", ({ now }) => { now.status = "dead"; now.statusChanged.emit(); }, false],
  ["its kernel restarts", ({ here }) => here.tell("comm_live_update"), false],
  ["its kernel restarts by itself", ({ now }) => { now.status = "autorestarting"; now.statusChanged.emit(); now.status = "idle"; }, false],
  ["another kernel takes the place of its own", ({ manager }) => { manager.kernel = kernel({ id: "k2" }); }, false],
  ["the connection breaks", ({ now }) => { now.connectionStatus = "connecting"; }, true],
  ["the browser is offline", () => { Object.defineProperty(globalThis, "navigator", { value: { onLine: false }, configurable: true }); }, true],
  ["the service is away", ({ here }) => { here.values.state = state({ lost: "It is away." }); }, true],
]) {
  test(`a view says since when it gets no news: ${name}`, (t) => {
    t.mock.timers.enable({ apis: ["setInterval", "setTimeout"] });
    const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
    const restore = () => before ? Object.defineProperty(globalThis, "navigator", before) : delete globalThis.navigator;
    const el = install().createElement("div");
    const now = kernel(), manager = { kernel: now };
    const here = { ...model({ state: state(), service: "" }), widget_manager: manager };
    const leave = panel.render({ model: here, el });
    try {
      t.mock.timers.tick(600000);
      assert.ok(isLive(el), "a busy kernel and an idle platform are silent");
      happens({ here, manager, now });
      t.mock.timers.tick(15000);
      assert.ok(isStale(el));
      here.values.state = state();
      Object.assign(now, { status: "idle", connectionStatus: "connected" });
      restore();
      t.mock.timers.tick(15000);
      assert.equal(isLive(el), comesBack);
    } finally {
      restore();
      leave();
    }
    assert.equal(now.statusChanged.slots.size + now.connectionStatusChanged.slots.size, 0);
  });
}

test("a view from a file is not live, though its notebook has a kernel", () => {
  const el = install().createElement("div");
  const here = { ...model({ state: state(), service: "", layout: { comm_live: false } }), widget_manager: { kernel: kernel() } };
  const leave = panel.render({ model: here, el });
  assert.ok(isStale(el));
  leave();
});

test("a notebook opened without a kernel shows a view that is not live", () => {
  const el = install().createElement("div");
  const here = { ...model({ state: state(), service: "" }), widget_manager: { kernel: null } };
  const leave = panel.render({ model: here, el });
  assert.ok(isStale(el));
  leave();
});

test("an exported page says of when it is", () => {
  const document = install();
  document.querySelector = () => ({});
  const el = document.createElement("div");
  const leave = panel.render({ model: { ...model({ state: state(), service: "" }), widget_manager: {} }, el });
  assert.match(el.textContent, /^as of (1 Jan|Jan 1), /);
  assert.equal(button(el, "Stop a"), undefined);
  leave();
});

test("a front end that does not show its kernel counts as live", () => {
  const el = install().createElement("div");
  const leave = panel.render({ model: model({ state: state(), service: "" }), el });
  assert.ok(isLive(el));
  leave();
});
