// What the page renders and what its buttons do: `node --test tests/widgets`, no packages.
import assert from "node:assert/strict";
import { test } from "node:test";

import { gpus, percent } from "../../widgets/amounts.js";
import { chartLegend, chartPicture, pieces, roundScale } from "../../widgets/chart.js";
import { patch } from "../../widgets/nodes.js";
import panel from "../../widgets/panel.js";
import { askRelay } from "../../widgets/relay.js";
import { view } from "../../widgets/views.js";
import { install } from "./dom.mjs";

const WORKLOAD = { id: "vision/a", uid: "u1" };
const row = (fields = {}) => ({
  id: "vision/a", uid: "u1", name: "a", project: "vision", kind: "job", state: "running", gpus: 1, allocated: 1,
  utilized: 0.5, average: 0.25, reason: "", pauses: 0, array: false, exit_code: null, limit: "", limit_why: "", idle: "", beside: "", elastic: "", progress: "", notice: "",
  simulated: true, recent: [], version: "1",
  actions: [{ verb: "suspend", label: "Suspend" }, { verb: "delete", label: "Stop" }], ...fields,
});
const bar = (fields = {}) => ({
  name: "vision", quota: 2.5, quota_parts: "", allocated: 3.5, sessions: 0.5, over_quota: 1, utilized: 2, waiting: 1, ...fields,
});
const chart = (fields = {}) => ({
  allocated: 4, utilized: 3, since: 0, until: 600, step_s: 4, points: [[2, 4, 1], [596, 4, 2], [602, 4, 3]], quota: 2.5, ...fields,
});
const state = (fields = {}) => ({
  view: "panel", at: 1000, lost: "", simulated: true, projects: [bar()], workloads: [row()], chart: chart(), notes: [], told: [], ...fields,
});
const clicks = (fields = {}) => ({ service: "", confirming: "", busy: new Map(), errors: new Map(), opened: new Map(), said: "", wanted: "", ...fields });

/** All nodes below, in order. */
const all = (nodes) => nodes.flatMap((node) => (typeof node === "string" ? [] : [node, ...all(node.children)]));
const text = (node) => (typeof node === "string" ? node : node.children.map(text).join(" "));
const render = (fields, clicked = clicks()) => all(view(state(fields), clicked, () => {}));
const find = (nodes, role, value) => nodes.find((node) => node.props[role] === value);
const labels = (nodes) => nodes.filter((node) => node.tag === "button").map((node) => node.props["aria-label"]);

test("amounts and percentages are formatted as in the sentences of the service", () => {
  assert.deepEqual([gpus(2), gpus(0.35), gpus(1 / 3), gpus(null)], ["2", "0.35", "0.333", "∞"]);
  assert.deepEqual([percent(0.25, 0.5), percent(null, 1), percent(0, 0)], ["50 %", "-", "-"]);
});

test("quota bar has its parts as words for screen readers", () => {
  const track = find(render(), "role", "progressbar");
  assert.equal(track.props["aria-valuetext"], "3.5 of 2.5 GPUs allocated · 1 over quota · 57 % utilized · 1 waiting");
  assert.deepEqual([track.props["aria-valuenow"], track.props["aria-valuemax"]], [3.5, 3.5]);
});

test("parts of all quota bars share a scale", () => {
  const tracks = render({ projects: [bar(), bar({ name: "nlp", allocated: 0, sessions: 0, over_quota: 0 })] })
    .filter((node) => node.props.role === "progressbar");
  const widths = tracks.map((track) => track.children.map((part) => part.props.style));
  // The mark of the quota of 2.5, on a scale to the 3.5 allocated in the first bar.
  assert.deepEqual(widths[1], ["width:0%", "width:0%", "width:0%", `width:${250 / 3.5}%`, `left:${250 / 3.5}%`]);
  assert.equal(widths[0][4], widths[1][4]);
});

test("unlimited quota has no mark", () => {
  const nodes = render({ projects: [bar({ quota: null })] });
  assert.equal(find(nodes, "class", "runai-mark"), undefined);
  assert.match(text(find(nodes, "class", "runai-words")), /^3\.5 of ∞ GPUs/);
});

