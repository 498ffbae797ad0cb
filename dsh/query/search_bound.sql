-- Where the newest hits of an index expression begin; no row if there are not more than `newest`.
-- match: expression; high: largest id; newest: number of hits
-- → id (of an event, as in search_event)
SELECT rowid FROM search WHERE search MATCH :match AND rowid <= :high ORDER BY rowid DESC LIMIT 1 OFFSET :newest
