// @ts-check
/**
 * Show the one `state` that panel.py sends as nodes: quota bars, chart, workloads with buttons.
 *
 * Pure: decides nothing and remembers nothing. The types are those of state.py.
 */

import { gpus, percent } from "./amounts.js";
import { chartLegend, chartPicture, key } from "./chart.js";
import { h } from "./nodes.js";

/**
 * @typedef {{verb: "suspend" | "resume" | "delete" | "keep" | "release" | "regain" | "scale" | "output" | "folder", label: string, workers?: number}} Action
 * @typedef {{id: string, uid: string, name: string, project: string, kind: string, state: string, gpus: number,
 *   allocated: number, utilized: number | null, average: number | null, reason: string,
 *   pauses: number, array: boolean, exit_code: number | null, limit: string, limit_why: string, idle: string, beside: string, elastic: string, progress: string, notice: string,
 *   simulated: boolean, recent: (number | null)[], actions: Action[],
 *   version: string}} Row
 * @typedef {{name: string, quota: number | null, quota_parts: string, allocated: number, sessions: number,
 *   over_quota: number, utilized: number | null, waiting: number}} Bar
 * @typedef {import("./chart.js").Chart} Chart
 * @typedef {import("./nodes.js").Node_} Node_
 * @typedef {{view: "panel" | "quota" | "jobs" | "status", at: number, lost: string, simulated: boolean, projects: Bar[],
 *   workloads: Row[], chart: Chart | null, notes: string[],
 *   told: {at: number, kind: string, text: string}[]}} State
 * @typedef {{label: string, text: string, level: "plain" | "warning", at: string | null, link: string}} Fact
 * @typedef {{service: string, confirming: string, busy: Map<string, string>, errors: Map<string, string>,
 *   opened: Map<string, {facts: Fact[], version: string, at: number}>, said: string, wanted: string}} Clicks
 *   what clicks have begun: a workload whose stop is to be confirmed, versions seen at a click, workloads
 *   with their facts; which states have changed last, for screen readers; and the words of the filter
 * @typedef {(action: Action | {verb: "describe", label: string}, row: Row) => void} Act
 */

/** Fewer workloads than these are found without a filter. */
const MANY = 10;
/** A sign beside the word, so that a state is told by shape as well as by colour. */
const SIGNS = /** @type {Record<string, string>} */ ({
  queued: "◷", starting: "▷", running: "▶", stopping: "◼", paused: "‖", suspended: "‖",
  retrying: "↻", succeeded: "✓", failed: "✕", ended: "✓", timed_out: "✕", deleted: "−",
});
/** A button's words once it is pressed, by its words before. */
export const BEGUN = /** @type {Record<string, string>} */ ({
  Suspend: "Suspending…", Resume: "Resuming…", Stop: "Stopping…", Delete: "Deleting…",
  "Add a worker": "Adding…", "Remove a worker": "Removing…",
  "Keep 30 more minutes": "Keeping…", "Give GPU back": "Giving back…", "Get GPU back": "Asking…",
});

/**
 * Give the nodes of a whole view.
 * A view that is not live says since when, in grey, and has no buttons.
 * @param {State} state @param {Clicks} clicks @param {Act} act @param {(words: string) => void} want
 * @param {import("./liveness.js").News} [news] @returns {Node_[]}
 */