test("quotas by GPU type appear beside their sum", () => {
  const nodes = render({ projects: [bar({ quota: 6, quota_parts: "h100 2, * 4" })] });
  assert.match(text(find(nodes, "class", "runai-words")), /^3\.5 of 6 GPUs allocated · by type h100 2, \* 4/);
});

test("button labels name the action and the workload", () => {
  assert.deepEqual(labels(render()), ["Details of a", "Suspend a", "Stop a"]);
  assert.deepEqual(labels(render({}, clicks({ confirming: "vision/a u1" }))), ["Details of a", "Suspend a", "Really stop a"]);
});

test("opened workload lists its facts, with links only inside JupyterHub", () => {
  const facts = [
    { label: "Project", text: "vision", level: "plain", at: null, link: "projects/vision" },
    { label: "Warning", text: "It left nothing new.", level: "warning", at: null, link: "" },
  ];
  const list = (service) => {
    const opened = new Map([["vision/a u1", { facts, version: "1", at: 1 }]]);
    return all([find(render({}, clicks({ service, opened })), "class", "runai-facts")]);
  };
  assert.equal(text(list("")[0]), "Project vision Warning It left nothing new.");
  assert.equal(find(list(""), "tag", "a"), undefined);
  assert.deepEqual(list("/s/").filter((node) => node.tag === "a").map((node) => node.props.href), ["/s/projects/vision"]);
  assert.equal(find(list(""), "class", "runai-idle").children.length, 2);
});

test("workload that is deleted, or not live, cannot be opened", () => {
  const named = (fields, news) => all(view(state(fields), clicks(), () => {}, () => {}, news)).find((node) => node.props.class === "runai-job").tag;
  assert.equal(named({}), "button");
  assert.equal(named({ workloads: [row({ state: "deleted" })] }), "span");
  assert.equal(named({}, { since: 1, exported: false }), "span");
});

test("ten workloads are counted by state and filtered by words", () => {
  const many = Array.from({ length: 10 }, (_, n) => row({ id: `vision/exp-${n}`, name: `exp-${n}`, state: n < 2 ? "running" : "queued" }));
  const names = (filter) => render({ workloads: many }, clicks({ wanted: filter })).filter((node) => node.props.class === "runai-job").map(text);
  assert.equal(find(render(), "type", "search"), undefined);
  assert.equal(text(find(render({ workloads: many }), "class", "runai-counts")), "2 running · 8 queued");
  assert.deepEqual(names("Running exp-1"), ["exp-1"]);
  assert.equal(names(" ").length, 10);
  assert.match(text(render({ workloads: many }, clicks({ wanted: "nlp" }))[0]), /None of them matches/);
});

test("workload row links to its page only inside JupyterHub", () => {
  const links = (clicked) => render({ workloads: [row({ id: "vision/a b" })] }, clicked).filter((node) => node.tag === "a");
  assert.deepEqual(links(clicks()), []);
  const [link] = links(clicks({ service: "/services/runai/" }));
  assert.deepEqual([link.props.href, link.props["aria-label"]], ["/services/runai/workloads/vision/a%20b", "Output and history of a"]);
});

test("action in progress replaces the buttons, and an error appears below", () => {
  const nodes = render({}, clicks({ busy: new Map([["vision/a", "Suspending…"]]), errors: new Map([["vision/a", "No."]]) }));
  assert.deepEqual(labels(nodes), ["Details of a", undefined]);
  assert.equal(text(find(nodes, "aria-disabled", "true")), "Suspending…");
  assert.equal(text(find(nodes, "role", "status")), "Suspending…");
  assert.equal(text(find(nodes, "role", "alert")), "No.");
});

