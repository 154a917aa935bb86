/**
 * SignDS reports in plain JavaScript, for Node from 20 on and for browsers.
 *
 * From an update and a proposal it makes the payload of a reply (docs/other_languages.md,
 * docs/signds.md). It is an encoder and no gate: it has no network, no policy and no ledger, so
 * nothing stops two answers to one message, and no epsilon is claimed.
 *
 * A proposal's fields are those of its record: integers are BigInt, floats are Number.
 */

import {
  asFraction, attempt, below, bigBelow, bits, check, checkTrainable, expFloor, flipped, readers, systemBytes,
} from "./exact.mjs";

const MOST_ENTRIES = 1 << 24;
const MOST_INDICES = 4096n;
/** Bits of a block of a ranked bitmap. */
const BLOCK = 320;

/**
 * Return the payload of a report: version, flags, indices, and a health bit where one is asked for.
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
  const entries = readUpdate(update, d);
  const sign = bits(1, random) === 1n ? 1 : -1;
  const top = entries === null ? null : topSet(entries, asked.top, sign);
  let chosen;
  if (top === null) chosen = distinct(d, asked.h, random);
  else {
    const members = Float64Array.from(top).sort();
    const inside = drawInside(asked, random);
    chosen = distinct(asked.top, inside, random).map((place) => members[place]);
    const beside = distinct(d - asked.top, asked.h - inside, random);
    chosen.push(...beside.map((rank) => skipping(members, rank)));
  }
  let flags = Number(sign > 0);
  if (asked.magnitude !== null) {
    const { epsilon, threshold } = asked.magnitude;
    const isBelow = top === null ? Number(bits(1, random)) : Number(mean(top, entries, sign) < threshold);
    flags |= 2 | (4 * flipped(isBelow, epsilon, random));
  }
  const payload = [1, flags, ...subset(Float64Array.from(chosen).sort(), d)];
  if (asked.health !== null) payload.push(flipped(Number(top === null), asked.health, random));
  return Uint8Array.from(payload);
}

/** Return what a proposal comes to for d entries, or throw a ProposalError. */
export function readProposal(proposal, d) {
  const fields = new Map(Object.entries(proposal));
  const { taken, integer, float, perhaps } = readers(fields);
  integer("version", 1n, 1n);
  check(taken("mechanism") === "signds", "mechanism");
  const epsilon = float("epsilon", Number.MIN_VALUE);
  const k = float("k", Number.MIN_VALUE, 0.25);
  float("threshold-ratio", 0.5, 1); // it decides h, where that is left open
  const h = Number(integer("dim-out", 1n, MOST_INDICES));
  const bit = perhaps("magnitude-epsilon", Number.MIN_VALUE);
  const threshold = bit === null ? null : float("magnitude-threshold", Number.MIN_VALUE, Number.MAX_VALUE);
  const health = perhaps("health-epsilon", Number.MIN_VALUE);
  checkTrainable(fields);
  check(fields.size === 0, [...fields.keys()].join(", "));
  check(Number.isInteger(d) && 1 <= d && d <= MOST_ENTRIES && h <= d, "dim-out");
  const [top, bottom] = asFraction(k);
  const size = Math.max(1, Number((top * BigInt(d)) / bottom));
  const law = lawOfInside(d, size, h, epsilon);
  return { d, top: size, h, ...law, magnitude: bit === null ? null : { epsilon: bit, threshold }, health };
}

/**
 * Return the least and the threshold v, and each v's weight: how many subsets have v members of the
 * top set, times e^epsilon 2^128 rounded down from the threshold on, else 2^128.
 */
function lawOfInside(d, size, h, epsilon) {
  const least = Math.max(0, h - (d - size));
  const counts = [binomial(size, least) * binomial(d - size, h - least)];
  for (let v = least; v < Math.min(h, size); v++) {
    const grown = counts.at(-1) * BigInt(size - v) * BigInt(h - v);
    counts.push(grown / (BigInt(v + 1) * BigInt(d - size - h + v + 1)));
  }
  const power = expFloor(epsilon);
  // Above a threshold, and below it: how far counts of v lie from it, summed.
  let [under, missing, over, gained] = [0n, 0n, 0n, 0n];
  counts.forEach((count, i) => {
    over += count;
    gained += BigInt(i) * count;
  });
  let place = 0;
  while (place < counts.length - 1 && power * gained > missing << 128n) {
    over -= counts[place];
    under += counts[place];
    gained -= over;
    missing += under;
    place += 1;
  }
  const weights = counts.map((count, i) => (i < place ? count << 128n : count * power));
  return { least, threshold: least + place, weights };
}

