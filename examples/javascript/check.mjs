/**
 * Holds codeword.mjs to the test vectors: node examples/javascript/check.mjs
 *
 * It says what differs and ends with 1, or says how many comparisons agree.
 */

import { readFileSync } from "node:fs";
import { ProposalError, encodeReport, expFloor, readProposal, signBits } from "./codeword.mjs";

const FOLDER = new URL("../../tests/vectors/", import.meta.url);
const vectors = (name) => JSON.parse(readFileSync(new URL(`${name}.json`, FOLDER), "utf-8"));
const hex = (bytes) => Buffer.from(bytes).toString("hex");

const READERS = {
  int: BigInt,
  float: (text) => Number({ inf: "Infinity" }[text] ?? text),
  bytes: (text) => Uint8Array.from(Buffer.from(text, "hex")),
};
const read = (typed) => {
  const [[kind, value]] = Object.entries(typed);
  return (READERS[kind] ?? ((same) => same))(value);
};
const fields = (record) =>
  Object.fromEntries(Object.entries(record).map(([name, typed]) => [name, read(typed)]));

let [right, wrong] = [0, 0];
function same(what, found, expected) {
  if (found === expected) right += 1;
  else {
    wrong += 1;
    console.error(`${what}: ${found}, expected ${expected}`);
  }
}

/** Return whether a proposal is answered, for so many entries that the largest numbers fit. */
function isAnswered(record) {
  try {
    readProposal(fields(record), 2 ** ("blocks" in record ? 20 : 24));
    return true;
  } catch (error) {
    if (error instanceof ProposalError) return false;
    throw error;
  }
}

for (const one of vectors("signs").cases) {
  same(`signs ${one.seed}`, hex(signBits(BigInt(one.seed), one.number, one.n)), one.bits);
}
const draws = vectors("codeword_draws");
for (const one of draws.powers) {
  same(`e^${one.epsilon}`, expFloor(Number(one.epsilon)).toString(16), one.power);
}
for (const one of draws.cases) {
  let left = Buffer.from(one.random, "hex");
  const random = (n) => {
    const bytes = left.subarray(0, n);
    left = left.subarray(n);
    return bytes;
  };
  const numbers = { nan: NaN, "-inf": -Infinity };
  const update = one.update && one.update.map((v) => numbers[v] ?? Number(v));
  const payload = encodeReport(update, one.d, fields(one.proposal), random);
  same(one.name, hex(payload), one.payload);
  same(`${one.name}: bytes left`, left.length, 0);
  const other = encodeReport(null, one.d, fields(one.proposal));
  same(`${one.name}: length`, other.length, payload.length);
}
const proposals = vectors("proposals");
for (const one of proposals.accepted) {
  // A projection onto a subspace is not made here: such a proposal is not answered.
  const expected = one.message === "codeword" && !("subspace-seed" in one.fields);
  same(`${one.message}, ${one.name}`, isAnswered(one.fields), expected);
}
for (const one of proposals.refused) {
  same(`${one.message}, ${one.name}`, isAnswered(one.fields), false);
}
console.log(`${right} agree, ${wrong} differ`);
process.exitCode = wrong === 0 ? 0 : 1;
