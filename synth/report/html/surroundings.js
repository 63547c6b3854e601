// What stands around the picture: the legend, the table of ranks, and the lines of details.

const byId = (id) => document.getElementById(id);

/** Take the theme of the system. */
function takeTheme() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}

/** Show the panel on the left, or hide it. */
function showMenu(isShown) {
  byId("menu").hidden = !isShown;
  byId("show-menu").setAttribute("aria-pressed", String(isShown));
}

/** Fill the legend with the kinds of the ops that take time, idle time and memory. */
function showLegend(kinds, charts) {
  const present = new Set();
  for (const { kind, duration } of charts) {
    kind.forEach((code, op) => duration[op] && present.add(code));
  }
  const entries = kinds
    .filter(({ colour }, code) => present.has(code) && colour)
    .map(({ name, meaning, colour, darkColour }) => {
      const entry = legendEntry(`${name} ${meaning}`, colour);
      entry.style.setProperty("--dark-swatch", darkColour);
      return entry;
    });
  const numbers = legendEntry("", "", "words");
  numbers.id = "numbers";
  entries.push(numbers);
  if (charts.some((chart) => new Set(chart.shades.flat()).size > 1)) {
    entries.push(legendEntry("lighter: further stages of a rank", "", "words"));
  }
  entries.push(legendEntry("idle", "var(--idle)"));
  entries.push(legendEntry("static memory", "var(--fixed)", "of-memory"));
  entries.push(legendEntry("activations", "var(--memory)", "of-memory"));
  if (charts.some((chart) => chart.capBytes)) {
    entries.push(legendEntry("memory limit", "var(--limit)", "of-memory line"));
  }
  byId("legend").replaceChildren(...entries);
}

function legendEntry(text, colour, classes = "") {
  const entry = document.createElement("span");
  entry.textContent = text;
  entry.className = classes;
  entry.style.setProperty("--swatch", colour);
  return entry;
}

/** Fill the tables of ranks, which say in words what the picture shows. */
function showTables(charts) {
  byId("tables").replaceChildren();
  for (const chart of charts) {
    const table = document.createElement("table");
    addRow(table, "th", ["rank", "busy", "idle", "peak", "limit"]);
    for (let rank = 0; rank < chart.numRanks; rank++) addRow(table, "td", figuresOf(chart, rank));
    const title = document.createElement("h3");
    title.textContent = `${chart.title}: ${chart.note}`;
    byId("tables").append(title, table);
  }
}

/** Say why the schedules are as they are, of those that tell. */
function showReasons(charts) {
  const told = charts.filter((chart) => chart.reason);
  byId("why").replaceChildren(
    ...told.map((chart) => asLine([`why (${chart.title}):`, chart.reason], 1)),
    ...charts.filter((chart) => chart.explanation).map(explanationOf),
  );
}

/** Return the explanation of a chart, folded until a click. */
function explanationOf(chart) {
  const folded = document.createElement("details");
  const head = document.createElement("summary");
  head.textContent = `Explanation (${chart.title})`;
  const text = document.createElement("pre");
  text.textContent = chart.explanation;
  folded.append(head, text);
  return folded;
}

function figuresOf(chart, rank) {
  const [first, last] = chart.opsOf(rank);
  let busyUs = 0;
  for (let op = first; op < last; op++) busyUs += chart.duration[op];
  const share = busyUs / Math.max(1, chart.endUs - chart.beginUs);
  const cap = chart.capBytes ? formatBytes(chart.capBytes[rank]) : "none";
  const idle = `${(100 - 100 * share).toFixed(1)} %`;
  return [rank, formatUs(busyUs), idle, formatBytes(chart.peakBytes[rank]), cap];
}

function addRow(table, tag, cells) {
  const row = table.insertRow();
  for (const text of cells) {
    const cell = row.appendChild(document.createElement(tag));
    cell.textContent = text;
    cell.className = "number";
  }
}

/** A line of details: a name and a text; the first line is the heading. */
function asLine([name, text], place) {
  const line = document.createElement(place ? "div" : "b");
  line.textContent = name && `${name} `;
  line.appendChild(document.createElement("span")).textContent = text;
  return line;
}
