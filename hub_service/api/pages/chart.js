// @ts-check
// Draws allocated against utilized GPUs with uPlot; looks closer by drag or by buttons.

import { call } from "./call.js";

const HEIGHT = 200, REFRESH_MS = 30_000, SHORTEST_S = 60;
const POINTS = 300;
/** @type {any} */
const uPlot = /** @type {any} */ (window).uPlot;

/** @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** @param {HTMLElement} figure */
function chart(figure) {
  const place = /** @type {HTMLElement} */ (figure.querySelector(".plot"));
  const whole = Number(figure.dataset.range);
  const quota = figure.dataset.quota === undefined ? null : Number(figure.dataset.quota);
  /** @type {[number, number] | null} what is looked at; null: all, up to now */
  let chosen = null;
  /** @type {any} */
  let drawn = null;
  let asked = 0;

  /** @returns {[number, number]} */
  const shown = () => chosen ?? [Date.now() / 1000 - whole, Date.now() / 1000];

  async function load() {
    const [since, until] = shown(), mine = ++asked;
    const query = new URLSearchParams(figure.dataset.query);
    query.set("since", new Date(1000 * since).toISOString());
    query.set("until", new Date(1000 * until).toISOString());
    query.set("step_s", String(Math.min(86400, Math.max(1, Math.ceil((until - since) / POINTS)))));
    const usage = await call("GET", `usage?${query}`).catch(() => null);
    if (usage && mine === asked) draw(usage, since, until);
  }

  /** @param {any} usage @param {number} since @param {number} until */
  function draw(usage, since, until) {
    const of = (/** @type {string} */ name) => usage.points.map((/** @type {any} */ point) => point[name]);
    const at = usage.points.map((/** @type {any} */ point) => Date.parse(point.at) / 1000);
    const data = [at, of("allocated"), of("utilized"), ...(quota === null ? [] : [at.map(() => quota)])];
    const highest = Math.max(0.5, quota ?? 0, ...of("allocated").map(Number), ...of("utilized").map(Number));
    drawn?.destroy();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    drawn = new uPlot({
      width: place.clientWidth, height: HEIGHT,
      scales: { x: { min: since, max: until }, y: { range: [0, highest * 1.05] } },
      axes: [axis, { ...axis, size: 44 }],
      cursor: { drag: { x: true, y: false, setScale: false } },
      hooks: { setSelect: [selected] },
      series: [
        { label: "time", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" },
        {
          label: "allocated", stroke: colour("--train"), fill: colour("--tint"), width: 1.5, points: { show: false },
          paths: uPlot.paths.stepped({ align: -1 }), value: number,
        },
        { label: "utilized", stroke: colour("--over"), width: 2, points: { show: at.length < 3 }, value: number },
        ...(quota === null ? [] : [{ label: "quota", stroke: colour("--soft"), dash: [6, 5], points: { show: false }, value: number }]),
      ],
    }, data, place);
    const average = usage.utilized_average === null ? "nothing measured" : `${usage.utilized_average.toFixed(2)} utilized on average`;
    place.setAttribute("aria-label", `From ${new Date(1000 * since).toLocaleString()} to ${new Date(1000 * until).toLocaleString()}: ${(usage.allocated_average ?? 0).toFixed(2)} GPUs allocated, ${average}`);
  }

  /** @param {any} plot */
  function selected(plot) {
    const { left, width } = plot.select;
    if (width > 4) look(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  }

  /** @param {number} since @param {number} until */
  function look(since, until) {
    const middle = (since + until) / 2, now = Date.now() / 1000;
    const half = Math.max(SHORTEST_S, until - since) / 2;
    const end = Math.min(now, middle + half);
    chosen = [Math.max(end - 2 * half, now - 400 * 86400), end];
    load();
  }

  figure.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest("button") : null;
    if (!button) return;
    const [since, until] = shown(), length = until - since;
    if (button.dataset.zoom === "0") { chosen = null; load(); }
    else if (button.dataset.zoom) {
      const half = (length * Number(button.dataset.zoom)) / 2, middle = (since + until) / 2;
      look(middle - half, middle + half);
    } else if (button.dataset.move) {
      look(since + length * Number(button.dataset.move), until + length * Number(button.dataset.move));
    }
  });

  const tools = figure.querySelector(".tools");
  if (tools instanceof HTMLElement) tools.hidden = false;
  load();
  window.setInterval(() => { if (!chosen && !document.hidden) load(); }, REFRESH_MS);
  new ResizeObserver(() => drawn?.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", load);
}

/** @param {any} _plot @param {number | null} value */
const number = (_plot, value) => (value == null ? "–" : value.toFixed(2));

document.querySelectorAll("figure.chart").forEach((figure) => chart(/** @type {HTMLElement} */ (figure)));