for (const [subject, fields, words] of [
  ["a reason and pauses", { reason: "It waits.", pauses: 2 }, "It waits. · paused 2 times"],
  ["the CPU that a job requests", { beside: "4 CPUs", reason: "It waits." }, "4 CPUs · It waits."],
  ["an elastic job's size", { elastic: "trains on 2 of 1 to 4 GPUs", reason: "It gives back." }, "trains on 2 of 1 to 4 GPUs · It gives back."],
  ["an exit code without a reason", { state: "failed", exit_code: 3 }, "exit code 3"],
  ["an exit code once if the reason has it", { state: "failed", exit_code: 3, reason: "Exit code 3." }, "Exit code 3."],
]) {
  test(`row of a workload shows ${subject}`, () => {
    assert.equal(text(find(render({ workloads: [row(fields)] }), "class", "runai-reason")), words);
  });
}

test("row of a shared GPU has its memory limit and its notice", () => {
  const nodes = render({ workloads: [row({ limit: "soft limit", limit_why: "8.0 GiB: PyTorch keeps it", notice: "a uses too much" })] });
  const badge = find(nodes, "class", "runai-limit");
  assert.deepEqual([text(badge), badge.props.title], ["soft limit", "8.0 GiB: PyTorch keeps it"]);
  assert.equal(text(find(nodes, "role", "alert")), "a uses too much");
  assert.equal(find(render(), "class", "runai-limit"), undefined);
});

test("row of an idle GPU shows for how long the GPU is idle", () => {
  const nodes = render({ workloads: [row({ idle: "idle for 12 min" })] });
  assert.equal(text(find(nodes, "class", "runai-idle")), "idle for 12 min");
  assert.equal(find(render(), "class", "runai-idle"), undefined);
});

test("simulated GPUs are marked at the bars, in the chart and at the workloads", () => {
  const marks = (simulated) => render({ simulated }).filter((node) => text(node) === "simulated GPUs" && node.tag !== "p");
  assert.deepEqual(marks(true).map((node) => node.tag), ["span", "text", "span"]);
  assert.deepEqual(marks(false), []);
});

test("recent events have their time, in a list that screen readers announce", () => {
  const log = find(render({ told: [{ at: 1e9, kind: "paused", text: "vision/a was paused" }] }), "role", "log");
  assert.match(text(log), /\d.* vision\/a was paused/);
  assert.deepEqual([log.tag, log.children[0].tag], ["div", "ul"], "a list with another role has no items");
  assert.equal(find(render(), "role", "log"), undefined);
});

test("utilization line of a workload has gaps where nothing was measured", () => {
  const path = render({ workloads: [row({ recent: [0, 1, null, 0.5, 0.5] })] }).find((node) => node.props.class === "runai-spark").children[0];
  assert.equal(path.props.d, "M0.0 13.0L14.0 1.0M42.0 7.0L56.0 7.0");
});

test("status view is a single line", () => {
  const nodes = render({ view: "status", chart: null, notes: ["GPU 0 · 0.5 allocated"] });
  assert.deepEqual(nodes.map((node) => node.tag), ["div", "p"]);
});

test("view without updates shows since when, and its chart claims no present", () => {
  const nodes = all(view(state({ lost: "It is away." }), clicks(), () => {}, () => {}, { since: Date.now() / 1000, exported: false }));
  assert.match(text(find(nodes, "class", "runai-lost")), /^not live since \S+( [AP]M)?: It is away\.$/);
  assert.doesNotMatch(nodes.map(text).join() + find(nodes, "class", "runai-chart").props["aria-label"], /\bnow\b/);
});

for (const [condition, since] of [["live", null], ["not live", 1000]]) {
  test(`printed page of a view that is ${condition} has its date`, () => {
    const [page] = view(state(), clicks(), () => {}, () => {}, { since, exported: false });
    assert.match(page.props["data-as-of"], /^as of (1 Jan|Jan 1), /);
  });
}

test("view renders only its own sections", () => {
  const sections = (fields) => render(fields).filter((node) => node.tag === "section").map((node) => node.props["aria-label"]);
  assert.deepEqual(sections(), ["Quota", "Allocated and utilized", "Workloads"]);
  assert.deepEqual(sections({ view: "quota", chart: null }), ["Quota"]);
  assert.deepEqual(sections({ view: "jobs", chart: null }), ["Workloads"]);
});

