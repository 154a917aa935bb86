/**
 * Exact draws in plain JavaScript, which the encoders share: numbers from bytes, powers of e, and
 * responses, all in BigInt, so that no rounding breaks an epsilon (docs/other_languages.md).
 */

const MOST_CHARACTERS = 49152;

/** A proposal that must not be answered. It never depends on an update. */
export class ProposalError extends Error {}

/** Return n random bytes of the system's. */
export function systemBytes(n) {
  const found = new Uint8Array(n);
  return globalThis.crypto.getRandomValues(found);
}

/** Throw a ProposalError unless a proposal is right in what ``name`` says. */
export function check(isRight, name) {
  if (!isRight) throw new ProposalError(`not a proposal that this encoder answers: ${name}`);
}

/**
 * Return readers of a proposal's fields, each of which takes its field out of ``fields``.
 *
 * A field that is missing, of another type or outside its interval throws a ProposalError.
 */
export function readers(fields) {
  const taken = (name) => {
    const value = fields.get(name);
    fields.delete(name);
    return value;
  };
  const integer = (name, low, high) => {
    const value = taken(name);
    check(typeof value === "bigint" && low <= value && value <= high, name);
    return value;
  };
  const float = (name, low, high = 100) => {
    const value = taken(name);
    check(typeof value === "number" && low <= value && value <= high, name);
    return value;
  };
  const perhaps = (name, low) => (fields.has(name) ? float(name, low) : null);
  return { taken, integer, float, perhaps };
}

/** Check a list of names, which says what entries an update has: its maker's business. */
export function checkTrainable(fields) {
  if (!fields.has("trainable")) return;
  const names = fields.get("trainable");
  const isList = Array.isArray(names) && names.every((name) => typeof name === "string");
  check(isList && names.length > 0 && new Set(names).size === names.length, "trainable");
  const written = names.map((name) => JSON.stringify(name).replace(/[\u007f-\uffff]/g, "\\u0000"));
  check(`[${written.join(", ")}]`.length <= MOST_CHARACTERS, "trainable"); // as Python writes JSON
  fields.delete("trainable");
}

/** Return what reads a private value, or null where that throws: nobody hears of it. */
export function attempt(read) {
  try {
    return read();
  } catch {
    return null;
  }
}

/** Return a BigInt of so many random bits. */
export function bits(width, random) {
  let found = 0n;
  const bytes = random(Math.ceil(width / 8));
  if (bytes.length !== Math.ceil(width / 8)) throw new Error("the random source ran dry");
  for (let i = bytes.length - 1; i >= 0; i--) found = (found << 8n) | BigInt(bytes[i]);
  return found >> BigInt(8 * bytes.length - width);
}

/** Return a number that is uniform below n, by rejection. */
export function below(n, random) {
  return Number(bigBelow(BigInt(n), random));
}

/** The same for BigInt. */
export function bigBelow(n, random) {
  const width = n === 1n ? 0 : (n - 1n).toString(2).length;
  for (;;) {
    const found = width === 0 ? 0n : bits(width, random);
    if (found < n) return found;
  }
}

/** Return the decimal that a positive number prints as, as a fraction of two BigInts. */
export function asFraction(value) {
  const form = /^(\d+)(?:\.(\d+))?(?:e([+-]\d+))?$/;
  const [, whole, part = "", exponent = "0"] = form.exec(String(value));
  const places = part.length - Number(exponent);
  return [
    BigInt(whole + part) * 10n ** BigInt(Math.max(0, -places)),
    10n ** BigInt(Math.max(0, places)),
  ];
}

/** Return e^epsilon 2^128, rounded down, of the decimal that epsilon prints as. */
export function expFloor(epsilon) {
  const [top, bottom] = asFraction(epsilon);
  let [power, term] = [0n, 1n << 628n];
  for (let n = 1n; term > 0n; n++) {
    power += term;
    term = (term * top) / (bottom * n);
  }
  return power >> 500n;
}

/** Return P(a bit is flipped) by randomized response, in units of 2^-256, rounded up. */
export function flipWeight(epsilon) {
  const below = (1n << 128n) + expFloor(epsilon);
  return ((1n << 384n) + below - 1n) / below;
}

/** Return a bit after randomized response. */
export function flipped(bit, epsilon, random) {
  return bit ^ Number(bits(256, random) < flipWeight(epsilon));
}
