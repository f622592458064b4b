// Shows docs/_static/play_data.js: GPUs over time, moment by moment, under the rules that one chooses.

(() => {
  const { rules, projects } = window.runaiPlay;
  const place = document.getElementById("play");
  const names = Object.keys(rules);
  const end = Math.max(...names.map((name) => rules[name].at(-1).minute));
  const WIDTH = 720, LEFT = 52, LANE = 34, GAP = 6;
  let chosen = names[0], minute = 0, timer = null;

  const make = (tag, given = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), given);
    element.append(...children);
    return element;
  };
  const svg = (tag, given, text = "") => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  };
  const x = (at) => LEFT + ((WIDTH - LEFT) * at) / end;
  const story = () => rules[chosen];
  const now = () => story().findLast((moment) => moment.minute <= minute) ?? story()[0];

  const rule = make("select", { id: "play-rules" }, ...names.map((name) => make("option", { value: name }, name)));
  const slider = make("input", { type: "range", min: 0, max: end, step: 0.5, value: 0 });
  slider.setAttribute("aria-label", "Minute");
  const play = make("button", { type: "button" }, "Play");
  const clock = make("output");
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${5 * (LANE + GAP) + 18}`, role: "img" });
  const said = make("div", { className: "play-said" });
  said.setAttribute("aria-live", "polite");
  place.replaceChildren(
    make("p", {}, make("label", { htmlFor: "play-rules" }, "Rules: "), rule),
    make("p", { className: "play-line" }, play, slider, clock),
    chart,
    make("p", { className: "play-key" },
      make("span", { className: "play-vision" }, "vision (bob)"), make("span", { className: "play-nlp" }, "nlp (patty)"),
      make("span", {}, "pale: still to come")),
    said,
  );

  /** Draw who holds what over the whole time; what is still to come is pale. */
  function draw() {
    chart.replaceChildren();
    chart.setAttribute("aria-label", `Who holds which GPU, ${chosen}, minute ${minute}`);
    const moments = story();
    for (let gpu = 0; gpu < 5; gpu += 1) {
      const top = gpu * (LANE + GAP);
      chart.append(svg("rect", { x: LEFT, y: top, width: WIDTH - LEFT, height: LANE, class: "play-free" }));
      chart.append(svg("text", { x: 0, y: top + LANE / 2 + 4 }, `GPU ${gpu}`));
      const spans = new Map();
      moments.forEach((moment, index) => {
        const until = moments[index + 1]?.minute ?? end;
        let at = 0;
        for (const [name, part] of moment.devices[gpu]) {
          const last = spans.get(name)?.at(-1);
          if (last && last.until === moment.minute) last.until = until;
          else spans.set(name, [...(spans.get(name) ?? []), { from: moment.minute, until, at, part }]);
          at += part;
        }
      });
      for (const [name, parts] of spans) for (const { from, until, at, part } of parts) {
        const shape = { y: top + LANE * at, height: Math.max(1, LANE * part - 1), class: `play-${projects[name]}` };
        if (until > minute) chart.append(svg("rect", { ...shape, x: x(Math.max(from, minute)), width: x(until) - x(Math.max(from, minute)), opacity: 0.25 }));
        if (from < minute) chart.append(svg("rect", { ...shape, x: x(from), width: x(Math.min(until, minute)) - x(from) }));
        if (x(until) - x(from) > 50) chart.append(svg("text", { x: x(from) + 5, y: top + LANE * (at + part / 2) + 4, class: from < minute ? "play-name" : "play-coming" }, name));
      }
    }
    for (let mark = 0; mark <= end; mark += 10) chart.append(svg("text", { x: x(mark), y: 5 * (LANE + GAP) + 12 }, `${mark} min`));
    chart.append(svg("line", { x1: x(minute), x2: x(minute), y1: 0, y2: 5 * (LANE + GAP), class: "play-now" }));
  }

  /** Say what has just happened, and who waits for what. */
  function say() {
    const moment = now();
    const held = moment.devices.flat().reduce((sum, [, part]) => sum + part, 0);
    const waits = moment.jobs.filter(([, state]) => state === "queued" || state === "paused");
    clock.value = `minute ${minute}: ${held} of 5 GPUs held`;
    said.replaceChildren(
      make("ul", {}, ...moment.news.map((line) => make("li", {}, line)),
        ...waits.map(([name, state, why]) => make("li", {}, make("em", {}, `${name} is ${state}`), why ? `: ${why}` : ""))),
    );
  }

  /** @param {number} to */
  function go(to) {
    minute = Math.min(end, Math.max(0, to));
    slider.value = String(minute);
    draw();
    say();
    if (minute >= end) stop();
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  rule.addEventListener("change", () => { chosen = rule.value; go(minute); });
  slider.addEventListener("input", () => { stop(); go(Number(slider.value)); });
  play.addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (minute >= end) go(0);
    timer = setInterval(() => go(minute + 0.5), 150);
    play.textContent = "Pause";
  });
  go(14);
})();
