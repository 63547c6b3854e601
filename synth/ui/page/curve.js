// The curve of time and memory: a step for each plan, its lower bound, and published schedules.

import { drawn } from "./elements.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT] = [720, 210, 64, 34, 10, 20];

export class CurvePlot {
  /** `onOpen` gets the name of a plan. */
  constructor(place, onOpen) {
    Object.assign(this, { place, onOpen });
  }

  show({ points = [], families = [] }, open) {
    this.place.replaceChildren();
    if (!points.length) return;
    const near = 1.5 * Math.max(...points.map((point) => point.value_us));
    const others = families.filter((family) => family.value_us < near);
    const all = [...points.map((point) => point.peak_bytes), ...others.map((one) => one.peak_bytes)];
    const caps = points.map((point) => point.cap_bytes);
    const x = scale(Math.min(...all, ...caps), Math.max(...all), LEFT, WIDTH - RIGHT);
    const times = [...points, ...others].map((one) => one.value_us);
    const bounds = points.map((point) => point.bound_us);
    const y = scale(Math.min(...times, ...bounds), Math.max(...times), HEIGHT - BOTTOM, TOP);
    const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group" });
    svg.setAttribute("aria-label", "time against the memory limit");
    svg.append(...axes(x, y));
    svg.append(drawn("path", { class: "bound", d: steps(points, x, y, "bound_us") }));
    svg.append(drawn("path", { class: "step", d: steps(points, x, y, "value_us") }));
    for (const one of others) svg.append(family(one, x, y));
    for (const point of points) svg.append(this.point(point, x, y, open));
    this.place.append(svg);
  }

  point(point, x, y, open) {
    const mark = drawn("circle", {
      class: `point${point.plan === open ? " open" : ""}`,
      cx: x(point.peak_bytes),
      cy: y(point.value_us),
      r: 6,
      tabindex: 0,
      role: "button",
      "data-plan": point.plan,
    });
    const words = `${formatUs(point.value_us)} in ${formatBytes(point.peak_bytes)}`;
    mark.setAttribute("aria-label", `open the plan of ${words}`);
    mark.append(drawn("title", {}, words));
    const act = () => this.onOpen(point.plan);
    mark.addEventListener("click", act);
    mark.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") act(event.preventDefault());
    });
    return mark;
  }
}

function scale(from, to, first, last) {
  const span = Math.max(to - from, 1e-9);
  return (value) => first + ((value - from) / span) * (last - first) * 0.96 + 0.02 * (last - first);
}

/** A path that steps down at each memory limit. */
function steps(points, x, y, key) {
  const parts = points.map((point, place) => {
    const [left, height] = [x(point.peak_bytes).toFixed(1), y(point[key]).toFixed(1)];
    return place ? `H${left}V${height}` : `M${left},${height}`;
  });
  return `${parts.join("")}H${WIDTH - RIGHT}`;
}

function family({ name, peak_bytes: bytes, value_us: us }, x, y) {
  const mark = drawn("rect", { class: "family", x: x(bytes) - 3, y: y(us) - 3, width: 6, height: 6 });
  mark.append(drawn("title", {}, `${name}: ${formatUs(us)} in ${formatBytes(bytes)}`));
  return mark;
}

function axes(x, y) {
  const base = HEIGHT - BOTTOM;
  const line = drawn("path", { class: "axis", d: `M${LEFT},${TOP}V${base}H${WIDTH - RIGHT}` });
  const texts = [];
  const add = (text, left, top, anchor) =>
    texts.push(drawn("text", { x: left, y: top, "text-anchor": anchor }, text));
  for (const share of [0, 1 / 3, 2 / 3, 1]) {
    const at = LEFT + share * (WIDTH - RIGHT - LEFT);
    add(formatBytes(inverse(x, at)), at, base + 15, share === 1 ? "end" : "middle");
    const up = base + share * (TOP - base);
    add(formatUs(inverse(y, up)), LEFT - 5, up + 4, "end");
  }
  add("peak memory of a rank; squares: published schedules; dashed: lower bound", LEFT, HEIGHT - 4);
  return [line, ...texts];
}

/** The value of a linear scale at a place. */
function inverse(map, at) {
  const [zero, one] = [map(0), map(1e6)];
  return Math.round(((at - zero) / (one - zero)) * 1e6);
}
