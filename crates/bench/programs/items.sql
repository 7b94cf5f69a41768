-- A database in memory with @rows rows and two indexes: built, asked, changed and checked.
CREATE TABLE item(id INTEGER PRIMARY KEY, key TEXT, amount INTEGER, body TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < @rows)
INSERT INTO item
SELECT i, printf('%016x', (i * 2654435761) % 4294967296 * 65537), (i * 7919) % 100003,
       printf('%060d', (i * 40503) % 1000000007)
FROM n;
CREATE INDEX item_key ON item(key);
CREATE INDEX item_amount ON item(amount, id);
SELECT count(*), sum(amount), min(key), max(key) FROM item;
UPDATE item SET amount = amount + 1 WHERE id % 10 = 3;
DELETE FROM item WHERE id % 17 = 5;
SELECT count(*), sum(amount), sum(id * (amount % 97)) FROM item;
SELECT count(*), sum(b.amount) FROM item a JOIN item b
    ON b.key = printf('%016x', (a.id * 7 % @rows * 2654435761) % 4294967296 * 65537)
    WHERE a.id % 10 = 1;
