/**
 * Codeword reports in plain JavaScript, for Node from 20 on and for browsers.
 *
 * From an update and a proposal it makes the payload of a reply, as flower_ldp does, to the byte where
 * no rounding decides which of two codewords is nearer
 * (docs/other_languages.md, docs/codeword.md). It is an encoder and no gate: it has no network, no
 * policy and no ledger, so nothing stops two answers to one message, and no epsilon is claimed.
 *
 * A proposal's fields are those of its record: integers are BigInt, floats are Number.
 */

import { attempt, below, bits, check, checkTrainable, expFloor, flipped, readers, systemBytes } from "./exact.mjs";

const MOST_ROWS = 1 << 24;
const TEXT = new TextEncoder();

/**
 * Return the payload of a report: version, number, and a health bit where one is asked for.
 *
 * @param {ArrayLike<number>|null} update private: d entries, taken as float32. What is no d finite
 *   numbers is answered by a neutral report.
 * @param {number} d public: the entries that the proposal is about.
 * @param {Object} proposal fields of ldp.proposal; others than this file knows are refused.
 * @param {(n: number) => Uint8Array} random for tests alone: uniform bytes.
 * @returns {Uint8Array}
 */
export function encodeReport(update, d, proposal, random = systemBytes) {
  const asked = readProposal(proposal, d);
  const { entries, isNeutral } = readUpdate(update, d);
  const code = below(asked.codes, random);
  const products = innerProducts(entries, asked, code);
  const favoured = favouredPositions(products, asked.favoured, below(2 * asked.n, random));
  const isInside = bits(256, random) < asked.weight;
  // Both are drawn, whichever is sent.
  const within = favoured[below(asked.favoured, random)];
  const beside = skipping(favoured, below(2 * asked.n - asked.favoured, random));
  const number = 2 * asked.n * code + [beside, within][Number(isInside)];
  const payload = [1, ...highestFirst(number, 2 * asked.n * asked.codes - 1)];
  if (asked.health !== null) payload.push(flipped(Number(isNeutral), asked.health, random));
  return Uint8Array.from(payload);
}

/** Return what a proposal comes to for d entries, or throw a ProposalError. */
export function readProposal(proposal, d) {
  const fields = new Map(Object.entries(proposal));
  const { taken, integer, float, perhaps } = readers(fields);
  integer("version", 1n, 1n);
  check(taken("mechanism") === "codeword", "mechanism");
  const epsilon = float("epsilon", 1e-12);
  const favoured = Number(integer("favoured", 1n, BigInt(MOST_ROWS)));
  const codes = Number(integer("rotations", 1n, 4096n));
  const seed = integer("seed", 0n, 2n ** 63n - 1n);
  const blocks = fields.has("blocks") ? Number(integer("blocks", 1n, 65536n)) : 1;
  const health = perhaps("health-epsilon", Number.MIN_VALUE);
  checkTrainable(fields);
  check(fields.size === 0, [...fields.keys()].join(", "));
  check(Number.isInteger(d) && 2 <= d && d <= MOST_ROWS && blocks <= d, "blocks");
  const size = Math.ceil(d / blocks);
  let order = 1;
  while (order < size) order *= 2;
  const n = blocks * order;
  check(Math.ceil(d / size) === blocks && n <= MOST_ROWS, "blocks");
  check(favoured <= n, "favoured");
  const power = BigInt(favoured) * expFloor(epsilon);
  const weight = (power << 256n) / (power + (BigInt(2 * n - favoured) << 128n));
  return {
    d, n, order, size, blocks, favoured, codes, seed, weight, health,
  };
}

function readUpdate(update, d) {
  const entries = new Float64Array(d);
  const isReadable = attempt(() => update.length) === d;
  let largest = isReadable ? 0 : NaN;
  for (let i = 0; i < d; i++) {
    const value = isReadable ? attempt(() => update[i]) : 0;
    entries[i] = typeof value === "number" ? Math.fround(value) : NaN;
    largest = Math.max(largest, Math.abs(entries[i])); // NaN stays NaN
  }
  const isNeutral = !Number.isFinite(largest);
  const scale = isNeutral || largest === 0 ? 0 : largest;
  for (let i = 0; i < d; i++) entries[i] = scale === 0 ? 0 : entries[i] / scale;
  return { entries, isNeutral };
}

// The code

function innerProducts(entries, { d, n, order, size, blocks, seed }, code) {
  const found = new Float64Array(n);
  for (let i = 0; i < d; i++) found[Math.floor(i / size) * order + (i % size)] = entries[i];
  const flips = signBits(seed, code, n);
  for (let i = 0; i < n; i++) if ((flips[i >> 3] >> (7 - (i & 7))) & 1) found[i] = -found[i];
  for (let block = 0; block < blocks; block++) {
    transform(found.subarray(block * order, (block + 1) * order));
  }
  return found;
}

/** Multiply by Hadamard's matrix, in place. */
function transform(vector) {
  for (let span = 1; span < vector.length; span *= 2) {
    for (let start = 0; start < vector.length; start += 2 * span) {
      for (let i = start; i < start + span; i++) {
        const [left, right] = [vector[i], vector[i + span]];
        vector[i] = left + right;
        vector[i + span] = left - right;
      }
    }
  }
}

