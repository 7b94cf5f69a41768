// Objects, strings, maps and typed arrays under a garbage collector: heap.js MIB
const mebibytes = Number(process.argv[2]);
const crypto = require('crypto');
let state = 12345n;
const next = () => Number((state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn) >> 33n);
const count = mebibytes * 1200;
const records = [];
const byName = new Map();
for (let i = 0; i < count; i++) {
  const name = `record ${next()} of ${i} `.repeat(1 + (i % 6));
  const record = { name, number: next(), parts: [i, i * 2, i * 3], bytes: new Float64Array(16).fill(next()) };
  records.push(record);
  if (i % 3 === 0) byName.set(name, record);
  if (i % 7 === 0) records[next() % records.length] = record; // garbage
}
records.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.number - b.number));
const hash = crypto.createHash('sha256');
for (const r of records) hash.update(`${r.name}${r.number}${r.parts}${r.bytes[7]}`);
let sum = 0;
for (const r of byName.values()) sum = (sum + r.number) % 1000003;
console.log(records.length, byName.size, sum, hash.digest('hex'));
