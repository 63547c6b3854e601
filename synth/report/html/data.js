"use strict";
// The data of the page: charts whose arrays are packed; see packing.py and page.py.

/** Return the bytes of a zlib stream in base64. */
async function inflate(text) {
  const packed = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** Return the typed arrays of a chart, by name. */
async function unpack(layout, data) {
  const bytes = await inflate(data);
  const arrays = {};
  for (const [name, [type, begin, length, isDelta]] of Object.entries(layout)) {
    const values = new globalThis[type](bytes, begin, length);
    if (isDelta) for (let i = 1; i < length; i++) values[i] += values[i - 1];
    arrays[name] = values;
  }
  return arrays;
}

/** The first index in [from, to) for which `isBehind` is true, or `to`; false ones come first. */
function firstWhere(from, to, isBehind) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (isBehind(middle)) to = middle;
    else from = middle + 1;
  }
  return from;
}

/**
 * One timed schedule. Nodes are the ops, rank by rank, then the transfers, then the collectives.
 * `start` and `duration` are in microseconds, by node; `waiting` and `running` in bytes, by slot.
 */
class Chart {
  static async load(raw, number) {
    return new Chart(raw, await unpack(raw.layout, raw.data), number);
  }

  constructor(raw, arrays, number) {
    const { layout, data, ...facts } = raw;
    Object.assign(this, facts, arrays);
    this.number = number;
    this.numRanks = this.firstNode.length - 1;
    this.numOps = this.firstNode[this.numRanks];
    this.onPath = new Uint8Array(this.start.length);
    for (const node of this.path) this.onPath[node] = 1;
    this.isInexact = new Set(this.inexact);
    this.beginUs = Infinity;
    this.endUs = 0;
    for (let rank = 0; rank < this.numRanks; rank++) {
      const [first, last] = this.opsOf(rank);
      if (first === last) continue;
      this.beginUs = Math.min(this.beginUs, this.start[first]);
      this.endUs = Math.max(this.endUs, this.end(last - 1));
    }
    this.beginUs = Math.min(this.beginUs, this.endUs);
    this.mostBytes = Math.max(...this.peakBytes);
  }

  /** The first op of a rank, and the one behind its last. */
  opsOf(rank) {
    return [this.firstNode[rank], this.firstNode[rank + 1]];
  }

  end(node) {
    return this.start[node] + this.duration[node];
  }

  isOp(node) {
    return node < this.numOps;
  }

  rankOf(op) {
    return firstWhere(0, this.numRanks, (rank) => this.firstNode[rank + 1] > op);
  }

  /** The node that a node waited for, or -1. */
  awaited(node) {
    return this.back[node] ? node - this.back[node] : -1;
  }

  /** The first op of a rank that ends after a moment. */
  firstEndingAfter(rank, us) {
    const [first, last] = this.opsOf(rank);
    return firstWhere(first, last, (op) => this.end(op) > us);
  }

  /** The op that runs on a rank at a moment, or -1. */
  opAt(rank, us) {
    let op = this.firstEndingAfter(rank, us);
    const [, last] = this.opsOf(rank);
    while (op < last && !this.duration[op]) op++;
    return op < last && this.start[op] <= us ? op : -1;
  }

  /** The slot of an op; a rank has one more slot than ops. */
  slotOf(op, rank) {
    return op + rank;
  }

  /** The memory level on a rank at a moment. */
  levelAt(rank, us) {
    const op = this.firstEndingAfter(rank, us);
    const isRunning = op < this.opsOf(rank)[1] && this.start[op] <= us;
    return (isRunning ? this.running : this.waiting)[this.slotOf(op, rank)];
  }

  /** The transfers and collectives in the order of their starts, and the longest duration. */
  get byStart() {
    if (!this.sorted) {
      const nodes = new Uint32Array(this.start.length - this.numOps).map((_, i) => this.numOps + i);
      nodes.sort((a, b) => this.start[a] - this.start[b]);
      let longestUs = 0;
      for (const node of nodes) longestUs = Math.max(longestUs, this.duration[node]);
      this.sorted = { nodes, longestUs };
    }
    return this.sorted;
  }

  /** The transfers and collectives that run in a range of time, or their number if above `most`. */
  movesWithin(fromUs, toUs, most) {
    const { nodes, longestUs } = this.byStart;
    const begin = firstWhere(0, nodes.length, (i) => this.start[nodes[i]] >= fromUs - longestUs);
    const end = firstWhere(begin, nodes.length, (i) => this.start[nodes[i]] > toUs);
    const found = [];
    let count = 0;
    for (let i = begin; i < end; i++) {
      if (this.end(nodes[i]) < fromUs) continue;
      if (++count <= most) found.push(nodes[i]);
    }
    return count > most ? count : found;
  }

  /** The collective of a node: [words, kind, ranks, bytes]. */
  collectiveOf(node) {
    return this.collectives[node - this.numOps - this.numTransfers];
  }

  isTransfer(node) {
    return node >= this.numOps && node < this.numOps + this.numTransfers;
  }

  /** The ranks of a node: one of an op, two of a transfer (-1: the host), all of a collective. */
  ranksOf(node) {
    if (this.isOp(node)) return [this.rankOf(node)];
    if (!this.isTransfer(node)) return this.collectiveOf(node)[2];
    const place = node - this.numOps;
    return [this.movedFrom[place], this.movedTo[place]];
  }
}
