// @ts-check
// Draws allocated against utilized GPUs with uPlot; looks closer by drag or by buttons.

import { call, inWords } from "./call.js";

const HEIGHT = 200, REFRESH_MS = 30_000, YOUNG_REFRESH_MS = 5_000, SHORTEST_S = 10;
/** A history of seconds is shown as one of a minute. */
const YOUNGEST_S = 60;
const POINTS = 300;
/** A shorter stretch may be told in seconds. */
const SHORT_S = 600;
/** A history that fills less of the range than this is shown from where it begins. */
const YOUNG = 0.25;
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
  /** @type {number | null} where the history begins, while it is young */
  let begun = null;

  /** @returns {[number, number]} */
  const shown = () => {
    const now = Date.now() / 1000;
    return chosen ?? [begun === null ? now - whole : Math.min(begun, now - YOUNGEST_S), now];
  };

  async function load() {
    const mine = ++asked;
    if (!chosen && begun !== null && Date.now() / 1000 - begun > YOUNG * whole) begun = null;
    const [since, until] = shown();
    const query = new URLSearchParams(figure.dataset.query);
    query.set("since", new Date(1000 * since).toISOString());
    query.set("until", new Date(1000 * until).toISOString());
    query.set("step_s", String(Math.min(86400, Math.max(1, Math.ceil((until - since) / POINTS)))));
    const usage = await call("GET", `usage?${query}`).catch(() => null);
    if (!usage || mine !== asked) return;
    const first = usage.points.find((/** @type {any} */ point) => point.allocated !== null);
    const start = first && Date.parse(first.at) / 1000 - usage.step_s;
    const is_young = !chosen && first && until - start < YOUNG * whole;
    if (is_young && start - (begun ?? since) > 0.1 * (until - since)) {
      begun = start;
      await load(); // the same, closer: by finer steps it may begin later still
      return;
    }
    draw(usage, since, until);
    say(first ? (!chosen && begun !== null ? `The history begins at ${inWords(new Date(1000 * begun))}.` : "") : "Nothing was recorded in this time.");
  }

  /** @param {any} usage @param {number} since @param {number} until */
  function draw(usage, since, until) {
    const of = (/** @type {string} */ name) => usage.points.map((/** @type {any} */ point) => point[name]);
    const at = usage.points.map((/** @type {any} */ point) => Date.parse(point.at) / 1000);
    const data = [at, of("allocated"), of("utilized"), ...(quota === null ? [] : [at.map(() => quota)])];
    const highest = Math.max(0.5, quota ?? 0, ...of("allocated").map(Number), ...of("utilized").map(Number));
    drawn?.destroy();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const times = {
      ...axis,
      space: until - since < SHORT_S ? 96 : 66, // pixels; with seconds it is longer
      values: (/** @type {any} */ _plot, /** @type {number[]} */ at, /** @type {any} */ _axis, /** @type {any} */ _space, /** @type {number} */ step) => at.map((one, index) => clock(one, at[index - 1], step)),
    };
    drawn = new uPlot({
      width: place.clientWidth, height: HEIGHT,
      padding: [null, times.space / 2 - 8, null, null], // half of the last label, should it stand at the end
      scales: { x: { min: since, max: until }, y: { range: [0, highest * 1.05] } },
      axes: [times, { ...axis, size: 56 }],
      cursor: { drag: { x: true, y: false, setScale: false } },
      hooks: { setSelect: [selected] },
      series: [
        { label: "time", value: (/** @type {any} */ plot, /** @type {number | null} */ at) => inWords(new Date(1000 * (at ?? plot.data[0].at(-1)))) },
        {
          label: "allocated", stroke: colour("--train"), fill: colour("--tint"), width: 1.5, points: { show: false },
          paths: uPlot.paths.stepped({ align: -1 }), value: number,
        },
        { label: "utilized", stroke: colour("--over"), width: 2, points: { show: at.length < 3 }, value: number },
        ...(quota === null ? [] : [{ label: "quota", stroke: colour("--soft"), dash: [6, 5], points: { show: false }, value: number }]),
      ],
    }, data, place);
    const average = usage.utilized_average === null ? "nothing measured" : `${Math.round((100 * usage.utilized_average) / (usage.allocated_average || 1))} % of them utilized on average`;
    place.setAttribute("aria-label", `From ${inWords(new Date(1000 * since))} to ${inWords(new Date(1000 * until))}: ${(usage.allocated_average ?? 0).toFixed(2)} GPUs allocated, ${average}`);
  }

  /** @param {string} words */
  function say(words) {
    const place = figure.querySelector(".since");
    if (!(place instanceof HTMLElement) || place.textContent === words) return;
    place.textContent = words;
    place.hidden = !words;
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
  function keepLoading() {
    if (!chosen && !document.hidden && !place.matches(":active")) load(); // a drag would be lost
    window.setTimeout(keepLoading, begun === null ? REFRESH_MS : YOUNG_REFRESH_MS);
  }
  keepLoading();
  new ResizeObserver(() => drawn?.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", load);
}

/**
 * Name an instant of the axis as the reader writes times: no finer than its steps, the day where it begins.
 * @param {number} at @param {number | undefined} before @param {number} step in seconds
 */
function clock(at, before, step) {
  const date = new Date(1000 * at);
  const day = date.toLocaleDateString([], { month: "short", day: "numeric" });
  if (step >= 86400) return day;
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(step < 60 && { second: "2-digit" }) });
  return before !== undefined && new Date(1000 * before).toDateString() === date.toDateString() ? time : `${time}\n${day}`;
}

/** The value under the pointer, else the last one. @param {any} plot @param {number | null} value @param {number} series */
const number = (plot, value, series) => (value ?? (plot.cursor.idx == null ? plot.data[series].at(-1) : null))?.toFixed(2) ?? "–";

document.querySelectorAll("figure.chart").forEach((figure) => chart(/** @type {HTMLElement} */ (figure)));