/** Return the positions of the K nearest codewords, ascending: 2i is row i, 2i + 1 its opposite. */
function favouredPositions(products, size, offset) {
  const magnitudes = products.map(Math.abs);
  const threshold = magnitudes.slice().sort()[products.length - size];
  const [found, ties] = [[], []];
  products.forEach((product, row) => {
    const nearer = 2 * row + Number(product < 0);
    if (magnitudes[row] > threshold) found.push(nearer);
    else if (magnitudes[row] === threshold && threshold > 0) ties.push(nearer);
    else if (magnitudes[row] === threshold) ties.push(2 * row, 2 * row + 1);
  });
  const left = size - found.length;
  const first = ties.findIndex((position) => position >= offset);
  for (let i = 0; i < left; i++) found.push(ties[(Math.max(first, 0) + i) % ties.length]);
  return Float64Array.from(found).sort();
}

/** Return the position of this rank among all that are not favoured. */
function skipping(favoured, rank) {
  let [low, high] = [0, favoured.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (favoured[middle] - middle <= rank) low = middle + 1;
    else high = middle;
  }
  return rank + low;
}

/** Return a number in as many bytes as the largest takes, the highest first. */
function highestFirst(number, largest) {
  const found = [];
  for (let rest = largest; rest > 0; rest = Math.floor(rest / 256)) {
    found.unshift(number % 256);
    number = Math.floor(number / 256);
  }
  return found;
}

// SHAKE-256 (FIPS 202), which browsers do not have

/** Return the signs of a code as bits, the highest of each byte first; 1 is the sign -1. */
export function signBits(seed, number, n) {
  const name = new Uint8Array([...TEXT.encode("flower-ldp rotation"), ...new Uint8Array(12)]);
  const view = new DataView(name.buffer);
  view.setBigUint64(19, seed);
  view.setUint32(27, number);
  return shake256(name, Math.ceil(n / 8));
}

/** Return so many bytes of SHAKE-256 of a message of less than 136 bytes. */
export function shake256(message, length) {
  const block = new Uint8Array(200);
  block.set(message);
  block[message.length] ^= 0x1f;
  block[135] ^= 0x80;
  const view = new DataView(block.buffer);
  const state = Uint32Array.from({ length: 50 }, (_, i) => view.getUint32(4 * i, true));
  const found = new Uint8Array(length);
  for (let start = 0; start < length; start += 136) {
    permute(state);
    state.forEach((word, i) => view.setUint32(4 * i, word, true));
    found.set(block.subarray(0, Math.min(136, length - start)), start);
  }
  return found;
}

/** Where the steps rho and pi take each lane of 64 bits from, and by how much they turn it. */
const LANES = (() => {
  const found = new Array(25);
  let [x, y] = [1, 0];
  found[0] = [0, 0];
  for (let t = 0; t < 24; t++) {
    const [toX, toY] = [y, (2 * x + 3 * y) % 5];
    found[toX + 5 * toY] = [x + 5 * y, (((t + 1) * (t + 2)) / 2) % 64];
    [x, y] = [toX, toY];
  }
  return found;
})();

/** The rounds' constants, low and high halves. */
const CONSTANTS = (() => {
  const found = [];
  let register = 1;
  for (let round = 0; round < 24; round++) {
    const halves = [0, 0];
    for (let j = 0; j <= 6; j++) {
      if (register & 1) halves[j === 6 ? 1 : 0] |= 1 << ((1 << j) - 1) % 32;
      register = (register << 1) ^ (register & 0x80 ? 0x171 : 0);
    }
    found.push(halves);
  }
  return found;
})();

/** Keccak-f[1600] on 25 lanes of two words, the low one first. */
function permute(a) {
  const [b, c] = [new Uint32Array(50), new Uint32Array(10)];
  const turned = (low, high, by) => (by === 0 ? low : (low << by) | (high >>> (32 - by)));
  for (const [low, high] of CONSTANTS) {
    for (let i = 0; i < 10; i++) c[i] = a[i] ^ a[i + 10] ^ a[i + 20] ^ a[i + 30] ^ a[i + 40];
    for (let x = 0; x < 5; x++) {
      const [left, right] = [2 * ((x + 4) % 5), 2 * ((x + 1) % 5)];
      const lowest = c[left] ^ turned(c[right], c[right + 1], 1);
      const highest = c[left + 1] ^ turned(c[right + 1], c[right], 1);
      for (let i = 2 * x; i < 50; i += 10) {
        a[i] ^= lowest;
        a[i + 1] ^= highest;
      }
    }
    LANES.forEach(([from, by], to) => {
      const swap = by >= 32 ? 1 : 0;
      const words = [a[2 * from + swap], a[2 * from + 1 - swap]];
      b[2 * to] = turned(words[0], words[1], by % 32);
      b[2 * to + 1] = turned(words[1], words[0], by % 32);
    });
    for (let i = 0; i < 50; i++) {
      const [row, x] = [i - (i % 10), i % 10];
      a[i] = b[i] ^ (~b[row + ((x + 2) % 10)] & b[row + ((x + 4) % 10)]);
    }
    a[0] ^= low;
    a[1] ^= high;
  }
}