export function view(state, clicks, act, want, news = { since: null, exported: false }) {
  const { projects, chart, notes, told } = state;
  const isLive = news.since === null, asOf = `as of ${moment(state.at, true)}`;
  const workloads = isLive ? state.workloads : state.workloads.map((row) => ({ ...row, actions: [], version: "" }));
  const inPanel = state.view === "panel";
  const hasFilter = inPanel && (workloads.length >= MANY || clicks.wanted);
  const shown = hasFilter ? workloads.filter((row) => isWanted(row, clicks.wanted)) : workloads;
  return [
    h("div", { class: `runai runai-${state.view}${isLive ? "" : " runai-stale"}`, key: "all", "data-as-of": asOf },
      news.since !== null && h("p", { class: "runai-lost", role: "status", key: "lost" }, news.exported
        ? asOf : `not live since ${moment(news.since, false)}${state.lost && `: ${state.lost}`}`),
      ["panel", "quota"].includes(state.view) && h("section", { key: "quota", "aria-label": "Quota" },
        h("header", {}, h("h3", {}, "Quota"), state.simulated && simulatedBadge()),
        projects.length ? quotaBars(projects) : h("p", { class: "runai-none" }, "You are in no project."),
      ),
      chart && h("section", { key: "chart", "aria-label": "Allocated and utilized" },
        h("header", {}, h("h3", {}, "My GPUs"), chartLegend(chart)),
        chartPicture(chart, state.simulated, isLive ? undefined : moment(state.at, false)),
      ),
      state.view === "status" && h("p", { class: "runai-status", key: "status" }, ...notes),
      ["panel", "jobs"].includes(state.view) && h("section", { key: "workloads", "aria-label": "Workloads" },
        (inPanel || state.simulated) && h("header", {}, inPanel && h("h3", {}, "My workloads"), state.simulated && simulatedBadge(),
          hasFilter && filter(want), hasFilter && h("span", { class: "runai-counts" }, counts(workloads))),
        shown.length
          ? workloadTable(shown, clicks, act, !inPanel)
          : h("p", { class: "runai-none" }, workloads.length ? "None of them matches."
            : inPanel ? "None yet: %runai_submit script.py submits one." : "Submitted…"),
        told.length > 0 && h("div", { class: "runai-told", role: "log", "aria-label": "What happened", key: "told" },
          h("ul", {}, told.map((one) => h("li", { key: `${one.at} ${one.text}`, class: `runai-told-${one.kind}` },
            h("time", {}, new Date(1000 * one.at).toLocaleTimeString([], { timeStyle: "short" })), ` ${one.text}`)))),
        h("p", { class: "runai-hidden", role: "status", key: "said" }, clicks.said),
        notes.map((note) => h("p", { class: "runai-note", key: note }, note)),
      ),
    ),
  ];
}

/** Say a time as the reader's clock does; the date if it is not today, or always. @param {number} at @param {boolean} dated */
function moment(at, dated) {
  const then = new Date(1000 * at);
  const time = then.toLocaleTimeString([], { timeStyle: "short" });
  const isToday = then.toDateString() === new Date().toDateString();
  return isToday && !dated ? time : `${then.toLocaleDateString([], { day: "numeric", month: "short" })}, ${time}`;
}

function simulatedBadge() {
  return h("span", { class: "runai-badge", title: "No real GPU: derived from the processes' CPU time and memory" }, "simulated GPUs");
}

/** @param {Bar[]} bars */
function quotaBars(bars) {
  const scale = Math.max(1, ...bars.map((bar) => Math.max(bar.quota ?? 0, bar.allocated)));
  return h("div", { class: "runai-bars" },
    bars.map((bar) => quotaBar(bar, scale)),
    h("p", { class: "runai-legend", "aria-hidden": "true" },
      key("sessions", "sessions"), key("jobs", "jobs"), key("over", "over quota"), key("free", "free quota")),
  );
}

/** @param {Bar} bar @param {number} scale */
function quotaBar(bar, scale) {
  const within = Math.max(0, bar.allocated - bar.over_quota);
  const sessions = Math.min(bar.sessions, within);
  const free = Math.max(0, (bar.quota ?? 0) - bar.allocated);
  const words = [
    `${gpus(bar.allocated)} of ${gpus(bar.quota)} GPUs allocated`,
    bar.quota_parts && `by type ${bar.quota_parts}`,
    bar.over_quota > 0 && `${gpus(bar.over_quota)} over quota`,
    bar.utilized !== null && bar.allocated > 0 && `${percent(bar.utilized, bar.allocated)} utilized`,
    bar.waiting > 0 && `${bar.waiting} waiting`,
  ].filter(Boolean).join(" · ");
  /** @param {string} kind @param {number} amount */
  const part = (kind, amount) => h("span", {
    key: kind, class: `runai-part runai-fill-${kind}`, style: `width:${(100 * amount) / scale}%`,
  });
  return h("div", { class: "runai-quota", key: bar.name },
    h("span", { class: "runai-name" }, bar.name),
    h("div", {
      class: "runai-track", role: "progressbar", "aria-label": `${bar.name}: quota`,
      "aria-valuemin": 0, "aria-valuemax": Math.max(bar.quota ?? scale, bar.allocated),
      "aria-valuenow": bar.allocated, "aria-valuetext": words,
    },
      part("sessions", sessions), part("jobs", within - sessions),
      part("over", bar.over_quota), part("free", free),
      bar.quota !== null && h("span", { key: "mark", class: "runai-mark", style: `left:${(100 * bar.quota) / scale}%` }),
    ),
    h("span", { class: "runai-words" }, words),
  );
}

