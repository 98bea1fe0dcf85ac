// Distributions as bars; several of them lie over each other.

const CHART = { height: 220, left: 52, right: 26, top: 10, bottom: 40 };

/** Returns a chart of a histogram of the overview, drawn anew whenever its width changes. */
function makeHistogram(histogram) {
  const place = make("div", { class: "chart" });
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width) place.replaceChildren(drawHistogram(histogram, contentRect.width));
  }).observe(place);
  const { series } = histogram;
  const names = series.length > 1 && make("p", { class: "legend" }, series.map(({ name }, at) =>
    make("span", {}, make("span", { class: `swatch ${at ? "second" : "first"}` }), name)));
  return make("div", {}, place, names);
}

function spanText(low, high) {
  if (!low || !high) return low ? `from ${low}` : `below ${high}`;
  return `${low} to ${high}`;
}

function drawHistogram({ title, axis, edges, series }, width) {
  const { height, left, right, top, bottom } = CHART;
  const totals = series.map(({ counts }) => counts.reduce((sum, count) => sum + count, 0) || 1);
  const highest = Math.max(...series.map(({ counts }, at) => Math.max(...counts) / totals[at]), 1e-12);
  const step = (width - left - right) / (edges.length - 1);
  const yOf = (share) => top + (1 - share / highest) * (height - top - bottom);
  const texts = edgeTexts(edges);
  const chart = make("svg", { width, height, role: "img", "aria-label": `${title}: ${axis}` });
  for (const share of [0, highest / 2, highest]) {
    chart.append(
      make("line", { class: "axis", x1: left, x2: width - right, y1: yOf(share), y2: yOf(share) }),
      make("text", { x: left - 6, y: yOf(share) + 4, "text-anchor": "end" }, percentText(share)));
  }
  series.forEach(({ name, counts }, at) => counts.forEach((count, bucket) => {
    if (!count) return;
    const share = count / totals[at];
    const y = Math.min(yOf(share), yOf(0) - 1.5);
    const bar = make("rect", {
      class: `${at ? "second" : "first"} ${series.length > 1 ? "over" : ""}`,
      x: left + bucket * step + 0.5, width: Math.max(step - 1, 0.5), y, height: yOf(0) - y,
    });
    explain(bar, () => `${name ? `${name}: ` : ""}${spanText(texts[bucket], texts[bucket + 1])}\n`
      + `${count.toLocaleString("en-US")} (${percentText(share)})`);
    chart.append(bar);
  }));
  const every = Math.max(1, Math.ceil((edges.length * 58) / (width - left)));
  texts.forEach((text, at) => {
    if (at % every === 0 && text) chart.append(make("text", { x: left + at * step, y: height - 24, "text-anchor": "middle" }, text));
  });
  chart.append(make("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, axis));
  return chart;
}
