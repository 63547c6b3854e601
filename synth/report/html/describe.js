// Words about ops, transfers and moments.

const scaled = (value, units, base) => {
  let place = 0;
  while (Math.abs(value) >= base && place < units.length - 1) {
    value /= base;
    place++;
  }
  return `${Number(value.toPrecision(4))} ${units[place]}`;
};
const formatUs = (us) => scaled(us, ["µs", "ms", "s"], 1000);
const formatBytes = (bytes) => scaled(bytes, ["B", "kB", "MB", "GB", "TB"], 1000);
// The forms of labels, from the longest to the shortest, in words.
const FORMS = ["F1.2: stage 1, micro-batch 2", "F2: micro-batch 2", "numbers: micro-batches"];
const rankName = (rank) => (rank < 0 ? "the host" : `rank ${rank}`);

class Words {
  constructor(kinds, values) {
    this.kinds = kinds;
    this.values = values;
  }

  /** The token of an op, as in plan files: `F1.3`. */
  token(chart, op) {
    const name = this.kinds[chart.kind[op]].name;
    const body = name === "STEP" ? "" : `.${chart.microbatch[op]}`;
    return `${name}${chart.stage[op]}${body}${chart.replica[op] ? `@${chart.replica[op]}` : ""}`;
  }

  /** The label of an op in each of the forms. */
  labels(chart, op) {
    const name = this.kinds[chart.kind[op]].name;
    if (name === "STEP") return ["STEP", "STEP", "S"];
    return [this.token(chart, op), `${name}${chart.microbatch[op]}`, `${chart.microbatch[op]}`];
  }

  /** Labels as wide as any of a chart, in each of the forms. */
  widest(chart) {
    const digits = (values) => "0".repeat(String(Math.max(...values)).length);
    const name = chart.kind.some((code) => this.kinds[code].name === "BW") ? "BW" : "W";
    const batch = digits([chart.numMicroBatches - 1]);
    const replica = chart.shades.length > 1 ? `@${digits([chart.shades.length - 1])}` : "";
    const stage = digits([chart.stages.length - 1]);
    return [`${name}${stage}.${batch}${replica}`, `${name}${batch}`, batch];
  }

  /** One line about a node: an op with its rank, a transfer, or a collective. */
  node(chart, node) {
    if (chart.isOp(node)) return `${this.token(chart, node)} on rank ${chart.rankOf(node)}`;
    if (!chart.isTransfer(node)) {
      const [text, kind] = chart.collectiveOf(node);
      return `${kind}: ${text}`;
    }
    const i = node - chart.numOps;
    const [what, of] = this.values[chart.movedKind[i]];
    const ends = `from ${rankName(chart.movedFrom[i])} to ${rankName(chart.movedTo[i])}`;
    return `${what} of stage ${chart.movedStage[i]}, ${of} ${chart.movedMicrobatch[i]}, ${ends}`;
  }

  /** Lines about an op: [name, text] pairs; the first is the heading. */
  op(chart, op) {
    const kind = this.kinds[chart.kind[op]];
    const rank = chart.rankOf(op);
    const stage = chart.stage[op];
    const lines = [["", `${this.token(chart, op)}: ${kind.meaning}`]];
    const replica = chart.shades.length > 1 ? `, replica ${chart.replica[op]}` : "";
    const batch = kind.name === "STEP" ? "" : `, micro-batch ${chart.microbatch[op]}`;
    lines.push(["", `rank ${rank}, stage ${stage}${replica}${batch}`]);
    lines.push(["", chart.stages[stage]]);
    lines.push(["start", formatUs(chart.start[op])], ["duration", formatUs(chart.duration[op])]);
    lines.push(...this.waits(chart, op, rank));
    lines.push(this.memory(chart, rank, chart.running[chart.slotOf(op, rank)]));
    if (chart.onPath[op]) lines.push(["", "on the critical path"]);
    return lines;
  }

  /** Lines about what a node waited for, and for how long its rank was idle before an op. */
  waits(chart, op, rank) {
    const before = chart.awaited(op);
    if (before < 0) return [["waited for", "nothing"]];
    const isBusy = op > chart.opsOf(rank)[0] && before === op - 1;
    const name = isBusy ? `${this.token(chart, before)} before it` : this.node(chart, before);
    const lines = [["waited for", name]];
    if (!chart.isOp(before)) {
      lines.push(["from", this.times(chart, before)]);
      const cause = chart.awaited(before);
      if (cause >= 0) lines.push(["which waited for", this.node(chart, cause)]);
    }
    const freeUs = op > chart.opsOf(rank)[0] ? chart.end(op - 1) : chart.beginUs;
    const idleUs = chart.start[op] - freeUs;
    if (idleUs > 0) lines.push(["idle before", formatUs(idleUs)]);
    return lines;
  }

  times(chart, node) {
    const until = chart.isInexact.has(node) ? "over by" : "to";
    return `${formatUs(chart.start[node])} ${until} ${formatUs(chart.end(node))}`;
  }

  /** Lines about a transfer or a collective. */
  move(chart, node) {
    const lines = [["", this.node(chart, node)]];
    const bytes = chart.isTransfer(node)
      ? chart.movedBytes[node - chart.numOps]
      : chart.collectiveOf(node)[3];
    lines.push(["bytes", formatBytes(bytes)], ["time", this.times(chart, node)]);
    lines.push(["duration", formatUs(chart.duration[node])]);
    const before = chart.awaited(node);
    if (before >= 0) lines.push(["waited for", this.node(chart, before)]);
    if (chart.onPath[node]) lines.push(["", "on the critical path"]);
    return lines;
  }

  memory(chart, rank, bytes) {
    const cap = chart.capBytes ? ` of ${formatBytes(chart.capBytes[rank])}` : "";
    return ["memory", `${formatBytes(bytes)}${cap}`];
  }

  /** Lines about a moment at which a rank is idle, or about its memory then. */
  moment(chart, rank, us) {
    const lines = [["", `rank ${rank} at ${formatUs(us)}`]];
    const op = chart.opAt(rank, us);
    if (us < chart.beginUs || us > chart.endUs) return lines;
    lines.push(op < 0 ? ["", "idle"] : ["runs", this.token(chart, op)]);
    lines.push(this.memory(chart, rank, chart.levelAt(rank, us)));
    lines.push(["static", formatBytes(chart.staticBytes[rank])]);
    lines.push(["peak", formatBytes(chart.peakBytes[rank])]);
    const next = chart.firstEndingAfter(rank, us);
    if (op < 0 && next < chart.opsOf(rank)[1]) {
      lines.push(["until", this.token(chart, next)], ...this.waits(chart, next, rank));
    }
    return lines;
  }
}