// -- the workloads -----------------------------------------------------------------------------

/** @param {(words: string) => void} want */
function filter(want) {
  // Keys typed here are no shortcuts of the notebook.
  return h("input", {
    key: "filter", type: "search", "data-lm-suppress-shortcuts": "true", class: "runai-filter",
    placeholder: "Filter by name, project or state", "aria-label": "Filter my workloads by name, project or state",
    oninput: (/** @type {any} */ event) => want(event.target.value),
  });
}

/** Tell whether each word is part of its name, project, kind or state. @param {Row} row @param {string} words */
function isWanted({ id, kind, state }, words) {
  const text = `${id} ${kind} ${state}`.toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** Say how many there are in each state. @param {Row[]} rows */
function counts(rows) {
  /** @type {Map<string, number>} */
  const found = new Map();
  rows.forEach(({ state }) => found.set(state, (found.get(state) ?? 0) + 1));
  return [...found].map(([state, number]) => `${number} ${state}`).join(" · ");
}

/** @param {Row[]} rows @param {Clicks} clicks @param {Act} act @param {boolean} withProject */
function workloadTable(rows, clicks, act, withProject) {
  const heads = ["Name", "State", "GPUs", "Utilized", "Average", ""];
  return h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head, index) =>
      h("th", { key: index, scope: "col", class: index > 1 && head ? "runai-number" : null }, head || h("span", { class: "runai-hidden" }, "Actions"))))),
    h("tbody", {}, rows.flatMap((row) => workloadRow(row, clicks, act, withProject))),
  );
}

/** @param {Row} row @param {Clicks} clicks @param {Act} act @param {boolean} withProject */
function workloadRow(row, clicks, act, withProject) {
  const error = clicks.errors.get(row.id);
  const simulated = row.simulated ? "Simulated: derived from CPU time" : null;
  const exit = row.state === "failed" && !row.reason && row.exit_code !== null ? `exit code ${row.exit_code}` : "";
  const pauses = row.pauses ? `paused ${row.pauses === 1 ? "once" : `${row.pauses} times`}` : "";
  const opened = clicks.opened.get(identity(row));
  const more = [row.progress, row.beside, row.elastic, row.reason, exit, pauses].filter(Boolean).join(" · ");
  const first = h("tr", { key: row.id, class: `runai-row runai-is-${row.state}` },
    h("td", { class: "runai-what" },
      nameCell(row, withProject ? row.id : row.name, opened !== undefined, act),
      row.kind === "session" && h("span", { class: "runai-kind" }, "session"),
    ),
    h("td", { class: "runai-state" }, h("span", { class: "runai-sign", "aria-hidden": "true" }, SIGNS[row.state] ?? "•"), row.state.replace("_", " ")),
    h("td", { class: "runai-number" }, `${gpus(row.allocated)} of ${gpus(row.gpus)}`,
      row.limit && h("span", { class: "runai-limit", title: row.limit_why }, row.limit)),
    h("td", { class: "runai-number", title: simulated }, percent(row.utilized, row.allocated), meter(row)),
    h("td", { class: "runai-number", title: simulated }, percent(row.average, row.gpus)),
    h("td", { class: "runai-actions" }, buttons(row, clicks, act)),
  );
  if (!more && !error && !row.notice && !row.idle && !opened) return [first];
  return [first, h("tr", { key: `${row.id} more`, class: "runai-more" }, h("td", { colspan: 6 },
    row.notice && h("div", { class: "runai-error", role: "alert", key: "notice" }, row.notice),
    row.idle && h("div", { class: "runai-idle", key: "idle" }, row.idle),
    more && h("div", { class: "runai-reason" }, more),
    error && h("div", { class: "runai-error", role: "alert" }, error),
    opened && factList(opened.facts, clicks.service),
  ))];
}

