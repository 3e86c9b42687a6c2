# needs: sqlite3
prepare() {
    {
        echo 'CREATE TABLE t(a INTEGER PRIMARY KEY, b INTEGER, c TEXT); BEGIN;'
        echo "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < $((SECONDS_LONG * 60000)))
              INSERT INTO t SELECT i, i * 7919 % 100003, hex(i * 104729) FROM n;"
        echo 'COMMIT; CREATE INDEX tb ON t(b);'
        echo 'SELECT count(*), sum(length(c)) FROM t WHERE b BETWEEN 1000 AND 60000;'
        echo 'SELECT sum(x.a * y.b) FROM t x JOIN t y ON x.b = y.a; UPDATE t SET c = c || b WHERE b % 3 = 0;'
        echo 'SELECT c, count(*) FROM t GROUP BY substr(c, 1, 3) ORDER BY 2 DESC LIMIT 3;'
    } >/tmp/work.sql
}
score() { work_done_per_second under sqlite3 :memory: '.read /tmp/work.sql'; }
