// Objects, strings and a Map under a garbage collector. usage: objects.js COUNT
'use strict';
const count = Number(process.argv[2]);
let state = 5;
// Numbers of 32 bits (xorshift).
const next = () => {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return state >>> 0;
};
const records = [];
const byName = new Map();
for (let i = 0; i < count; i++) {
  const name = `record ${next()} of ${i}`;
  const record = { name, number: next(), parts: [i, i * 2, i * 3], seen: 0 };
  records.push(record);
  if (i % 2 === 0) byName.set(record.name, record);
  if (i % 7 === 0) records[next() % records.length] = record; // garbage
}
const names = [...byName.keys()];
let digest = 0;
for (let turn = 0; turn < count * 2; turn++) {
  const at = Math.floor(names.length * (next() / 2 ** 32) ** 8);
  const record = byName.get(names[at]);
  record.seen++;
  digest = (digest * 31 + record.number) % 1000000007;
}
records.sort((a, b) => a.number - b.number || a.parts[0] - b.parts[0]);
for (const record of records) digest = (digest * 31 + record.parts[2] + record.seen) % 1000000007;
console.log(records.length, byName.size, digest);