for (const [highest, scale] of [[0.5, [0.5, 0.25]], [1, [1, 0.25]], [2.5, [2.5, 0.5]], [4.5, [5, 1]], [8, [8, 2]], [20, [20, 5]], [70, [80, 20]]]) {
  test(`an axis up to ${highest} ends at ${scale[0]} in steps of ${scale[1]}`, () => {
    assert.deepEqual(roundScale(highest), scale);
  });
}

test("unmeasured points are gaps in the chart", () => {
  const points = [[4, 1, 1], [8, 1, null], [12, null, null], [16, 1, 1]];
  assert.deepEqual(pieces(points, 1, 0).map((piece) => piece.length), [2, 1]);
  assert.deepEqual(pieces(points, 2, 0).map((piece) => piece.length), [1, 1]);
  assert.deepEqual(pieces(points, 1, 12), [[[16, 1, 1]]]);
});

test("chart has a description in words and stays within its frame", () => {
  const picture = chartPicture(chart(), true);
  assert.equal(picture.props["aria-label"], "My GPUs over the last 10 minutes: now 4 GPUs allocated, 75 % utilized (simulated)");
  for (const path of all([picture]).filter((node) => node.tag === "path")) {
    const numbers = path.props.d.match(/-?\d+(\.\d+)?/g).map(Number);
    assert.ok(numbers.every((number, index) => number >= 0 && number <= (index % 2 ? 150 : 720)), path.props.d);
  }
});

test("legend has allocation, utilization and the average of the measured points", () => {
  assert.equal(text(chartLegend(chart())).replace(/ +/g, " ").trim(), "4 allocated 75 % utilized average 50 % quota 2.5");
});

test("description of a chart without points has the present allocation", () => {
  const picture = chartPicture(chart({ allocated: 1, utilized: null, points: [], quota: null }), false);
  assert.match(picture.props["aria-label"], /now 1 GPU allocated, nothing measured$/);
});

// -- into the page -----------------------------------------------------------------------------

const node = (tag, props = {}, ...children) => ({ tag, props, children });

