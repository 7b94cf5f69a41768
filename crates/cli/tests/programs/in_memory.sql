-- An in-memory database of ROWS rows (replaced by the test) of about 220 bytes: build, index, query, change, check.
PRAGMA temp_store = MEMORY;
CREATE TABLE item(id INTEGER PRIMARY KEY, key TEXT, amount INTEGER, body TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ROWS)
INSERT INTO item
SELECT i, printf('%016x', (i * 2654435761) % 4294967296 * 65537), (i * 7919) % 100003,
       printf('%0150d', (i * 40503) % 1000000007)
FROM n;
CREATE INDEX item_key ON item(key);
CREATE INDEX item_amount ON item(amount, id);
SELECT count(*), sum(amount), min(key), max(key), sum(length(body)) FROM item;
UPDATE item SET amount = amount + 1 WHERE id % 10 = 3;
DELETE FROM item WHERE id % 17 = 5;
SELECT count(*), sum(amount), sum(id * (amount % 97)) FROM item;
SELECT amount, count(*), group_concat(key) FROM (SELECT amount, key FROM item WHERE amount BETWEEN 500 AND 510 ORDER BY id) GROUP BY amount;
SELECT a.id, b.id FROM item a JOIN item b ON b.key = a.key WHERE a.id % (ROWS / 50) = 1 ORDER BY 1, 2;
PRAGMA integrity_check;