/** Give a workload's name, as a button for its facts while they can be asked for. @param {Row} row @param {string} words @param {boolean} isOpen @param {Act} act */
function nameCell(row, words, isOpen, act) {
  if (!row.version || row.state === "deleted") return h("span", { class: "runai-job", title: row.id }, words);
  return h("button", {
    type: "button", class: "runai-job", title: row.id, "aria-label": `Details of ${row.name}`, "aria-expanded": String(isOpen),
    onclick: () => act({ verb: "describe", label: "Details" }, row),
  }, words);
}

/** List what the service says of a workload, as `runai describe` does. @param {Fact[]} facts @param {string} service */
function factList(facts, service) {
  if (!facts.length) return h("p", { class: "runai-note", role: "status", key: "facts" }, "Asking the service…");
  return h("dl", { class: "runai-facts", key: "facts" }, facts.map(({ label, text, level, at, link }, index) => {
    const words = [text, at && new Date(at).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" })].filter(Boolean).join(" ");
    return h("div", { key: `${label} ${index}`, class: level === "warning" ? "runai-idle" : null }, h("dt", {}, label),
      h("dd", {}, service && link ? h("a", { href: service + link, target: "_blank", rel: "noopener" }, words) : words));
  }));
}

/** @param {Row} row */
function meter(row) {
  if (row.utilized === null || !(row.allocated > 0)) return false;
  if (row.recent.length > 2) return sparkline(row.recent);
  const share = Math.min(100, (100 * row.utilized) / row.allocated);
  return h("span", { class: "runai-meter", "aria-hidden": "true" }, h("i", { style: `width:${share}%` }));
}

/** How busy it was of late; the figure above it says how busy it is. @param {(number | null)[]} recent */
function sparkline(recent) {
  const step = 56 / (recent.length - 1);
  const line = recent.map((load, at) => (load === null ? "" : `${at && recent[at - 1] !== null ? "L" : "M"}${(at * step).toFixed(1)} ${(13 - 12 * load).toFixed(1)}`)).join("");
  return h("svg", { class: "runai-spark", viewBox: "0 0 56 14", "aria-hidden": "true" }, h("path", { d: line }));
}

/** Tell a workload from a later one of its name, and an array's elements from each other. @param {Row} row */
export const identity = ({ id, uid }) => `${id} ${uid}`;

/** @param {Row} row @param {Clicks} clicks @param {Act} act @returns {Node_[]} */
function buttons(row, clicks, act) {
  const path = row.id.split("/").map(encodeURIComponent).join("/");
  const page = clicks.service && row.state !== "deleted"
    ? [h("a", { key: "page", href: `${clicks.service}workloads/${path}`, target: "_blank", rel: "noopener", "aria-label": `Output and history of ${row.name}` }, "Output")] : [];
  const begun = clicks.busy.get(row.id);
  if (begun) {
    // The button stays while its meaning changes: a keyboard's focus stays on it.
    const pressed = row.actions.findIndex(({ label }) => BEGUN[label] === begun);
    return [...page,
      h("button", { key: `slot ${Math.max(0, pressed)}`, type: "button", class: "runai-begun", "aria-disabled": "true" }, begun),
      h("span", { class: "runai-hidden", role: "status", key: "begun" }, begun)];
  }
  return [...page, ...row.actions.map((action, slot) => {
    const { verb, label } = action;
    const asks = label === "Stop" && clicks.confirming === identity(row);
    return h("button", {
      key: `slot ${slot}`, type: "button", class: asks ? "runai-asks" : null,
      "aria-label": asks ? `Really stop ${row.name}` : `${label} ${row.name}`,
      onclick: () => act(action, row),
    }, asks ? "Really stop?" : label);
  })];
}
