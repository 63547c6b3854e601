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

const LISTS = new Set(["partition"]);

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

export function fromAddress(hash) {
  const state = { ...FIRST };
  for (const [name, text] of new URLSearchParams(hash.slice(1))) {
    if (name in FIRST && text) state[name] = read(name, text);
  }
  return state;
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
  return name.startsWith("plan:") ? { plan: name.slice(5) } : { schedule: name };
}
