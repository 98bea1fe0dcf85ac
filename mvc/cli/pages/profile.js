// What `mvc profile --html` shows: a step of each trace as a picture, and tables of steps and collectives.

const LANES = [["compute", "first"], ["communication", "second"], ["exposed", "bad"]];
const LANE = { height: 56, gap: 8, left: 110, right: 12 };

function msText(seconds) {
  return seconds >= 1 ? `${numberText(seconds, 3)} s` : `${numberText(Number((1e3 * seconds).toPrecision(3)))} ms`;
}

/** Returns a step as three rows of bars, whose height is the share of the time. */
function drawTimeline(timeline, width) {
  const bottom = LANES.length * (LANE.height + LANE.gap);
  const chart = make("svg", { width, height: bottom + 20, role: "img",
    "aria-label": `${timeline.step}: computation, communication and what of it is exposed` });
  const step = (width - LANE.left - LANE.right) / timeline.compute.length;
  LANES.forEach(([name, kind], at) => {
    const base = (at + 1) * (LANE.height + LANE.gap) - LANE.gap;
    chart.append(make("text", { x: LANE.left - 8, y: base - 22, "text-anchor": "end" }, name),
      make("line", { class: "axis", x1: LANE.left, x2: width - LANE.right, y1: base, y2: base }));
    timeline[name].forEach((share, place) => {
      if (share < 0.005) return;
      const bar = make("rect", { class: kind, x: LANE.left + place * step, width: step + 0.3,
        y: base - share * LANE.height, height: share * LANE.height });
      explain(bar, () => `${name}: ${percentText(share)}\n${msText(place * timeline.seconds / timeline.compute.length)} after the step began`);
      chart.append(bar);
    });
  });
  chart.append(make("text", { x: LANE.left, y: bottom + 12 }, "0"),
    make("text", { x: width - LANE.right, y: bottom + 12, "text-anchor": "end" }, msText(timeline.seconds)));
  return chart;
}

function makeTimeline(trace) {
  const place = make("div", { class: "chart" });
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width) place.replaceChildren(drawTimeline(trace.timeline, contentRect.width));
  }).observe(place);
  return makeSection(`${nameOf(trace)}: ${trace.timeline.step}`, place);
}

const nameOf = (trace) => (trace.rank === undefined ? trace.path : `Rank ${trace.rank}`);
const time = (title, about, key, wide = false) => ({ title, about, value: (row) => row[key], text: (row) => msText(row[key]), wide });
const named = (title) => ({ title, about: "Sort by name", value: (row) => row.name });
const ALL = [["All", () => true]];

function makePart(title, noun, rows, columns) {
  const known = rows.map((row, key) => ({ ...row, key }));
  return new Table({ title, noun, rows: known, columns, choices: ALL, detailOf: (row) => make("div", { class: "mono" }, row.name), limit: 20 }).element;
}

const STEP_COLUMNS = [
  named("Step"), time("time", "How long the step took", "seconds"),
  time("compute", "Something was computed", "compute_s", true),
  time("communication", "A collective was under way", "communication_s", true),
  time("exposed", "A collective was under way, and nothing was computed", "exposed_s"),
  time("mvc", "In ranges of mvc", "own_s", true),
];
const COLLECTIVE_COLUMNS = [
  named("Collective"),
  { title: "bytes", about: "Size of the message", value: (row) => row.size_bytes, text: (row) => numberText(row.size_bytes), wide: true },
  time("begins", "Since the step began", "start_s", true), time("takes", "How long it was under way", "seconds"),
  time("exposed", "For how long nothing was computed meanwhile", "exposed_s"),
];

document.body.append(make("main", {}, makeOverview(report.overview),
  report.traces.map((trace) => [makeTimeline(trace),
    makePart(`${nameOf(trace)}: steps`, "step", trace.steps, STEP_COLUMNS),
    trace.exposed.length > 0 && makePart(`${nameOf(trace)}: exposed most`, "collective",
      trace.exposed.map((one) => ({ ...one, name: `${one.step} ${one.name}` })), COLLECTIVE_COLUMNS)]).flat()));