function drawInside({ least, weights }, random) {
  let left = bigBelow(weights.reduce((sum, one) => sum + one, 0n), random);
  let place = 0;
  while (left >= weights[place]) {
    left -= weights[place];
    place += 1;
  }
  return least + place;
}

function readUpdate(update, d) {
  if (attempt(() => update.length) !== d) return null;
  const entries = new Float32Array(d);
  for (let i = 0; i < d; i++) {
    const value = attempt(() => update[i]);
    entries[i] = typeof value === "number" ? value : NaN;
  }
  return entries.every(Number.isFinite) ? entries : null;
}

/** Return the positions of the largest entries of sign * entries; among equals the first ones. */
function topSet(entries, size, sign) {
  const order = Uint32Array.from(entries, (_, i) => i);
  order.sort((a, b) => sign * (entries[b] - entries[a]) || a - b);
  return order.subarray(0, size);
}

function mean(top, entries, sign) {
  return (sign * top.reduce((sum, place) => sum + entries[place], 0)) / top.length;
}

/** Return so many distinct numbers below n: numbers are drawn until there are enough. */
function distinct(n, count, random) {
  const found = new Set();
  while (found.size < count) found.add(below(n, random));
  return [...found];
}

/** Return the position of this rank among all that are no members. */
function skipping(members, rank) {
  let [low, high] = [0, members.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (members[middle] - middle <= rank) low = middle + 1;
    else high = middle;
  }
  return rank + low;
}

// The code of a subset (docs/wire.md)

function binomial(n, k) {
  if (k < 0 || k > n) return 0n;
  let found = 1n;
  for (let i = 0; i < Math.min(k, n - k); i++) found = (found * BigInt(n - i)) / BigInt(i + 1);
  return found;
}

const bitLength = (number) => (number === 0n ? 0 : number.toString(2).length);

/** Return the bits of a number, the lowest first. */
function lowestFirst(number, width) {
  const text = number.toString(2).padStart(width, "0");
  return Array.from(text, Number).reverse();
}

function rankBits(d, h, low) {
  const n = h + Math.floor((d - h) / 2 ** low);
  const counts = BigInt(Math.min(BLOCK, h, n - h) + 1) ** BigInt(Math.ceil(n / BLOCK) - 1);
  return bitLength(binomial(n, h) * counts - 1n);
}

/** Return whether the bitmap is ranked, and the number of low bits. */
function subsetForm(d, h) {
  const most = Math.floor((21 * (bitLength(binomial(d, h)) - 1)) / 20) + 89;
  let low = d - h >= h ? 31 - Math.clz32(Math.floor((d - h) / h)) : 0;
  if (h * low + h + Math.floor((d - h) / 2 ** low) <= most) return [false, low];
  while (h * low + rankBits(d, h, low) > most) low -= 1;
  return [true, low];
}

/** Return the number of a bitmap: digits of its blocks, the least significant first. */
function rank(ones, n) {
  let [value, base, left] = [0n, 1n, ones.length];
  for (let start = 0; start < n; start += BLOCK) {
    const stop = Math.min(start + BLOCK, n);
    const here = ones.filter((one) => start <= one && one < stop).map((one) => one - start);
    const least = Math.max(0, left - (n - stop));
    value += base * BigInt(here.length - least);
    base *= BigInt(Math.min(stop - start, left) - least + 1);
    here.forEach((place, i) => {
      value += base * binomial(place, i + 1);
    });
    base *= binomial(stop - start, here.length);
    left -= here.length;
  }
  return value;
}

/** Return the bytes of ascending positions below d. */
function subset(indices, d) {
  const h = indices.length;
  const [isRanked, low] = subsetForm(d, h);
  const steps = Array.from(indices, (index, i) => index - i);
  const found = steps.flatMap((step) => (low === 0 ? [] : lowestFirst(step % 2 ** low, low)));
  const ones = steps.map((step, i) => Math.floor(step / 2 ** low) + i);
  const n = h + Math.floor((d - h) / 2 ** low);
  if (isRanked) {
    const width = rankBits(d, h, low);
    if (width > 0) found.push(...lowestFirst(rank(ones, n), width));
  } else {
    const bitmap = new Array(n).fill(0);
    for (const one of ones) bitmap[one] = 1;
    found.push(...bitmap);
  }
  const packed = new Uint8Array(Math.ceil(found.length / 8));
  found.forEach((bit, i) => {
    packed[i >> 3] |= bit << (i & 7);
  });
  return packed;
}
