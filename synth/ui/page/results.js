// The results below the charts: verdicts, the search, the explanation, files and commands.

import { element, say } from "./elements.js";
import { NONE } from "./state.js";

const SHARED = { lower: "the lower schedule", upper: "the upper schedule" };

/** One line for each schedule: its time against the other's, or what is wrong. */
export function showVerdicts(drawn, names) {
  const [upper] = drawn;
  byId("verdicts").replaceChildren(
    ...drawn.flatMap((one, place) => {
      if (names[place] === NONE) return [];
      const line = element("div", { "data-slot": place ? "lower" : "upper" });
      line.append(element("b", {}, one.name || names[place]), " ");
      if (one.error) {
        line.append(element("span", { class: "wrong" }, one.error));
        return [line];
      }
      if (one.waits) {
        line.append(element("span", { class: "quiet" }, "tries many orders; drawn when it is ready …"));
        return [line];
      }
      const isComparable = place && upper.makespan_us && !upper.differs && !one.differs;
      const share = isComparable ? one.makespan_us / upper.makespan_us - 1 : 0;
      const more = share ? `, ${signed(share)} against the upper` : "";
      line.append(`${formatUs(one.makespan_us)}${more}, peak ${formatBytes(one.peak_bytes)}`);
      if (one.differs) line.append(element("div", { class: "differs" }, one.differs));
      if (one.note) line.append(element("div", { class: "quiet" }, one.note));
      if (one.exceeds) line.append(element("div", { class: "wrong" }, `memory: ${one.exceeds}`));
      return [line];
    }),
  );
}

const signed = (share) => `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(1)} %`;

/** The progress of a search: its value and its bound, as words and as a bar. */
export function showProgress(state) {
  const { value_us: value, bound_us: bound, gap } = state;
  const parts = [`${state.elapsed_s.toFixed(1)} s`];
  if (value) {
    parts.push(`${formatUs(value)}, bound ${formatUs(bound)}, gap ${(100 * gap).toFixed(2)} %`);
    byId("bar-value").style.width = "100%";
    byId("bar-bound").style.width = `${(100 * bound) / value}%`;
    byId("bar").title = "the bound within the value";
  }
  if (state.points) parts.push(`${state.points.length} points`);
  if (state.is_running) parts.push(state.is_stopping ? "stopping …" : "searching …");
  else if (state.stopped_by) {
    const proven = gap === 0 ? "proven optimal" : `ended: ${reasonOf(state)}`;
    parts.push(`${proven}; the bound is for ${state.bound_holds_for}`);
  } else if (!state.error) parts.push(`ended${state.stopped_because && `: ${state.stopped_because}`}`);
  byId("progress").textContent = parts.join(" · ");
}

const REASONS = { gap: "close enough to the bound", interrupt: "stopped" };

/** Why a search has ended: who stopped it, or its own reason. */
function reasonOf({ stopped_by: own, stopped_because: other }) {
  return (["interrupt", "time limit"].includes(own) && other) || REASONS[own] || own;
}

/** Commands, each with a button that copies it. */
export function showCommands(commands) {
  byId("tab-command").replaceChildren(
    ...commands.map(([words, text]) => {
      const code = element("pre", {}, text);
      const copy = element("button", {}, "Copy");
      copy.addEventListener("click", () => copied(copy, code));
      return element("section", {}, element("p", { class: "quiet" }, words), element("div", {}, code, copy));
    }),
  );
}

async function copied(button, code) {
  getSelection().selectAllChildren(code);
  await navigator.clipboard?.writeText(code.textContent).catch(() => {});
  button.textContent = "Copied";
}

/** Save the files of an answer, as the browser saves downloads. */
export function saveFiles({ files, notes }, slot) {
  for (const { name, data } of files) {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const link = element("a", { download: name });
    link.href = URL.createObjectURL(new Blob([bytes]));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
  const names = files.map(({ name }) => name).join(" and ");
  byId("saved").textContent = `saved ${names} of ${SHARED[slot]}. ${notes.join(" ")}`;
}

/** Show one of the tabs, or none if it is shown already. */
export function showTab(name) {
  for (const button of document.querySelectorAll("#tabs [data-tab]")) {
    const isShown = button.dataset.tab === name;
    button.setAttribute("aria-pressed", String(isShown));
    byId(`tab-${button.dataset.tab}`).hidden = !isShown;
  }
}

export function complain(error) {
  say(byId("message"), error ? error.message : "");
}

/** Offer to start over, where the address or the settings cannot be drawn. */
export function offerWayOut(isOffered, dropped = []) {
  byId("way-out").hidden = !isOffered;
  const words = dropped.map(([name, text]) => `${name.slice(0, 40)}=${text.slice(0, 40)}`).join(", ");
  byId("dropped").textContent = words && `left out of the address, as not understood: ${words}`;
}
