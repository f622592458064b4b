// @ts-check
/** Draw allocated against utilized GPUs over time, as SVG nodes: pure, times come with the state. */

import { gpuCount, gpus, percent } from "./amounts.js";
import { h } from "./nodes.js";

/**
 * @typedef {import("./nodes.js").Node_} Node_
 * @typedef {[number, number | null, number | null]} Point  end of step (s), allocated, utilized
 * @typedef {{allocated: number, utilized: number | null, since: number, until: number,
 *   step_s: number, points: Point[], quota: number | null}} Chart
 */

const WIDTH = 720, HEIGHT = 150, LEFT = 30, RIGHT = 8, TOP = 8, BOTTOM = 20;

/** @param {Chart} chart */
export function chartLegend(chart) {
  const { allocated, utilized } = chart;
  const known = chart.points.filter((point) => point[1] !== null && point[2] !== null);
  const held = known.reduce((sum, point) => sum + (point[1] ?? 0), 0);
  const busy = known.reduce((sum, point) => sum + (point[2] ?? 0), 0);
  return h("p", { class: "runai-legend" },
    key("allocated", `${gpus(allocated)} allocated`),
    key("utilized", utilized === null ? "utilized" : `${percent(utilized, allocated)} utilized`),
    held > 0 && h("span", { key: "average" }, `average ${percent(busy, held)}`),
    chart.quota !== null && key("quota", `quota ${gpus(chart.quota)}`),
  );
}

/** @param {Chart} chart @param {boolean} simulated @param {string} [end] words for its end */
export function chartPicture(chart, simulated, end = "now") {
  const { points, since, until, quota } = chart;
  const highest = Math.max(0.5, ...points.map((point) => Math.max(point[1] ?? 0, point[2] ?? 0)));
  const [top, tick] = roundScale(quota !== null && quota <= 4 * highest ? Math.max(highest, quota) : highest);
  /** @param {number} at */
  const x = (at) => round(LEFT + ((WIDTH - LEFT - RIGHT) * (Math.min(Math.max(at, since), until) - since)) / (until - since));
  /** @param {number} value */
  const y = (value) => round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top));
  const ticks = Array.from({ length: Math.round(top / tick) + 1 }, (_, index) => index * tick);
  const minutes = (until - since) / 60;
  const each = [1, 2, 5, 10, 15, 30, 60, 120, 240, 720].find((step) => minutes / step <= 6) ?? 1440;
  const times = Array.from({ length: Math.floor(minutes / each) + 1 }, (_, index) => index * each);
  return h("svg", { class: "runai-chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": chartWords(chart, simulated, end) },
    ticks.map((value) => h("g", { key: `y${value}` },
      h("line", { class: "runai-grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      h("text", { x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" }, gpus(value)))),
    times.map((ago) => h("text", { key: `x${ago}`, x: x(until - 60 * ago), y: HEIGHT - 5, "text-anchor": ago ? "middle" : "end" },
      ago ? `−${ago} min` : end)),
    h("path", { key: "area", class: "runai-area", d: stepPath(chart, x, y, true) }),
    h("path", { key: "allocated", class: "runai-line-allocated", d: stepPath(chart, x, y, false) }),
    h("path", { key: "utilized", class: "runai-line-utilized", d: linePath(chart, x, y) }),
    quota !== null && quota <= top && h("line", { key: "quota", class: "runai-line-quota", x1: LEFT, x2: WIDTH - RIGHT, y1: y(quota), y2: y(quota) }),
    simulated && h("text", { key: "simulated", class: "runai-simulated", x: LEFT + 8, y: TOP + 14 }, "simulated GPUs"),
  );
}

/** @param {Chart} chart @param {boolean} simulated @param {string} end */
function chartWords(chart, simulated, end) {
  const { allocated, utilized } = chart;
  const busy = utilized === null ? "nothing measured" : `${percent(utilized, allocated)} utilized`;
  return `My GPUs over the last ${Math.round((chart.until - chart.since) / 60)} minutes: ${end} ${gpuCount(allocated)} allocated, ${busy}${simulated ? " (simulated)" : ""}`;
}

/**
 * Give the end and the step of an axis that holds `highest` with at most six marks.
 * @param {number} highest @returns {[number, number]}
 */
export function roundScale(highest) {
  let step = 0.25;
  for (const factors = [2, 2, 2, 2.5]; highest / step > 5; factors.push(factors[0])) step *= factors.shift() ?? 2;
  return [step * Math.ceil(highest / step - 1e-9), step];
}

/** @param {number} value */
const round = (value) => Math.round(value * 10) / 10;

/**
 * @param {Chart} chart @param {(at: number) => number} x @param {(value: number) => number} y
 * @param {boolean} area close each piece down to the axis
 */
function stepPath({ points, step_s, since }, x, y, area) {
  return pieces(points, 1, since).map((piece) => {
    const steps = piece.map((point) => `L${x(point[0] - step_s)} ${y(point[1] ?? 0)}L${x(point[0])} ${y(point[1] ?? 0)}`).join("");
    const start = x(piece[0][0] - step_s), end = x(piece[piece.length - 1][0]);
    return area ? `M${start} ${y(0)}${steps}L${end} ${y(0)}Z` : `M${steps.slice(1)}`;
  }).join("");
}

/** @param {Chart} chart @param {(at: number) => number} x @param {(value: number) => number} y */
function linePath({ points, step_s, since }, x, y) {
  return pieces(points, 2, since).map((piece) =>
    `M${piece.map((point) => `${x(point[0] - step_s / 2)} ${y(point[2] ?? 0)}`).join("L")}`).join("");
}

/**
 * Cut points where nothing is known, so that a gap is drawn as one.
 * @param {Point[]} points @param {1 | 2} value @param {number} since @returns {Point[][]}
 */
export function pieces(points, value, since) {
  /** @type {Point[][]} */
  const cut = [[]];
  for (const point of points) {
    if (point[value] === null || point[0] <= since) cut.push([]);
    else cut[cut.length - 1].push(point);
  }
  return cut.filter((piece) => piece.length > 0);
}

/** A swatch and its word. @param {string} kind @param {string} word @returns {Node_} */
export function key(kind, word) {
  return h("span", { key: kind }, h("i", { class: `runai-key runai-fill-${kind}` }), word);
}
