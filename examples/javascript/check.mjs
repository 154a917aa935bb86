/**
 * Holds the encoders to the test vectors: node examples/javascript/check.mjs
 *
 * It says what differs and ends with 1, or says how many comparisons agree.
 */

import { readFileSync } from "node:fs";
import * as codeword from "./codeword.mjs";
import { ProposalError, expFloor, flipWeight } from "./exact.mjs";
import * as laplace from "./laplace.mjs";
import * as signds from "./signds.mjs";

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

const READS = {
  // For so many entries that the largest numbers fit.
  codeword: (asked) => codeword.readProposal(asked, 2 ** ("blocks" in asked ? 20 : 24)),
  signds: (asked) => signds.readProposal(asked, 5000),
  laplace: laplace.readProposal,
};

/** Return whether the encoder of a message answers a proposal. */
function isAnswered(message, record) {
  try {
    READS[message](fields(record));
    return true;
  } catch (error) {
    if (error instanceof ProposalError) return false;
    throw error;
  }
}

for (const one of vectors("signs").cases) {
  same(`signs ${one.seed}`, hex(codeword.signBits(BigInt(one.seed), one.number, one.n)), one.bits);
}
const draws = vectors("codeword_draws");
for (const one of draws.powers) {
  same(`e^${one.epsilon}`, expFloor(Number(one.epsilon)).toString(16), one.power);
  same(`flip at ${one.epsilon}`, flipWeight(Number(one.epsilon)).toString(16), one.flip);
}
const numbers = { nan: NaN, "-inf": -Infinity };
const values = (given) => given && given.map((v) => numbers[v] ?? Number(v));

/** Values that throw when they are read, and so many that their length does not refuse them. */
const unreadable = (length) =>
  new Proxy([], {
    get(_, name) {
      if (name === "length") return length;
      throw new Error("nobody may hear of this");
    },
  });

/** Compare reports from given bytes, and lengths of neutral ones from the system's. */
function compare(name, sizeOf, valueOf, encode) {
  for (const one of vectors(name).cases) {
    let left = Buffer.from(one.random, "hex");
    const random = (n) => {
      const bytes = left.subarray(0, n);
      left = left.subarray(n);
      return bytes;
    };
    const payload = encode(valueOf(one), one, random);
    same(one.name, hex(payload), one.payload);
    same(`${one.name}: bytes left`, left.length, 0);
    for (const given of [null, unreadable(sizeOf(one)), unreadable(NaN)]) {
      same(`${one.name}: length`, encode(given, one).length, payload.length);
    }
  }
}
for (const [name, { encodeReport }] of [["codeword", codeword], ["signds", signds]]) {
  compare(
    `${name}_draws`,
    (one) => one.d,
    (one) => values(one.update),
    (given, one, random) => encodeReport(given, one.d, fields(one.proposal), random),
  );
}
for (const one of vectors("signds_draws").cases) {
  const asked = signds.readProposal(fields(one.proposal), one.d);
  same(`${one.name}: top set`, asked.top, one.top);
  same(`${one.name}: threshold`, asked.threshold, one.threshold);
  same(`${one.name}: weights`, asked.weights.map((w) => w.toString(16)).join(), one.weights.join());
}
compare(
  "laplace_draws",
  (one) => Number(one.proposal.rows.int),
  (one) => one.rows && one.rows.map(values),
  (given, one, random) => laplace.encodeReport(given, fields(one.proposal), random),
);
// The text of a list of names, as Python writes it, has at most 49,152 characters.
for (const [end, expected] of [["xx", true], ["xxx", false]]) {
  const { proposal } = vectors("codeword_draws").cases[0];
  const asked = { ...proposal, trainable: { "list of str": ["é".repeat(8191) + end] } };
  same(`names ending with ${end}`, isAnswered("codeword", asked), expected);
}
const proposals = vectors("proposals");
/** Fields that an encoder does not answer: subspaces, h by the published rule, metrics. */
const NOT_HERE = ["subspace-seed", "metric-names"];
for (const one of proposals.accepted) {
  const isHere = one.fields["dim-out"]?.int !== "0" && !NOT_HERE.some((key) => key in one.fields);
  for (const name of Object.keys(READS)) {
    const expected = isHere && one.fields.mechanism?.str === name;
    same(`${one.message}, ${one.name}, ${name}`, isAnswered(name, one.fields), expected);
  }
}
for (const one of proposals.refused) {
  for (const name of Object.keys(READS)) {
    same(`${one.message}, ${one.name}, ${name}`, isAnswered(name, one.fields), false);
  }
}
console.log(`${right} agree, ${wrong} differ`);
process.exitCode = wrong === 0 ? 0 : 1;
