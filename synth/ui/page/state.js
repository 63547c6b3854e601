// What is asked for, and its form in the address: only what differs from the beginning.

export const SLIDERS = {
  layers: 32,
  forward_ms: 10,
  backward_ms: 10,
  weight_ms: 10,
  saved_mb: 100,
  output_mb: 10,
  parameter_mb: 400,
};

export const FIRST = {
  model: "zb-1.5b-p8-m24",
  device: "h100",
  tp: 1,
  is_config: false,
  sliders: null,
  ranks: 8,
  micro_batches: 24,
  placement: "auto",
  partition: null,
  mem_limit: "none",
  link: null,
  objective: "makespan",
  recompute: "none",
  time_limit: 10,
  upper: "1f1b",
  lower: "zb-v",
  moves: [],
  tab: "explain",
};

// In the place of the upper schedule: the lower one is shown alone.
export const NONE = "none";

const MOST = { ranks: 1024, tp: 1024, micro_batches: 1 << 20 };
const TABS = ["explain", "curve", "order", "save", "command", "none"];
const MOST_TEXT = 200; // letters

const LISTS = new Set(["partition"]);

const isCount = (value, most = Infinity) => Number.isInteger(value) && value >= 1 && value <= most;

/** Whether a field of the state can be what was read. */
function isValid(name, value, text) {
  const first = FIRST[name];
  if (LISTS.has(name)) return value.every((each) => isCount(each));
  if (name === "moves") {
    const isPlace = (each) => Number.isInteger(each) && each >= 0;
    return value.every((move) => move.length === 3 && move.every(isPlace));
  }
  if (name === "sliders") {
    const { layers, forward_ms: forward, ...others } = value;
    const isSize = (each) => Number.isFinite(each) && each >= 0 && each <= 1e6;
    return isCount(layers, 1024) && isSize(forward) && forward > 0 && Object.values(others).every(isSize);
  }
  if (name === "time_limit") return Number.isFinite(value) && value > 0;
  if (name === "lower" && value === NONE) return false;
  if (name === "tab") return TABS.includes(value);
  if (typeof first === "boolean") return ["true", "false"].includes(text);
  return typeof first === "number" ? isCount(value, MOST[name]) : value.length <= MOST_TEXT;
}

function read(name, text) {
  const first = FIRST[name];
  if (LISTS.has(name)) return text.split(",").map(Number);
  if (name === "moves") return text.split("_").map((move) => move.split(".").map(Number));
  if (name === "sliders") {
    const values = text.split(",").map(Number);
    return Object.fromEntries(Object.keys(SLIDERS).map((key, place) => [key, values[place]]));
  }
  if (typeof first === "boolean") return text === "true";
  return typeof first === "number" ? Number(text) : text;
}

function written(name, value) {
  if (name === "moves") return value.map((move) => move.join(".")).join("_");
  if (name === "sliders") return Object.values(value).join(",");
  return String(value);
}

/** Return the state of an address, and the [name, text] pairs in it that are not understood. */
export function fromAddress(hash) {
  const state = { ...FIRST };
  const dropped = [];
  for (const [name, text] of new URLSearchParams(hash.slice(1))) {
    const value = Object.hasOwn(FIRST, name) && text ? read(name, text) : undefined;
    if (value !== undefined && isValid(name, value, text)) state[name] = value;
    else dropped.push([name, text]);
  }
  return { state, dropped };
}

export function toAddress(state) {
  const changed = Object.keys(FIRST).filter(
    (name) => JSON.stringify(state[name]) !== JSON.stringify(FIRST[name]) && state[name] !== null,
  );
  const pairs = changed.map((name) => [name, written(name, state[name])]);
  return pairs.length ? `#${new URLSearchParams(pairs)}` : "#";
}

/** The setting that the server reads. */
export function settingOf(state) {
  const { upper, lower, moves, tab, is_config: isConfig, ...setting } = state;
  if (!isConfig || setting.sliders) setting.device = null;
  return setting;
}

/** The source of a schedule: a published one, or a plan. */
export function sourceOf(name) {
  if (name === NONE) return {};
  return name.startsWith("plan:") ? { plan: name.slice(5) } : { schedule: name };
}
