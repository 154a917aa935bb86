/**
 * Laplace-protected rows of class probabilities in plain JavaScript, for Node from 20 on and for
 * browsers.
 *
 * From rows and a proposal it makes the payload of a reply (docs/other_languages.md,
 * docs/laplace.md). It is an encoder and no gate: it has no network, no policy and no ledger, so
 * nothing stops two answers to one message, and no epsilon is claimed.
 *
 * A proposal's fields are those of its record: integers are BigInt, floats are Number.
 */

import { asFraction, attempt, bigBelow, below, bits, check, flipped, readers, systemBytes } from "./exact.mjs";

const MOST_CLASSES = 1n << 20n;
const MOST_ENTRIES = 1 << 26;
const TOLERANCE = 1e-3;
/** Reports are cut at so many scales of the noise beyond the rows' own values. */
const SCALES = 64n;

/**
 * Return the payload of a report: version, kind, entries, and a health bit where one is asked for.
 *
 * @param {number[][]|null} rows private: rows of class probabilities. A row that is none, and all
 *   rows if they are not as many as asked for, are answered by neutral ones.
 * @param {Object} proposal fields of ldp.proposal; others than this file knows are refused, metrics
 *   among them.
 * @param {(n: number) => Uint8Array} random for tests alone: uniform bytes.
 * @returns {Uint8Array}
 */
export function encodeReport(rows, proposal, random = systemBytes) {
  const asked = readProposal(proposal);
  const given = readRows(rows, asked);
  const isNeutral = given.some((row) => row === null);
  const entries = given.flatMap((row) => row ?? neutralRow(asked, random));
  const payload = [1, 1];
  for (const entry of entries) {
    let noisy = BigInt(entry) + discreteLaplace(asked.rate, random);
    if (noisy > asked.largest) noisy = asked.largest;
    if (noisy < asked.least) noisy = asked.least;
    for (let i = 0; i < asked.width; i++) payload.push(Number((noisy >> BigInt(8 * i)) & 255n));
  }
  if (asked.health !== null) payload.push(flipped(Number(isNeutral), asked.health, random));
  return Uint8Array.from(payload);
}

/** Return what a proposal comes to, or throw a ProposalError. */
export function readProposal(proposal) {
  const fields = new Map(Object.entries(proposal));
  const { taken, integer, float, perhaps } = readers(fields);
  integer("version", 1n, 1n);
  check(taken("mechanism") === "laplace", "mechanism");
  const epsilon = float("epsilon", 1e-6, 1e6);
  const classes = Number(integer("classes", 2n, MOST_CLASSES));
  const count = Number(integer("rows", 1n, 1n << 20n));
  check(count * classes <= MOST_ENTRIES, "rows times classes");
  const steps = 1n << integer("grid-bits", 0n, 40n);
  const health = perhaps("health-epsilon", Number.MIN_VALUE);
  check(fields.size === 0, [...fields.keys()].join(", "));
  // Noise of rate epsilon / 2G, as a fraction.
  const [top, bottom] = asFraction(epsilon);
  const rate = [top, bottom * 2n * steps];
  check(rate[0] << 48n >= rate[1] && rate[0] <= 32n * rate[1], "grid-bits");
  const beyond = (SCALES * rate[1] + top - 1n) / top;
  const largest = steps + beyond;
  const width = Math.floor(largest.toString(2).length / 8) + 1;
  return { classes, count, steps, rate, least: -beyond, largest, width, health };
}

/** Return each row in steps that add up to G, or null for what is none. */
function readRows(rows, { classes, count, steps }) {
  const isReadable = attempt(() => Array.isArray(rows) && rows.length) === count;
  return Array.from({ length: count }, (_, place) => {
    const row = isReadable ? attempt(() => rows[place]) : null;
    if (attempt(() => row.length) !== classes) return null;
    const values = Array.from({ length: classes }, (_, i) => attempt(() => row[i]));
    if (!values.every((value) => typeof value === "number" && value >= 0)) return null;
    const sum = pairwise(values, 0, classes);
    return Math.abs(sum - 1) <= TOLERANCE ? rounded(values, sum, Number(steps)) : null;
  });
}

/** Return the sum of values from ``start`` to ``end``; its error grows with the logarithm alone. */
function pairwise(values, start, end) {
  if (end - start <= 2) return values[start] + (end - start === 2 ? values[start + 1] : 0);
  const middle = (start + end) >> 1;
  return pairwise(values, start, middle) + pairwise(values, middle, end);
}

/** Round a row to whole steps that add up to G: down, and the largest remainders up. */
function rounded(values, sum, steps) {
  const scaled = values.map((value) => value * (steps / sum));
  const whole = scaled.map(Math.floor);
  const missing = steps - whole.reduce((total, value) => total + value, 0);
  if (missing < 0 || missing > values.length) return null; // only roundings lead here
  const order = scaled.map((value, i) => [value - whole[i], i]);
  order.sort(([a, i], [b, j]) => b - a || i - j);
  for (const [, place] of order.slice(0, missing)) whole[place] += 1;
  return whole;
}

/** Return a row's centre: the missing steps go to a uniform subset of the entries. */
function neutralRow({ classes, steps }, random) {
  const found = new Array(classes).fill(Number(steps / BigInt(classes)));
  const chosen = new Set();
  while (chosen.size < Number(steps % BigInt(classes))) chosen.add(below(classes, random));
  for (const place of chosen) found[place] += 1;
  return found;
}

// Discrete Laplace noise, exactly (Canonne, Kamath and Steinke 2020, Algorithms 1 and 2)

/** Return a number x with a probability in proportion to e^(-rate |x|); the rate is a fraction. */
export function discreteLaplace([top, bottom], random) {
  for (;;) {
    const part = bigBelow(bottom, random);
    if (!isKept(part, bottom, random)) continue;
    let wholes = 0n;
    while (isKept(1n, 1n, random)) wholes += 1n;
    const magnitude = (part + bottom * wholes) / top;
    const isNegative = bits(1, random) === 1n;
    if (isNegative && magnitude === 0n) continue;
    return isNegative ? -magnitude : magnitude;
  }
}

/** Return true with probability e^(-a/b), for a/b in [0, 1]. */
function isKept(a, b, random) {
  for (let turn = 1n; ; turn += 1n) {
    if (bigBelow(b * turn, random) >= a) return turn % 2n === 1n;
  }
}
