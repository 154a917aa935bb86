/**
 * Prints counts of what the encoders in JavaScript draw from a fixed stream, as JSON.
 *
 * Its argument has a proposal of SignDS with an update, and one of Laplace with rows.
 */

import { createCipheriv } from "node:crypto";
import * as laplace from "../../examples/javascript/laplace.mjs";
import * as signds from "../../examples/javascript/signds.mjs";

const cipher = createCipheriv("aes-256-ctr", Buffer.alloc(32, 11), Buffer.alloc(16));
let [stream, taken] = [cipher.update(Buffer.alloc(1 << 16)), 0];
function random(n) {
  if (taken + n > stream.length) [stream, taken] = [cipher.update(Buffer.alloc(1 << 16)), 0];
  taken += n;
  return stream.subarray(taken - n, taken);
}

const asked = JSON.parse(process.argv[2], (_, value) =>
  value?.int === undefined ? value : BigInt(value.int),
);
function counted(encode) {
  const found = {};
  for (let i = 0; i < asked.draws; i++) {
    const payload = Buffer.from(encode()).toString("hex");
    found[payload] = (found[payload] ?? 0) + 1;
  }
  return found;
}
const { update, row } = asked;
const selections = (given) => () => signds.encodeReport(given, update.length, asked.signds, random);
const rows = (given) => () => laplace.encodeReport(given, asked.laplace, random);
console.log(
  JSON.stringify({
    selections: counted(selections(update)),
    neutral: counted(selections(null)),
    rows: counted(rows([row])),
    centres: counted(rows(null)),
  }),
);
