// The curve of time and memory: a step for each plan, its lower bound, and published schedules.

import { drawn } from "./elements.js";

const POINT = 10; // width of a plan's square
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
    const mark = drawn("rect", {
      class: `point${point.plan === open ? " open" : ""}`,
      x: x(point.peak_bytes) - POINT / 2,
      y: y(point.value_us) - POINT / 2,
      width: POINT,
      height: POINT,
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

/** A linear scale with its round ticks, with some air at both ends. */
function scale(from, to, first, last) {
  const span = Math.max(to - from, 1e-9);
  const at = (value) => first + (0.02 + (0.96 * (value - from)) / span) * (last - first);
  at.ticks = (most) => {
    const step = niceStep(span / most);
    const least = Math.ceil(from / step);
    const count = Math.floor(to / step) - least + 1;
    return Array.from({ length: count }, (_, place) => (least + place) * step);
  };
  return at;
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
  const mark = drawn("circle", { class: "family", cx: x(bytes), cy: y(us), r: 3.5 });
  mark.append(drawn("title", {}, `${name}: ${formatUs(us)} in ${formatBytes(bytes)}`));
  return mark;
}

function axes(x, y) {
  const [base, right] = [HEIGHT - BOTTOM, WIDTH - RIGHT];
  const grid = [];
  const texts = [];
  const add = (text, left, top, anchor) =>
    texts.push(drawn("text", { x: left, y: top, "text-anchor": anchor }, text));
  for (const bytes of x.ticks(7)) {
    grid.push(`M${x(bytes)},${TOP}V${base + 4}`);
    add(formatBytes(bytes), x(bytes), base + 16, "middle");
  }
  for (const us of y.ticks(8)) {
    grid.push(`M${LEFT - 4},${y(us)}H${right}`);
    add(formatUs(us), LEFT - 7, y(us) + 4, "end");
  }
  const key = "squares: plans; dots: published schedules; dashed: lower bound";
  add(`peak memory of a rank; ${key}`, LEFT, HEIGHT - 4);
  const line = drawn("path", { class: "axis", d: `M${LEFT},${TOP}V${base}H${right}` });
  return [drawn("path", { class: "grid", d: grid.join("") }), line, ...texts];
}