test("patch reuses elements of the same key", () => {
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

test("patch replaces text by elements and elements by text", () => {
  const page = install();
  const el = page.createElement("div");
  patch(el, ["a", node("b"), "c"]);
  patch(el, [node("b"), "d"]);
  patch(el, ["e"]);
  assert.equal(el.textContent, "e");
});

test("patched button calls its latest handler", () => {
  const page = install();
  const el = page.createElement("div");
  const calls = [];
  patch(el, [node("button", { onclick: () => calls.push("first") })]);
  patch(el, [node("button", { onclick: () => calls.push("second") })]);
  el.childNodes[0].onclick();
  assert.deepEqual(calls, ["second"]);
});

// -- the relay ---------------------------------------------------------------------------------

const reply = (status, body = {}) => ({ ok: status < 400, status, json: async () => body });
const ASKED = { verb: "suspend", workload: "vision/a", uid: "u1" };

test("relay gets a click as JSON, with the token of the page's cookie", async () => {
  install().cookie = "a=1; _xsrf=t0ken; b=2";
  const sent = [];
  const net = async (url, options) => { sent.push([url, options]); return reply(200, { error: "" }); };
  assert.deepEqual(await askRelay("/user/bob/runai/lab/act", ASKED, net), { error: "" });
  const [[url, options]] = sent;
  assert.deepEqual([url, options.method, options.headers["X-XSRFToken"]], ["/user/bob/runai/lab/act", "POST", "t0ken"]);
  assert.deepEqual(JSON.parse(options.body), ASKED);
});

for (const [condition, answer] of [
  ["nothing answers", () => { throw new TypeError("Failed to fetch"); }],
  ["the user is logged out", () => reply(403)],
  ["the extension is missing", () => reply(404)],
  ["the answer is no JSON", () => ({ ok: true, status: 200, json: async () => { throw new SyntaxError("<html>"); } })],
]) {
  test(`relay has no answer if ${condition}`, async () => {
    install().cookie = "";
    assert.equal(await askRelay("/act", ASKED, async () => answer()), null);
  });
}

test("click in JupyterLab goes to the relay, and its refusal is displayed", async (t) => {
  const document = install(), el = document.createElement("div");
  Object.assign(document, { cookie: "", getElementById: () => ({ textContent: '{"baseUrl": "/user/bob/"}' }) });
  globalThis.location = { href: "http://hub/user/bob/lab" };
  t.mock.method(globalThis, "fetch", async (url) => reply(200, { ...ASKED, error: `refused by ${url}` }));
  const widget = model({ state: state(), service: "", relay: true });
  const removeView = panel.render({ model: widget, el });
  button(el, "Suspend a").onclick();
  for (let turn = 0; turn < 10; turn++) await Promise.resolve();
  assert.match(el.textContent, /refused by http:\/\/hub\/user\/bob\/runai\/lab\/act/);
  assert.deepEqual(widget.sent, []);
  removeView();
  delete globalThis.location;
});

test("scale click outside JupyterHub sends the number of workers to the kernel", async () => {
  const el = install().createElement("div");
  const actions = [{ verb: "scale", label: "Add a worker", workers: 3 }];
  const widget = model({ state: state({ workloads: [row({ actions })] }), service: "" });
  const removeView = panel.render({ model: widget, el });
  button(el, "Add a worker a").onclick();
  await Promise.resolve();
  assert.deepEqual(widget.sent, [{ verb: "scale", workload: "vision/a", uid: "u1", workers: 3 }]);
  removeView();
});

// -- the widget --------------------------------------------------------------------------------

/** A model as anywidget makes it, with the messages sent to the kernel. */
function model(values) {
  const listeners = new Map(), sent = [], reports = [];
  return {
    listeners, sent, reports, values,
    get: (name) => values[name],
    on: (event, listener) => listeners.set(event, [...(listeners.get(event) ?? []), listener]),
    off: (event, listener) => listeners.set(event, listeners.get(event).filter((each) => each !== listener)),
    send: (content) => ("shown" in content ? reports : sent).push(content),
    emit: (event, ...messages) => listeners.get(event).forEach((listener) => listener(...messages)),
  };
}

const button = (el, label) => el.all().find((each) => each.getAttribute?.("aria-label") === label);

test("click outside JupyterHub goes to the kernel, and the answer is displayed", () => {
  const el = install().createElement("div");
  const widget = model({ state: state(), service: "" });
  const removeView = panel.render({ model: widget, el });
  button(el, "Suspend a").onclick();
  return Promise.resolve().then(() => {
    assert.deepEqual(widget.sent, [{ verb: "suspend", workload: "vision/a", uid: "u1" }]);
    assert.match(el.textContent, /Suspending…/);
    widget.emit("msg:custom", { workload: "vision/a", error: "It is finished." });
    assert.match(el.textContent, /It is finished\./);
    removeView();
  });
});

test("opened workload asks the kernel for its facts, and again after a change", () => {
  const el = install().createElement("div");
  const widget = model({ state: state(), service: "" });
  const removeView = panel.render({ model: widget, el });
  const fact = (words) => ({ label: "State", text: words, level: "plain", at: null, link: "" });
  const asked = { verb: "describe", workload: "vision/a", uid: "u1" };
  button(el, "Details of a").onclick();
  assert.deepEqual(widget.sent, [asked]);
  assert.match(el.textContent, /Asking the service/);
  widget.emit("msg:custom", { workload: "vision/a", uid: "u1", facts: [fact("it runs well")] });
  assert.match(el.textContent, /it runs well/);
  widget.values.state = state({ workloads: [row({ version: "2" })] });
  widget.emit("change:state");
  assert.deepEqual(widget.sent, [asked, asked]);
  assert.match(el.textContent, /it runs well/);
  button(el, "Details of a").onclick();
  widget.emit("msg:custom", { workload: "vision/a", uid: "u1", facts: [fact("too late")] });
  assert.doesNotMatch(el.textContent, /it runs well|too late/);
  removeView();
});

test("refused details close, with the sentence of the kernel", () => {
  const el = install().createElement("div");
  const widget = model({ state: state(), service: "" });
  const removeView = panel.render({ model: widget, el });
  button(el, "Details of a").onclick();
  widget.emit("msg:custom", { workload: "vision/a", uid: "u1", error: "There is no workload." });
  assert.match(el.textContent, /There is no workload/);
  assert.doesNotMatch(el.textContent, /Asking the service/);
  removeView();
});

test("pressed button element is reused for the next action, so that it retains the focus", () => {
  const el = install().createElement("div");
  const widget = model({ state: state(), service: "" });
  const removeView = panel.render({ model: widget, el });
  const pressed = button(el, "Suspend a");
  pressed.onclick();
  widget.values.state = state({ workloads: [row({ version: "2", state: "suspended", actions: [{ verb: "resume", label: "Resume" }] })] });
  widget.emit("change:state");
  assert.equal(button(el, "Resume a"), pressed);
  removeView();
});

test("action in progress ends when the workload has changed", () => {
  const el = install().createElement("div");
  const widget = model({ state: state(), service: "" });
  const removeView = panel.render({ model: widget, el });
  button(el, "Suspend a").onclick();
  widget.values.state = state({ workloads: [row({ version: "2", state: "stopping", actions: [] })] });
  widget.emit("change:state");
  assert.doesNotMatch(el.textContent, /Suspending…/);
  removeView();
});

test("stop button needs a second click", () => {
  const el = install().createElement("div");
  const widget = model({ state: state(), service: "" });
  const removeView = panel.render({ model: widget, el });
  button(el, "Stop a").onclick();
  assert.deepEqual(widget.sent, []);
  button(el, "Really stop a").onclick();
  return Promise.resolve().then(() => {
    assert.deepEqual(widget.sent, [{ verb: "delete", workload: "vision/a", uid: "u1" }]);
    removeView();
  });
});

test("second click on a later workload of the same name does not stop it", () => {
  const el = install().createElement("div");
  const widget = model({ state: state(), service: "" });
  const removeView = panel.render({ model: widget, el });
  button(el, "Stop a").onclick();
  widget.values.state = state({ workloads: [row({ uid: "u2" })] });
  widget.emit("change:state");
  button(el, "Stop a").onclick();
  assert.deepEqual(widget.sent, []);
  assert.ok(button(el, "Really stop a"));
  removeView();
});

test("view reports to the kernel whether it is on a page", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const el = install().createElement("div");
  const widget = model({ state: state(), service: "" });
  const removeView = panel.render({ model: widget, el });
  const removeSecondView = panel.render({ model: widget, el: install().createElement("div") });
  assert.deepEqual(widget.reports.splice(0), [{ shown: true }, { shown: true }]);
  removeView();
  t.mock.timers.tick(5000);
  assert.deepEqual(widget.reports.splice(0), [{ shown: false }]);
  widget.emit("msg:custom", { asks: "shown" });
  assert.deepEqual(widget.reports.splice(0), [{ shown: true }], "the second view is still on a page");
  removeSecondView();
});

test("removed view has no listeners", () => {
  const el = install().createElement("div");
  const widget = model({ state: state(), service: "" });
  panel.render({ model: widget, el })();
  assert.deepEqual([...widget.listeners.values()].flat(), []);
});

test("changed state of a workload is announced once to screen readers", () => {
  const el = install().createElement("div");
  const widget = model({ state: state(), service: "" });
  const removeView = panel.render({ model: widget, el });
  const announced = () => el.all().find((each) => each.getAttribute?.("role") === "status" && each.tag === "p").textContent;
  assert.equal(announced(), "");
  widget.values.state = state({ workloads: [row({ version: "2", state: "paused" }), row({ id: "vision/b", name: "b", state: "queued" })] });
  widget.emit("change:state");
  assert.equal(announced(), "a: paused");
  widget.emit("change:state");
  assert.equal(announced(), "a: paused");
  removeView();
});

// -- whether it is live ------------------------------------------------------------------------

/** A kernel as JupyterLab shows it to its widgets. */
function makeKernel(fields = {}) {
  const signal = () => { const slots = new Set(); return { slots, connect: (slot) => slots.add(slot), disconnect: (slot) => slots.delete(slot), emit: () => slots.forEach((slot) => slot()) }; };
  return { id: "k1", status: "busy", connectionStatus: "connected", statusChanged: signal(), connectionStatusChanged: signal(), ...fields };
}
const isStale = (el) => /not live since 1 Jan|not live since Jan 1/.test(el.textContent) && !button(el, "Stop a") && !button(el, "Suspend a");
const isLive = (el) => !/not live/.test(el.textContent) && Boolean(button(el, "Stop a"));

for (const [condition, change, recovers] of [
  ["its kernel is shut down", ({ manager }) => { manager.kernel = null; }, false],
  ["its kernel dies", ({ kernel }) => { kernel.status = "dead"; kernel.statusChanged.emit(); }, false],
  ["its kernel restarts", ({ widget }) => widget.emit("comm_live_update"), false],
  ["its kernel restarts by itself", ({ kernel }) => { kernel.status = "autorestarting"; kernel.statusChanged.emit(); kernel.status = "idle"; }, false],
  ["another kernel takes the place of its own", ({ manager }) => { manager.kernel = makeKernel({ id: "k2" }); }, false],
  ["the connection breaks", ({ kernel }) => { kernel.connectionStatus = "connecting"; }, true],
  ["the browser is offline", () => { Object.defineProperty(globalThis, "navigator", { value: { onLine: false }, configurable: true }); }, true],
  ["the service is away", ({ widget }) => { widget.values.state = state({ lost: "It is away." }); }, true],
]) {
  test(`view shows since when it gets no updates if ${condition}`, (t) => {
    t.mock.timers.enable({ apis: ["setInterval", "setTimeout"] });
    const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
    const restore = () => before ? Object.defineProperty(globalThis, "navigator", before) : delete globalThis.navigator;
    const el = install().createElement("div");
    const ownKernel = makeKernel(), manager = { kernel: ownKernel };
    const widget = { ...model({ state: state(), service: "" }), widget_manager: manager };
    const removeView = panel.render({ model: widget, el });
    try {
      t.mock.timers.tick(600000);
      assert.ok(isLive(el), "a busy kernel and an idle platform send nothing");
      change({ widget, manager, kernel: ownKernel });
      t.mock.timers.tick(15000);
      assert.ok(isStale(el));
      widget.values.state = state();
      Object.assign(ownKernel, { status: "idle", connectionStatus: "connected" });
      restore();
      t.mock.timers.tick(15000);
      assert.equal(isLive(el), recovers);
    } finally {
      restore();
      removeView();
    }
    assert.equal(ownKernel.statusChanged.slots.size + ownKernel.connectionStatusChanged.slots.size, 0);
  });
}

test("view from a file is not live although its notebook has a kernel", () => {
  const el = install().createElement("div");
  const widget = { ...model({ state: state(), service: "", layout: { comm_live: false } }), widget_manager: { kernel: makeKernel() } };
  const removeView = panel.render({ model: widget, el });
  assert.ok(isStale(el));
  removeView();
});

test("view of a notebook without a kernel is not live", () => {
  const el = install().createElement("div");
  const widget = { ...model({ state: state(), service: "" }), widget_manager: { kernel: null } };
  const removeView = panel.render({ model: widget, el });
  assert.ok(isStale(el));
  removeView();
});

test("exported page has its date and no buttons", () => {
  const document = install();
  document.querySelector = () => ({});
  const el = document.createElement("div");
  const removeView = panel.render({ model: { ...model({ state: state(), service: "" }), widget_manager: {} }, el });
  assert.match(el.textContent, /^as of (1 Jan|Jan 1), /);
  assert.equal(button(el, "Stop a"), undefined);
  removeView();
});

test("view in a front end without kernel information is live", () => {
  const el = install().createElement("div");
  const removeView = panel.render({ model: model({ state: state(), service: "" }), el });
  assert.ok(isLive(el));
  removeView();
});
